// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/models/json_text.h"

#include <gtest/gtest.h>

namespace djinn::client {
namespace {

std::string nested(int lists) {
  const auto count = static_cast<size_t>(lists);
  return std::string(count, '[') + std::string(count, ']');
}

TEST(JsonText, json_is_read_and_what_is_none_is_discarded) {
  EXPECT_EQ(parse_json(R"({"a": [1, {"b": null}], "c": "d"})").dump(),
            R"({"a":[1,{"b":null}],"c":"d"})");
  for (const char* const text : {"", "{", "[1,]", "nothing", "{\"a\": 1} 2", "\"\xff\""}) {
    EXPECT_TRUE(parse_json(text).is_discarded()) << text;
  }
}

TEST(JsonText, nesting_is_bounded_however_it_goes_on) {
  EXPECT_EQ(parse_json(nested(kJsonDepthMax)).dump(), nested(kJsonDepthMax));
  EXPECT_TRUE(parse_json(nested(kJsonDepthMax + 1)).is_discarded());
  EXPECT_TRUE(parse_json(nested(1'000'000)).is_discarded());
  EXPECT_TRUE(parse_json("{\"a\": 1, \"b\": " + nested(1'000'000) + "}").is_discarded());
  EXPECT_TRUE(parse_json(std::string(1'000'000, '[')).is_discarded());
}

TEST(JsonText, ci_once_as_many_values_are_read_as_bundles_may_have_and_no_more) {
  const auto of_values = [](size_t count) {
    std::string text = "[";
    for (size_t i = 1; i < count; ++i) text += "0,";
    text.back() = ']';
    return text;
  };
  EXPECT_EQ(parse_json(of_values(kJsonValuesMax)).size(), kJsonValuesMax - 1);
  EXPECT_TRUE(parse_json(of_values(kJsonValuesMax + 1)).is_discarded());
}

}  // namespace
}  // namespace djinn::client
