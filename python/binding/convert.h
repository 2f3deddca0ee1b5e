// SPDX-License-Identifier: Apache-2.0

// Values of the client library as Python objects, and back.
//
//   Bytes    a bytearray: memory that numpy can take over without a copy
//   Buffer   any Python object with a contiguous buffer, held while the view is used
//
// Everything here needs the GIL.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <span>
#include <string>
#include <vector>

#include "ipc/messages.h"
#include "kernel/srg/graph.h"
#include "kernel/srg/load_plan.h"
#include "libdjinn-client/client.h"

namespace djinn::python {

namespace py = pybind11;

// djinn.Error's subclass for the code.
py::object to_python(const Error& error);
// Raises it.
[[noreturn]] void raise(const Error& error);

template <typename T>
T take(Result<T> result) {
  if (!result) raise(result.error());
  return *std::move(result);
}
inline void take(const Status& status) {
  if (!status) raise(status.error());
}

// A contiguous buffer of any item type, as bytes. Raises ValueError for one with gaps.
class Buffer {
 public:
  enum class Use { kRead, kWritten };
  explicit Buffer(const py::buffer& object, Use use = Use::kRead);
  [[nodiscard]] std::span<const std::byte> bytes() const { return writable(); }
  [[nodiscard]] std::span<std::byte> writable() const;  // kWritten

 private:
  py::buffer_info info_;
};

py::bytearray to_bytearray(std::span<const std::byte> bytes);

// A graph's expression: (constant, [(symbol, coefficient), ...]).
py::tuple to_python(const srg::Expr& expr);
py::list to_python(const std::vector<srg::Expr>& exprs);
py::dict to_python(const ipc::StatusReport& report);
py::dict to_python(const ipc::SessionReport& report);
py::dict to_python(const ipc::ModelReport& report);
// session: which the lease on it belongs to.
py::dict to_python(const client::OpenedModel& model, uint64_t session);

// plan: a djinn.LoadPlan.
srg::LoadPlan load_plan_from(const py::handle& plan);
// Raises ValueError for a name that is no dtype's.
DType dtype_from(const std::string& name);

// How ids are written everywhere: 12 hex digits.
std::string id_text(uint64_t id);

}  // namespace djinn::python
