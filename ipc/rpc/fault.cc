// SPDX-License-Identifier: Apache-2.0

#include "ipc/rpc/fault.h"

#include <kj/debug.h>
#include <kj/string.h>

#include <string_view>

namespace djinn::rpc {

kj::Exception to_exception(const Error& error) {
  const auto type = error.code == ErrorCode::kDisconnected ? kj::Exception::Type::DISCONNECTED
                                                           : kj::Exception::Type::FAILED;
  return {type, __FILE__, __LINE__, kj::heapString(error.message.data(), error.message.size())};
}

Error to_error(const kj::Exception& exception) {
  constexpr std::string_view kOfPeer = "remote exception: ";
  std::string_view message = exception.getDescription().cStr();
  if (message.starts_with(kOfPeer)) message.remove_prefix(kOfPeer.size());
  const bool is_gone = exception.getType() == kj::Exception::Type::DISCONNECTED;
  return {is_gone ? ErrorCode::kDisconnected : ErrorCode::kInternal, std::string(message)};
}

Error breach(const char* what) {
  return {ErrorCode::kProtocolViolation, what};
}

void raise(const Error& error) {
  kj::throwFatalException(to_exception(error));
}

}  // namespace djinn::rpc
