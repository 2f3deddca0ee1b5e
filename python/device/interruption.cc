// SPDX-License-Identifier: Apache-2.0

#include "python/device/interruption.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/python_headers.h>
#include <torch/csrc/utils/object_ptr.h>

#include <atomic>
#include <csignal>
#include <optional>
#include <utility>

namespace djinn::device {
namespace {

// Of this process's line, counted in the child: asking for the process's number is a system call.
std::atomic<uint64_t> forks{0};
thread_local bool inside_handler = false;
thread_local int deferred = 0;
thread_local bool is_interrupted = false;
thread_local std::chrono::steady_clock::time_point ctrl_c_due;
thread_local std::optional<std::chrono::steady_clock::time_point> late_from;

bool has_python() {
  return Py_IsInitialized() && PyGILState_GetThisThreadState() != nullptr;
}

// Tells whether Ctrl-C does what it does in Python by itself. Nothing of the program's runs for it.
bool is_default_handler() {
  PyObject* const module = PyDict_GetItemString(PyImport_GetModuleDict(), "_signal");
  if (module == nullptr) return false;
  const THPObjectPtr standard(PyObject_GetAttrString(module, "default_int_handler"));
  const THPObjectPtr current(PyObject_CallMethod(module, "getsignal", "i", SIGINT));
  PyErr_Clear();
  return standard.get() != nullptr && standard.get() == current.get();
}

// Takes the signal that Python has noted.
bool take_ctrl_c() {
  const PyGILState_STATE gil = PyGILState_Ensure();
  const bool taken = is_default_handler() && PyOS_InterruptOccurred() != 0;
  PyGILState_Release(gil);
  return taken;
}

}  // namespace

CtrlC::Hurry::Hurry() {
  late_from = std::chrono::steady_clock::now() + kSlice;
}

CtrlC::Hurry::~Hurry() {
  late_from.reset();
}

bool CtrlC::ends_wait() {
  if (deferred > 0) return false;
  const auto now = std::chrono::steady_clock::now();
  if (late_from && now >= *late_from) return true;
  if (is_interrupted || now < ctrl_c_due || !has_python()) return is_interrupted;
  ctrl_c_due = now + kSlice / 2;
  is_interrupted = take_ctrl_c();
  return is_interrupted;
}

void CtrlC::press_again() {
  if (std::exchange(is_interrupted, false) && Py_IsInitialized()) PyErr_SetInterrupt();
}

void CtrlC::raise_again() {
  const bool may_take = deferred == 0 && has_python();
  if (!std::exchange(is_interrupted, false) && !(may_take && take_ctrl_c())) return;
  const PyGILState_STATE gil = PyGILState_Ensure();
  PyErr_SetNone(PyExc_KeyboardInterrupt);
  python_error error;
  error.persist();
  PyGILState_Release(gil);
  throw error;
}

Interruption::Deferred::Deferred() {
  ++deferred;
}

Interruption::Deferred::~Deferred() {
  --deferred;
}

bool Interruption::operator()() {
  if (deferred > 0) return false;
  const auto now = std::chrono::steady_clock::now();
  if (place_ == Place::kWithoutLock && now < due_) return false;
  due_ = now + kSlice;
  if (!has_python()) return false;
  const uint64_t before = forks.load();
  const PyGILState_STATE gil = PyGILState_Ensure();
  inside_handler = place_ == Place::kWithLock;
  const bool raised = PyErr_CheckSignals() != 0;
  inside_handler = false;
  if (raised) {
    python_error error;
    error.persist();
    raised_ = std::make_exception_ptr(std::move(error));
  }
  PyGILState_Release(gil);
  // A child's wait would take its parent's answer.
  return raised || (place_ == Place::kWithLock && forks.load() != before);
}

void Interruption::raise_again() const {
  if (raised_) std::rethrow_exception(raised_);
}

void Interruption::note_fork() {
  ++forks;
}

bool Interruption::runs_handler() {
  return inside_handler;
}

}  // namespace djinn::device
