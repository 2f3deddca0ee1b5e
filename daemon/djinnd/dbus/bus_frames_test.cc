// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/dbus/bus_frames.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace djinn::daemon {
namespace {

constexpr char kMethodCall = 1, kMethodReturn = 2;

std::string number(uint32_t value, char order) {
  std::string bytes;
  for (int i = 0; i < 4; ++i) bytes += static_cast<char>(value >> 8 * i & 0xff);
  if (order == 'B') std::ranges::reverse(bytes);
  return bytes;
}

// A message whose fields and body are letters; fields are padded.
std::string message(char order, char type, uint32_t fields, uint32_t body) {
  return std::string{order, type, 0, 1} + number(body, order) + number(7, order) +
         number(fields, order) + std::string((fields + 7) / 8 * 8, 'f') + std::string(body, 'b');
}

// What goes on of bytes that come in pieces.
std::string passed(std::string_view bytes, size_t piece) {
  BusFrames frames;
  std::vector<std::byte> out;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    frames.pass(std::as_bytes(std::span(bytes.substr(at, piece))), out);
  }
  return {reinterpret_cast<const char*>(out.data()), out.size()};
}

TEST(BusFrames, lines_and_small_messages_go_on_as_they_are_however_they_are_cut) {
  const std::string bytes = "DATA\r\nOK 0123\r\n" + message('l', kMethodReturn, 13, 100) +
                            message('B', kMethodCall, 8, 0) + message('l', kMethodCall, 0, 0) +
                            message('B', kMethodCall, 24, 3);
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{16}, bytes.size()}) {
    EXPECT_EQ(passed(bytes, piece), bytes) << piece;
  }
}

TEST(BusFrames, a_message_over_its_limit_goes_on_without_its_body) {
  const std::string after = message('l', kMethodCall, 8, 8);
  for (const char order : {'l', 'B'}) {
    for (const auto& [type, limit] : {std::pair(kMethodCall, BusFrames::kCallBytesMax),
                                      std::pair(kMethodReturn, BusFrames::kBytesMax)}) {
      const auto most = static_cast<uint32_t>(limit) - 16 - 32;
      const std::string fits = message(order, type, 29, most);
      const std::string large = message(order, type, 29, most + 1);
      const std::string cut = message(order, type, 29, 0);
      for (const size_t piece : {size_t{4097}, large.size()}) {
        EXPECT_EQ(passed(fits + after, piece), fits + after);
        EXPECT_EQ(passed(large + after, piece), cut + after);
      }
    }
  }
}

TEST(BusFrames, a_message_whose_head_is_over_the_limit_does_not_go_on) {
  const std::string after = message('l', kMethodCall, 8, 8);
  const auto most = static_cast<uint32_t>(BusFrames::kCallBytesMax) - 16;
  for (const size_t piece : {size_t{4097}, size_t{1} << 20}) {
    EXPECT_EQ(passed(message('l', kMethodCall, most + 1, 5) + after, piece), after);
    EXPECT_EQ(passed(message('l', kMethodCall, most, 0) + after, piece),
              message('l', kMethodCall, most, 0) + after);
    EXPECT_EQ(passed(message('l', kMethodCall, most, 5) + after, piece),
              message('l', kMethodCall, most, 0) + after);
  }
}

TEST(BusFrames, sizes_that_no_bus_sends_let_nothing_more_through) {
  std::string head{'l', kMethodCall, 0, 1};
  head += number(UINT32_MAX, 'l') + number(7, 'l') + number(UINT32_MAX, 'l');
  EXPECT_EQ(passed(head + std::string(100'000, 'x'), 4096), "");
}

}  // namespace
}  // namespace djinn::daemon
