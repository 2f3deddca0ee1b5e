// SPDX-License-Identifier: Apache-2.0

#include "python/device/turn.h"

#include <torch/csrc/python_headers.h>

#include "python/device/interruption.h"

namespace djinn::device {

WithoutGil::WithoutGil() {
  TORCH_CHECK(!Interruption::runs_handler(),
              "A signal handler cannot use the device while the call that it interrupts connects "
              "to djinnd.");
  if (Py_IsInitialized() && PyGILState_Check()) state_ = PyEval_SaveThread();
}

WithoutGil::~WithoutGil() {
  if (state_ != nullptr) PyEval_RestoreThread(static_cast<PyThreadState*>(state_));
}

Turn::Turn(TurnLock& mutex) : lock_(mutex, std::defer_lock) {
  Interruption interruption(Interruption::Place::kWithoutLock);
  while (!lock_.try_lock_for(kSlice)) {
    if (interruption()) interruption.raise_again();
  }
}

Turn::~Turn() {
  CtrlC::press_again();
}

}  // namespace djinn::device
