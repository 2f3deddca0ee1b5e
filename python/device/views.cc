// SPDX-License-Identifier: Apache-2.0

// This process carries out these operators itself, because they move no bytes: they make storages
// and views of them. Three more cross the border: copies in both directions, and one element as a
// number.
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/util/strides.h>

#include "python/device/device.h"
#include "python/device/sealing.h"
#include "python/device/shadow.h"

namespace djinn::device {
namespace {

using Layout = std::optional<at::Layout>;
using Type = std::optional<at::ScalarType>;

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

// --- making tensors: every byte of a new one is zero

at::Tensor make(at::IntArrayRef sizes, at::IntArrayRef strides, Type type, Layout layout,
                std::optional<at::Device> device, std::optional<bool> pin) {
  if (device) check_index(device->index());
  TORCH_CHECK_NOT_IMPLEMENTED(!layout || *layout == at::kStrided,
                              "Tensors of the device are strided; make others on the CPU.");
  TORCH_CHECK(!pin || !*pin, "Only dense CPU tensors can be pinned.");
  for (const int64_t size : sizes) {
    TORCH_CHECK(size >= 0, "Trying to create tensor with negative dimension ", size, ": ", sizes);
  }
  const at::ScalarType element = type.value_or(c10::get_default_dtype_as_scalartype());
  const size_t bytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(element));
  StoragePtr storage = storages().make(bytes, element);
  if (may_have_shadow(element, bytes)) storage->shadow = make_zero_shadow(bytes);
  return strided_tensor(c10::DispatchKey::PrivateUse1, as_torch(storage), element, sizes, strides,
                        0);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, Type type, Layout layout,
                         std::optional<at::Device> device, std::optional<bool> pin) {
  return make(sizes, strides, type, layout, device, pin);
}

at::Tensor empty(at::IntArrayRef sizes, Type type, Layout layout, std::optional<at::Device> device,
                 std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  at::Tensor tensor = make(sizes, c10::contiguous_strides(sizes), type, layout, device, pin);
  if (format && *format != at::MemoryFormat::Contiguous) {
    tensor.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  return tensor;
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef sizes,
                         std::optional<at::MemoryFormat>) {
  const auto bytes = at::detail::computeStorageNbytesContiguous(
      sizes, self.itemsize(), static_cast<size_t>(self.storage_offset()));
  if (bytes > self.storage().nbytes()) {
    Device::get().grow(storage_of(self), bytes);
    self.storage().unsafeGetStorageImpl()->set_nbytes(bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return self;
}

// --- views

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
}

at::Tensor view(const at::Tensor& self, at::IntArrayRef sizes) {
  return at::native::view(self, sizes);
}

at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides) {
  return at::native::_reshape_alias(self, sizes, strides);
}

at::Tensor unfold(const at::Tensor& self, int64_t dimension, int64_t size, int64_t step) {
  return at::native::unfold(self, dimension, size, step);
}

at::Tensor& set_view(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef sizes,
                     at::IntArrayRef strides) {
  c10::TensorImpl* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  if (strides.empty() && !sizes.empty()) {
    impl->set_sizes_contiguous(sizes);
  } else {
    impl->set_sizes_and_strides(sizes, strides, offset);
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_view(self, std::move(source), 0, {elements}, {1});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.is_same(source)) return self;
  return set_view(self, source.storage(), source.storage_offset(), source.sizes(),
                  source.strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
  return set_view(self, as_torch(storages().make(0, self.scalar_type())), 0, {0}, {1});
}

// --- across the border

at::Tensor read_here(const at::Tensor& self) {
  at::Tensor out = at::empty(self.sizes(), self.options().device(at::kCPU));
  Device::get().read(self, bytes_of(out));
  return out;
}

at::Tensor fetch(const at::Tensor& self) {
  const at::Tensor known = Device::get().known(self);
  return known.defined() ? known.contiguous() : read_here(self);
}

// Tells whether the bytes that are read can lie there as they are.
bool takes_bytes_of(const at::Tensor& destination, const at::Tensor& self) {
  return destination.device().is_cpu() && destination.layout() == at::kStrided &&
         destination.is_contiguous() && !destination.is_conj() && !destination.is_neg() &&
         destination.scalar_type() == self.scalar_type() && destination.sizes() == self.sizes();
}

// Reads into the destination itself where it can: a copy between would be in memory twice.
void fetch_into(const at::Tensor& self, const at::Tensor& destination) {
  const at::Tensor known = Device::get().known(self);
  if (!known.defined() && takes_bytes_of(destination, self)) {
    return Device::get().read(self, bytes_of(destination));
  }
  destination.copy_(known.defined() ? known : read_here(self));
}

void send(const at::Tensor& source, const at::Tensor& destination) {
  const at::Tensor ready =
      source.to(destination.scalar_type()).expand(destination.sizes()).contiguous();
  if (ready.numel() == 0) return;
  if (Device::get().replace(destination, bytes_of(ready), is_worth_sealing(source))) return;
  const StoragePtr storage = upload(bytes_of(ready), ready.scalar_type());
  destination.copy_(dense_tensor(storage, ready.scalar_type(), ready.sizes()));
}

void copy_here(const at::Tensor& source, const at::Tensor& destination) {
  static const c10::OperatorHandle copy =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  Stack stack{destination, source, false};
  Device::get().call(copy, stack);
}

// Gives a tensor of the same memory, without the bits that tell a reader to conjugate or negate it.
at::Tensor without_bits(const at::Tensor& tensor) {
  at::Tensor plain = at::native::as_strided_tensorimpl(tensor, tensor.sizes(), tensor.strides(),
                                                       tensor.storage_offset());
  plain._set_conj(false);
  plain._set_neg(false);
  return plain;
}

// Gives the values that a reader of `bits` would see in `values`. It is its own inverse.
at::Tensor through_bits(at::Tensor values, const at::Tensor& bits) {
  if (bits.is_conj()) values = at::conj_physical(values);
  if (bits.is_neg()) values = at::neg(values);
  return values;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool);

at::Tensor copy_with_bits(const at::Tensor& self, const at::Tensor& destination) {
  const at::Tensor seen =
      is_ours(self) ? through_bits(without_bits(self), self) : self.resolve_conj().resolve_neg();
  if (!is_ours(destination)) {
    fetch_into(seen, destination);
  } else {
    copy_from(through_bits(seen, destination), without_bits(destination), false);
  }
  return destination;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool) {
  if (self.is_conj() || self.is_neg() || destination.is_conj() || destination.is_neg()) {
    return copy_with_bits(self, destination);
  }
  TORCH_CHECK(self.layout() == at::kStrided && destination.layout() == at::kStrided,
              "Only strided tensors cross to the device; convert with to_dense().");
  if (is_ours(self) && is_ours(destination)) {
    copy_here(self, destination);
  } else if (is_ours(destination)) {
    send(self, destination);
  } else {
    fetch_into(self, destination);
  }
  return destination;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& destination) {
  if (destination.sizes() != self.sizes()) destination.resize_(self.sizes());
  return copy_from(self, destination, false);
}

at::Scalar local_scalar(const at::Tensor& self) {
  return fetch(self).item();
}

bool equal(const at::Tensor& self, const at::Tensor& other) {
  return self.sizes() == other.sizes() && at::eq(self, other).all().item<bool>();
}

bool is_set_to(const at::Tensor& self, const at::Tensor& other) {
  return self.storage().data() == other.storage().data() &&
         self.storage_offset() == other.storage_offset() && self.sizes() == other.sizes() &&
         self.strides() == other.strides();
}

// Tells whether a tensor can become `other` in place, by `.data =`: so Module.to() and its kin keep
// parameters, and with them tied weights and optimizers, as they do between the CPU and a GPU.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& other) {
  const auto is_dense = [](const at::Tensor& tensor) {
    return tensor.key_set().has(c10::DispatchKey::PrivateUse1) ||
           tensor.key_set().has(c10::DispatchKey::CPU);
  };
  return is_dense(self) && is_dense(other);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("resize_", &resize);
  library.impl("as_strided", &as_strided);
  library.impl("view", &view);
  library.impl("_reshape_alias", &reshape_alias);
  library.impl("unfold", &unfold);
  library.impl("view_as_real", &at::native::view_as_real);
  library.impl("view_as_complex", &at::native::view_as_complex);
  library.impl("set_.source_Storage", &set_storage);
  library.impl("set_.source_Storage_storage_offset", &set_view);
  library.impl("set_.source_Tensor", &set_tensor);
  library.impl("set_", &set_nothing);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &local_scalar);
  library.impl("equal", &equal);
  library.impl("is_set_to", &is_set_to);
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) {
  library.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
}

// Without this the fallbacks of these keys would copy the argument, and the copy would come here
// again.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace djinn::device
