// SPDX-License-Identifier: Apache-2.0

// What both ends of a connection ask of TCP.
#pragma once

#include <kj/async-io.h>

namespace djinn::rpc {

// Small messages do not wait for one another, and a network that takes nothing any more is noticed
// after 15 seconds. Throws kj::Exception for what is no TCP socket.
void set_tcp_options(kj::AsyncIoStream& stream);

}  // namespace djinn::rpc
