// SPDX-License-Identifier: Apache-2.0

// The module djinn._client has classes as thin as the C++ ones beneath. People use djinn/*.py.

#include <algorithm>
#include <utility>

#include "kernel/srg/names.h"
#include "python/binding/session.h"

namespace djinn::python {
namespace {

using Shared = std::shared_ptr<Session>;
using namespace py::literals;  // style: pybind11 has no other way to its _a

// Gives (index, generation, session).
template <typename Handle>
py::tuple to_tuple(const Held<Handle>& held) {
  return py::make_tuple(held.handle.index, held.handle.generation, held.session);
}
template <typename Handle>
Held<Handle> held_from(const py::tuple& held) {
  return {{held[0].cast<uint32_t>(), held[1].cast<uint32_t>()}, held[2].cast<uint64_t>()};
}

py::str text(std::string_view name) {
  return py::str(std::string(name));
}

// --- what a graph says of itself

py::list symbols_of(const Program& program) {
  py::list out;
  for (const srg::Symbol& symbol : program.graph->symbols) {
    const char* const daemon_sets =
        symbol.role == srg::SymbolRole::kPast || symbol.role == srg::SymbolRole::kCapacity
            ? "sequence"
            : "client";
    out.append(py::make_tuple(symbol.name, symbol.min, symbol.max, daemon_sets));
  }
  return out;
}

// Gives name, dtype and sizes of each input storage, by its first view.
py::list inputs_of(const Program& program) {
  py::list out;
  const srg::Graph& graph = *program.graph;
  for (uint32_t i = 0; i < graph.storages.size(); ++i) {
    if (graph.storages[i].kind != srg::StorageKind::kInput) continue;
    const auto view = std::ranges::find(graph.values, i, &srg::Value::storage);
    if (view == graph.values.end()) continue;
    out.append(
        py::make_tuple(graph.storages[i].name, text(name_of(view->dtype)), to_python(view->sizes)));
  }
  return out;
}

// Gives name, dtype and sizes of an output: what admission found, or what a graph that runs once
// claims. They are None if not known.
py::tuple known_output(std::string_view name, DType dtype, const std::vector<srg::Expr>* sizes) {
  const bool known = dtype != DType::kInvalid && sizes != nullptr;
  return py::make_tuple(text(name), known ? py::object(text(name_of(dtype))) : py::none(),
                        known ? py::object(to_python(*sizes)) : py::none());
}

py::list outputs_of(const Program& program) {
  py::list out;
  const srg::Graph& graph = *program.graph;
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    const srg::Value* const value =
        graph.outputs[i] < graph.values.size() ? &graph.values[graph.outputs[i]] : nullptr;
    if (i < program.outputs.size()) {
      const ipc::OutputShape& shape = program.outputs[i];
      out.append(known_output(value ? value->name : shape.name, shape.dtype,
                              shape.sizes_known ? &shape.sizes : nullptr));
    } else {
      const bool claims = value && (value->claims_sizes || value->storage != srg::kLocalStorage);
      out.append(known_output(value ? value->name : "", value ? value->dtype : DType::kInvalid,
                              claims ? &value->sizes : nullptr));
    }
  }
  return out;
}

// --- a run

// Holds the arguments of a run in C++, with the buffers that they point into.
struct Arguments {
  std::vector<Buffer> buffers;
  RunArguments run;
};

Output output_from(const py::handle& wanted) {
  if (wanted.is_none()) return {};
  if (py::isinstance<py::str>(wanted)) return {Output::Kind::kRef, 0};
  return {Output::Kind::kStaging, wanted.cast<uint64_t>()};
}

Arguments arguments_from(const std::vector<int64_t>& symbols, const py::dict& inputs,
                         const py::list& outputs, const std::optional<py::tuple>& sequence) {
  Arguments out;
  out.run.symbols = symbols;
  for (const auto& [name, value] : inputs) {
    Input& input = out.run.inputs[name.cast<std::string>()];
    if (py::isinstance<py::tuple>(value)) {
      input = held_from<RefHandle>(value.cast<py::tuple>());
    } else {
      out.buffers.emplace_back(value.cast<py::buffer>());
      input = out.buffers.back().bytes();
    }
  }
  for (const py::handle wanted : outputs) out.run.outputs.push_back(output_from(wanted));
  if (sequence) out.run.sequence = held_from<SequenceHandle>(*sequence);
  return out;
}

// Gives (dtype, sizes, strides, offset, bytes or None, ref or None).
py::tuple result_of(const RunOutput& output) {
  const ipc::OutputDescription& shape = output.description;
  const std::vector<int64_t> sizes(shape.sizes.begin(), shape.sizes.begin() + shape.rank);
  const std::vector<int64_t> strides(shape.strides.begin(), shape.strides.begin() + shape.rank);
  return py::make_tuple(text(name_of(static_cast<DType>(shape.dtype))), py::tuple(py::cast(sizes)),
                        py::tuple(py::cast(strides)), shape.offset, to_bytearray(output.bytes),
                        output.ref.handle.valid() ? py::object(to_tuple(output.ref)) : py::none());
}

py::list run(const Shared& session, const Program& program, const std::vector<int64_t>& symbols,
             const py::dict& inputs, const py::list& outputs,
             const std::optional<py::tuple>& sequence) {
  const Arguments arguments = arguments_from(symbols, inputs, outputs, sequence);
  if (arguments.run.symbols.size() != program.graph->symbols.size() ||
      arguments.run.outputs.size() != program.graph->outputs.size()) {
    throw py::value_error("symbols and outputs must be as many as the graph has");
  }
  py::list out;
  for (const RunOutput& output : session->run(program, arguments.run)) {
    out.append(result_of(output));
  }
  return out;
}

// --- a session's other calls

template <typename Open>
py::dict opened(const py::object& plan, const Open& open) {
  const auto parsed = plan.is_none() ? std::nullopt : std::optional(load_plan_from(plan));
  const OpenedModel opened = open(parsed ? &*parsed : nullptr);
  return to_python(opened.model, opened.session);
}

template <typename Report>
py::list to_list(const std::vector<Report>& reports) {
  py::list out;
  for (const Report& report : reports) out.append(to_python(report));
  return out;
}

py::tuple make_sequence(const Shared& session, uint32_t rows, uint32_t layers, uint32_t kv_heads,
                        uint32_t head_dim, const std::string& dtype, uint64_t capacity,
                        bool reorderable) {
  const ipc::SequenceGeometry geometry{
      rows, layers, kv_heads, head_dim, dtype_from(dtype), capacity, reorderable ? 2u : 1u};
  return to_tuple(take(session->turn([&](client::Client& client) -> Result<Held<SequenceHandle>> {
    DJINN_TRY(const SequenceHandle made, client.make_sequence(geometry));
    return Held<SequenceHandle>{made, session->number()};
  })));
}

void read_ref(const Shared& session, const py::tuple& ref, const std::string& dtype,
              std::vector<uint64_t> sizes, std::vector<int64_t> strides, uint64_t offset,
              const py::buffer& out) {
  ipc::ReadBlock view;
  const auto held = held_from<RefHandle>(ref);
  view.ref = held.handle;
  view.dtype = dtype_from(dtype);
  view.sizes = std::move(sizes);
  view.strides = std::move(strides);
  view.offset = offset;
  const Buffer buffer(out, Buffer::Use::kWritten);
  uint64_t bytes = size_of(view.dtype);
  for (const uint64_t size : view.sizes) bytes *= size;
  if (bytes != buffer.writable().size()) {
    throw py::value_error("out must have exactly the elements' bytes");
  }
  session->read(held.session, view, buffer.writable());
}

Shared connect(const std::string& host, const std::string& name, uint64_t staging_bytes,
               bool observer, std::optional<uint64_t> reconnect_wait_ms, const std::string& device,
               const std::string& service_class, uint64_t begin_within_ms) {
  client::ConnectOptions options;
  options.host = host;
  options.name = name;
  options.staging_bytes = staging_bytes;
  options.observer = observer;
  options.device = device;
  options.service_class = service_class;
  options.begin_within_ms = begin_within_ms;
  return std::make_shared<Session>(std::move(options), reconnect_wait_ms);
}

void add_control(py::class_<Session, Shared>& session) {
  session
      .def("open_directory",
           [](const Shared& self, const std::string& path, const py::object& plan, bool pin,
              std::optional<uint64_t> keep_alive_ms) {
             return opened(plan, [&](auto* p) {
               return self->open_directory(path, p, {pin, keep_alive_ms});
             });
           })
      .def("open_files",
           [](const Shared& self, const std::string& label, const std::vector<std::string>& paths,
              const py::object& plan, bool pin, std::optional<uint64_t> keep_alive_ms) {
             return opened(plan, [&](auto* p) {
               return self->open_files(label, paths, p, {pin, keep_alive_ms});
             });
           })
      .def("close_model",
           [](const Shared& self, uint64_t id, uint64_t number) {
             self->give_back(number, [&](client::Client& c) { return c.close_model(ModelId{id}); });
           })
      .def("unload_model",
           [](const Shared& self, uint64_t id) {
             take(self->turn([&](client::Client& c) { return c.unload_model(ModelId{id}); }));
           })
      .def("define", [](const Shared& self, const std::string& source, uint64_t model,
                        uint64_t number) { return self->define(source, ModelId{model}, number); });
}

void add_reports(py::class_<Session, Shared>& session) {
  session
      .def("status",
           [](const Shared& self) {
             return to_python(take(self->turn([](client::Client& c) { return c.status(); })));
           })
      .def("sessions",
           [](const Shared& self) {
             return to_list(take(self->turn([](client::Client& c) { return c.sessions(); })));
           })
      .def("models", [](const Shared& self) {
        return to_list(take(self->turn([](client::Client& c) { return c.models(); })));
      });
}

void add_data_path(py::class_<Session, Shared>& session) {
  session.def("run", &run)
      .def("put",
           [](const Shared& self, const py::buffer& data) {
             const Buffer buffer(data);
             return to_tuple(self->put(buffer.bytes()));
           })
      .def("read", &read_ref)
      .def("release", [](const Shared& self,
                         const py::tuple& ref) { self->release(held_from<RefHandle>(ref)); })
      .def("release_later",
           [](const Shared& self, const py::tuple& ref) {
             self->release_later(held_from<RefHandle>(ref));
           })
      .def("make_sequence", &make_sequence)
      .def("crop",
           [](const Shared& self, const py::tuple& sequence, uint64_t length) {
             const auto held = held_from<SequenceHandle>(sequence);
             self->crop(held.session, {held.handle, length});
           })
      .def("reorder",
           [](const Shared& self, const py::tuple& sequence, std::vector<uint32_t> rows) {
             const auto held = held_from<SequenceHandle>(sequence);
             self->reorder(held.session, {held.handle, std::move(rows)});
           })
      .def("drop_sequence", [](const Shared& self, const py::tuple& sequence) {
        const auto held = held_from<SequenceHandle>(sequence);
        self->give_back(held.session,
                        [&](client::Client& c) { return c.drop_sequence(held.handle); });
      });
}

}  // namespace

void add_session(py::module_& module) {
  py::class_<Program>(module, "Program")
      .def_property_readonly("name", [](const Program& self) { return self.graph->name; })
      .def_property_readonly("symbols", &symbols_of)
      .def_property_readonly("inputs", &inputs_of)
      .def_property_readonly("outputs", &outputs_of);
  py::class_<Session, Shared> session(module, "Session");
  session
      .def_property_readonly("id",
                             [](const Session& s) { return id_text(s.welcome().session.value); })
      .def_property_readonly("threads", [](const Session& s) { return s.welcome().threads; })
      .def_property_readonly("staging_bytes",
                             [](const Session& s) { return s.welcome().staging_bytes; })
      .def_property_readonly("quota_bytes",
                             [](const Session& s) { return s.welcome().quota_bytes; })
      .def_property_readonly("closed", &Session::closed)
      .def("close", &Session::close)
      .def("reconnect", &Session::reconnect)
      .def("after_fork", &Session::after_fork);
  add_control(session);
  add_reports(session);
  add_data_path(session);
  module.def("connect", &connect);
  module.def("parse", [](const std::string& source, uint64_t model, uint64_t number) {
    return Program{parse_graph(source), number, {}, ModelId{model}, {}};
  });
  module.def("id_text", &id_text);
  module.attr("VERSION") = DJINN_VERSION;
  module.attr("STAGING_BYTES_DEFAULT") = limits::kStagingBytesDefault;
}

}  // namespace djinn::python

PYBIND11_MODULE(_client, module) {
  djinn::python::add_session(module);
  djinn::python::add_models(module);
}
