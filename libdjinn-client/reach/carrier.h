// SPDX-License-Identifier: Apache-2.0

// Carrier: how bytes come to a djinn-gate and back, and what is known where they do not.
#pragma once

#include <kj/async-io.h>
#include <kj/async.h>

#include "kernel/base/error.h"
#include "kernel/base/result.h"
#include "libdjinn-client/host.h"

namespace djinn::reach {

class Carrier {
 public:
  // Where there is nothing to begin with, no ssh or no profile, it explains that.
  static kj::Own<Carrier> start(kj::AsyncIoContext& io, const client::Host& host);
  Carrier() = default;
  Carrier(const Carrier&) = delete;
  Carrier& operator=(const Carrier&) = delete;
  virtual ~Carrier() noexcept(false) = default;

  // Its reads and writes wait until there is a connection.
  [[nodiscard]] virtual kj::AsyncIoStream& stream() = 0;
  // A gate has answered.
  void note_answer() { has_answered_ = true; }
  // What a session that could not begin, or not go on, tells its program: kNotFound or
  // kPermissionDenied where no gate has answered; kProtocolViolation where something else has.
  // Whoever may know more is waited for, a second at most.
  virtual kj::Promise<Error> explain(const Error& failed) = 0;

 protected:
  [[nodiscard]] bool has_answered() const { return has_answered_; }
  // What answers at the host is something else.
  [[nodiscard]] static Error no_gate(const std::string& host, const Error& failed);

 private:
  bool has_answered_ = false;
};

}  // namespace djinn::reach
