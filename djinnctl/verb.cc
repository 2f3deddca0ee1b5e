// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/verb.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace djinn::ctl {
namespace {

// Gives the number that the whole text is; nothing if it is none.
template <typename T>
std::optional<T> number_of(const std::string& text) {
  T number{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && rest == end ? std::optional(number) : std::nullopt;
}

// Gives "exact, fast or fast-only". Precondition: there is one.
std::string alternatives(std::span<const std::string> values) {
  const std::string& last = values.back();
  if (values.size() == 1) return last;
  return fmt::format("{} or {}", fmt::join(values.first(values.size() - 1), ", "), last);
}

bool is_finite(const std::optional<double>& number) {
  return number && std::isfinite(*number);
}

}  // namespace

Option Option::required() const {
  option_->required();
  return *this;
}

Option Option::called(const std::string& word) const {
  option_->type_name(word);
  return *this;
}

Option Option::one_of(std::vector<std::string> values) const {
  const std::string listed = fmt::format("{{{}}}", fmt::join(values, ","));
  option_->check(
      [values = std::move(values)](const std::string& text) {
        const bool is_one = std::ranges::find(values, text) != values.end();
        return is_one ? std::string() : fmt::format("'{}' is not {}.", text, alternatives(values));
      },
      listed);  // help and completion show it
  return *this;
}

template <typename T>
Option Option::between(T least, T most) const {
  option_->check([least, most](const std::string& text) {
    const auto number = number_of<T>(text);
    const bool is_one = number && *number >= least && *number <= most;
    return is_one ? std::string()
                  : fmt::format("'{}' is no number from {} to {}.", text, least, most);
  });
  return *this;
}
template Option Option::between(double, double) const;
template Option Option::between(uint32_t, uint32_t) const;

Option Option::positive() const {
  option_->check([](const std::string& text) {
    const auto number = number_of<double>(text);
    return is_finite(number) && *number > 0 ? std::string()
                                            : fmt::format("'{}' is no number above 0.", text);
  });
  return *this;
}

Option Option::not_negative() const {
  option_->check([](const std::string& text) {
    const auto number = number_of<double>(text);
    return is_finite(number) && *number >= 0 ? std::string()
                                             : fmt::format("'{}' is no number from 0 on.", text);
  });
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
  CLI::App* const inner = verb_->add_subcommand(name, what);
  inner->group("Verbs");
  return {*inner, *action_};
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

Option Verb::repeated(const std::string& name, std::vector<std::string>& values,
                      const std::string& what) const {
  return Option(*verb_->add_option(name, values, what)->allow_extra_args(false));
}

Option Verb::flag(const std::string& names, bool& value, const std::string& what) const {
  return Option(*verb_->add_flag(names, value, what));
}

Option Verb::optional(const std::string& name, std::string& value, const std::string& unsaid,
                      const std::string& what) const {
  return Option(*verb_->add_option(name, value, what)->expected(0, 1)->default_str(unsaid));
}

void Verb::does(Action action) const {
  verb_->callback([to = action_, action = std::move(action)] { *to = action; });
}

void Verb::does_alone(Action action) const {
  verb_->require_subcommand(0, 1);
  // The parser calls back for the word first, and then for the verb before it.
  verb_->callback([to = action_, verb = verb_, action = std::move(action)] {
    if (verb->get_subcommands().empty()) *to = action;
  });
}

void Verb::hide() const {
  verb_->group("");
}

}  // namespace djinn::ctl
