// SPDX-License-Identifier: Apache-2.0

// Loading: while transformers builds a model, its weights are sources: tensors of files that nobody
// has read. Operators on them are recorded and held back. Afterwards each parameter's trace tells
// how it comes about; what a load plan can say becomes the plan of a model, and the parameter's
// storage becomes that weight.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernel/srg/load_plan.h"
#include "libdjinn-client/client.h"
#include "python/device/device.h"

namespace djinn::device {

// How the bytes of a storage come about.
struct Origin {
  enum class Kind : uint8_t {
    kSource,    // `named`: a tensor of a file
    kOperator,  // one entry made it, and nothing changed it since
    kHost,      // uploaded
    kWeight,    // `named`: of a model
    kRef,
    kZero,
    kWritten,  // several operators had a part in it
  };
  Kind kind = Kind::kZero;
  std::shared_ptr<const NamedTensor> named;
  std::shared_ptr<const Recipe> recipe;  // kOperator
  std::vector<std::pair<std::shared_ptr<const Origin>, Operand>> operands;
  Product product;   // kOperator
  Operand geometry;  // kSource: the whole tensor
};

// A tensor of the device for tensor `name` of file number `file`.
at::Tensor make_source(uint64_t file, std::string name, at::ScalarType type, at::IntArrayRef sizes);

// The tensors' storages, traced through the log.
std::vector<std::shared_ptr<const Origin>> trace(const std::vector<at::Tensor>& tensors);

// The sources that recorded operators still need, because something holds what they make.
std::vector<NamedTensor> pending_sources();

// Opens a model in the device's session. paths: files, opened for reading and closed again here.
// plan: without destinations, all tensors as they are, as who sends no plan has them.
// keep_alive_ms: as ipc::OpenModel says.
Result<client::OpenedModel> open_model(const std::string& label,
                                       const std::vector<std::string>& paths,
                                       const srg::LoadPlan& plan,
                                       std::optional<uint64_t> keep_alive_ms);

// The tensor's storage is from now on weight `name` of a model, for every view of it.
void bind(const at::Tensor& tensor, std::shared_ptr<const Lease> lease, std::string name);

// Where recorded operators read tensor `tensor` of file number `file`, they read weight `name` of a
// model, from now on.
void bind_source(uint64_t file, std::string_view tensor, std::shared_ptr<const Lease> lease,
                 std::string name);

}  // namespace djinn::device
