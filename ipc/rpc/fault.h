// SPDX-License-Identifier: Apache-2.0

// Errors at the border of KJ, which throws: inside a task or a call that KJ runs, an Error is
// thrown as kj::Exception, and what KJ gives back is made an Error again.
#pragma once

#include <kj/exception.h>

#include <utility>

#include "kernel/base/result.h"

namespace djinn::rpc {

// kj::Exception::Type::DISCONNECTED for kDisconnected, else FAILED. Its description is the message,
// which the other side sees.
kj::Exception to_exception(const Error& error);
// kDisconnected where KJ says so, else kInternal.
Error to_error(const kj::Exception& exception);

// kProtocolViolation: what the other side sent is not as gate.capnp says.
Error breach(const char* what);

[[noreturn]] void raise(const Error& error);

inline void require(Status status) {
  if (!status) raise(status.error());
}
template <typename T>
T require(Result<T> result) {
  if (!result) raise(result.error());
  return *std::move(result);
}

}  // namespace djinn::rpc
