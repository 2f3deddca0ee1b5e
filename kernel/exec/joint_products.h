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

// What the kernels are told. call.row is set to the rows when they are called.
struct ProductWork {
  kernels::Linear call;
  c10::SmallVector<kernels::LinearRow, 8> rows;
  kernels::Element element{};
  bool inputs_dense = false;
  int64_t share = 0;  // outputs that a thread takes at once, where the inputs are dense
};

// A product that is ours, and what its work points to.
struct Product {
  at::Tensor input;
  std::optional<at::Tensor> bias;
  at::Tensor result;
  std::optional<at::Tensor> parts;
  ProductWork work;
};

// Computes the products into their results, or, where a JointProducts lives on this thread, hands
// them to it: the results have their bytes when that has computed.
void compute_or_join(std::span<Product> products);

class JointProducts {
 public:
  explicit JointProducts(size_t runs);
  ~JointProducts();
  JointProducts(const JointProducts&) = delete;
  JointProducts& operator=(const JointProducts&) = delete;

  // Products that are handed over from now on are this run's.
  void of_run(size_t run) { run_ = run; }
  // Computes all that were handed over.
  void compute();
  // Lets go of what the run's products point to; its allocator's sink is the current one.
  void drop(size_t run) { products_[run].clear(); }

 private:
  friend void compute_or_join(std::span<Product> products);

  size_t run_ = 0;
  std::vector<std::vector<Product>> products_;  // by run
  std::vector<ProductWork> works_;              // of compute(), kept for its memory
};

}  // namespace djinn::exec
