// SPDX-License-Identifier: Apache-2.0

#include "python/device/chains.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace djinn::device {
namespace {

// Orders one stretch of entries, which are numbered from 0.
class Chains {
 public:
  Chains(const Log& log, std::span<const size_t> stretch)
      : log_(log), stretch_(stretch), needs_(stretch.size()), is_needed_(stretch.size()) {
    for (size_t i = 0; i < stretch.size(); ++i) note(i);
  }

  // `begin` tells where chains begin in the order.
  template <typename Begin>
  std::vector<size_t> take_order(Begin&& begin) && {
    is_placed_.resize(stretch_.size());
    for (size_t i = 0; i < stretch_.size(); ++i) {
      if (is_needed_[i]) continue;
      begin(order_.size());
      place(i);
    }
    return std::move(order_);
  }

 private:
  // Holds the entry that last wrote a storage, and those that have read it since.
  struct Uses {
    std::optional<size_t> writer;
    std::vector<size_t> readers;
  };

  void note(size_t i) {
    const Entry& entry = log_.entries()[stretch_[i]];
    for (const Operand& operand : entry.operands) read(i, operand.storage.get());
    for (const uint32_t w : entry.recipe->written) write(i, entry.operands[w].storage.get());
    for (const StoragePtr& product : entry.products) {
      if (product) write(i, product.get());
    }
  }

  void need(size_t i, size_t earlier) {
    if (i == earlier) return;
    needs_[i].push_back(earlier);
    is_needed_[earlier] = true;
  }

  void read(size_t i, const Storage* storage) {
    Uses& uses = uses_[storage];
    if (uses.writer) need(i, *uses.writer);
    uses.readers.push_back(i);
  }

  void write(size_t i, const Storage* storage) {
    Uses& uses = uses_[storage];
    if (uses.writer) need(i, *uses.writer);
    for (const size_t reader : uses.readers) need(i, reader);
    uses = {i, {}};
  }

  // Places what an entry needs before it. It does not recurse, because a chain may be as long as a
  // log.
  void place(size_t last) {
    std::vector<size_t> open{last};
    while (!open.empty()) {
      const size_t i = open.back();
      const auto next =
          std::ranges::find_if(needs_[i], [&](size_t earlier) { return !is_placed_[earlier]; });
      if (next != needs_[i].end()) {
        open.push_back(*next);
        continue;
      }
      open.pop_back();
      is_placed_[i] = true;
      order_.push_back(stretch_[i]);
    }
  }

  const Log& log_;
  std::span<const size_t> stretch_;
  std::unordered_map<const Storage*, Uses> uses_;
  std::vector<std::vector<size_t>> needs_;
  std::vector<bool> is_needed_;
  std::vector<bool> is_placed_;
  std::vector<size_t> order_;
};

// These are parts of the names of operators whose kernels may refuse the values of their arguments.
constexpr std::string_view kMayRefuse[] = {
    "index",    "gather",        "scatter",     "embedding",    "take",      "put",      "linalg",
    "nll_loss", "cross_entropy", "multinomial", "floor_divide", "remainder", "cholesky",
};

// If an operator fails, exactly what was called before it has happened. So nothing is moved across
// an operator that may fail.
bool stays_in_place(const Log& log, size_t number) {
  const Entry& entry = log.entries()[number];
  return entry.phase == srg::Phase::kTraining ||
         std::ranges::any_of(kMayRefuse, [&](std::string_view part) {
           return entry.recipe->op.find(part) != std::string::npos;
         });
}

// Gives the entries from `at` on that may be put into another order.
std::span<const size_t> stretch_at(const Log& log, std::span<const size_t> numbers, size_t at) {
  size_t end = at;
  while (end < numbers.size() && !stays_in_place(log, numbers[end])) ++end;
  return numbers.subspan(at, end - at);
}

bool writes_much(const Log& log, std::span<const size_t> stretch) {
  std::unordered_set<const Storage*> written;
  uint64_t bytes = 0;
  for (const size_t i : stretch) {
    const Entry& entry = log.entries()[i];
    for (const uint32_t w : entry.recipe->written) {
      const Operand& operand = entry.operands[w];
      if (!operand.storage->held) continue;
      if (written.insert(operand.storage.get()).second) bytes += hull_bytes(operand);
    }
  }
  return bytes > kWrittenBytesMax;
}

}  // namespace

uint64_t hull_bytes(const Operand& view) {
  int64_t last = 0;
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    if (view.sizes[d] == 0) return 0;
    last += (view.sizes[d] - 1) * view.strides[d];
  }
  return static_cast<uint64_t>(last + 1) * c10::elementSize(view.type);
}

std::vector<bool> order_in_chains(const Log& log, std::vector<size_t>& numbers) {
  std::vector<bool> begins(numbers.size());
  for (size_t at = 0; at < numbers.size();) {
    const std::span<const size_t> stretch = stretch_at(log, numbers, at);
    if (writes_much(log, stretch)) {
      const std::vector<size_t> order =
          Chains(log, stretch).take_order([&](size_t begin) { begins[at + begin] = true; });
      std::ranges::copy(order, numbers.begin() + static_cast<ptrdiff_t>(at));
    }
    at += std::max<size_t>(stretch.size(), 1);
  }
  return begins;
}

}  // namespace djinn::device
