// SPDX-License-Identifier: Apache-2.0

// A session's state, as its worker has it.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "kernel/base/fd.h"
#include "kernel/gc/session_state.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {

class WorkersState {
 public:
  static constexpr gc::StateGeometry kGeometry{16, 4};

  // Zeroed memory for one.
  static Fd make() {
    return *pal::make_memfd("state", gc::state_bytes(kGeometry), pal::Seals::kSize);
  }

  explicit WorkersState(const Fd& memfd)
      : mapped_(*pal::map_shared(memfd, gc::state_bytes(kGeometry), pal::Access::kReadWrite)) {
    EXPECT_TRUE(gc::SessionState::format(mapped_.bytes(), kGeometry));
    state_ = std::make_unique<gc::SessionState>(
        *gc::SessionState::open(mapped_.bytes(), kGeometry, faults_));
  }
  gc::SessionState* operator->() { return state_.get(); }

 private:
  pal::Mapping mapped_;
  gc::FaultPoints faults_;
  std::unique_ptr<gc::SessionState> state_;
};

}  // namespace djinn::daemon
