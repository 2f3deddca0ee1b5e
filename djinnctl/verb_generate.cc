// SPDX-License-Identifier: Apache-2.0

// djinnctl generate MODEL_DIR --prompt TEXT streams what a byte-level model says.
#include <unistd.h>

#include <algorithm>

#include "djinnctl/byte_tokens.h"
#include "djinnctl/command_line.h"
#include "djinnctl/json.h"
#include "djinnctl/output.h"
#include "djinnctl/text.h"
#include "libdjinn-client/models/generator.h"
#include "libdjinn-client/models/keys.h"

namespace djinn::ctl {
namespace {

struct GenerateCommand {
  std::string directory;
  std::string device;
  std::string prompt;
  std::string numerics;
  uint64_t begin_within_ms = 0;
  client::GenerateOptions options;
};

Result<std::unique_ptr<client::Generator>> open_generator(client::Client& client,
                                                          const GenerateCommand& command) {
  std::optional<srg::Numerics> numerics;
  if (!command.numerics.empty()) {
    DJINN_TRY(numerics, client::numerics_named(command.numerics));
  }
  DJINN_TRY(auto generator, client::Generator::open(client, command.directory, numerics));
  if (generator->config().vocabulary != kByteVocabulary) {
    return Error{ErrorCode::kUnsupported,
                 "djinnctl knows byte-level models only: a vocabulary of 258, and this one has " +
                     std::to_string(generator->config().vocabulary) + ". Use the Python package."};
  }
  return generator;
}

std::vector<int32_t> end_tokens(const client::Generator& generator) {
  const std::vector<int64_t>& tokens = generator.end_tokens();
  return {tokens.begin(), tokens.end()};
}

// Writes tokens to stdout as they come, and a newline at the end.
Status stream(client::Generator& generator, const GenerateCommand& command) {
  const bool terminal = out_is_terminal();
  Harmless harmless;
  Status written;
  const auto show = [&](const client::TokenEvent& event) {
    if (const auto byte = byte_of(event.token)) {
      written = write_out(terminal ? harmless.next(*byte) : std::string(1, *byte));
    }
    return written.ok();
  };
  const auto prompt = byte_tokens(command.prompt, generator.begin_token());
  const auto generated = generator.generate({prompt}, command.options, show);
  if (!generated) return generated.error();
  if (!written) return written;
  return write_out("\n");
}

Status print_whole(const Invocation& invocation, client::Generator& generator,
                   const GenerateCommand& command) {
  const auto prompt = byte_tokens(command.prompt, generator.begin_token());
  DJINN_TRY(const auto generated, generator.generate({prompt}, command.options));
  std::string text;
  for (const int32_t token : generated.tokens.front()) {
    if (const auto byte = byte_of(token)) text.push_back(*byte);
  }
  const Json item{{"prompt", command.prompt},
                  {"text", text},
                  {"tokens", generated.tokens.front()},
                  {"random_offset", generated.random_offset}};
  return print_json(invocation, "generate", {item});
}

Status generate(const Invocation& invocation, GenerateCommand command) {
  DJINN_CHECK(check_has_no_tokenizer(command.directory));
  DJINN_TRY(const auto client, attach(invocation, command.device));
  DJINN_TRY(const auto generator, open_generator(*client, command));
  client->set_begin_within_ms(command.begin_within_ms);
  const std::string note = client::tell_unknown(generator->unknown_keys());
  if (!note.empty() && !invocation.quiet) {
    write_error("djinnctl: " + sentence_for(terminal_of(STDERR_FILENO), note) + "\n");
  }
  command.options.stop_tokens = end_tokens(*generator);
  if (command.options.temperature == 0) {
    command.options.greedy = true;
    command.options.temperature = 1;
  }
  if (invocation.wants_json()) return print_whole(invocation, *generator, command);
  return stream(*generator, command);
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
  const Verb verb = line.verb("generate", "stream what a byte-level model says");
  auto command = std::make_shared<GenerateCommand>();
  client::GenerateOptions& options = command->options;
  verb.option("MODEL_DIR", command->directory, "directory of a Hugging Face model").required();
  verb.option("--prompt", command->prompt, "what it goes on from").required();
  verb.option("--max-new-tokens", options.max_new_tokens, "at most so many [64]")
      .called("N")
      .between(uint32_t{1}, uint32_t{1} << 20);
  verb.option("--repetition-penalty", options.repetition_penalty,
              "divides what was said before [1]")
      .called("R")
      .positive();
  verb.option("--device", command->device, "where it runs, as 'djinnctl devices' says [the first]")
      .called("NAME");
  verb.option("--numerics", command->numerics, "how it is computed [as djinnd's lane.numerics]")
      .called("NAME")
      .one_of({"exact", "fast", "fast-only"});
  verb.option("--begin-within", command->begin_within_ms,
              "exit with 75 where it would wait longer [wait]")
      .called("MS")
      .positive();
  add_sampling(verb, options);
  verb.does([command](const Invocation& invocation) { return generate(invocation, *command); });
}

}  // namespace djinn::ctl
