// SPDX-License-Identifier: Apache-2.0

// Layout claims: what a client predicted of a node's output is a contract, and where a kernel gives
// the same elements in another layout they are copied into the claimed one.
//
//   claim   sizes and strides, offset 0, on a storage that nobody shares. A tensor without
//           dimensions has no strides to name, so naming its (no) sizes claims all that.
//
// Only outputs that the schema calls fresh can have one: a view or an in-place result has the
// layout that it has.
// invariant: after settle_layouts() a claimed output agrees with its claim, and memory of its
// storage outside of its elements is zero.
#pragma once

#include "kernel/base/result.h"
#include "kernel/exec/program.h"

namespace djinn::exec {

[[nodiscard]] bool claims_layout(const srg::Value& value);

// What the schema says of the return that this output is, or is part of.
[[nodiscard]] const Return& return_of(const Step& step, size_t output);

// Fills step's layouts from what the graph claims of its outputs.
Status note_layouts(const srg::Graph& graph, Step& step);

// Whether a result is as claimed already. false where that takes longer to tell.
[[nodiscard]] inline bool agrees(const Layout& layout, const at::Tensor& tensor) noexcept {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (!layout.is_plain || impl.dtype() != c10::scalarTypeToTypeMeta(layout.type)) return false;
  const c10::Storage& storage = impl.unsafe_storage();
  return impl.sizes().equals(layout.sizes) && impl.strides().equals(layout.strides) &&
         impl.storage_offset() == 0 && tensor.use_count() == 1 && storage.use_count() == 1 &&
         storage.nbytes() == layout.bytes && !tensor.is_conj() && !tensor.is_neg();
}

// Copies the step's results, which are in the frame, where they differ from their claims. Throws
// what at::copy_ throws: an overlapping layout cannot be copied into. Error: kShapeMismatch for
// other sizes or another dtype.
Status settle_layouts(const srg::Graph& graph, const Step& step, Frame& frame);

}  // namespace djinn::exec
