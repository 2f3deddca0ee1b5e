// SPDX-License-Identifier: Apache-2.0

// Importing the extension module djinn.torch._device makes the device. Nothing connects before a
// value is needed.
#include "python/device/module.h"

#include <ATen/Context.h>
#include <pybind11/stl.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <map>

#include "kernel/exec/convert.h"
#include "libdjinn-client/place.h"
#include "python/device/backend.h"
#include "python/device/device.h"
#include "python/device/interruption.h"
#include "python/device/loading.h"
#include "python/device/opened_models.h"
#include "python/device/torch_headers.h"

namespace djinn::device {
namespace {

namespace py = pybind11;

py::dict stats() {
  const DeviceStats stats = Device::get().stats();
  py::dict out;
  out["recorded"] = stats.recorder.recorded;
  out["flushes"] = stats.flushes;
  out["idle_flushes"] = stats.idle_flushes;
  out["mixed"] = stats.mixed;
  out["forks"] = stats.recorder.forks;
  out["sealed"] = stats.uploads.sealed;
  out["shared"] = stats.uploads.shared;
  out["shadow_reads"] = stats.shadow_reads;
  out["recipe_hits"] = stats.recipes.hits;
  out["recipe_misses"] = stats.recipes.misses;
  out["tripped"] = stats.tripped;
  out["runs"] = stats.link.runs;
  out["program_runs"] = stats.link.program_runs;
  out["operators"] = stats.link.operators;
  out["reads"] = stats.link.reads;
  out["bytes_up"] = stats.link.bytes_up;
  out["bytes_down"] = stats.link.bytes_down;
  out["failures"] = stats.link.failures;
  out["last_failure"] = stats.link.last_failure;
  out["capture_ns"] = stats.capture_ns;
  out["schedule_ns"] = stats.link.schedule_ns;
  out["wait_ns"] = stats.link.wait_ns;
  return out;
}

// Gives the bytes that djinnd has counted for this process's session; None if there is no session.
py::object crossed() {
  const std::optional<ipc::SessionReport> report = Device::get().report();
  if (!report) return py::none();
  return py::int_(report->counts.bytes_in + report->counts.bytes_out);
}

bool is_available() {
  return client::Client::is_served(Link::connect_options());
}

py::dict memory() {
  const DeviceMemory memory = Device::get().memory();
  py::dict out;
  out["held"] = memory.held_bytes;
  out["most"] = memory.most_bytes;
  out["models"] = memory.own.shared_bytes;
  out["granted"] = memory.own.granted_bytes;
  out["free"] = memory.own.free_bytes;
  out["total"] = memory.own.total_bytes;
  return out;
}

// --- loading

srg::Piece piece_from(const py::handle& item) {
  const auto fields = item.cast<py::tuple>();
  srg::Piece piece;
  piece.file = fields[0].cast<uint32_t>();
  piece.tensor = fields[1].cast<std::string>();
  for (const py::handle slice : fields[2]) {
    const auto [dimension, start, length] = slice.cast<std::tuple<uint32_t, uint64_t, uint64_t>>();
    piece.slices.push_back({dimension, start, length});
  }
  piece.transpose = fields[3].cast<bool>();
  return piece;
}

srg::WeightForm form_from(bool is_int8) {
  return is_int8 ? srg::WeightForm::kInt8 : srg::WeightForm::kPlain;
}

srg::Destination destination_from(const py::handle& item) {
  const auto fields = item.cast<py::tuple>();
  srg::Destination destination;
  destination.name = fields[0].cast<std::string>();
  const auto dtype = dtype_from_name(fields[1].cast<std::string>());
  TORCH_CHECK_VALUE(dtype.has_value(), "A destination of the plan has no dtype.");
  destination.dtype = *dtype;
  destination.sizes = fields[2].cast<std::vector<uint64_t>>();
  destination.concat_dimension = fields[3].cast<uint32_t>();
  for (const py::handle piece : fields[4]) destination.pieces.push_back(piece_from(piece));
  destination.form = form_from(fields[5].cast<bool>());
  return destination;
}

// matrices_are_int8: of a plan without destinations; those of others say it one by one.
srg::LoadPlan plan_from(const py::list& destinations, bool matrices_are_int8) {
  srg::LoadPlan out;
  for (const py::handle item : destinations) out.destinations.push_back(destination_from(item));
  if (out.destinations.empty()) out.matrices = form_from(matrices_are_int8);
  return out;
}

// Raises the error as the class of djinn.errors that its group has.
[[noreturn]] void raise_typed(const Error& error) {
  if (error.code == ErrorCode::kCancelled) CtrlC::raise_again();
  const py::object made = py::module_::import("djinn.errors")
                              .attr("error_from")(static_cast<int>(error.code),
                                                  std::string(name_of(error.code)), error.message);
  PyErr_SetObject(py::type::of(made).ptr(), made.ptr());
  throw py::error_already_set();
}

py::dict open_model_here(const std::string& label, const std::vector<std::string>& paths,
                         const py::list& plan, bool matrices_are_int8,
                         std::optional<uint64_t> keep_alive_ms) {
  const auto result = open_model(label, paths, plan_from(plan, matrices_are_int8), keep_alive_ms);
  if (!result) raise_typed(result.error());
  const client::OpenedModel& opened = *result;
  py::list tensors;
  for (const srg::TensorEntry& entry : opened.manifest.tensors) {
    tensors.append(
        py::make_tuple(entry.name, std::string(name_of(entry.dtype)), py::cast(entry.sizes)));
  }
  py::dict out;
  out["id"] = opened.id.value;
  out["bytes"] = opened.bytes;
  out["was_resident"] = opened.was_resident;
  out["is_int8"] = note_opened(opened);
  out["lease"] = std::make_shared<Lease>(opened.id.value, opened.bytes);
  out["tensors"] = std::move(tensors);
  return out;
}

std::string dtype_name(at::ScalarType type) {
  return std::string(name_of(exec::from_torch(type)));
}

template <typename Numbers>
std::vector<int64_t> numbers(const Numbers& items) {
  return {items.begin(), items.end()};
}

py::tuple view_to_python(const Operand& view) {
  return py::make_tuple(dtype_name(view.type), numbers(view.sizes), numbers(view.strides),
                        view.offset);
}

struct ArgumentToPython {
  py::object operator()(const srg::None&) const { return py::none(); }
  py::object operator()(const srg::ValueRef& ref) const { return py::make_tuple("tensor", ref.id); }
  py::object operator()(const srg::ValueList& list) const {
    return py::make_tuple("tensors", py::cast(list.ids));
  }
  py::object operator()(const srg::Expr& expr) const { return py::cast(expr.constant); }
  py::object operator()(const srg::ExprList& list) const {
    py::list out;
    for (const srg::Expr& item : list.items) out.append(item.constant);
    return out;
  }
  py::object operator()(const srg::DoubleList& list) const { return py::cast(list.items); }
  py::object operator()(const srg::BoolList& list) const { return py::cast(list.items); }
  py::object operator()(DType dtype) const {
    return py::make_tuple("dtype", std::string(name_of(dtype)));
  }
  template <typename T>
  py::object operator()(const T& plain) const {
    return py::cast(plain);
  }
};

class OriginToPython {
 public:
  py::tuple convert(const Origin& origin) {
    const auto known = known_.find(&origin);
    if (known != known_.end()) return known->second;
    return known_.emplace(&origin, convert_new(origin)).first->second;
  }

 private:
  py::tuple convert_new(const Origin& origin) {
    switch (origin.kind) {
      case Origin::Kind::kSource:
        return py::make_tuple("source", origin.named->owner, origin.named->name);
      case Origin::Kind::kWeight:
        return py::make_tuple("weight", origin.named->owner, origin.named->name);
      case Origin::Kind::kOperator:
        return convert_operator(origin);
      case Origin::Kind::kHost:
        return py::make_tuple("host");
      case Origin::Kind::kRef:
        return py::make_tuple("ref");
      case Origin::Kind::kZero:
        return py::make_tuple("zero");
      case Origin::Kind::kWritten:
        break;
    }
    return py::make_tuple("written");
  }

  py::tuple convert_operator(const Origin& origin) {
    py::list arguments;
    for (const srg::Argument& argument : origin.recipe->arguments) {
      arguments.append(
          py::make_tuple(argument.name, std::visit(ArgumentToPython(), argument.value)));
    }
    py::list operands;
    for (const auto& [operand, view] : origin.operands) {
      operands.append(py::make_tuple(convert(*operand), view_to_python(view)));
    }
    return py::make_tuple("op", origin.recipe->op, arguments, operands,
                          numbers(origin.product.sizes), numbers(origin.product.strides),
                          dtype_name(origin.product.type));
  }

  std::map<const Origin*, py::tuple> known_;
};

// Gives a pair (origin, view) for each object. Tensors of one storage have the same origin.
py::list traces_to_python(const std::vector<py::object>& objects) {
  std::vector<at::Tensor> tensors;
  for (const py::object& object : objects) tensors.push_back(tensor_from(object));
  const auto origins = trace(tensors);
  OriginToPython known;
  py::list out;
  for (size_t i = 0; i < tensors.size(); ++i) {
    out.append(py::make_tuple(known.convert(*origins[i]), view_to_python(operand_of(tensors[i]))));
  }
  return out;
}

void add_loading(py::module_& module) {
  module.def("hold", [] { Device::get().hold(); });
  module.def("release_hold", [] { Device::get().release_hold(); });
  py::class_<Lease, std::shared_ptr<Lease>>(module, "Lease");
  module.def("source", [](uint64_t file, const std::string& name, const py::object& dtype,
                          const std::vector<int64_t>& sizes) {
    return to_python(make_source(file, name, dtype_from(dtype), sizes));
  });
  module.def("traces", &traces_to_python);
  module.def("pending_sources", [] {
    py::list out;
    for (const NamedTensor& one : pending_sources())
      out.append(py::make_tuple(one.owner, one.name));
    return out;
  });
  module.def("open_model", &open_model_here);
  module.def("label_of", [](const std::vector<std::string>& paths) {
    return client::label_of(client::place_of(paths));
  });
  module.def("bind", [](const py::object& tensor, const std::shared_ptr<Lease>& lease,
                        const std::string& name) {
    djinn::device::bind(tensor_from(tensor), lease, name);  // not std::bind
  });
  module.def("bind_source",
             [](uint64_t file, const std::string& tensor, const std::shared_ptr<Lease>& lease,
                const std::string& name) { bind_source(file, tensor, lease, name); });
}

at::Generator default_generator() {
  return at::globalContext().defaultGenerator(c10::Device(kDeviceType, 0));
}

// pybind11 would show what(), which contains the C++ backtrace. LibTorch's own binding leaves it
// out.
void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (python_error& error) {
    error.restore();
  } catch (const c10::NotImplementedError& error) {
    PyErr_SetString(PyExc_NotImplementedError, error.what_without_backtrace());
  } catch (const c10::ValueError& error) {
    PyErr_SetString(PyExc_ValueError, error.what_without_backtrace());
  } catch (const c10::TypeError& error) {
    PyErr_SetString(PyExc_TypeError, error.what_without_backtrace());
  } catch (const c10::IndexError& error) {
    PyErr_SetString(PyExc_IndexError, error.what_without_backtrace());
  } catch (const c10::OutOfMemoryError& error) {
    PyErr_SetString(py::module_::import("torch").attr("OutOfMemoryError").ptr(),
                    error.what_without_backtrace());
  } catch (const c10::Error& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what_without_backtrace());
  }
}

}  // namespace

// Throws the error as a class of djinn.errors, which PyTorch hands on as it is.
[[noreturn]] void raise_as_ours(const Error& error) {
  const py::gil_scoped_acquire gil;
  try {
    raise_typed(error);
  } catch (py::error_already_set& typed) {
    typed.restore();
  }
  python_error ours;
  ours.persist();
  throw ours;
}

// Errors about memory say first what the program itself can do. A thread of the device's own, which
// nobody hears, needs no class of Python's.
void raise(Error error) {
  if (error.code == ErrorCode::kCancelled) CtrlC::raise_again();
  const bool is_heard = Py_IsInitialized() && PyGILState_GetThisThreadState() != nullptr;
  if (error.code == ErrorCode::kDisconnected && is_heard) raise_as_ours(error);
  const char* const what = error.code == ErrorCode::kQuotaExceeded
                               ? "A quota of djinnd's is used up. "
                               : "djinnd is out of memory. ";
  TORCH_CHECK_WITH(OutOfMemoryError, !lacked_memory(error.code), what,
                   "Take a smaller batch or shorter sequences; or del "
                   "tensors that are no longer needed, and call "
                   "torch.remote_accelerator.empty_cache(). ",
                   error.message);
  TORCH_CHECK_NOT_IMPLEMENTED(error.code != ErrorCode::kUnsupported, error.message);
  TORCH_CHECK(false, error.message);
}

}  // namespace djinn::device

PYBIND11_MODULE(_device, module) {
  namespace py = pybind11;
  namespace device = djinn::device;
  py::register_local_exception_translator(&device::translate);
  device::register_backend();
  device::add_loading(module);
  device::add_generation(module);
  py::module_::import("atexit").attr("register")(
      py::cpp_function([] { device::Device::get().stop_idle(); }));
  module.def("set_debug_level", [](int level) { device::Device::get().set_debug_level(level); });
  module.def("flush", [] { device::Device::get().flush(); });
  module.def("synchronize", [] { device::Device::get().synchronize(); });
  module.def("set_seed", [](uint64_t seed) { device::default_generator().set_current_seed(seed); });
  module.def("random_state", [] {
    const at::Generator generator = device::default_generator();
    return py::make_tuple(generator.current_seed(), generator.get_offset());
  });
  module.def("set_random_offset",
             [](uint64_t offset) { device::default_generator().set_offset(offset); });
  module.def("get_rng_state", [] {
    return py::reinterpret_steal<py::object>(
        THPVariable_Wrap(device::default_generator().get_state()));
  });
  module.def("set_rng_state", [](const py::object& state) {
    device::default_generator().set_state(device::tensor_from(state));
  });
  module.def("stats", &device::stats);
  module.def("crossed", &device::crossed);
  module.def("memory", &device::memory);
  module.def("is_available", &device::is_available, py::call_guard<py::gil_scoped_release>());
  module.def("give_back", [] { device::Device::get().give_back(); });
  module.def("set_service_class",
             [](const std::string& name) { device::Device::get().set_service_class(name); });
  module.def("state_call", [](size_t tier) { device::Device::get().state_call(tier); });
  module.def("state_local_model", [] { device::Device::get().state_local_model(); });
  module.def("moves", [] { return device::storages().moves(); });
  module.def("session", [] { return device::Device::get().session(); });
  module.def("is_connected", [] { return device::Device::get().is_connected(); });
  module.def("is_forked", [] { return device::Device::get().is_forked(); });
  module.def("why_without_value", [](const py::object& tensor) {
    return device::Device::get().why_without_value(device::tensor_from(tensor));
  });
  module.def("is_lost", [](const py::object& tensor) {
    return device::storage_of(device::tensor_from(tensor))->location == device::Location::kLost;
  });
  module.def("storage_home", [](const py::object& tensor) {
    return static_cast<int>(device::storage_of(device::tensor_from(tensor))->location);
  });
}
