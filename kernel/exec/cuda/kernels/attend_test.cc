// SPDX-License-Identifier: Apache-2.0

// The kernels of an Attend on the emulator: against the same in double, and against themselves,
// with other rows beside, other padding and other splits.
#include "kernel/exec/cuda/kernels/attend.h"

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

struct AttendForm {
  int32_t heads, cache_heads, width;
};

// GPT-2 and MiniLM, Llama-3.1-8B, Qwen2.5-0.5B, whose groups of seven fill no block, Gemma, Phi-3,
// and more heads that share keys than a block has, of a width that no warp has.
constexpr AttendForm kAttendForms[] = {{2, 2, 64},  {8, 2, 128}, {7, 1, 64},
                                       {4, 2, 256}, {2, 2, 96},  {18, 1, 80}};
// None, one, a split, less and more than one, three.
constexpr std::array<int32_t, 6> kAttendLengths = {0, 1, 128, 77, 129, 300};
constexpr int64_t kAttendCapacity = 400;
constexpr int64_t kAttendRows = kAttendLengths.size();

// What a row has: `padding` places that nobody sees, then its tokens; NaN all else.
struct AttendCache {
  AttendCache(Element element, const AttendForm& form, int32_t tokens, int32_t padding)
      : key(element, form.cache_heads * kAttendCapacity, form.width, 0),
        value(element, form.cache_heads * kAttendCapacity, form.width, 0),
        first(padding),
        length(padding + tokens) {
    std::mt19937 random(static_cast<uint32_t>(tokens));
    std::normal_distribution<float> normal;
    for (int32_t h = 0; h < form.cache_heads; ++h) {
      for (int32_t j = first; j < length; ++j) {
        for (int32_t d = 0; d < form.width; ++d) {
          key.set(h * kAttendCapacity + j, d, normal(random));
          value.set(h * kAttendCapacity + j, d, normal(random));
        }
      }
    }
  }
  Array key, value;
  int32_t first, length;
};

class AttendStep {
 public:
  // All rows of kAttendLengths, each with that padding.
  AttendStep(Element element, const AttendForm& form, int32_t padding = 0)
      : form_(form), query_(element, kAttendRows, form.heads * form.width) {
    std::mt19937 random(5);
    query_.fill(random);
    for (const int32_t tokens : kAttendLengths) rows_.emplace_back(element, form, tokens, padding);
    for (AttendCache& row : rows_) {
      cache_.push_back({row.key.at(0, 0), row.value.at(0, 0), kAttendCapacity * form.width});
      lengths_.push_back(row.length);
      firsts_.push_back(row.first);
    }
  }

  Attend call(int64_t begin, int64_t end, Array& out, int32_t splits) {
    parts_.assign(static_cast<size_t>(attend_parts(end - begin, form_.heads, splits, form_.width)),
                  NAN);
    Attend call;
    call.query = query_.at(begin, 0);
    call.out = out.at(0, 0);
    call.cache = cache_.data() + begin;
    call.lengths = lengths_.data() + begin;
    call.firsts = firsts_.data() + begin;
    call.parts = parts_.data();
    call.query_stride = query_.stride();
    call.out_stride = out.stride();
    call.rows = static_cast<int32_t>(end - begin);
    call.heads = form_.heads;
    call.cache_heads = form_.cache_heads;
    call.width = form_.width;
    call.splits = splits;
    call.scale = scale();
    return call;
  }

  Array run(int64_t begin, int64_t end, int32_t splits = 4, Order order = Order::kAscending) {
    Array out(query_.element(), end - begin, form_.heads * form_.width);
    run(call(begin, end, out, splits), order);
    return out;
  }
  void run(const Attend& call, Order order) {
    const Result<AttendLaunches> launches = launches_of(call, query_.element());
    ASSERT_TRUE(launches.ok()) << launches.error().message;
    emulate(launches->split, call, order);
    emulate(launches->combine, call, order);
  }

  void expect_exact(const Array& found, int64_t row, int32_t head) const {
    const AttendCache& cache = rows_[static_cast<size_t>(row)];
    const int64_t of_head = head / (form_.heads / form_.cache_heads) * kAttendCapacity;
    std::vector<double> weights;
    double sum = 0;
    for (int64_t j = cache.first; j < cache.length; ++j) {
      double score = 0;
      for (int32_t d = 0; d < form_.width; ++d) {
        score += query_.get(row, head * form_.width + d) * cache.key.get(of_head + j, d);
      }
      weights.push_back(std::exp(score * scale()));
      sum += weights.back();
    }
    for (int32_t d = 0; d < form_.width; ++d) {
      double exact = 0;
      for (size_t j = 0; j < weights.size(); ++j) {
        const auto token = of_head + cache.first + static_cast<int64_t>(j);
        exact += weights[j] / sum * cache.value.get(token, d);
      }
      const double bound = std::abs(exact) * ulp_of(query_.element()) + 4e-6;
      ASSERT_NEAR(found.get(row, head * form_.width + d), exact, bound)
          << "row " << row << ", head " << head << " of " << form_.heads << ", element " << d;
    }
  }

 private:
  [[nodiscard]] float scale() const { return 1 / std::sqrt(static_cast<float>(form_.width)); }

  AttendForm form_;
  Array query_;
  std::vector<AttendCache> rows_;
  std::vector<CacheRow> cache_;
  std::vector<int32_t> lengths_, firsts_;
  std::vector<float> parts_;
};

class AttendTest : public ::testing::TestWithParam<Element> {};

// Places that a row does not see are NaN, in the cache, in the parts and in the results.
TEST_P(AttendTest, is_what_the_weights_make_of_the_values) {
  for (const AttendForm& form : kAttendForms) {
    AttendStep step(GetParam(), form);
    const Array found = step.run(0, kAttendRows);
    for (int64_t m = 0; m < kAttendRows; ++m) {
      for (int32_t h = 0; h < form.heads; ++h) step.expect_exact(found, m, h);
    }
  }
}

// The row contract.
TEST_P(AttendTest,
       once_a_row_is_the_same_alone_with_other_padding_and_however_many_splits_there_are) {
  for (const AttendForm& form : {kAttendForms[1], kAttendForms[5]}) {
    AttendStep step(GetParam(), form), padded(GetParam(), form, 70);
    const Array all = step.run(0, kAttendRows);
    EXPECT_EQ(step.run(0, kAttendRows, 4, Order::kDescending), all);
    EXPECT_EQ(step.run(0, kAttendRows, 9), all);
    EXPECT_EQ(padded.run(0, kAttendRows), all);
    for (int64_t m = 0; m < kAttendRows; ++m) EXPECT_EQ(step.run(m, m + 1).row(0), all.row(m));
  }
}

// As a graph has them: rows of a buffer, a mask of bytes, and a causal prompt.
TEST_P(AttendTest, rows_that_a_mask_describes_are_those_without_the_hidden_tokens) {
  const AttendForm& form = kAttendForms[1];
  constexpr int32_t kKeys = 200, kHidden = 70;
  AttendStep step(GetParam(), form);
  AttendCache whole(GetParam(), form, kKeys, 0);
  std::vector<uint8_t> mask(kKeys, 1);
  std::fill_n(mask.begin(), kHidden, uint8_t{0});
  std::vector<CacheRow> cache(2);
  std::vector<const uint8_t*> masks(2);
  std::vector<int32_t> lengths(2), firsts(2);
  AttendRows rows;
  rows.key = whole.key.at(0, 0);
  rows.value = whole.value.at(0, 0);
  rows.mask = mask.data();
  rows.cache = cache.data();
  rows.masks = masks.data();
  rows.lengths = lengths.data();
  rows.firsts = firsts.data();
  rows.head_stride = kAttendCapacity * form.width;
  rows.mask_key = 1;
  rows.tokens = 2;
  rows.count = 2;
  rows.keys = kKeys;
  launch(rows, Order::kAscending);
  EXPECT_EQ(lengths, std::vector<int32_t>(2, kKeys));
  EXPECT_EQ(firsts, std::vector<int32_t>(2, kHidden));

  Array out(GetParam(), 2, form.heads * form.width), alike = out;
  Attend call = step.call(0, 2, out, 2);
  call.cache = cache.data();
  call.lengths = lengths.data();
  call.firsts = firsts.data();
  step.run(call, Order::kAscending);
  call.masks = masks.data();
  call.mask_step = 1;
  call.out = alike.at(0, 0);
  step.run(call, Order::kAscending);
  EXPECT_EQ(alike, out);
  mask[kHidden + 5] = 0;  // a hole
  step.run(call, Order::kAscending);
  EXPECT_FALSE(alike == out);
  std::fill(mask.begin(), mask.end(), uint8_t{0});  // nothing is seen
  step.run(call, Order::kDescending);
  for (int32_t d = 0; d < form.width; ++d) EXPECT_EQ(alike.get(1, d), 0);

  rows.mask = nullptr;
  rows.causal = true;
  rows.begin = 1;
  rows.tokens = 3;
  launch(rows, Order::kAscending);
  EXPECT_EQ(lengths, (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(firsts, std::vector<int32_t>(2, 0));
}

// What is appended in the step is seen before it is counted.
TEST_P(AttendTest, a_token_that_was_appended_is_seen) {
  AttendStep step(GetParam(), kAttendForms[1]);
  const Array expected = step.run(3, 4);
  Array out(GetParam(), 1, kAttendForms[1].heads * kAttendForms[1].width);
  Attend call = step.call(3, 4, out, 1);
  const int32_t before = kAttendLengths[3] - 1;
  call.lengths = &before;
  call.firsts = nullptr;
  call.appended = 1;
  step.run(call, Order::kAscending);
  EXPECT_EQ(out, expected);
}

INSTANTIATE_TEST_SUITE_P(Elements, AttendTest, ::testing::ValuesIn(kAllElements),
                         [](const auto& of) { return name_of(of.param); });

TEST(AttendLaunch, what_no_kernel_takes_is_refused) {
  AttendStep step(Element::kBFloat16, kAttendForms[1]);
  Array out(Element::kBFloat16, kAttendRows, kAttendForms[1].heads * kAttendForms[1].width);
  const Attend good = step.call(0, kAttendRows, out, 4);
  ASSERT_TRUE(launches_of(good, Element::kBFloat16).ok());
  const auto refusal = [&](const std::function<void(Attend&)>& spoil) {
    Attend call = good;
    spoil(call);
    const Result<AttendLaunches> found = launches_of(call, Element::kBFloat16);
    return found.ok() ? "" : found.error().message;
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(refusal([](Attend& call) { call.heads = 9; }), HasSubstr("share 2"));
  EXPECT_THAT(refusal([](Attend& call) { call.width = 100; }), HasSubstr("multiple of 8"));
  EXPECT_THAT(refusal([](Attend& call) { call.width = 1024; }), HasSubstr("1024"));
  EXPECT_THAT(refusal([](Attend& call) { call.splits = 0; }), HasSubstr("0 splits"));
  EXPECT_THAT(refusal([](Attend& call) { call.appended = 2; }), HasSubstr("may be one"));
  EXPECT_THAT(refusal([](Attend& call) { ++call.parts; }), HasSubstr("16 bytes"));
  EXPECT_THAT(refusal([](Attend& call) { ++call.query_stride; }), HasSubstr("16 bytes"));
  EXPECT_THAT(refusal([](Attend& call) { call.lengths = nullptr; }), HasSubstr("missing"));
}

}  // namespace
}  // namespace djinn::cuda
