// SPDX-License-Identifier: Apache-2.0

// JSON that anybody may have written, read from text.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace djinn::client {

// How many lists and objects may be inside of each other; configurations and bundles have less than
// a dozen. What writes or compares JSON calls itself for each.
inline constexpr int kJsonDepthMax = 64;

// How many values, keys, lists and objects may be there in all: a bundle of five large programs has
// a tenth. Each takes up to a hundred bytes, so a file of empty lists would take twenty times its
// size.
inline constexpr size_t kJsonValuesMax = size_t{8} << 20;

// A value that is_discarded(), which is of no kind, for what is no JSON, for what is nested deeper
// than kJsonDepthMax and for what has more than kJsonValuesMax. Any thread.
[[nodiscard]] nlohmann::json parse_json(const std::string& text);

}  // namespace djinn::client
