// SPDX-License-Identifier: Apache-2.0

// Profile: what this user has of a djinn-gate with a door on the network: where it is, what its
// certificate says, and a certificate to show there. One file of text, which 'djinnctl host add'
// puts into place:
//
//   address: HOST:PORT
//   gate: spiffe://DOMAIN/djinn-gate/HOST
//
//   a certificate and its key, then those of authorities, in PEM
#pragma once

#include <memory>
#include <string>

#include "ipc/rpc/tls/context.h"
#include "kernel/base/result.h"
#include "libdjinn-client/host.h"

namespace djinn::reach {

struct Profile {
  std::string address;  // HOST:PORT
  std::shared_ptr<const tls::Context> context;
};

// Of host, which is of kTls. Errors, with the file: kNotFound (there is none), kPermissionDenied
// (others may read its key), kMalformed, kTimeout (its certificate has expired).
Result<Profile> read_profile(const client::Host& host);

}  // namespace djinn::reach
