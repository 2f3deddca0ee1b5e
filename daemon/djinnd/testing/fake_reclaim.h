// SPDX-License-Identifier: Apache-2.0

// FakeReclaim: frees what the test says, by and by.
#pragma once

#include <functional>

#include "daemon/djinnd/memory/reclaim.h"
#include "kernel/base/owner.h"

namespace djinn::daemon::testing {

class FakeReclaim final : public Reclaim {
 public:
  bool make_room(uint64_t bytes) override { return has_room(bytes); }
  [[nodiscard]] uint64_t pinned_bytes() const override { return 0; }
  [[nodiscard]] uint64_t held_up_bytes() const override { return held_up; }
  [[nodiscard]] uint64_t leaving_bytes(Owner user) const override { return leaving_of(user); }
  [[nodiscard]] uint64_t leaving_bytes(vmu::Holder session) const override {
    return leaving_of_session(session);
  }
  void take_back_idle(Owner user) override { take_back(user); }
  void changed() override {}
  void refused(const Error&, std::optional<Owner>) override { ++refusals; }

  std::function<bool(uint64_t)> has_room = [](uint64_t) { return true; };
  uint64_t held_up = 0;
  uint64_t refusals = 0;
  std::function<uint64_t(Owner)> leaving_of = [](Owner) { return 0; };
  std::function<uint64_t(vmu::Holder)> leaving_of_session = [](vmu::Holder) { return 0; };
  std::function<void(Owner)> take_back = [](Owner) {};
};

}  // namespace djinn::daemon::testing
