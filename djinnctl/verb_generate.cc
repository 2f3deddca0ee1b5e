// SPDX-License-Identifier: Apache-2.0

// djinnctl generate DIR --prompt TEXT streams what a model says, exported or of type llama, by its
// tokenizer.json or in bytes; and with --tokens IDS its ids. Of several of either, each on lines of
// its own, in the order that they were given in.
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "djinnctl/byte_tokens.h"
#include "djinnctl/command_line.h"
#include "djinnctl/json.h"
#include "djinnctl/output.h"
#include "djinnctl/text.h"
#include "kernel/base/schedule.h"
#include "libdjinn-client/models/generator.h"
#include "libdjinn-client/models/keys.h"
#include "libdjinn-client/models/vocabulary.h"

namespace djinn::ctl {
namespace {

struct GenerateCommand {
  std::string directory;
  std::string device;
  std::string service_class{name_of(ServiceClass::kNormal)};
  std::vector<std::string> prompts;
  std::vector<std::string> tokens;  // in place of prompts; what is said is written as tokens, too
  std::string numerics;
  std::string weights;
  uint64_t begin_within_ms = 0;
  client::GenerateOptions options;
  std::optional<text::Tokenizer> tokenizer;  // the directory's; none: tokens are bytes

  [[nodiscard]] bool is_of_tokens() const { return !tokens.empty(); }
};

Result<std::unique_ptr<client::Generator>> open_generator(client::Client& client,
                                                          const GenerateCommand& command) {
  client::ModelOptions options;
  if (!command.numerics.empty()) {
    DJINN_TRY(options.numerics, client::numerics_named(command.numerics));
  }
  if (!command.weights.empty()) {
    DJINN_TRY(options.matrices, client::weights_named(command.weights));
  }
  return client::Generator::open(client, command.directory, options);
}

Error giving_tokens_instead(const Error& error) {
  return {error.code, error.message + " Or give the tokens: --tokens 9906,1917."};
}

Error no_tokenizer(const std::string& why) {
  return giving_tokens_instead({ErrorCode::kUnsupported,
                                "djinnctl makes tokens of text by a tokenizer.json, and for "
                                "byte-level models. This one " +
                                    why + "."});
}

// What can be said before djinnd is asked.
Status prepare(GenerateCommand& command) {
  if (command.is_of_tokens()) return {};
  if (command.prompts.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 "generate needs --prompt or --tokens. 'djinnctl generate --help' says more."};
  }
  switch (tokenizer_in(command.directory)) {
    case TokenizerFile::kNone:
      return {};
    case TokenizerFile::kOther:
      return no_tokenizer("has a tokenizer in another file");
    case TokenizerFile::kJson:
      break;
  }
  auto tokenizer = client::open_tokenizer(command.directory);
  if (!tokenizer) return giving_tokens_instead(tokenizer.error());
  command.tokenizer = std::move(*tokenizer);
  return {};
}

using Tokens = std::vector<int32_t>;
using Prompts = std::vector<Tokens>;

Result<Tokens> tokens_of(const client::Generator& generator, const GenerateCommand& command,
                         const std::string& prompt) {
  if (command.tokenizer) return command.tokenizer->encode(prompt, text::SpecialTokens::kWith);
  const uint32_t vocabulary = generator.sizes().vocabulary;
  if (vocabulary == kByteVocabulary) return byte_tokens(prompt, generator.begin_token());
  return no_tokenizer("has none, and a vocabulary of " + std::to_string(vocabulary) +
                      " in place of 258");
}

Result<Prompts> prompts_of(const client::Generator& generator, const GenerateCommand& command) {
  Prompts prompts;
  for (const std::string& ids : command.tokens) {
    DJINN_TRY(Tokens tokens, tokens_from(ids));
    prompts.push_back(std::move(tokens));
  }
  for (const std::string& prompt : command.prompts) {
    DJINN_TRY(Tokens tokens, tokens_of(generator, command, prompt));
    prompts.push_back(std::move(tokens));
  }
  return prompts;
}

// What the model says, as text: by its tokenizer, or byte by byte.
class Said {
 public:
  explicit Said(const GenerateCommand& command) {
    if (command.tokenizer) {
      stream_ = command.tokenizer->stream(text::SpecialTokens::kWithout);
    }
  }

  std::string next(int32_t token) {
    if (stream_) return stream_->next(token);
    const auto byte = byte_of(token);
    return byte ? std::string(1, *byte) : std::string();
  }
  // What waited for a token that did not come.
  std::string finish() { return stream_ ? stream_->finish() : std::string(); }

 private:
  std::optional<text::Tokenizer::Stream> stream_;
};

// Writes what is said to stdout, one row after the other: of the first that has not ended as it
// comes, of those behind it when it has. A row has a newline at its end.
class SaidRows {
 public:
  SaidRows(const GenerateCommand& command, size_t count)
      : command_(command), terminal_(out_is_terminal()) {
    for (size_t i = 0; i < count; ++i) rows_.emplace_back(command);
  }

  Status next(const client::TokenEvent& event) {
    const std::vector<int32_t>& stops = command_.options.stop_tokens;
    Row& row = rows_.at(event.row);
    if (!command_.is_of_tokens()) {
      row.waits += row.said.next(event.token);
    } else {
      row.waits += (event.index == 0 ? "" : " ") + std::to_string(event.token);
    }
    const bool is_last = event.index + 1 == command_.options.max_new_tokens;
    if (is_last || std::ranges::find(stops, event.token) != stops.end()) end(row);
    return write();
  }
  Status finish() {
    for (Row& row : rows_) end(row);
    return write();
  }

 private:
  struct Row {
    explicit Row(const GenerateCommand& command) : said(command) {}

    Said said;
    Harmless harmless;  // what one row leaves unfinished is not the next one's to finish
    std::string waits;
    bool has_ended = false;
  };

  void end(Row& row) const {
    if (row.has_ended) return;
    if (!command_.is_of_tokens()) row.waits += row.said.finish();
    row.has_ended = true;
  }
  Status write() {
    for (; at_ < rows_.size(); ++at_) {
      Row& row = rows_[at_];
      DJINN_CHECK(write_waiting(row));
      if (!row.has_ended) return {};
      DJINN_CHECK(write_out("\n"));
    }
    return {};
  }
  Status write_waiting(Row& row) const {
    const std::string text = std::exchange(row.waits, {});
    if (!terminal_) return write_out(text);
    std::string shown;
    for (const char byte : text) shown += row.harmless.next(byte);
    return write_out(shown);
  }

  const GenerateCommand& command_;
  const bool terminal_;
  std::vector<Row> rows_;
  size_t at_ = 0;  // those before it are written
};

std::vector<int32_t> end_tokens(const client::Generator& generator) {
  const std::vector<int64_t>& tokens = generator.end_tokens();
  return {tokens.begin(), tokens.end()};
}

Status stream(client::Generator& generator, const GenerateCommand& command,
              const Prompts& prompts) {
  SaidRows rows(command, prompts.size());
  Status written;
  const auto show = [&](const client::TokenEvent& event) {
    written = rows.next(event);
    return written.ok();
  };
  DJINN_TRY(const auto generated, generator.generate(prompts, command.options, show));
  DJINN_CHECK(written);
  DJINN_CHECK(rows.finish());
  return generated.failed_row() ? Status(generated.failure()) : Status();
}

Status print_whole(const Invocation& invocation, client::Generator& generator,
                   const GenerateCommand& command, const Prompts& prompts) {
  DJINN_TRY(const auto generated, generator.generate(prompts, command.options));
  std::vector<Json> items;
  for (size_t row = 0; row < prompts.size(); ++row) {
    const Error* const error =
        generated.errors.empty() || !generated.errors[row] ? nullptr : &*generated.errors[row];
    std::string text;
    if (!command.is_of_tokens()) {
      Said said(command);
      for (const int32_t token : generated.tokens[row]) text += said.next(token);
      text += said.finish();
    }
    items.push_back({{"prompt", command.is_of_tokens() ? "" : command.prompts[row]},
                     {"text", text},
                     {"prompt_tokens", prompts[row]},
                     {"tokens", generated.tokens[row]},
                     {"random_offset", generated.random_offset},
                     {"error", error == nullptr ? Json() : Json(name_of(error->code))},
                     {"message", error == nullptr ? Json() : Json(error->message)}});
  }
  DJINN_CHECK(print_json(invocation, "generate", std::move(items)));
  return generated.failed_row() ? Status(generated.failure()) : Status();
}

Status generate(const Invocation& invocation, GenerateCommand& command) {
  DJINN_CHECK(prepare(command));
  DJINN_TRY(const auto client, attach(invocation, command.device, command.service_class));
  DJINN_TRY(const auto generator, open_generator(*client, command));
  client->set_begin_within_ms(command.begin_within_ms);
  const std::string note = client::tell_unknown(generator->unknown_keys());
  if (!note.empty() && !invocation.quiet) {
    write_error("djinnctl: " + sentence_for(terminal_of(STDERR_FILENO), note) + "\n");
  }
  DJINN_TRY(const Prompts prompts, prompts_of(*generator, command));
  command.options.stop_tokens = end_tokens(*generator);
  if (command.options.temperature == 0) {
    command.options.greedy = true;
    command.options.temperature = 1;
  }
  if (invocation.wants_json()) return print_whole(invocation, *generator, command, prompts);
  return stream(*generator, command, prompts);
}

// A temperature or another of these options makes the generation draw tokens. Without any, the
// likeliest token is taken.
void add_sampling(const Verb& verb, client::GenerateOptions& options) {
  const Option greedy =
      verb.flag("--greedy", options.greedy, "take the likeliest token [unless sampling]");
  const auto sampling = [&](const Option& option) {
    option.excludes(greedy).when([&options] { options.greedy = false; });
  };
  sampling(verb.option("--temperature", options.temperature, "flattens above 1; 0 is --greedy [1]")
               .called("T")
               .not_negative());
  sampling(verb.option("--top-k", options.top_k, "draw from so many likeliest [all]").called("K"));
  sampling(verb.option("--top-p", options.top_p, "draw from so much probability [1]")
               .called("P")
               .between(0.0, 1.0));
  sampling(verb.option("--min-p", options.min_p, "drop what is so much less likely [0]")
               .called("P")
               .between(0.0, 1.0));
  sampling(verb.option("--seed", options.seed, "of the draws [0]").called("N"));
}

}  // namespace

void add_generate(CommandLine& line) {
  const Verb verb = line.verb("generate", "stream what a model says");
  auto command = std::make_shared<GenerateCommand>();
  client::GenerateOptions& options = command->options;
  verb.option("MODEL_DIR", command->directory,
              "what 'python3 -m djinn export' wrote to, or a Llama")
      .required();
  const Option prompt =
      verb.repeated("--prompt", command->prompts, "what it goes on from; several: each by itself")
          .called("TEXT");
  verb.repeated("--tokens", command->tokens,
                "what it goes on from, and what it says, as ids like 9906,1917; several likewise")
      .called("IDS")
      .checked([](const std::string& text) {
        const auto tokens = tokens_from(text);
        return tokens ? std::string() : tokens.error().message;
      })
      .excludes(prompt);
  verb.option("--max-new-tokens", options.max_new_tokens, "at most so many [64]")
      .called("N")
      .between(uint32_t{1}, uint32_t{1} << 20);
  verb.option("--repetition-penalty", options.repetition_penalty,
              "divides what was said before [1]")
      .called("R")
      .positive();
  verb.option("--device", command->device, "where it runs, as 'djinnctl devices' says [the first]")
      .called("NAME");
  verb.option("--class", command->service_class,
              "its share of a busy lane: interactive, normal, batch or idle [normal]")
      .called("CLASS")
      .one_of({kServiceClassNames.begin(), kServiceClassNames.end()});
  verb.option("--numerics", command->numerics,
              "how it is computed [as 'load' said, or djinnd's lane.numerics]")
      .called("NAME")
      .one_of({"exact", "fast", "fast-only"});
  verb.option("--weights", command->weights,
              "form of matrices: int8, computed in fast numerics [as the files have them]")
      .called("FORM")
      .one_of({"int8"});
  verb.option("--begin-within", command->begin_within_ms,
              "exit with 75 where it would wait longer [wait]")
      .called("MS")
      .positive();
  add_sampling(verb, options);
  verb.does([command](const Invocation& invocation) { return generate(invocation, *command); });
}

}  // namespace djinn::ctl
