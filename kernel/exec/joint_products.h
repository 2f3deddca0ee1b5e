// SPDX-License-Identifier: Apache-2.0

// Products of a few rows with constant matrices, as our own kernels compute them (fast_linear.cc),
// and JointProducts: those of several runs that go on together (interpreter.h), so that a matrix is
// read once for the rows of all.
//
// invariant: what a row gets is what it would get alone (kernels/linear.h, the row contract).
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "kernel/exec/fast_rows.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {

// Rows of one run, at even distances in bytes; those of parts are in floats.
struct ProductRows {
  int64_t count = 0;
  const std::byte* x = nullptr;
  int64_t x_step = 0;
  std::byte* y = nullptr;
  int64_t y_step = 0;
  float* parts = nullptr;  // as LinearRow's, of the first row; or none
  int64_t parts_step = 0;
  int64_t parts_stride = 0;
  const std::byte* given = nullptr;  // as LinearRow's, of the first row; or none
  int64_t given_step = 0;
};

// What the kernels are told. call.row and the share are set when they are called.
struct ProductWork {
  kernels::Linear call;
  c10::SmallVector<ProductRows, 2> rows;
  c10::SmallVector<kernels::LinearRow, 8> at_once;  // of them, what call.row points to
  kernels::Element element{};
  bool inputs_dense = false;
  bool is_int8 = false;      // the weights; rows are what Int8LinearKernels takes
  bool packs = false;        // inputs that are not dense, for many rows
  bool is_split = false;     // many rows, as SplitLinearKernels takes them
  float* scratch = nullptr;  // then: [threads, packed_floats(inputs)]
  int64_t share = 0;         // outputs that a thread takes at once, but for parts of chunks
};

// A product that is ours, and what its work points to.
struct Product {
  at::Tensor given;
  at::Tensor input;  // given, or what kernels take of it
  std::optional<at::Tensor> bias;
  at::Tensor result;
  std::optional<at::Tensor> parts;  // or scratch
  ProductWork work;
};

// Computes the products into their results, or, in a JointProducts::OfRun, hands them over: the
// results have their bytes when those of all runs are computed.
void compute_or_join(std::span<Product> products);

class JointProducts {
 public:
  explicit JointProducts(size_t runs) : runs_(runs) {}

  // While it lives, this thread's calls are the run's.
  class OfRun {
   public:
    OfRun(JointProducts& products, size_t run);
    ~OfRun();
    OfRun(const OfRun&) = delete;
    OfRun& operator=(const OfRun&) = delete;
  };

  // Computes all that were handed over.
  void compute();
  // Lets go of what the run's products point to; its allocator's sink is the current one.
  void drop(size_t run) { runs_[run].products.clear(); }
  // The run has left because of take_leave().
  [[nodiscard]] bool has_left(size_t run) const { return runs_[run].has_left; }

 private:
  friend void compute_or_join(std::span<Product> products);
  friend void take_leave();

  struct Run {
    std::vector<Product> products;
    bool has_left = false;
  };
  static thread_local Run* current_;

  std::vector<Run> runs_;
  std::vector<ProductWork> works_;  // of compute(), kept for its memory
};

// What follows may have other bits with one thread than with all of them. A run that goes on
// together with others has one, and leaves them: throws.
void take_leave();

}  // namespace djinn::exec
