// SPDX-License-Identifier: Apache-2.0

#include "kernel/pal/available_memory.h"

#include <gtest/gtest.h>

#include <span>
#include <string_view>

#include "kernel/pal/memfd.h"

namespace djinn::pal {
namespace {

AvailableMemory with_text(std::string_view text) {
  auto fd = make_sealed_memfd("djinn-test", std::as_bytes(std::span(text)));
  EXPECT_TRUE(fd);
  return AvailableMemory(std::move(fd).value());
}

TEST(available_memory, the_machine_has_some) {
  const auto memory = AvailableMemory::open();
  ASSERT_TRUE(memory);
  EXPECT_GT(memory->bytes().value(), 0u);
}

TEST(available_memory, reads_the_third_line) {
  const auto memory =
      with_text("MemTotal: 9 kB\nMemFree: 8 kB\nMemAvailable:   1234 kB\nX: 1 kB\n");
  EXPECT_EQ(memory.bytes().value(), 1234u * 1024);
}

TEST(available_memory, keeps_a_headroom_for_others) {
  const auto memory = with_text("MemAvailable: 131072 kB\n");  // 128 MiB
  EXPECT_TRUE(memory.check((128u << 20) - AvailableMemory::kHeadroomBytes));
  const Status refused = memory.check((128u << 20) - AvailableMemory::kHeadroomBytes + 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
}

TEST(available_memory, less_than_the_headroom_is_nothing) {
  const auto memory = with_text("MemAvailable: 1 kB\n");
  EXPECT_TRUE(memory.check(0));
  EXPECT_FALSE(memory.check(1));
}

TEST(available_memory, figures_that_say_nothing_are_an_error) {
  for (const std::string_view text :
       {"", "MemFree: 1 kB\n", "MemAvailable:", "MemAvailable: x kB\n",
        "MemAvailable: 99999999999999999999 kB\n", "MemAvailable: 18446744073709551615 kB\n"}) {
    const auto bytes = with_text(text).bytes();
    ASSERT_FALSE(bytes) << text;
    EXPECT_EQ(bytes.error().code, ErrorCode::kMalformed);
  }
}

}  // namespace
}  // namespace djinn::pal
