// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/exit_code.h"

#include <gtest/gtest.h>

#include "djinnctl/command_line.h"

namespace djinn::ctl {
namespace {

TEST(ExitCode, scripts_can_tell_the_kinds_apart) {
  EXPECT_EQ(static_cast<int>(exit_code_of(ErrorCode::kInternal)), 1);
  EXPECT_EQ(static_cast<int>(exit_code_of(ErrorCode::kInvalidArgument)), 2);
  EXPECT_EQ(static_cast<int>(exit_code_of(ErrorCode::kDisconnected)), 3);
  EXPECT_EQ(static_cast<int>(exit_code_of(ErrorCode::kNotFound)), 4);
  EXPECT_EQ(static_cast<int>(exit_code_of(ErrorCode::kPermissionDenied)), 5);
  EXPECT_EQ(static_cast<int>(exit_code_of(ErrorCode::kBusy)), 6);
  EXPECT_EQ(static_cast<int>(exit_code_of(ErrorCode::kTimeout)), 7);
  EXPECT_EQ(static_cast<int>(exit_code_of(ErrorCode::kQuotaExceeded)), 8);
  EXPECT_EQ(static_cast<int>(exit_code_of(ErrorCode::kLimitExceeded)), 8);
  EXPECT_EQ(static_cast<int>(exit_code_of(ErrorCode::kOutOfMemory)), 9);
  EXPECT_EQ(static_cast<int>(exit_code_of(ErrorCode::kMalformed)), 10);
  EXPECT_EQ(static_cast<int>(exit_code_of(ErrorCode::kFileChanged)), 10);
  EXPECT_EQ(static_cast<int>(exit_code_of(ErrorCode::kQueueFull)), 75);
}

TEST(ErrorText, each_sentence_is_a_line_and_there_are_at_most_three) {
  EXPECT_EQ(error_text({ErrorCode::kIo, "No model.safetensors. Why. Next. More."}, {}),
            "djinnctl: No model.safetensors.\nWhy.\nNext. More.\n");
}

TEST(ErrorText, a_quoted_name_adds_no_line_and_steers_no_terminal) {
  EXPECT_EQ(error_text({ErrorCode::kIo, "No 'a\n\x1b[2J'."}, {}), "djinnctl: No 'a??[2J'.\n");
}

TEST(ErrorText, a_quoted_name_turns_no_figure_behind_it_on_a_terminal) {
  const Error error{ErrorCode::kIo, "/m/\u05d0\u05d1: 12 of 34 bytes. Read it."};
  EXPECT_EQ(error_text(error, {.is_terminal = true}),
            "djinnctl: /m/\u2068\u05d0\u05d1\u2069: 12 of 34 bytes.\nRead it.\n");
  EXPECT_EQ(error_text(error, {}), "djinnctl: /m/\u05d0\u05d1: 12 of 34 bytes.\nRead it.\n");
}

int run_words(std::vector<const char*> words) {
  words.insert(words.begin(), "djinnctl");
  return run(static_cast<int>(words.size()), words.data());
}

TEST(Run, mistakes_on_the_command_line_are_2) {
  EXPECT_EQ(run_words({}), 2);
  EXPECT_EQ(run_words({"dance"}), 2);
  EXPECT_EQ(run_words({"show"}), 2);
  EXPECT_EQ(run_words({"ps", "--host", "tcp:example"}), 2);
  EXPECT_EQ(run_words({"generate", "dir", "--prompt", "a", "--greedy", "--top-k", "3"}), 2);
}

TEST(Run, version_and_help_are_0) {
  EXPECT_EQ(run_words({"--version"}), 0);
  EXPECT_EQ(run_words({"ps", "--help"}), 0);
}

TEST(Run, no_daemon_is_3_for_every_verb_that_needs_one) {
  for (const char* const verb : {"status", "sessions", "ps"}) {
    EXPECT_EQ(run_words({verb, "--host", "unix:/nonexistent/djinnd.sock"}), 3) << verb;
  }
  EXPECT_EQ(run_words({"--host", "unix:/nonexistent/djinnd.sock", "unload", "ab"}), 3);
}

TEST(Run, a_model_that_is_not_there_is_4) {
  EXPECT_EQ(run_words({"load", "/nonexistent/model"}), 4);
}

}  // namespace
}  // namespace djinn::ctl
