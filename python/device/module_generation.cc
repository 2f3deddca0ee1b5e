// SPDX-License-Identifier: Apache-2.0

// These are captures, templates and generation for Python.
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "kernel/exec/convert.h"
#include "kernel/srg/names.h"
#include "kernel/srg/text.h"
#include "python/device/capture.h"
#include "python/device/generation.h"
#include "python/device/module.h"
#include "python/device/opened_models.h"

namespace djinn::device {
namespace {

namespace py = pybind11;

srg::InputRole role_from(const std::string& name) {
  if (name == "token_ids") return srg::InputRole::kTokenIds;
  if (name == "positions") return srg::InputRole::kPositions;
  if (name == "attention_mask") return srg::InputRole::kAttentionMask;
  TORCH_CHECK_VALUE(false, "No input has the role ", name, ".");
}

srg::SymbolRole symbol_role_from(const std::string& name) {
  if (name == "tokens") return srg::SymbolRole::kTokens;
  if (name == "past") return srg::SymbolRole::kPast;
  if (name == "capacity") return srg::SymbolRole::kCapacity;
  if (name == "source") return srg::SymbolRole::kPlain;
  TORCH_CHECK_VALUE(false, "No symbol has the role ", name, ".");
}

std::vector<at::Tensor> tensors_from(const std::vector<py::object>& objects) {
  std::vector<at::Tensor> tensors;
  for (const py::object& object : objects) tensors.push_back(tensor_from(object));
  return tensors;
}

using Recordings = std::vector<std::shared_ptr<Recording>>;
using Points = std::vector<std::vector<int64_t>>;
using Symbols = std::vector<std::tuple<std::string, int64_t, int64_t>>;

// Takes (name, least, most); the name is that of a role, or "source": a length that each generation
// gives.
std::vector<srg::Symbol> symbols_from(const Symbols& items) {
  std::vector<srg::Symbol> symbols;
  for (const auto& [name, least, most] : items) {
    symbols.push_back({name, least, most, symbol_role_from(name)});
  }
  return symbols;
}

// The model whose weight the tensor is, if it is one.
std::optional<uint64_t> model_of(const at::Tensor& tensor) {
  const StoragePtr storage = storage_of(tensor);
  return Device::get().with_log([&](Log&) {
    const bool is_weight = storage->location == Location::kWeight;
    return is_weight ? std::optional(storage->named->owner) : std::nullopt;
  });
}

std::optional<srg::Numerics> numerics_from(const std::optional<std::string>& name) {
  if (!name) return {};
  const auto numerics = srg::from_name<srg::Numerics>(*name);
  TORCH_CHECK_VALUE(numerics, "There are no numerics ", *name,
                    R"(. There are "exact", "fast" and "fast-only".)");
  return numerics;
}

using Reasons = std::map<std::string, uint32_t>;

// By pass, where it left any.
std::map<std::string, Reasons> left_by_passes(const Template& program) {
  std::map<std::string, Reasons> left;
  for (const srg::PassReport& pass : program.passes) {
    if (!pass.reasons.empty()) left[pass.name] = pass.reasons;
  }
  return left;
}

// Takes the fields by name. Missing ones keep their defaults. Throws a TypeError for an unknown
// name.
ipc::GenerateBlock options_from(const py::dict& fields) {
  ipc::GenerateBlock options;
  py::dict left = fields.attr("copy")();
  const auto set = [&](const char* name, auto& field) {
    if (!left.contains(name)) return;
    field = left.attr("pop")(name).cast<std::remove_reference_t<decltype(field)>>();
  };
  set("min_new_tokens", options.min_new_tokens);
  set("max_new_tokens", options.max_new_tokens);
  set("stop_tokens", options.stop_tokens);
  set("pad_token", options.pad_token);
  set("greedy", options.greedy);
  set("temperature", options.temperature);
  set("top_k", options.top_k);
  set("top_p", options.top_p);
  set("min_p", options.min_p);
  set("repetition_penalty", options.repetition_penalty);
  set("seed", options.seed);
  set("random_offset", options.random_offset);
  set("late_from", options.late_from);
  set("symbols", options.symbols);
  for (const auto& [name, value] : left) {
    throw py::type_error("A generation has no option " + py::repr(name).cast<std::string>() + ".");
  }
  return options;
}

ipc::SequenceGeometry geometry_from(const py::tuple& geometry) {
  ipc::SequenceGeometry out;
  out.rows = geometry[0].cast<uint32_t>();
  out.layers = geometry[1].cast<uint32_t>();
  out.kv_heads = geometry[2].cast<uint32_t>();
  out.head_dim = geometry[3].cast<uint32_t>();
  out.dtype = exec::from_torch(dtype_from(geometry[4]));
  out.capacity = geometry[5].cast<uint64_t>();
  out.banks = geometry[6].cast<uint32_t>();
  return out;
}

// on_step runs with the GIL in this thread. If it gives False or raises, the generation ends.
class StepTeller {
 public:
  explicit StepTeller(const py::object& on_step) : on_step_(on_step) {}

  OnStep function() {
    if (on_step_.is_none()) return {};
    return [this](const std::vector<int32_t>& step) {
      const py::gil_scoped_acquire gil;
      try {
        return on_step_(step).cast<bool>();
      } catch (...) {
        failed_ = std::current_exception();
        return false;
      }
    };
  }
  void rethrow() const {
    if (failed_) std::rethrow_exception(failed_);
  }

 private:
  py::object on_step_;
  std::exception_ptr failed_;
};

// Takes (program, tensors beside the group).
GenerationPart part_from(const py::tuple& part) {
  return {part[0].cast<const Template&>(), tensors_from(part[1].cast<std::vector<py::object>>())};
}

// parts: of prefill, of decode, and of what takes its place late, if there is one. extend: what
// takes prefill's place behind a prompt's first part. Gives (tokens,
// the next random offset, whether on_step waited for the generation).
py::tuple generate_here(Group& group, const std::vector<py::tuple>& parts,
                        std::vector<int32_t> prompt, uint32_t prompt_tokens,
                        std::vector<uint32_t> padding, const py::dict& options,
                        const py::object& on_step, uint64_t begin_within_ms,
                        const std::optional<py::tuple>& extend) {
  GenerationRequest request{part_from(parts.at(0)),
                            part_from(parts.at(1)),
                            {},
                            {},
                            std::move(prompt),
                            prompt_tokens,
                            std::move(padding),
                            options_from(options),
                            begin_within_ms};
  if (parts.size() > 2) request.late.emplace(part_from(parts[2]));
  if (extend) request.extend.emplace(part_from(*extend));
  StepTeller teller(on_step);
  GenerationResult result;
  try {
    result = group.generate(request, teller.function());
  } catch (...) {
    teller.rethrow();
    throw;
  }
  teller.rethrow();
  return py::make_tuple(py::cast(result.tokens), result.random_offset, result.waited);
}

// Gives (name of the input, its bytes as one dimension of elements) of what a recording reads
// beside weights, inputs with roles and the group.
py::list held_by(const Recording& recording) {
  py::list held;
  for (size_t i = 0; i < recording.inputs.size(); ++i) {
    const StoragePtr& storage = recording.inputs[i];
    if (!storage) continue;
    const auto count = static_cast<int64_t>(storage->bytes / c10::elementSize(storage->type));
    held.append(py::make_tuple(recording.graph.storages[i].name,
                               to_python(dense_tensor(storage, storage->type, {count}))));
  }
  return held;
}

void add_groups(py::module_& module) {
  py::class_<Group, std::shared_ptr<Group>>(module, "Group")
      .def(py::init([](const py::tuple& geometry) {
        return std::make_shared<Group>(geometry_from(geometry));
      }))
      .def("step",
           [](Group& self, const Template& program, const py::object& ids,
              const std::vector<uint32_t>& padding) {
             return to_python(self.step(program, tensor_from(ids), padding));
           })
      .def("contents",
           [](Group& self, int64_t tokens) {
             py::list copies;
             for (const at::Tensor& one : self.contents(tokens)) copies.append(to_python(one));
             return copies;
           })
      .def("crop", &Group::crop)
      .def("reorder", &Group::reorder)
      .def("generate", &generate_here);
}

void add_numerics(py::module_& module) {
  module.def("numerics", [] { return std::string(name_of(Device::get().numerics())); });
  module.def("numerics_of_weight", [](const py::object& tensor) -> std::optional<std::string> {
    const std::optional<uint64_t> model = model_of(tensor_from(tensor));
    if (!model) return {};
    return std::string(name_of(numerics_said_of(*model).value_or(Device::get().numerics())));
  });
}

}  // namespace

void add_generation(py::module_& module) {
  py::class_<Recording, std::shared_ptr<Recording>>(module, "Recording")
      .def_property_readonly("guards", [](const Recording& self) { return self.guards; })
      .def_property_readonly("model", [](const Recording& self) { return self.model; })
      .def_property_readonly("held", &held_by)
      .def_property_readonly("operators",
                             [](const Recording& self) { return self.graph.nodes.size(); });
  py::class_<Template, std::shared_ptr<Template>>(module, "Template")
      .def_property_readonly("operators", [](const Template& self) { return self.operators; })
      .def("holds_for",
           [](const Template& self, const std::vector<py::object>& given) {
             std::vector<at::Tensor> values;
             for (const py::object& one : given) {
               values.push_back(one.is_none() ? at::Tensor() : tensor_from(one));
             }
             return self.looks.are_same_for(values);
           })
      .def_property_readonly(
          "numerics", [](const Template& self) { return std::string(name_of(self.numerics)); })
      .def_property_readonly("fast_nodes", [](const Template& self) { return self.fast_nodes; })
      .def_property_readonly("left", &left_by_passes)
      .def_property_readonly("steps", [](const Template& self) { return !self.views.empty(); });
  module.def("capture_begin", &Capture::begin);
  module.def("capture_abort", &Capture::abort);
  module.def("capture_finish", [](const std::vector<py::object>& outputs, bool for_generation) {
    return std::const_pointer_cast<Recording>(
        Capture::finish(tensors_from(outputs), for_generation));
  });
  module.def("capture_given", [](uint32_t number, const py::object& tensor) {
    return to_python(Capture::given(number, tensor_from(tensor)));
  });
  module.def("replay", [](const Template& program, const std::vector<py::object>& given) {
    py::list results;
    for (const at::Tensor& one : replay(program, tensors_from(given))) {
      results.append(to_python(one));
    }
    return results;
  });
  module.def("capture_input", [](const std::string& role, const py::object& dtype,
                                 const std::vector<int64_t>& sizes, const py::object& known) {
    const at::Tensor values = known.is_none() ? at::Tensor() : tensor_from(known);
    return to_python(Capture::input(role_from(role), dtype_from(dtype), sizes, values));
  });
  module.def("capture_beside", [](uint32_t number, bool is_written, const py::object& dtype,
                                  const std::vector<int64_t>& sizes, const py::object& known) {
    const at::Tensor values = known.is_none() ? at::Tensor() : tensor_from(known);
    return to_python(Capture::beside(number, is_written, dtype_from(dtype), sizes, values));
  });
  module.def("capture_buffer", [](uint32_t layer, bool is_value, const py::object& dtype,
                                  const std::vector<int64_t>& sizes) {
    const auto part = is_value ? srg::SequencePart::kValue : srg::SequencePart::kKey;
    return to_python(Capture::buffer(layer, part, dtype_from(dtype), sizes));
  });
  module.def("make_template", [](const Recordings& recordings, const Points& points,
                                 const Symbols& symbols,
                                 const std::optional<std::string>& numerics) {
    return std::const_pointer_cast<Template>(make_template({recordings.begin(), recordings.end()},
                                                           points, symbols_from(symbols),
                                                           numerics_from(numerics)));
  });
  add_numerics(module);
  module.def("graph_text",
             [](const Recordings& recordings, const Points& points, const Symbols& symbols) {
               return srg::print_text(
                   unified({recordings.begin(), recordings.end()}, points, symbols_from(symbols)));
             });
  module.attr("PROMPT_PART") = ipc::kPromptPart;
  add_groups(module);
}

}  // namespace djinn::device
