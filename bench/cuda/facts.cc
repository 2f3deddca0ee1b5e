// SPDX-License-Identifier: Apache-2.0
#include "bench/cuda/facts.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <exception>

namespace djinn::bench::cuda {

void say(std::string_view name, const nlohmann::json& value, std::string_view unit,
         std::string_view detail) {
  nlohmann::json line = {{"name", name}, {"value", value}};
  if (!unit.empty()) line["unit"] = unit;
  if (!detail.empty()) line["detail"] = detail;
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

void attempt(std::string_view what, const std::function<void()>& part) {
  try {
    part();
  } catch (const std::exception& error) {
    say(fmt::format("broken off: {}", what), error.what());
  }
}

double timed_us(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

}  // namespace djinn::bench::cuda
