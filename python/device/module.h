// SPDX-License-Identifier: Apache-2.0

// The parts of the extension module, each in a file of its own.
#pragma once

// torch's header names pybind11, so it comes first.
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include "python/device/torch_headers.h"

namespace djinn::device {

inline at::Tensor tensor_from(const pybind11::handle& object) {
  TORCH_CHECK(THPVariable_Check(object.ptr()), "A tensor is needed.");
  return THPVariable_Unpack(object.ptr());
}

inline pybind11::object to_python(const at::Tensor& tensor) {
  return pybind11::reinterpret_steal<pybind11::object>(THPVariable_Wrap(tensor));
}

inline at::ScalarType dtype_from(const pybind11::handle& object) {
  TORCH_CHECK(THPDtype_Check(object.ptr()), "A torch.dtype is needed.");
  return reinterpret_cast<THPDtype*>(object.ptr())->scalar_type;
}

// Captures, templates and generation.
void add_generation(pybind11::module_& module);

}  // namespace djinn::device
