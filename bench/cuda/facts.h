// SPDX-License-Identifier: Apache-2.0

// What a stage of bench/cuda says: one line of JSON on stdout for each thing that it learned, at
// once, so that a stage which is killed at its limit has told all that it knew by then.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>

namespace djinn::bench::cuda {

// value: a number, a boolean or a text. unit: "GB/s", "us"; empty for none. detail: a sentence for
// people; empty for none.
void say(std::string_view name, const nlohmann::json& value, std::string_view unit = {},
         std::string_view detail = {});

// Runs one part of a stage. What breaks it off is a fact too, and the next part is still asked.
void attempt(std::string_view what, const std::function<void()>& part);

// Microseconds that the work took.
[[nodiscard]] double timed_us(const std::function<void()>& work);

// The exit status of a stage that cannot measure here; the reason is its last line on stderr.
inline constexpr int kNotHere = 77;

}  // namespace djinn::bench::cuda
