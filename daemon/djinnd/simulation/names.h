// SPDX-License-Identifier: Apache-2.0

// What messages are called in the lines that tell what happened: as their structs.
#pragma once

#include <string_view>
#include <variant>

namespace djinn::daemon::simulation {

// "Attached" of an ipc::Attached, from what the compiler calls this function.
template <typename T>
constexpr std::string_view name_of_type() {
  const std::string_view function = __PRETTY_FUNCTION__;
  const size_t end = function.find_first_of(";]", function.find("T = "));
  const size_t begin = function.rfind(':', end) + 1;
  return function.substr(begin, end - begin);
}

template <typename... Bodies>
std::string_view name_of_body(const std::variant<Bodies...>& body) {
  return std::visit([]<typename T>(const T&) { return name_of_type<T>(); }, body);
}

}  // namespace djinn::daemon::simulation
