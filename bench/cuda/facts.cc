// SPDX-License-Identifier: Apache-2.0
#include "bench/cuda/facts.h"

#include <fmt/format.h>

#include <cstdio>

namespace djinn::bench::cuda {

void say(std::string_view name, const nlohmann::json& value, std::string_view unit,
         std::string_view detail) {
  nlohmann::json line = {{"name", name}, {"value", value}};
  if (!unit.empty()) line["unit"] = unit;
  if (!detail.empty()) line["detail"] = detail;
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

}  // namespace djinn::bench::cuda
