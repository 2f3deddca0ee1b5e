// SPDX-License-Identifier: Apache-2.0

// What a gate shows, and whom it trusts, as files of a directory: certificate.pem, key.pem,
// authorities.pem, and revoked.pem, if there is one: then it is obeyed, also where it is damaged.
// Who makes them does not matter.
#pragma once

#include <memory>
#include <string>

#include "ipc/rpc/tls/context.h"

namespace djinn::gate {

// Errors: kNotFound, kIo, kPermissionDenied (a key that others may read), and those of
// tls::Context::make(), each with the directory.
Result<std::shared_ptr<const tls::Context>> read_credentials(const std::string& directory);

}  // namespace djinn::gate
