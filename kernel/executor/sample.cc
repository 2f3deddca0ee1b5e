// SPDX-License-Identifier: Apache-2.0

#include "kernel/executor/sample.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace djinn::exec {
namespace {

constexpr float kRemoved = -std::numeric_limits<float>::infinity();

// Gives the double that a person meant by the float: 0.9 for 0.9f. transformers computes 1 - top_p
// in double.
double decimal_of(float number) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, number).ptr;
  double value = number;
  std::from_chars(text, end, value);
  return value;
}

// Does what RepetitionPenaltyLogitsProcessor does: each token of the history is penalised once.
void penalise(std::span<float> logits, std::span<const int32_t> history, float penalty) {
  std::vector<int32_t> seen(history.begin(), history.end());
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  for (const int32_t token : seen) {
    if (token < 0 || static_cast<size_t>(token) >= logits.size()) continue;
    float& logit = logits[static_cast<size_t>(token)];
    logit = logit < 0 ? logit * penalty : logit / penalty;
  }
}

void scale(std::span<float> logits, float temperature) {
  for (float& logit : logits) logit /= temperature;
}

// Does what TopKLogitsWarper does: ties with the last one stay.
void keep_top_k(std::span<float> logits, uint32_t top_k) {
  if (top_k >= logits.size()) return;
  std::vector<float> order(logits.begin(), logits.end());
  const auto last = order.begin() + (top_k - 1);
  std::nth_element(order.begin(), last, order.end(), std::greater<>());
  for (float& logit : logits) {
    if (logit < *last) logit = kRemoved;
  }
}

// Gives the probabilities of finite logits; removed ones get 0.
std::vector<float> softmax(std::span<const float> logits) {
  const float top = *std::max_element(logits.begin(), logits.end());
  std::vector<float> weights(logits.size());
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] == kRemoved) continue;
    weights[i] = std::exp(logits[i] - top);
    sum += weights[i];
  }
  for (float& weight : weights) weight = static_cast<float>(weight / sum);
  return weights;
}

// What lies below the nucleus, in ascending order: its tokens are removed while the sum of their
// probabilities is at most 1 - top_p. The sum is kept in double, as ATen's cumsum does on a CPU,
// and compared in float.
struct Tail {
  // Sums of all probabilities in two orders differ by less than this.
  static constexpr double kDoubt = 1e-9;

  explicit Tail(float top_p) : most(static_cast<float>(1.0 - decimal_of(top_p))) {}

  [[nodiscard]] bool ends_with(double sum) const { return static_cast<float>(sum) > most; }
  [[nodiscard]] bool is_doubtful(double sum, double doubt) const {
    return ends_with(sum - doubt) != ends_with(sum + doubt);
  }

  float most;
};

// Tokens whose logits are near, in ascending order: the upper bits of a float, as an integer that
// orders as the float does.
class Bins {
 public:
  Bins(std::span<const float> logits, std::span<const float> probabilities) {
    for (size_t i = 0; i < logits.size(); ++i) sums_[bin_of(logits[i])] += probabilities[i];
  }

  static size_t bin_of(float logit) {
    const auto bits = std::bit_cast<uint32_t>(logit + 0.0f);  // both zeros are one
    return (bits ^ (bits >> 31 != 0 ? 0xffffffffu : 0x80000000u)) >> (32 - kBits);
  }
  // The first bin with which the sum of all up to it ends the tail, and the sum of those before;
  // the last bin if none does.
  [[nodiscard]] std::pair<size_t, double> find(const Tail& tail) const {
    double before = 0;
    for (size_t bin = 0; bin + 1 < sums_.size(); ++bin) {
      const double sum = before + sums_[bin];
      if (tail.ends_with(sum) || tail.is_doubtful(sum, Tail::kDoubt)) return {bin, before};
      before = sum;
    }
    return {sums_.size() - 1, before};
  }

 private:
  static constexpr int kBits = 12;
  std::vector<double> sums_ = std::vector<double>(size_t{1} << kBits);
};

// Gives how many tokens of `order`, which is ascending and begins with that sum below it, the tail
// has: all of them if it does not end among them. Nothing where sums that differ by less than
// `doubt` could tell otherwise.
std::optional<size_t> tail_of(std::span<const uint32_t> order, std::span<const float> probabilities,
                              const Tail& tail, double sum, double doubt) {
  for (size_t i = 0; i < order.size(); ++i) {
    sum += probabilities[order[i]];
    if (tail.is_doubtful(sum, doubt)) return std::nullopt;
    if (tail.ends_with(sum)) return i;
  }
  return order.size();
}

void remove_tokens(std::span<float> logits, std::span<const uint32_t> tokens) {
  for (const uint32_t token : tokens) logits[token] = kRemoved;
}

void sort_by_logit(std::vector<uint32_t>& order, std::span<const float> logits) {
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return logits[a] < logits[b]; });
}

// Does what TopPLogitsWarper does. Only the tokens at the tail's end are sorted: those below them
// are removed in any order, and those above stay. Where the order of a sum could matter, all are.
void keep_top_p(std::span<float> logits, float top_p) {
  const Tail tail(top_p);
  const std::vector<float> probabilities = softmax(logits);
  const auto [last, before] = Bins(logits, probabilities).find(tail);
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < logits.size(); ++i) {
    if (Bins::bin_of(logits[i]) == last) order.push_back(i);
  }
  sort_by_logit(order, logits);
  const auto some = tail_of(order, probabilities, tail, before, Tail::kDoubt);
  if (some && *some < order.size()) {
    remove_tokens(logits, std::span(order).first(*some));
    for (float& logit : logits) {
      if (Bins::bin_of(logit) < last) logit = kRemoved;
    }
    return;
  }
  order.resize(logits.size());
  std::iota(order.begin(), order.end(), uint32_t{0});
  sort_by_logit(order, logits);
  order.pop_back();  // the likeliest stays
  remove_tokens(logits, std::span(order).first(*tail_of(order, probabilities, tail, 0, 0)));
}

// Does what MinPLogitsWarper does: it removes what is less likely than min_p times the likeliest.
void keep_min_p(std::span<float> logits, float min_p) {
  const std::vector<float> probabilities = softmax(logits);
  const auto top = std::max_element(probabilities.begin(), probabilities.end());
  const float least = min_p * *top;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (probabilities[i] < least) logits[i] = kRemoved;
  }
}

template <typename T>
int64_t inverse_of(std::span<const T> weights, float uniform) {
  double total = 0;
  for (const T weight : weights) total += weight;
  const double target = uniform * total;
  double sum = 0;
  size_t chosen = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] <= 0) continue;
    chosen = i;
    sum += weights[i];
    if (sum > target) break;
  }
  return static_cast<int64_t>(chosen);
}

// Gives what torch.argmax gives: the first of equals, and NaN above all.
int32_t argmax(std::span<const float> logits) {
  size_t best = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) return static_cast<int32_t>(i);
    if (logits[i] > logits[best]) best = i;
  }
  return static_cast<int32_t>(best);
}

bool can_be_drawn(float logit) {
  return std::isfinite(logit) || logit == kRemoved;
}

Status check_row(std::span<const float> logits) {
  const auto finite = [](float logit) { return std::isfinite(logit); };
  if (std::none_of(logits.begin(), logits.end(), finite)) {
    return Error{ErrorCode::kInvalidArgument, "The row of logits has no finite number."};
  }
  if (!std::all_of(logits.begin(), logits.end(), can_be_drawn)) {
    return Error{ErrorCode::kInvalidArgument,
                 "The row of logits has NaN or infinity: nothing can be drawn from it."};
  }
  return {};
}

Error outside(std::string_view field, std::string_view range) {
  return {ErrorCode::kInvalidArgument, std::string(field) + " must be in " + std::string(range)};
}

}  // namespace

Status check(const SamplingRule& rule) {
  constexpr float kMax = std::numeric_limits<float>::max();
  if (!(rule.temperature > 0 && rule.temperature <= kMax))
    return outside("temperature", "(0, inf)");
  if (!(rule.top_p > 0 && rule.top_p <= 1)) return outside("top_p", "(0, 1]");
  if (!(rule.min_p >= 0 && rule.min_p < 1)) return outside("min_p", "[0, 1)");
  if (!(rule.repetition_penalty > 0 && rule.repetition_penalty <= kMax)) {
    return outside("repetition_penalty", "(0, inf)");
  }
  return {};
}

Result<int32_t> sample(std::span<float> logits, std::span<const int32_t> history,
                       const SamplingRule& rule, uint64_t offset) {
  DJINN_CHECK(check(rule));
  if (logits.empty()) {
    return Error{ErrorCode::kInvalidArgument, "The row of logits is empty."};
  }
  if (rule.repetition_penalty != 1.0f) penalise(logits, history, rule.repetition_penalty);
  if (rule.greedy) return argmax(logits);
  if (rule.temperature != 1.0f) scale(logits, rule.temperature);
  DJINN_CHECK(check_row(logits));  // a tiny temperature overflows
  if (rule.top_k != 0) keep_top_k(logits, rule.top_k);
  if (rule.top_p < 1.0f) keep_top_p(logits, rule.top_p);
  if (rule.min_p > 0.0f) keep_min_p(logits, rule.min_p);
  return static_cast<int32_t>(invert(softmax(logits), philox_uniform(rule.seed, offset)));
}

std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter,
                                      std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

std::array<uint32_t, 4> philox_block(uint64_t seed, uint64_t offset) {
  return philox4x32_10({static_cast<uint32_t>(offset), static_cast<uint32_t>(offset >> 32), 0, 0},
                       {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

float philox_uniform(uint64_t seed, uint64_t offset) {
  return static_cast<float>(philox_block(seed, offset)[0] >> 8) * 0x1p-24f;
}

int64_t invert(std::span<const float> weights, float uniform) {
  return inverse_of(weights, uniform);
}
int64_t invert(std::span<const double> weights, float uniform) {
  return inverse_of(weights, uniform);
}

}  // namespace djinn::exec
