// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/joint_products.h"

#include <algorithm>
#include <utility>

#include "kernel/base/assert.h"
#include "kernel/exec/next_weights.h"
#include "kernel/srg/rewrite/rewrite.h"

namespace djinn::exec {
namespace {

// Lines of outputs that are worth a thread, where their parts are summed.
constexpr int64_t kLinesGrain = 64;

void run_inputs_first(const ProductWork& work, std::span<const Ahead> ahead) {
  const kernels::Linear& call = work.call;
  const kernels::LinearKernels& linear = fast_kernels().linear;
  const auto element = static_cast<size_t>(work.element);
  const kernels::LinearKernel kernel =
      work.is_int8 ? linear.int8.inputs_first[element] : linear.inputs_first[element];
  const kernels::LinearKernel sum = linear.sum_chunks[element];
  // A thread's chunks are neighbours, since each fetches the beginning of the next one.
  for_each_part(
      kernels::chunks_of(call.inputs), 1,
      [&](int64_t begin, int64_t end, int) { kernel(call, begin, end); }, ahead);
  constexpr int64_t kLine = kernels::padded_outputs(1);
  const int64_t lines = kernels::padded_outputs(call.outputs) / kLine;
  for_each_part(
      lines, kLinesGrain,
      [&](int64_t begin, int64_t end, int) {
        sum(call, begin * kLine, std::min(end * kLine, call.outputs));
      },
      ahead);
}

// Of a weight's element.
int64_t weight_bytes(const ProductWork& work) {
  if (work.is_int8) return 1;
  return work.element == kernels::Element::kFloat32 ? 4 : 2;
}

// Of weights, that a thread takes at once.
constexpr int64_t kShareBytes = 128 * 1024;
// Of few rows more, where enough shares are left for threads to be done at the same time: the
// longer streams of weights are (linear_template.h), the faster memory is. (For one row two threads
// of a Sapphire Rapids read bf16 at 27 GB/s by 128 KiB, 28 by 256 and 33 by 512.)
constexpr int64_t kShareBytesMax = 512 * 1024;
constexpr int64_t kSharesOfThread = 8;

int64_t in_tiles(int64_t outputs) {
  constexpr int64_t kTile = kernels::kTileOutputs;
  return (outputs + kTile - 1) / kTile * kTile;
}

int64_t share_of_few(const ProductWork& work, int64_t threads) {
  const int64_t least = kShareBytes / (work.call.inputs * weight_bytes(work));
  const int64_t outputs = std::clamp(work.call.outputs / (threads * kSharesOfThread), least,
                                     kShareBytesMax / kShareBytes * least);
  const bool is_in_tiles = work.element == kernels::Element::kBFloat16 && !work.is_int8;
  const int64_t of_tile = work.call.rows > 1 ? kernels::kTileOutputs
                          : is_in_tiles      ? kernels::kOutputsAtOnce
                                             : 1;
  return std::max(outputs / of_tile * of_tile, of_tile);
}

// Of many rows the shares are as large as tiles may be, and as many for each thread: what they cost
// is arithmetic, which takes all threads as long. Of 16 rows that was slower.
int64_t share_of(const ProductWork& work) {
  const int64_t threads = lane_threads();
  if (work.is_split) {
    constexpr int64_t kOutputs = kernels::kSplitOutputs;
    return (work.call.outputs + threads * kOutputs - 1) / (threads * kOutputs) * kOutputs;
  }
  if (work.packs) return kernels::kPackedOutputs;
  if (work.call.rows <= srg::kLinearRowsMax) return share_of_few(work, threads);
  const int64_t of_thread = in_tiles((work.call.outputs + threads - 1) / threads);
  constexpr int64_t kMost = kernels::kTileOutputsMax;
  const int64_t shares = (of_thread + kMost - 1) / kMost;
  return in_tiles((of_thread + shares - 1) / shares);
}

// Tells whether outputs are shared out; otherwise chunks of inputs are.
bool shares_outputs(const ProductWork& work) {
  return work.inputs_dense || work.packs || work.is_split;
}

int64_t shares_of(const ProductWork& work) {
  if (work.call.rows == 0 || !shares_outputs(work)) return 0;
  return (work.call.outputs + work.share - 1) / work.share;
}

// Computes what the share's number among the work's tells.
void run_share(const ProductWork& work, int64_t share, int64_t thread) {
  const kernels::LinearKernels& linear = fast_kernels().linear;
  const auto element = static_cast<size_t>(work.element);
  const int64_t begin = share * work.share;
  const int64_t end = std::min(begin + work.share, work.call.outputs);
  if (work.is_split) {
    return linear.split.outputs_first(work.call, begin, end);
  }
  if (!work.packs) {
    const kernels::LinearKernel kernel =
        work.is_int8 ? linear.int8.outputs_first[element] : linear.outputs_first[element];
    return kernel(work.call, begin, end);
  }
  kernels::Linear call = work.call;
  call.scratch = work.scratch + thread * kernels::packed_floats(call.inputs);
  const kernels::LinearKernel kernel =
      work.is_int8 ? linear.int8.packed[element] : linear.packed[element];
  kernel(call, begin, end);
}

// How many rows are told of at once: weights are read once for all of these, and where they are
// takes little memory, however small a row is.
constexpr int64_t kRowsAtOnce = 4096;

int64_t rows_of(const ProductWork& work) {
  int64_t count = 0;
  for (const ProductRows& rows : work.rows) count += rows.count;
  return count;
}

// Tells the call of its rows [begin, end).
void take_rows(ProductWork& work, int64_t begin, int64_t end) {
  work.at_once.clear();
  for (const ProductRows& rows : work.rows) {
    const int64_t last = std::min(end, rows.count);
    for (int64_t row = std::max<int64_t>(begin, 0); row < last; ++row) {
      work.at_once.push_back(
          {rows.x + row * rows.x_step, rows.y + row * rows.y_step,
           rows.parts == nullptr ? nullptr : rows.parts + row * rows.parts_step, rows.parts_stride,
           rows.given == nullptr ? nullptr : rows.given + row * rows.given_step});
    }
    begin -= rows.count;
    end -= rows.count;
  }
  work.call.row = work.at_once.data();
  work.call.rows = static_cast<int64_t>(work.at_once.size());
}

// Of each work its first share; and how many there are.
using Firsts = c10::SmallVector<int64_t, 8>;

// The work that has the share. Works without shares have the first of the next one.
size_t work_of(const Firsts& firsts, int64_t share) {
  return static_cast<size_t>(std::ranges::upper_bound(firsts, share) - firsts.begin() - 1);
}

// What a thread reads of weights from an output on, or, where inputs are shared out, an input.
Ahead::Part weights_from(const ProductWork& work, int64_t row, int64_t bytes_left) {
  const kernels::Linear& call = work.call;
  const int64_t rows = shares_outputs(work) ? call.outputs : call.inputs;
  const int64_t row_bytes = call.weight_stride * weight_bytes(work);
  return {static_cast<const std::byte*>(call.weight) + row * row_bytes,
          std::min((rows - row) * row_bytes, bytes_left)};
}

// What a thread of so many reads first of these works (for_each_share(), for_each_part()).
template <typename F>
Ahead first_of(const Firsts& firsts, const F& work, int thread, int threads) {
  Ahead ahead;
  int64_t left = ahead_bytes();
  size_t parts = 0;
  const auto add = [&](const ProductWork& it, int64_t row) {
    ahead.parts[parts] = weights_from(it, row, left);
    left -= ahead.parts[parts++].bytes;
  };
  if (firsts.back() == 0) {
    const ProductWork& it = work(0);
    const int64_t chunks = kernels::chunks_of(it.call.inputs);
    const int64_t each = (chunks + threads - 1) / threads;
    const int64_t row = thread * each * kernels::kChunkInputs;
    if (row < it.call.inputs) add(it, row);
    return ahead;
  }
  int64_t share = firsts.back() * thread / threads;
  while (share < firsts.back() && left > 0 && parts < ahead.parts.size()) {
    const size_t i = work_of(firsts, share);
    add(work(i), (share - firsts[i]) * work(i).share);
    share = firsts[i + 1];
  }
  return ahead;
}

// `count` works, of which work(i) is one, of as many rows as were told: those with dense inputs are
// shared out among the threads as if they were one's, which changes no result.
template <typename F>
void run_rows_told(size_t count, const F& work) {
  Firsts firsts{0};
  for (size_t i = 0; i < count; ++i) {
    ProductWork& it = work(i);
    it.share = share_of(it);
    firsts.push_back(firsts.back() + shares_of(it));
  }
  const int threads = at::get_num_threads();
  const std::span<const Ahead> ahead = NextWeights::mine().after(
      work(0).call.weight, threads,
      [&](int thread) { return first_of(firsts, work, thread, threads); });
  for (size_t i = 0; i < count; ++i) {
    if (work(i).call.rows > 0 && !shares_outputs(work(i))) run_inputs_first(work(i), ahead);
  }
  if (firsts.back() == 0) return;
  for_each_share(
      firsts.back(),
      [&](int64_t share, int thread) {
        const size_t i = work_of(firsts, share);
        run_share(work(i), share - firsts[i], thread);
      },
      ahead);
}

// The same of all rows.
template <typename F>
void run_works(size_t count, const F& work) {
  int64_t most = 0;
  for (size_t i = 0; i < count; ++i) most = std::max(most, rows_of(work(i)));
  for (int64_t begin = 0; begin < most; begin += kRowsAtOnce) {
    for (size_t i = 0; i < count; ++i) take_rows(work(i), begin, begin + kRowsAtOnce);
    run_rows_told(count, work);
  }
}

// Tells whether they differ in their rows alone.
bool have_one_matrix(const ProductWork& a, const ProductWork& b) {
  return a.call.weight == b.call.weight && a.call.weight_stride == b.call.weight_stride &&
         a.call.bias == b.call.bias && a.call.inputs == b.call.inputs &&
         a.call.outputs == b.call.outputs && a.element == b.element &&
         a.inputs_dense == b.inputs_dense && a.packs == b.packs && a.is_split == b.is_split;
}

}  // namespace

thread_local JointProducts::Run* JointProducts::current_ = nullptr;

void compute_or_join(std::span<Product> products) {
  JointProducts::Run* const run = JointProducts::current_;
  if (run == nullptr) {
    return run_works(products.size(), [&](size_t i) -> ProductWork& { return products[i].work; });
  }
  for (Product& one : products) run->products.push_back(std::move(one));
}

void take_leave() {
  if (JointProducts::current_ == nullptr) return;
  JointProducts::current_->has_left = true;
  TORCH_CHECK(false, "it needs all threads");
}

JointProducts::OfRun::OfRun(JointProducts& products, size_t run) {
  DJINN_ASSERT(current_ == nullptr);
  current_ = &products.runs_[run];
}

JointProducts::OfRun::~OfRun() {
  current_ = nullptr;
}

void JointProducts::compute() {
  works_.clear();
  for (const Run& run : runs_) {
    for (const Product& one : run.products) {
      const auto same = std::ranges::find_if(
          works_, [&](const ProductWork& work) { return have_one_matrix(work, one.work); });
      if (same == works_.end()) {
        works_.push_back(one.work);
      } else {
        same->rows.append(one.work.rows.begin(), one.work.rows.end());
      }
    }
  }
  run_works(works_.size(), [&](size_t i) -> ProductWork& { return works_[i]; });
}

}  // namespace djinn::exec
