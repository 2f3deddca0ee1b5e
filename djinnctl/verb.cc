// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/verb.h"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <utility>

namespace djinn::ctl {

Option Option::required() const {
  option_->required();
  return *this;
}

Option Option::called(const std::string& word) const {
  option_->type_name(word);
  return *this;
}

Option Option::one_of(std::vector<std::string> values) const {
  option_->check(CLI::IsMember(std::move(values)));
  return *this;
}

template <typename T>
Option Option::between(T least, T most) const {
  option_->check(CLI::Range(least, most));
  return *this;
}
template Option Option::between(double, double) const;
template Option Option::between(uint32_t, uint32_t) const;

Option Option::positive() const {
  option_->check(CLI::PositiveNumber);
  return *this;
}

Option Option::checked(std::function<std::string(const std::string&)> fault) const {
  option_->check(std::move(fault));
  return *this;
}

Option Option::excludes(const Option& other) const {
  option_->excludes(other.option_);
  return *this;
}

Option Option::when(std::function<void()> given) const {
  option_->each([given = std::move(given)](const std::string&) { given(); });
  return *this;
}

Verb Verb::verb(const std::string& name, const std::string& what) const {
  verb_->require_subcommand(1);
  return {*verb_->add_subcommand(name, what), *action_};
}

template <typename T>
Option Verb::option(const std::string& names, T& value, const std::string& what) const {
  return Option(*verb_->add_option(names, value, what));
}
template Option Verb::option(const std::string&, std::string&, const std::string&) const;
template Option Verb::option(const std::string&, std::vector<std::string>&,
                             const std::string&) const;
template Option Verb::option(const std::string&, double&, const std::string&) const;
template Option Verb::option(const std::string&, float&, const std::string&) const;
template Option Verb::option(const std::string&, uint32_t&, const std::string&) const;
template Option Verb::option(const std::string&, uint64_t&, const std::string&) const;

Option Verb::flag(const std::string& names, bool& value, const std::string& what) const {
  return Option(*verb_->add_flag(names, value, what));
}

Option Verb::flag(const std::string& name, std::string& value, const std::string& unsaid,
                  const std::string& what) const {
  return Option(*verb_->add_flag(name + '{' + unsaid + '}', value, what));
}

void Verb::does(Action action) const {
  verb_->callback([to = action_, action = std::move(action)] { *to = action; });
}

void Verb::hide() const {
  verb_->group("");
}

}  // namespace djinn::ctl
