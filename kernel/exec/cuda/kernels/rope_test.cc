// SPDX-License-Identifier: Apache-2.0

// The kernels of a RopeAppend on the emulator, against the same in double.
#include "kernel/exec/cuda/kernels/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "kernel/exec/cuda/kernels/kernels_for_tests.h"

namespace djinn::cuda {
namespace {

using emulator::Order;

constexpr int64_t kRopeCapacity = 9;
constexpr int64_t kRopeRows = 3;
constexpr std::array<int32_t, kRopeRows> kRopeLengths = {0, 8, 3};
constexpr std::array<int32_t, kRopeRows> kRopePositions = {2, 8, 1};

struct RopeForm {
  int32_t heads, cache_heads, width, rotary;
  bool interleaved = false;
};

// As GPT-2, which turns nothing, Llama, Qwen2, GPT-NeoX, which turns a quarter, GPT-J, and a head
// that a warp is no multiple of.
constexpr RopeForm kRopeForms[] = {{3, 3, 64, 0},  {8, 2, 128, 128},      {7, 1, 64, 64},
                                   {2, 2, 96, 24}, {4, 4, 256, 64, true}, {5, 5, 80, 80}};

class RopeStep {
 public:
  RopeStep(Element element, const RopeForm& form)
      : form_(form),
        query_(element, kRopeRows, form.heads * form.width),
        key_(element, kRopeRows, form.cache_heads * form.width),
        value_(element, kRopeRows, form.cache_heads * form.width) {
    std::mt19937 random(static_cast<uint32_t>(form.width));
    for (Array* const one : {&query_, &key_, &value_}) one->fill(random);
    for (int32_t p = 0; p < kRopeCapacity; ++p) {
      for (int32_t i = 0; i < form.rotary / 2; ++i) {
        const double angle = p * std::pow(10000.0, -2.0 * i / form.rotary);
        cos_.push_back(static_cast<float>(std::cos(angle)));
        sin_.push_back(static_cast<float>(std::sin(angle)));
      }
    }
    for (int64_t m = 0; m < kRopeRows; ++m) {
      keys_.emplace_back(element, form.cache_heads * kRopeCapacity, form.width, 0);
      values_.emplace_back(element, form.cache_heads * kRopeCapacity, form.width, 0);
    }
    for (size_t m = 0; m < kRopeRows; ++m) {
      cache_.push_back({keys_[m].at(0, 0), values_[m].at(0, 0), kRopeCapacity * form.width});
    }
  }

  RopeAppend call(Array& query_out) {
    RopeAppend call;
    call.query = query_.at(0, 0);
    call.key = key_.at(0, 0);
    call.value = value_.at(0, 0);
    call.query_out = query_out.at(0, 0);
    if (form_.rotary != 0) {
      call.cos = cos_.data();
      call.sin = sin_.data();
    }
    call.cache = cache_.data();
    call.lengths = kRopeLengths.data();
    call.positions = kRopePositions.data();
    call.query_stride = query_.stride();
    call.key_stride = key_.stride();
    call.value_stride = value_.stride();
    call.query_out_stride = query_out.stride();
    call.rows = kRopeRows;
    call.heads = form_.heads;
    call.cache_heads = form_.cache_heads;
    call.width = form_.width;
    call.rotary = form_.rotary;
    call.interleaved = form_.interleaved;
    return call;
  }

  // Element d of a head that begins at `begin` of the row.
  [[nodiscard]] double turned(const Array& x, int64_t row, int64_t begin, int32_t d) const {
    const int32_t half = form_.rotary / 2;
    if (d >= form_.rotary) return x.get(row, begin + d);
    const int32_t i = form_.interleaved ? d / 2 : d % half;
    const bool is_second = form_.interleaved ? d % 2 != 0 : d >= half;
    const double a = x.get(row, begin + (form_.interleaved ? 2 * i : i));
    const double b = x.get(row, begin + (form_.interleaved ? 2 * i + 1 : i + half));
    const auto at = static_cast<size_t>(kRopePositions[static_cast<size_t>(row)] * half + i);
    return is_second ? b * double{cos_[at]} + a * double{sin_[at]}
                     : a * double{cos_[at]} - b * double{sin_[at]};
  }

  void expect_turned(const Array& found, int64_t found_row, int64_t found_begin, const Array& x,
                     int64_t row, int64_t begin) const {
    for (int32_t d = 0; d < form_.width; ++d) {
      const double exact = turned(x, row, begin, d);
      ASSERT_NEAR(found.get(found_row, found_begin + d), exact,
                  std::abs(exact) * ulp_of(x.element()) + 1e-6)
          << "row " << row << ", element " << d << " of the head at " << begin;
    }
  }

  RopeForm form_;
  Array query_, key_, value_;
  std::vector<float> cos_, sin_;
  std::vector<Array> keys_, values_;
  std::vector<CacheRow> cache_;
};

class RopeTest : public ::testing::TestWithParam<Element> {};

TEST_P(RopeTest, queries_and_keys_are_turned_and_keys_and_values_appended) {
  for (const RopeForm& form : kRopeForms) {
    for (const Order order : kOrders) {
      RopeStep step(GetParam(), form);
      Array out(GetParam(), kRopeRows, form.heads * form.width);
      launch(step.call(out), order, GetParam());
      for (int64_t m = 0; m < kRopeRows; ++m) {
        for (int32_t h = 0; h < form.heads; ++h) {
          step.expect_turned(out, m, h * form.width, step.query_, m, h * form.width);
        }
        const auto row = static_cast<size_t>(m);
        for (int32_t h = 0; h < form.cache_heads; ++h) {
          const int64_t place = h * kRopeCapacity + kRopeLengths[row];
          step.expect_turned(step.keys_[row], place, 0, step.key_, m, h * form.width);
          for (int32_t d = 0; d < form.width; ++d) {
            EXPECT_EQ(step.values_[row].get(place, d), step.value_.get(m, h * form.width + d));
          }
        }
      }
    }
  }
}

TEST_P(RopeTest, no_other_place_of_the_cache_is_written) {
  RopeStep step(GetParam(), kRopeForms[1]);
  const std::vector<Array> before = step.keys_;
  Array out(GetParam(), kRopeRows, kRopeForms[1].heads * kRopeForms[1].width);
  launch(step.call(out), Order::kAscending, GetParam());
  for (size_t m = 0; m < kRopeRows; ++m) {
    for (int64_t place = 0; place < step.keys_[m].rows(); ++place) {
      const bool is_new = place % kRopeCapacity == kRopeLengths[m];
      EXPECT_EQ(step.keys_[m].row(place) == before[m].row(place), !is_new);
      EXPECT_EQ(step.values_[m].row(place) == before[m].row(place), !is_new);
    }
  }
}

TEST_P(RopeTest, queries_may_be_turned_where_they_are) {
  for (const RopeForm& form : {kRopeForms[1], kRopeForms[4]}) {
    RopeStep step(GetParam(), form);
    Array expected(GetParam(), kRopeRows, form.heads * form.width);
    launch(step.call(expected), Order::kAscending, GetParam());
    launch(step.call(step.query_), Order::kDescending, GetParam());
    EXPECT_EQ(step.query_, expected);
  }
}

TEST_P(RopeTest, without_positions_the_lengths_are_the_positions) {
  RopeStep step(GetParam(), kRopeForms[1]);
  const int64_t columns = kRopeForms[1].heads * kRopeForms[1].width;
  Array some(GetParam(), kRopeRows, columns), same(GetParam(), kRopeRows, columns);
  RopeAppend call = step.call(some);
  call.positions = kRopeLengths.data();
  launch(call, Order::kAscending, GetParam());
  call.positions = nullptr;
  call.query_out = same.at(0, 0);
  launch(call, Order::kAscending, GetParam());
  EXPECT_EQ(same, some);
}

INSTANTIATE_TEST_SUITE_P(Elements, RopeTest, ::testing::ValuesIn(kAllElements),
                         [](const auto& of) { return name_of(of.param); });

TEST(RopeLaunch, what_no_kernel_takes_is_refused) {
  RopeStep step(Element::kFloat32, kRopeForms[1]);
  Array out(Element::kFloat32, kRopeRows, kRopeForms[1].heads * kRopeForms[1].width);
  const RopeAppend good = step.call(out);
  ASSERT_TRUE(launch_of(good, Element::kFloat32).ok());
  const auto refusal = [&](const std::function<void(RopeAppend&)>& spoil) {
    RopeAppend call = good;
    spoil(call);
    const Result<Launch> found = launch_of(call, Element::kFloat32);
    return found.ok() ? "" : found.error().message;
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(refusal([](RopeAppend& call) { call.rotary = 130; }), HasSubstr("130 of 128"));
  EXPECT_THAT(refusal([](RopeAppend& call) { call.rotary = 3; }), HasSubstr("even"));
  EXPECT_THAT(refusal([](RopeAppend& call) { call.sin = nullptr; }), HasSubstr("without sines"));
  EXPECT_THAT(refusal([](RopeAppend& call) { call.cache_heads = 3; }), HasSubstr("share 3"));
  EXPECT_THAT(refusal([](RopeAppend& call) { call.width = 520; }), HasSubstr("520"));
  EXPECT_THAT(refusal([](RopeAppend& call) { call.rows = 0; }), HasSubstr("0 rows"));
  EXPECT_THAT(refusal([](RopeAppend& call) { call.cache = nullptr; }), HasSubstr("missing"));
}

}  // namespace
}  // namespace djinn::cuda
