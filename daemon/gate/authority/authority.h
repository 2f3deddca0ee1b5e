// SPDX-License-Identifier: Apache-2.0

// Authority: who may come in through a gate. It signs the gate's certificate and its clients', and
// the list of those that it has revoked, and keeps a record of them.
//
//   profile   what a client needs, as one file: where the gate is, who it is, a certificate, its
//             key, and the authority's certificate
//
// In its folder:
//
//   certificate.pem, key.pem   the gate's
//   authorities.pem            whose signatures the gate takes on a client's certificate
//   revoked.pem                the list; also when it is empty, for a gate without one lets nobody
//   in ca/certificate.pem, key.pem, issued   the authority's, and its record
//
// Whoever changes something has ca/ locked. The record is written first: no certificate is out of
// which it knows nothing, and what it says is revoked comes to be on the next list. A process that
// dies between two files leaves what `renew` makes whole.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/gate/authority/certificates.h"
#include "daemon/gate/authority/names.h"
#include "daemon/gate/authority/record.h"
#include "kernel/base/clock.h"
#include "kernel/base/disk.h"

namespace djinn::authority {

inline constexpr int64_t kAuthorityDays = 3652;  // ten years
inline constexpr int64_t kGateDays = 397;
inline constexpr int64_t kListDays = 30;
inline constexpr uint32_t kClientDaysMax = 397;
// Clocks of two hosts differ: what is issued is valid a little before it is.
inline constexpr int64_t kEarlySeconds = 60;
inline constexpr uint64_t kRequestBytesMax = 65536;

struct Founding {
  std::string trust_domain;
  std::string host;  // what the gate's host is called
  // Of the gate, the one for profiles first. Empty: the host, at the usual port.
  std::vector<Address> addresses{};
};

struct Enrolment {
  std::string name;
  uint32_t days = 30;
  // Of a client who keeps their key; else a key is made, and is in the profile.
  std::optional<std::string> request{};
  std::string request_file{};        // its name, for errors
  std::optional<Address> address{};  // in place of the record's first
};

struct Enrolled {
  Issued issued;
  std::string profile;  // secret where a key is in it
  std::string address;  // that it names
};

// When what ends; nothing where there is no such file.
struct Ends {
  int64_t authority_s = 0;  // since the epoch
  std::optional<int64_t> gate_s{};
  std::optional<int64_t> list_s{};
};

enum class GateCertificate : uint8_t { kRenewed, kOfAnother };

class Authority {
 public:
  // Makes one, and the gate's files. Errors: kAlreadyExists where there is any of them.
  static Result<Authority> found(Disk& disk, const Clock& clock, const std::string& folder,
                                 const Founding& founding);
  // Waits for whoever has it. disk and clock must outlive it. Errors: kNotFound, kMalformed,
  // kPermissionDenied.
  static Result<Authority> open(Disk& disk, const Clock& clock, const std::string& folder);

  [[nodiscard]] const Record& record() const { return record_; }
  [[nodiscard]] int64_t now_s() const;
  Result<Ends> ends() const;

  // Errors: kInvalidArgument, kMalformed, kUnsupported, kLimitExceeded.
  Result<Enrolled> enrol(const Enrolment& enrolment);
  // All unexpired certificates of a client, by its name or principal, or the one of a serial
  // number; those that were revoked before are among them. Errors: kNotFound, kInvalidArgument.
  Result<std::vector<Issued>> revoke(std::string_view who);
  // The gate's certificate, of the same key, and the list; and what is missing of the other files.
  // A certificate of another authority's stays.
  Result<GateCertificate> renew();

 private:
  Authority(Disk& disk, const Clock& clock, std::string folder)
      : disk_(&disk), clock_(&clock), folder_(std::move(folder)) {}

  [[nodiscard]] std::string path(std::string_view name) const;
  [[nodiscard]] Signer signer() const { return {certificate_.get(), key_.get()}; }
  Status make(const Founding& founding);
  Status write_authority();
  Status load();
  Result<Key> gate_key();
  Result<bool> has_gate_of_another() const;
  Result<Certificate> issue(Order order, EVP_PKEY& subject);
  Status commit();

  Disk* disk_;
  const Clock* clock_;
  std::string folder_;
  Fd lock_;
  Key key_;
  Certificate certificate_;
  std::string certificate_pem_;
  Record record_;
};

}  // namespace djinn::authority
