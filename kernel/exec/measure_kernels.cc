// SPDX-License-Identifier: Apache-2.0

// CpuExecutor::measure_kernels(): what products of many rows give by our own kernels and by the
// library's (kernel/base/kernel_table.h), and how near a token's products come to what memory
// gives. For people: a library may be the faster one on a host, where programs have ours all the
// same.
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sum.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "kernel/base/clock.h"
#include "kernel/exec/convert.h"
#include "kernel/exec/cpu_executor.h"
#include "kernel/exec/crew.h"
#include "kernel/exec/fast_linear.h"
#include "kernel/exec/fast_rows.h"
#include "kernel/srg/rewrite/rewrite.h"

namespace djinn::exec {
namespace {

using Seconds = std::chrono::duration<double>;
using TimePoint = std::chrono::steady_clock::time_point;

struct Sizes {
  int64_t rows, inputs, outputs;
  [[nodiscard]] double operations() const {
    return 2.0 * static_cast<double>(rows * inputs * outputs);
  }
};
// A part of a prompt, of a small model; the weights fit into no second cache.
constexpr Sizes kPrompt{128, 768, 768};
// For who is too slow for that.
constexpr Sizes kSmall{48, 256, 256};
static_assert(kSmall.rows > srg::kLinearRowsMax);

// Of kSmall: 24 times as long is what kPrompt takes.
constexpr Seconds kSlow{0.001};
constexpr size_t kRounds = 5;
// Nothing begins to be measured behind that.
constexpr Seconds kPatience{0.5};
// No third cache holds it.
constexpr int64_t kReadBytes = int64_t{64} << 20;
constexpr int64_t kRowInputs = 1024;

// In the order of kKernelDtypeNames.
constexpr std::array<at::ScalarType, kKernelDtypes> kTypes{at::kFloat, at::kBFloat16, at::kHalf};

at::Tensor filled(at::IntArrayRef sizes, at::ScalarType type) {
  return at::full(sizes, 0.01, at::TensorOptions().dtype(type));
}

// Of processors, which the threads have had on which this one's products are computed. Each is
// asked by itself: what a thread has that runs on another processor just now, the system knows to
// the last tick alone, which is longer ago than a product takes.
double processor_seconds(ProductBy who) {
  const int threads = at::get_num_threads();
  std::vector<uint64_t> of_thread_ns(static_cast<size_t>(threads));
  const auto ask = [&](int thread) {
    of_thread_ns[static_cast<size_t>(thread)] = SystemClock().thread_cpu_ns();
  };
  if (who == ProductBy::kOwn) {
    Crew::mine().call(threads, ask);
  } else {
    at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ask(static_cast<int>(i));
    });
  }
  const uint64_t all_ns = std::accumulate(of_thread_ns.begin(), of_thread_ns.end(), uint64_t{0});
  return static_cast<double>(all_ns) * 1e-9;
}

// How long it takes if no other process has the processors of this one's threads meanwhile: what
// others take of a busy host is in no rate.
template <typename F>
double seconds_of(ProductBy who, const F& f) {
  const double begin = processor_seconds(who);
  f();
  return (processor_seconds(who) - begin) / at::get_num_threads();
}

template <size_t kCount>
double median(std::array<double, kCount> seconds) {
  std::ranges::sort(seconds);
  return seconds[kCount / 2];
}

// What a rate is in the table: in millions, and never 0, which says that nobody measured.
uint32_t in_millions(double count, double seconds) {
  constexpr double kMax = std::numeric_limits<uint32_t>::max();
  return static_cast<uint32_t>(std::clamp(count / std::max(seconds, 1e-9) / 1e6, 1.0, kMax));
}

// Products by both. A model's next product has another weight, which is in no second cache: so each
// arm has weights of its own, and takes each once.
class Arms {
 public:
  Arms(const Sizes& sizes, at::ScalarType type, bool inputs_dense)
      : sizes_(sizes), turned_(!inputs_dense), input_(filled({sizes.rows, sizes.inputs}, type)) {
    for (at::Tensor& weight : weights_) {
      weight = inputs_dense ? filled({sizes.outputs, sizes.inputs}, type)
                            : filled({sizes.inputs, sizes.outputs}, type);
    }
    (void)try_both();  // libraries make code for sizes that they meet first
  }

  // How long the slower one takes.
  [[nodiscard]] double try_both() const {
    const at::Tensor& weight = weights_[2 * kRounds];
    return std::max(run(ProductBy::kOwn, weight), run(ProductBy::kLibrary, weight));
  }
  // In turn, so that what else the host does meets both alike.
  [[nodiscard]] ProductKernels rates() const {
    std::array<double, kRounds> own{}, library{};
    for (size_t i = 0; i < kRounds; ++i) {
      own[i] = run(ProductBy::kOwn, weights_[2 * i]);
      library[i] = run(ProductBy::kLibrary, weights_[2 * i + 1]);
    }
    const double operations = sizes_.operations();
    return {in_millions(operations, median(own)), in_millions(operations, median(library))};
  }

 private:
  double run(ProductBy who, const at::Tensor& weight) const {
    return seconds_of(who, [&] { (void)product_by(who, input_, weight, turned_); });
  }

  Sizes sizes_;
  bool turned_;
  at::Tensor input_;
  std::array<at::Tensor, 2 * kRounds + 1> weights_;
};

ProductKernels measured(at::ScalarType type, bool inputs_dense) {
  const Arms small(kSmall, type, inputs_dense);
  if (small.try_both() > kSlow.count()) return small.rates();
  return Arms(kPrompt, type, inputs_dense).rates();
}

// Memory that is read as weights are, in huge pages where the host gives them to who asks.
at::Tensor memory_to_read() {
  at::Tensor memory = at::empty({kReadBytes / 4}, at::kFloat);
  constexpr uintptr_t kPage = 4096;
  const auto begin = reinterpret_cast<uintptr_t>(memory.data_ptr()) + kPage - 1;
  void* const first_page = reinterpret_cast<void*>(begin / kPage * kPage);
  [[maybe_unused]] const int refused =
      ::madvise(first_page, static_cast<size_t>(kReadBytes) - kPage, MADV_HUGEPAGE);
  return memory.fill_(0.01);
}

template <typename F>
uint32_t read_rate(ProductBy who, const F& read) {
  std::array<double, 3> seconds{};
  for (double& one : seconds) one = seconds_of(who, read);
  return in_millions(kReadBytes, median(seconds));
}

void measure_memory(KernelTable& table, TimePoint end) {
  const at::Tensor memory = memory_to_read();
  table.read_mbs = read_rate(ProductBy::kLibrary, [&] { (void)at::sum(memory); });
  for (size_t i = 0; i < kTypes.size() && std::chrono::steady_clock::now() < end; ++i) {
    const at::Tensor weight = memory.view(kTypes[i]).view({-1, kRowInputs});
    const at::Tensor row = filled({1, kRowInputs}, kTypes[i]);
    table.row_mbs[i] =
        read_rate(ProductBy::kOwn, [&] { (void)product_by(ProductBy::kOwn, row, weight, false); });
  }
}

void measure(KernelTable& table) {
  const TimePoint end = std::chrono::steady_clock::now() +
                        std::chrono::duration_cast<std::chrono::steady_clock::duration>(kPatience);
  const auto in_time = [end] { return std::chrono::steady_clock::now() < end; };
  for (size_t i = 0; i < kTypes.size(); ++i) {
    for (const bool inputs_dense : {true, false}) {
      ProductKernels& product = table.products[product_index(i, inputs_dense)];
      if (in_time()) product = measured(kTypes[i], inputs_dense);
    }
  }
  if (in_time()) measure_memory(table, end);
}

}  // namespace

void CpuExecutor::measure_kernels(int threads) {
  at::set_num_threads(threads);
  KernelTable table;
  // Where memory is short, what was not measured stays 0.
  const Status whole = catching([&]() -> Status {
    c10::InferenceMode inference_mode;
    measure(table);
    return {};
  });
  (void)whole;
  take_kernels(table);
}

}  // namespace djinn::exec
