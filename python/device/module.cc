// The extension module djinn.torch._device. Importing it makes the device; nothing connects before
// a value is needed.
#include "python/device/torch_headers.h"

#include <torch/csrc/autograd/python_variable.h>

#include "python/device/backend.h"
#include "python/device/device.h"

namespace djinn::device {
namespace {

namespace py = pybind11;

at::Tensor tensor_from(const py::handle& object) {
  TORCH_CHECK(THPVariable_Check(object.ptr()), "A tensor is needed.");
  return THPVariable_Unpack(object.ptr());
}

py::dict stats() {
  const DeviceStats stats = Device::get().stats();
  py::dict out;
  out["recorded"] = stats.recorded;
  out["flushes"] = stats.flushes;
  out["mixed"] = stats.mixed;
  out["forks"] = stats.forks;
  out["shadow_reads"] = stats.shadow_reads;
  out["recipe_hits"] = stats.recipes.hits;
  out["recipe_misses"] = stats.recipes.misses;
  out["runs"] = stats.link.runs;
  out["program_runs"] = stats.link.program_runs;
  out["operators"] = stats.link.operators;
  out["reads"] = stats.link.reads;
  out["bytes_up"] = stats.link.bytes_up;
  out["bytes_down"] = stats.link.bytes_down;
  out["graph_bytes"] = stats.link.graph_bytes;
  out["capture_ns"] = stats.capture_ns;
  out["schedule_ns"] = stats.link.schedule_ns;
  out["wait_ns"] = stats.link.wait_ns;
  return out;
}

}  // namespace

void raise(Error error) {
  TORCH_CHECK_NOT_IMPLEMENTED(error.code != ErrorCode::kUnsupported, error.message);
  TORCH_CHECK(false, error.message);
}

}  // namespace djinn::device

PYBIND11_MODULE(_device, module) {
  namespace device = djinn::device;
  device::register_backend();
  module.def("flush", [] { device::Device::get().flush(); });
  module.def("stats", &device::stats);
  module.def("is_connected", [] { return device::Device::get().is_connected(); });
  module.def("storage_home", [](const py::object& tensor) {
    return static_cast<int>(device::storage_of(device::tensor_from(tensor))->home);
  });
}
