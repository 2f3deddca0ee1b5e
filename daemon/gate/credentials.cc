// SPDX-License-Identifier: Apache-2.0

#include "daemon/gate/credentials.h"

#include <utility>

#include "kernel/base/file.h"

namespace djinn::gate {
namespace {

constexpr uint64_t kBytesMax = 1 << 20;
constexpr uint64_t kListBytesMax = 16 << 20;  // of all that an authority's record may have

Result<tls::Identity> read_identity(const std::string& directory) {
  tls::Identity identity;
  DJINN_TRY(identity.certificates, read_regular_file(directory + "/certificate.pem", kBytesMax));
  DJINN_TRY(identity.key, read_secret_file(directory + "/key.pem", kBytesMax));
  DJINN_TRY(identity.authorities, read_regular_file(directory + "/authorities.pem", kBytesMax));
  auto revoked = read_regular_file(directory + "/revoked.pem", kListBytesMax);
  if (revoked) {
    identity.revoked = *std::move(revoked);
  } else if (revoked.error().code != ErrorCode::kNotFound) {
    return revoked.error();
  }
  return identity;
}

}  // namespace

Result<std::shared_ptr<const tls::Context>> read_credentials(const std::string& directory) {
  auto identity = read_identity(directory);
  if (!identity) {
    return Error{identity.error().code,
                 identity.error().message + " 'djinnctl gate init' makes certificates."};
  }
  auto context = tls::Context::make(tls::Side::kGate, *identity);
  if (context) return context;
  return Error{context.error().code,
               "The certificates in " + directory + " cannot be used: " + context.error().message};
}

}  // namespace djinn::gate
