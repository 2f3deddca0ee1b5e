// SPDX-License-Identifier: Apache-2.0

// What internal operators compute where no kernel of ours takes their tensors: what the graph said
// before, with LibTorch's kernels of whatever device. Arguments are the operator's.
#pragma once

#include <optional>

#include "kernel/exec/torch_headers.h"

namespace djinn::exec {

[[nodiscard]] at::Tensor linear_as_before(const at::Tensor& input, const at::Tensor& weight,
                                          const std::optional<at::Tensor>& bias, bool turned);
[[nodiscard]] at::Tensor rms_norm_as_before(const at::Tensor& x,
                                            const std::optional<at::Tensor>& weight, double epsilon,
                                            bool from_one, bool contiguous);
[[nodiscard]] at::Tensor layer_norm_as_before(const at::Tensor& x,
                                              const std::optional<at::Tensor>& weight,
                                              const std::optional<at::Tensor>& bias,
                                              double epsilon);
[[nodiscard]] at::Tensor gate_as_before(const at::Tensor& x,
                                        const std::optional<at::Tensor>& factor,
                                        c10::string_view activation, bool factor_first);
[[nodiscard]] at::Tensor rope_as_before(const at::Tensor& x, const at::Tensor& cos,
                                        const at::Tensor& sin, bool interleaved);
[[nodiscard]] at::Tensor attention_as_before(const at::Tensor& query, const at::Tensor& key,
                                             const at::Tensor& value,
                                             const std::optional<at::Tensor>& mask,
                                             std::optional<double> scale, bool grouped,
                                             bool causal);

// To ask such a function how its result would lie.
[[nodiscard]] at::Tensor on_meta(const at::Tensor& tensor);
// Gives a result that lies as another one, which may be on meta, of the same sizes.
[[nodiscard]] at::Tensor lying_as(const at::Tensor& other, const at::Tensor& result);

// What a kernel computed, contiguous in y, lying as the operator's result lies. Arguments are the
// operator's.
[[nodiscard]] at::Tensor laid_out_norm(const at::Tensor& y, const at::Tensor& x,
                                       const std::optional<at::Tensor>& weight, double epsilon,
                                       bool from_one, bool contiguous);
[[nodiscard]] at::Tensor laid_out_gate(const at::Tensor& y, const at::Tensor& x,
                                       const std::optional<at::Tensor>& factor,
                                       c10::string_view activation, bool factor_first);

}  // namespace djinn::exec
