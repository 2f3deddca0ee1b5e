// SPDX-License-Identifier: Apache-2.0

#include "python/binding/convert.h"

#include <fmt/format.h>

#include "ipc/report_text.h"
#include "kernel/base/clock.h"

namespace djinn::python {
namespace {

py::str dtype_name(DType dtype) {
  return py::str(std::string(name_of(dtype)));
}

py::dict dict_of(const ipc::WorkerReport& worker) {
  using namespace py::literals;  // style: pybind11 has no other way to its _a
  return py::dict("device"_a = worker.device, "owner"_a = worker.owner, "pid"_a = worker.pid,
                  "state"_a = ipc::state_text(worker.state), "threads"_a = worker.threads,
                  "restarts"_a = worker.restarts, "landlock_abi"_a = worker.landlock_abi,
                  "seccomp"_a = worker.seccomp, "slab_bytes"_a = worker.slab_bytes,
                  "runs"_a = worker.runs, "planned_runs"_a = worker.planned_runs,
                  "plan_misses"_a = worker.plan_misses, "runs_repeated"_a = worker.runs_repeated,
                  "runs_together"_a = worker.runs_together, "tokens"_a = worker.tokens,
                  "turn_ms"_a = worker.turn_ns / kNsPerMs, "overruns"_a = worker.overruns,
                  "refused"_a = worker.refused);
}

srg::Slice slice_from(const py::handle& slice) {
  return {slice.attr("dimension").cast<uint32_t>(), slice.attr("start").cast<uint64_t>(),
          slice.attr("length").cast<uint64_t>()};
}

srg::Piece piece_from(const py::handle& piece) {
  srg::Piece out;
  out.file = piece.attr("file").cast<uint32_t>();
  out.tensor = piece.attr("tensor").cast<std::string>();
  for (const py::handle slice : piece.attr("slices")) out.slices.push_back(slice_from(slice));
  out.transpose = piece.attr("transpose").cast<bool>();
  return out;
}

srg::WeightForm form_from(const py::handle& form) {
  if (form.is_none()) return srg::WeightForm::kPlain;
  if (form.cast<std::string>() == "int8") return srg::WeightForm::kInt8;
  const auto shown = py::repr(form).cast<std::string>();
  throw py::value_error("The form of weights is \"int8\" or None, not " + shown + ".");
}

srg::Destination destination_from(const py::handle& destination) {
  srg::Destination out;
  out.name = destination.attr("name").cast<std::string>();
  out.dtype = dtype_from(destination.attr("dtype").cast<std::string>());
  out.sizes = destination.attr("sizes").cast<std::vector<uint64_t>>();
  out.concat_dimension = destination.attr("concat_dimension").cast<uint32_t>();
  for (const py::handle piece : destination.attr("pieces")) {
    out.pieces.push_back(piece_from(piece));
  }
  out.form = form_from(destination.attr("form"));
  return out;
}

}  // namespace

py::object to_python(const Error& error) {
  return py::module_::import("djinn.errors")
      .attr("error_from")(static_cast<int>(error.code), std::string(name_of(error.code)),
                          error.message);
}

void raise(const Error& error) {
  const py::object made = to_python(error);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
  throw py::error_already_set();
}

Buffer::Buffer(const py::buffer& object, Use use) : info_(object.request(use == Use::kWritten)) {
  if (PyObject_CheckBuffer(object.ptr()) == 0 || PyBuffer_IsContiguous(info_.view(), 'C') == 0) {
    throw py::value_error("a contiguous array is needed");
  }
}

std::span<std::byte> Buffer::writable() const {
  return {static_cast<std::byte*>(info_.ptr),
          static_cast<size_t>(info_.size) * static_cast<size_t>(info_.itemsize)};
}

py::bytearray to_bytearray(std::span<const std::byte> bytes) {
  return py::bytearray(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

py::tuple to_python(const srg::Expr& expr) {
  py::list terms;
  for (const srg::Term& term : expr.terms) {
    terms.append(py::make_tuple(term.symbol, term.coefficient));
  }
  return py::make_tuple(expr.constant, terms);
}

py::list to_python(const std::vector<srg::Expr>& exprs) {
  py::list out;
  for (const srg::Expr& expr : exprs) out.append(to_python(expr));
  return out;
}

// Gives None for a user without a quota in the configuration, and for what the quota does not
// bound.
py::object to_python(const ipc::QuotaReport& quota) {
  using namespace py::literals;  // style: pybind11 has no other way to its _a
  if (!quota.is_own) return py::none();
  const auto or_none = [](uint64_t bytes) -> py::object {
    if (bytes == UINT64_MAX) return py::none();
    return py::int_(bytes);
  };
  return py::dict(
      "memory_bytes"_a = quota.memory_bytes, "memory_max_bytes"_a = or_none(quota.memory_max_bytes),
      "pinned_bytes"_a = quota.pinned_bytes, "pinned_max_bytes"_a = or_none(quota.pinned_max_bytes),
      "sessions"_a = quota.sessions, "sessions_max"_a = quota.sessions_max,
      "models"_a = quota.models, "models_max"_a = quota.models_max);
}

py::dict to_python(const ipc::StatusReport& report) {
  using namespace py::literals;  // style: pybind11 has no other way to its _a
  py::list workers;
  for (const ipc::WorkerReport& worker : report.workers) workers.append(dict_of(worker));
  return py::dict("version"_a = report.version, "started_wall_ns"_a = report.started_wall_ns,
                  "memory_total_bytes"_a = report.memory_total_bytes,
                  "memory_granted_bytes"_a = report.memory_granted_bytes,
                  "memory_models_bytes"_a = report.memory_models_bytes,
                  "memory_sessions_bytes"_a = report.memory_sessions_bytes,
                  "memory_lanes_bytes"_a = report.memory_lanes_bytes,
                  "sessions"_a = report.sessions, "models"_a = report.models,
                  "programs"_a = report.programs, "descriptors"_a = report.descriptors,
                  "descriptors_closing"_a = report.descriptors_closing,
                  "bytes_read"_a = report.bytes_read, "buffered_reads"_a = report.buffered_reads,
                  "compared_opens"_a = report.compared_opens, "workers"_a = workers,
                  "draining"_a = report.draining, "data_sessions"_a = report.data_sessions,
                  "quota"_a = to_python(report.quota));
}

py::dict to_python(const ipc::SessionReport& report) {
  using namespace py::literals;  // style: pybind11 has no other way to its _a
  return py::dict(
      "id"_a = id_text(report.session.value), "name"_a = report.client_name,
      "owner"_a = report.owner, "pid"_a = report.pid, "started_wall_ns"_a = report.started_wall_ns,
      "granted_bytes"_a = report.granted_bytes, "models"_a = report.models,
      "sequences"_a = report.sequences, "steps"_a = report.steps, "running"_a = report.running,
      "state"_a = ipc::state_text(report.state), "wait"_a = ipc::wait_text(report.wait),
      "shared_bytes"_a = report.shared_bytes, "tier"_a = ipc::tier_text(report.counts.tier),
      "graphs_run"_a = report.counts.graphs, "programs_run"_a = report.counts.programs,
      "generations"_a = report.counts.generations, "failed"_a = report.counts.failed,
      "tokens"_a = report.counts.tokens, "plan_misses"_a = report.counts.plan_misses,
      "bytes_in"_a = report.counts.bytes_in, "bytes_out"_a = report.counts.bytes_out,
      "stated_tier0_calls"_a = report.stated.calls[0],
      "stated_tier1_calls"_a = report.stated.calls[1],
      "stated_tier2_calls"_a = report.stated.calls[2],
      "stated_local_models"_a = report.stated.local_models);
}

py::dict to_python(const ipc::ModelReport& report) {
  using namespace py::literals;  // style: pybind11 has no other way to its _a
  std::string hash;
  for (const uint8_t byte : report.sha256) hash += fmt::format("{:02x}", byte);
  return py::dict(
      "id"_a = id_text(report.model.value), "label"_a = report.label, "owner"_a = report.owner,
      "state"_a = ipc::state_text(report.state), "bytes"_a = report.bytes,
      "bytes_loaded"_a = report.bytes_loaded, "files"_a = report.files, "leases"_a = report.leases,
      "pinned"_a = report.pinned,
      "sha256"_a = report.hashed ? py::object(py::str(hash)) : py::none(),
      "loaded_wall_ns"_a = report.loaded_wall_ns, "huge_bytes"_a = report.huge_bytes,
      "path"_a = report.path.empty() ? py::object(py::none()) : py::object(py::str(report.path)));
}

py::dict to_python(const client::OpenedModel& model, uint64_t session) {
  using namespace py::literals;  // style: pybind11 has no other way to its _a
  py::list tensors;
  for (const srg::TensorEntry& tensor : model.manifest.tensors) {
    tensors.append(
        py::make_tuple(tensor.name, dtype_name(tensor.dtype), py::tuple(py::cast(tensor.sizes))));
  }
  return py::dict("id"_a = model.id.value, "session"_a = session, "bytes"_a = model.bytes,
                  "was_resident"_a = model.was_resident, "tensors"_a = tensors);
}

srg::LoadPlan load_plan_from(const py::handle& plan) {
  srg::LoadPlan out;
  out.matrices = form_from(plan.attr("matrices"));
  for (const py::handle destination : plan.attr("destinations")) {
    out.destinations.push_back(destination_from(destination));
  }
  for (const py::handle alias : plan.attr("aliases")) {
    out.aliases.push_back(
        {alias.attr("name").cast<std::string>(), alias.attr("destination").cast<std::string>()});
  }
  return out;
}

DType dtype_from(const std::string& name) {
  const auto dtype = dtype_from_name(name);
  if (!dtype) throw py::value_error("'" + name + "' is not the name of a dtype");
  return *dtype;
}

std::string id_text(uint64_t id) {
  return fmt::format("{:012x}", id);
}

}  // namespace djinn::python
