// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/outcome.h"

#include <gtest/gtest.h>

#include <concepts>
#include <memory>
#include <string>

namespace djinn {
namespace {

// Nobody who gives a Result can drop a Pending: DJINN_TRY and DJINN_CHECK return why_not() of what
// they try.
template <typename From, typename To>
concept HandedOn = requires(From from) {
  { std::move(from).why_not() } -> std::convertible_to<To>;
};
static_assert(!HandedOn<Outcome<int>, Result<int>> && !HandedOn<Outcome<void>, Status>);
static_assert(!HandedOn<Outcome<int>, Status> && !HandedOn<Outcome<void>, Result<int>>);
static_assert(!HandedOn<Outcome<int>, Error>);
static_assert(HandedOn<Outcome<int>, Outcome<std::string>> &&
              HandedOn<Outcome<int>, Outcome<void>>);
static_assert(HandedOn<Result<int>, Outcome<std::string>> && HandedOn<Status, Outcome<int>>);
static_assert(HandedOn<Result<int>, Status> && HandedOn<Status, Result<int>>);

// Nor in another way.
template <typename To>
constexpr bool takes_no_pending =
    !std::convertible_to<Pending, To> && !std::convertible_to<NotDone, To> &&
    !std::convertible_to<Outcome<int>, To> && !std::convertible_to<Outcome<void>, To>;
static_assert(takes_no_pending<Status> && takes_no_pending<Result<int>> && takes_no_pending<Error>);
static_assert(takes_no_pending<Result<bool>> && takes_no_pending<Result<std::string>>);
// And the value of one Outcome is no other's.
static_assert(!std::convertible_to<Outcome<int>, Outcome<long>>);
static_assert(!std::convertible_to<Outcome<int>, Outcome<void>>);

// As cheap as a Result: no more room than its value or error takes, and a word for which it is.
static_assert(sizeof(Outcome<void*>) == sizeof(Result<void*>));
static_assert(sizeof(Outcome<void>) <= sizeof(Error) + sizeof(void*));

Error wrong() {
  return {ErrorCode::kNotFound, "There is no such thing."};
}

TEST(Outcome, it_is_a_value_or_pending_or_an_error_and_only_one_of_them) {
  const Outcome<int> value = 7;
  EXPECT_TRUE(value.ok() && !value.is_pending() && !value.has_failed());
  EXPECT_EQ(*value, 7);
  const Outcome<int> pending = Pending{};
  EXPECT_TRUE(!pending.ok() && pending.is_pending() && !pending.has_failed());
  const Outcome<int> failed = wrong();
  EXPECT_TRUE(!failed.ok() && !failed.is_pending() && failed.has_failed());
  EXPECT_EQ(failed.error().code, ErrorCode::kNotFound);
}

TEST(Outcome, one_without_a_value_to_give_is_done_or_pending_or_an_error) {
  const Outcome<void> done;
  EXPECT_TRUE(done.ok() && !done.is_pending() && !done.has_failed());
  const Outcome<void> pending = Pending{};
  EXPECT_TRUE(!pending.ok() && pending.is_pending());
  const Outcome<void> failed = wrong();
  EXPECT_EQ(failed.error().message, wrong().message);
}

TEST(Outcome, a_result_becomes_one_with_its_value_or_its_error) {
  const Outcome<std::string> value = Result<std::string>("here");
  EXPECT_EQ(value.value(), "here");
  const Outcome<std::string> failed = Result<std::string>(wrong());
  EXPECT_EQ(failed.error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(Outcome<void>(Status()).ok());
  EXPECT_EQ(Outcome<void>(Status(wrong())).error().code, ErrorCode::kNotFound);
}

TEST(Outcome, a_value_is_moved_out) {
  Outcome<std::unique_ptr<int>> made = std::make_unique<int>(3);
  const std::unique_ptr<int> taken = *std::move(made);
  EXPECT_EQ(*taken, 3);
}

Outcome<size_t> length_of(Outcome<std::string> text) {
  DJINN_TRY(const std::string found, std::move(text));
  return found.size();
}
Outcome<size_t> once(Outcome<void> first, Status second) {
  DJINN_CHECK(std::move(first));
  DJINN_CHECK(std::move(second));
  return size_t{1};
}

TEST(Outcome, what_is_pending_travels_upwards_as_an_error_does) {
  EXPECT_EQ(*length_of("four"), 4u);
  EXPECT_TRUE(length_of(Pending{}).is_pending());
  EXPECT_EQ(length_of(wrong()).error().message, wrong().message);
  EXPECT_EQ(*once({}, {}), 1u);
  EXPECT_TRUE(once(Pending{}, wrong()).is_pending());
  EXPECT_EQ(once({}, wrong()).error().code, ErrorCode::kNotFound);
}

TEST(Outcome, what_it_says_without_a_value_can_be_kept) {
  const NotDone pending = Outcome<int>(Pending{}).why_not();
  EXPECT_TRUE(pending.is_pending());
  const NotDone failed = Outcome<int>(wrong()).why_not();
  EXPECT_FALSE(failed.is_pending());
  EXPECT_TRUE(Outcome<std::string>(pending).is_pending());
  EXPECT_EQ(Outcome<std::string>(failed).error().message, wrong().message);
}

TEST(OutcomeDeathTest, nobody_reads_what_it_is_not) {
  const Outcome<int> pending = Pending{};
  EXPECT_DEATH({ [[maybe_unused]] const int value = *pending; }, "ok\\(\\)");
  EXPECT_DEATH({ [[maybe_unused]] const Error error = pending.error(); }, "has_failed\\(\\)");
}

}  // namespace
}  // namespace djinn
