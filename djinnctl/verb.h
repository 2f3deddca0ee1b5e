// SPDX-License-Identifier: Apache-2.0

// Verb: what the command line says of a verb, while the program starts. The parser behind it is
// seen by command_line.cc, help.cc, verb.cc and verb_completion.cc alone: it is all headers, and
// costs each file that includes it ten seconds.
//
//   Verb     a word after djinnctl, with what may follow it
//   Option   one of those; its value is in the variable that it was given once the verb runs
//
// Both are handles, valid as long as the parser. Variables must live until the verb has run.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "djinnctl/json.h"
#include "djinnctl/table.h"
#include "libdjinn-client/client.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace djinn::ctl {

// What all verbs share: where djinnd is, how to print.
struct Invocation {
  std::string host;  // as --host gives it
  JsonStyle json = JsonStyle::kOff;
  Table::Layout layout;
  bool quiet = false;       // nothing on stderr: the exit code tells
  uint64_t timeout_ms = 0;  // of the whole command; 0: none
  [[nodiscard]] bool wants_json() const { return json != JsonStyle::kOff; }
};

// What a verb does once its options are known; its Error ends the process.
using Action = std::function<Status(const Invocation&)>;

class Option {
 public:
  explicit Option(CLI::Option& option) : option_(&option) {}

  Option required() const;
  // What help calls its value: "TIME".
  Option called(const std::string& word) const;
  Option one_of(std::vector<std::string> values) const;
  // T: of the bounds, double or uint32_t.
  template <typename T>
  Option between(T least, T most) const;
  Option positive() const;
  Option not_negative() const;
  // fault: what is wrong with the text; empty if nothing is.
  Option checked(std::function<std::string(const std::string& text)> fault) const;
  Option excludes(const Option& other) const;
  // given: called if it is on the command line.
  Option when(std::function<void()> given) const;

 private:
  CLI::Option* option_;
};

class Verb {
 public:
  // action: of the verb that is on the command line.
  Verb(CLI::App& verb, Action& action) : verb_(&verb), action_(&action) {}

  // A word after this one; one of them must follow, unless this one does_alone() something.
  Verb verb(const std::string& name, const std::string& what) const;
  // names: "-n,--name" or, of what stands without a name, "NAME". T: a string, strings, or a
  // number: double, float, uint32_t or uint64_t.
  template <typename T>
  Option option(const std::string& names, T& value, const std::string& what) const;
  // One with a value, which may be there several times, each with one more.
  Option repeated(const std::string& name, std::vector<std::string>& values,
                  const std::string& what) const;
  Option flag(const std::string& names, bool& value, const std::string& what) const;
  // One that may have a value, as --name VALUE or --name=VALUE. unsaid: what value becomes where it
  // has none.
  Option optional(const std::string& name, std::string& value, const std::string& unsaid,
                  const std::string& what) const;

  void does(Action action) const;
  // Where none of its words follows, which were added before.
  void does_alone(Action action) const;
  // options: of this verb, which it keeps.
  template <typename Options>
  void does(std::shared_ptr<Options> options,
            Status (*action)(const Invocation&, const Options&)) const {
    does([options = std::move(options), action](const Invocation& invocation) {
      return action(invocation, *options);
    });
  }
  // Neither help nor completion shows it.
  void hide() const;

 private:
  CLI::App* verb_;
  Action* action_;
};

}  // namespace djinn::ctl
