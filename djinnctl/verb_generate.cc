// SPDX-License-Identifier: Apache-2.0

// djinnctl generate DIR --prompt TEXT streams what a model says, exported or of type llama, by its
// tokenizer.json or in bytes; and with --tokens IDS its ids.
#include <unistd.h>

#include <algorithm>

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
  std::string service_class;
  std::string prompt;
  bool has_prompt = false;
  std::string tokens;  // in place of a prompt; what is said is written as tokens, too
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
  if (!command.has_prompt) {
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

Result<std::vector<int32_t>> prompt_of(const client::Generator& generator,
                                       const GenerateCommand& command) {
  if (command.is_of_tokens()) return tokens_from(command.tokens);
  if (command.tokenizer) {
    return command.tokenizer->encode(command.prompt, text::SpecialTokens::kWith);
  }
  const uint32_t vocabulary = generator.sizes().vocabulary;
  if (vocabulary == kByteVocabulary) return byte_tokens(command.prompt, generator.begin_token());
  return no_tokenizer("has none, and a vocabulary of " + std::to_string(vocabulary) +
                      " in place of 258");
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

std::vector<int32_t> end_tokens(const client::Generator& generator) {
  const std::vector<int64_t>& tokens = generator.end_tokens();
  return {tokens.begin(), tokens.end()};
}

// Writes what is said to stdout as it comes, and a newline at the end.
Status stream(client::Generator& generator, const GenerateCommand& command,
              const std::vector<int32_t>& prompt) {
  const bool terminal = out_is_terminal();
  Harmless harmless;
  Said said(command);
  const auto write_text = [&](const std::string& text) {
    if (!terminal) return write_out(text);
    std::string shown;
    for (const char byte : text) shown += harmless.next(byte);
    return write_out(shown);
  };
  Status written;
  const auto show = [&](const client::TokenEvent& event) {
    written = command.is_of_tokens()
                  ? write_out((event.index == 0 ? "" : " ") + std::to_string(event.token))
                  : write_text(said.next(event.token));
    return written.ok();
  };
  const auto generated = generator.generate({prompt}, command.options, show);
  if (!generated) return generated.error();
  if (!written) return written;
  if (!command.is_of_tokens()) DJINN_CHECK(write_text(said.finish()));
  return write_out("\n");
}

Status print_whole(const Invocation& invocation, client::Generator& generator,
                   const GenerateCommand& command, const std::vector<int32_t>& prompt) {
  DJINN_TRY(const auto generated, generator.generate({prompt}, command.options));
  std::string text;
  if (!command.is_of_tokens()) {
    Said said(command);
    for (const int32_t token : generated.tokens.front()) text += said.next(token);
    text += said.finish();
  }
  const Json item{{"prompt", command.prompt},
                  {"text", text},
                  {"prompt_tokens", prompt},
                  {"tokens", generated.tokens.front()},
                  {"random_offset", generated.random_offset}};
  return print_json(invocation, "generate", {item});
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
  DJINN_TRY(const auto prompt, prompt_of(*generator, command));
  command.options.stop_tokens = end_tokens(*generator);
  if (command.options.temperature == 0) {
    command.options.greedy = true;
    command.options.temperature = 1;
  }
  if (invocation.wants_json()) return print_whole(invocation, *generator, command, prompt);
  return stream(*generator, command, prompt);
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
  const Option prompt = verb.option("--prompt", command->prompt, "what it goes on from")
                            .called("TEXT")
                            .when([command] { command->has_prompt = true; });
  verb.option("--tokens", command->tokens,
              "what it goes on from, and what it says, as ids like 9906,1917")
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
  verb.option("--numerics", command->numerics, "how it is computed [as djinnd's lane.numerics]")
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
