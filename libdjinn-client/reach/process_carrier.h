// SPDX-License-Identifier: Apache-2.0

// ProcessCarrier: the process whose standard input and output lead to a djinn-gate: ssh, or what a
// host of the form exec: names. It is ended with this.
#pragma once

#include <kj/timer.h>
#include <sys/types.h>

#include <string>

#include "kernel/base/fd.h"
#include "libdjinn-client/reach/carrier.h"

namespace djinn::reach {

class ProcessCarrier final : public Carrier {
 public:
  // Errors: kNotFound where there is no such program.
  static Result<kj::Own<Carrier>> start(kj::AsyncIoContext& io, const client::Host& host);

  [[nodiscard]] kj::AsyncIoStream& stream() override { return *stream_; }
  // With the last that the process has said of it, which is waited for until it says no more.
  kj::Promise<Error> explain(const Error& failed) override;

  ProcessCarrier(kj::AsyncIoContext& io, const client::Host& host, pid_t process, Fd stream,
                 Fd said);
  ~ProcessCarrier() noexcept(false) override;

 private:
  kj::Promise<void> listen();
  [[nodiscard]] Error explanation_of(const Error& failed) const;

  std::string host_;
  kj::Timer& timer_;
  pid_t process_;  // nobody waits for it, so the number stays its own
  kj::Own<kj::AsyncIoStream> stream_;
  kj::Own<kj::AsyncInputStream> errors_;  // the process's standard error
  std::string said_;                      // the last of it
  kj::Array<char> buffer_;
  kj::ForkedPromise<void> listens_;
};

}  // namespace djinn::reach
