// SPDX-License-Identifier: Apache-2.0

// Carrier: the process whose standard input and output lead to a djinn-gate: ssh, or what a host of
// the form exec: names. It is ended with this.
#pragma once

#include <kj/async-io.h>
#include <kj/async.h>
#include <kj/timer.h>
#include <sys/types.h>

#include <string>

#include "kernel/base/error.h"
#include "kernel/base/fd.h"
#include "libdjinn-client/host.h"

namespace djinn::reach {

class Carrier {
 public:
  // Errors: kNotFound where there is no such program.
  static Result<kj::Own<Carrier>> start(kj::LowLevelAsyncIoProvider& io, const client::Host& host);
  Carrier(const Carrier&) = delete;
  Carrier& operator=(const Carrier&) = delete;

  [[nodiscard]] kj::AsyncIoStream& stream() { return *stream_; }
  // A gate has answered.
  void note_answer() { has_answered_ = true; }
  // What a session that could not begin, or not go on, tells its program. kNotFound where no gate
  // has answered, with the last that the process has said of it, which is waited for until it says
  // no more, or a second; kProtocolViolation where something else has answered.
  kj::Promise<Error> explain(const Error& failed, kj::Timer& timer);

  Carrier(kj::LowLevelAsyncIoProvider& io, const client::Host& host, pid_t process, Fd stream,
          Fd said);
  ~Carrier() noexcept;

 private:
  kj::Promise<void> listen();
  [[nodiscard]] Error explanation_of(const Error& failed) const;

  std::string host_;
  pid_t process_;  // nobody waits for it, so the number stays its own
  bool has_answered_ = false;
  kj::Own<kj::AsyncIoStream> stream_;
  kj::Own<kj::AsyncInputStream> errors_;  // the process's standard error
  std::string said_;                      // the last of it
  kj::Array<char> buffer_;
  kj::ForkedPromise<void> listens_;
};

}  // namespace djinn::reach
