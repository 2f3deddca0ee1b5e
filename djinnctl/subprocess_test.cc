// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/subprocess.h"

#include <gtest/gtest.h>

namespace djinn::ctl {
namespace {

TEST(Subprocess, gives_output_and_exit_code) {
  const auto said = run_program({"/bin/sh", "-c", "echo a; echo b >&2; exit 3"}, ErrorsTo::kOutput);
  ASSERT_TRUE(said.ok());
  EXPECT_EQ(said->out, "a\nb\n");
  EXPECT_EQ(said->exit_code, 3);
}

TEST(Subprocess, that_a_signal_ended_is_no_success) {
  const auto said = run_program({"/bin/sh", "-c", "kill -KILL $$"}, ErrorsTo::kOutput);
  ASSERT_TRUE(said.ok());
  EXPECT_EQ(said->exit_code, 128 + 9);
}

TEST(Subprocess, reads_nothing_of_our_stdin) {
  const auto said = run_program({"cat"}, ErrorsTo::kOutput);
  ASSERT_TRUE(said.ok());
  EXPECT_EQ(said->out, "");
  EXPECT_EQ(said->exit_code, 0);
}

TEST(Subprocess, that_does_not_exist_is_not_found) {
  const auto said = run_program({"djinn-no-such-program"}, ErrorsTo::kOutput);
  ASSERT_FALSE(said.ok());
  EXPECT_EQ(said.error().code, ErrorCode::kNotFound);
}

TEST(Subprocess, that_writes_without_end_is_stopped) {
  const auto said = run_program({"yes"}, ErrorsTo::kOutput);
  ASSERT_FALSE(said.ok());
  EXPECT_EQ(said.error().code, ErrorCode::kLimitExceeded);
}

}  // namespace
}  // namespace djinn::ctl
