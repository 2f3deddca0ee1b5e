// SPDX-License-Identifier: Apache-2.0

#include "kernel/sched/rates.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace djinn::sched {
namespace {

constexpr size_t kRates = 3;
constexpr uint64_t kFlopsPerByte = 8;
// Nanoseconds of an operator, a byte and an operation, before anything was measured: 4 us, 10 GB/s
// and 50 GFLOP/s.
constexpr std::array<double, kRates> kPrior{4000, 0.1, 0.02};
// What was measured so many runs ago counts half. The prior counts as a hundredth of a run, so that
// it decides only what no run has told.
constexpr double kKept = 0.97;
constexpr double kPriorWeight = 0.01;
// First runs of other kinds in the mean of how much longer those take.
constexpr uint32_t kFirsts = 8;
constexpr double kFactorMax = 20;  // more is an accident

using Vector = std::array<double, kRates>;
using Matrix = std::array<Vector, kRates>;

// Solves by elimination for the rates that are used; those that are not are 0. Nothing where the
// system is singular.
std::optional<Vector> solved(Matrix a, Vector b, const std::array<bool, kRates>& used) {
  for (size_t i = 0; i < kRates; ++i) {
    if (used[i]) continue;
    a[i] = {};
    for (size_t k = 0; k < kRates; ++k) a[k][i] = 0;
    a[i][i] = 1;
    b[i] = 0;
  }
  for (size_t i = 0; i < kRates; ++i) {
    if (!(a[i][i] > 0)) return std::nullopt;
    for (size_t k = 0; k < kRates; ++k) {
      if (k == i) continue;
      const double factor = a[k][i] / a[i][i];
      for (size_t c = 0; c < kRates; ++c) a[k][c] -= factor * a[i][c];
      b[k] -= factor * b[i];
    }
  }
  for (size_t i = 0; i < kRates; ++i) b[i] /= a[i][i];
  return b;
}

}  // namespace

Work work_at(const srg::Graph& graph, std::span<const int64_t> symbols,
             const srg::WeightForms& forms) {
  Work work;
  work.operators = graph.nodes.size();
  for (const auto& cost : cost_at(graph, symbols, forms).nodes) {
    if (!cost) continue;
    if (cost->flops / kFlopsPerByte > cost->bytes()) {
      work.flops += cost->flops;
    } else {
      work.bytes += cost->bytes();
    }
  }
  return work;
}

Rates::Rates() : ns_(kPrior) {}

Rates::Triple Rates::features(const Work& work) {
  return {static_cast<double>(work.operators), static_cast<double>(work.bytes),
          static_cast<double>(work.flops)};
}

uint64_t Rates::predict_ns(const Work& work) const {
  const Triple x = features(work);
  double ns = 0;
  for (size_t i = 0; i < kRates; ++i) ns += ns_[i] * x[i];
  return static_cast<uint64_t>(std::min(ns, kPredictedNsMax));
}

void Rates::note(const Work& work, uint64_t measured_ns) {
  if (measured_ns == 0) return;
  const auto y = static_cast<double>(measured_ns);
  Triple x = features(work);
  for (double& part : x) part /= y;
  for (size_t i = 0; i < kRates; ++i) {
    for (size_t k = 0; k < kRates; ++k) squares_[i][k] = kKept * squares_[i][k] + x[i] * x[k];
    products_[i] = kKept * products_[i] + x[i];
  }
  fit();
}

// In units of the prior, where all rates are 1, each is drawn towards that. A rate that comes out
// negative is left out, and the others are fitted without it.
void Rates::fit() {
  Matrix a{};
  Vector b{};
  for (size_t i = 0; i < kRates; ++i) {
    for (size_t k = 0; k < kRates; ++k) a[i][k] = squares_[i][k] * kPrior[i] * kPrior[k];
    a[i][i] += kPriorWeight;
    b[i] = products_[i] * kPrior[i] + kPriorWeight;
  }
  std::array<bool, kRates> used{true, true, true};
  for (size_t tries = 0; tries < kRates; ++tries) {
    const auto solution = solved(a, b, used);
    if (!solution) return;
    const auto least = std::ranges::min_element(*solution);
    if (*least >= 0) {
      for (size_t i = 0; i < kRates; ++i) ns_[i] = (*solution)[i] * kPrior[i];
      return;
    }
    used[static_cast<size_t>(least - solution->begin())] = false;
  }
}

bool Rates::waits_for_arithmetic(const Work& work) const {
  const Triple x = features(work);
  return ns_[2] * x[2] > ns_[1] * x[1];
}

void Rates::note_first(const Work& work, uint64_t first_ns, uint64_t second_ns) {
  if (first_ns == 0 || second_ns == 0) return;
  const double factor = static_cast<double>(first_ns) / static_cast<double>(second_ns);
  Firsts& firsts = firsts_[waits_for_arithmetic(work)];
  firsts.count = std::min(firsts.count + 1, kFirsts);
  firsts.factor += (std::clamp(factor, 1 / kFactorMax, kFactorMax) - firsts.factor) / firsts.count;
}

}  // namespace djinn::sched
