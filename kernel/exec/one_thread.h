// SPDX-License-Identifier: Apache-2.0

// Calls whose kernel lets several threads meet at one element: an index names it twice, or what is
// written lies partly over what is read. Which of them is first, or in which order a sum is
// rounded, would be chance. They run on one thread, so that a step that is repeated gives the same
// bytes (ARCHITECTURE rule 10), those that one thread of PyTorch's gives. And with how many threads
// a call has one thread's bits, which is how many a fast program takes.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "kernel/exec/torch_headers.h"

namespace djinn::exec {

// Whether two elements of the tensor may be one: exact for what a kernel makes, and true for some
// strides that place each element by itself in a way that no kernel does.
[[nodiscard]] bool may_overlap_itself(const at::Tensor& tensor);

// Whether an argument that the call writes lies partly over another one, or over itself. The stack
// is filled.
[[nodiscard]] bool writes_over_inputs(const c10::FunctionSchema& schema,
                                      const std::vector<c10::IValue>& stack);

// Whether threads of the call may meet at what an index names. Tensors may be on meta.
using Race = bool (*)(const std::vector<c10::IValue>& stack);

// Null for an operator whose threads never do.
[[nodiscard]] Race race_of(std::string_view op);

[[nodiscard]] std::vector<std::string_view> operators_with_races();

// Whether what the operator computes has the same bits however many threads compute it: each
// element is computed by itself, each row in one order, or nothing is; but for what splits_of()
// says. The others may be like that, too, and nobody has looked; of ours those that call LibTorch
// say so (joint_products.h).
[[nodiscard]] bool keeps_bits(std::string_view op);
// Likewise of a call, for operators of which it depends on that, attention and softmax: with how
// many threads at most it has the bits that one thread gives it. Null for all others. Tensors are
// there.
using MostThreads = int (*)(const std::vector<c10::IValue>& stack);
inline constexpr int kAnyThreads = std::numeric_limits<int>::max();
[[nodiscard]] MostThreads most_threads(std::string_view op);
// What most_threads() gives for aten::scaled_dot_product_attention. What a row gets with so many
// has the same bits whatever rows are beside it.
[[nodiscard]] int most_threads_of_attention(const std::vector<c10::IValue>& stack);

// Of what keeps its bits: whether it does so for a result of kFewElements alone. Where a thread's
// share ends, its kernel computes what fills no vector in another way, which rounds otherwise.
enum class Splits : uint8_t {
  kNever,
  kComplex,  // where the result is complex
  kFloats,   // likewise, and where it is of floats
};
// LibTorch gives so many to one thread, whatever the operator is.
inline constexpr int64_t kFewElements = 16 * 1024;
// constants: the arguments, as far as they are the same in each run.
[[nodiscard]] Splits splits_of(std::string_view op, const std::vector<c10::IValue>& constants);
// Whether a call of such an operator does: its tensors are there.
[[nodiscard]] bool splits_in(Splits splits, const std::vector<c10::IValue>& stack);

// LibTorch's kernels, and MKL's, that this thread calls use so many threads at most while one
// lives.
class ThreadsAtMost {
 public:
  explicit ThreadsAtMost(int most);
  ~ThreadsAtMost();
  ThreadsAtMost(const ThreadsAtMost&) = delete;
  ThreadsAtMost& operator=(const ThreadsAtMost&) = delete;

 private:
  int former_ = 0;  // 0: nothing was changed
  int former_of_mkl_ = 0;
};

// Likewise this thread alone, where that is wanted.
class OneThread : public ThreadsAtMost {
 public:
  explicit OneThread(bool wanted) : ThreadsAtMost(wanted ? 1 : kAnyThreads) {}
};

}  // namespace djinn::exec
