// SPDX-License-Identifier: Apache-2.0

#include "python/device/interruption.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/python_headers.h>
#include <unistd.h>

namespace djinn::device {
namespace {

thread_local bool inside_handler = false;

}  // namespace

bool Interruption::operator()() {
  const auto now = std::chrono::steady_clock::now();
  if (place_ == Place::kWithoutLock && now < due_) return false;
  due_ = now + kSlice;
  if (!Py_IsInitialized() || PyGILState_GetThisThreadState() == nullptr) return false;
  const pid_t before = place_ == Place::kWithLock ? ::getpid() : 0;
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
  return raised || (before != 0 && ::getpid() != before);
}

void Interruption::raise_again() const {
  if (raised_) std::rethrow_exception(raised_);
}

bool Interruption::runs_handler() {
  return inside_handler;
}

}  // namespace djinn::device
