// SPDX-License-Identifier: Apache-2.0

#include "daemon/gate/authority/authority.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "kernel/base/file.h"
#include "kernel/base/text.h"

namespace djinn::authority {
namespace {

constexpr uint64_t kPemBytesMax = uint64_t{1} << 20;  // authorities of others may stand there, too
constexpr Mode kPublic = 0644;
constexpr Mode kSecret = 0600;
constexpr Mode kSecretFolder = 0700;
constexpr Mode kPublicFolder = 0755;
constexpr int64_t kKeptDays = 366;  // in the record, after its end

constexpr std::string_view kGateCertificate = "certificate.pem";
constexpr std::string_view kGateKey = "key.pem";
constexpr std::string_view kAuthorities = "authorities.pem";
constexpr std::string_view kList = "revoked.pem";
constexpr std::string_view kAuthority = "ca";
constexpr std::string_view kAuthorityCertificate = "ca/certificate.pem";
constexpr std::string_view kAuthorityKey = "ca/key.pem";
constexpr std::string_view kRecord = "ca/issued";

Status make_folders(Disk& disk, const std::string& path) {
  if (path.empty() || is_there(path)) return {};
  DJINN_CHECK(make_folders(disk, folder_of(path)));
  DJINN_CHECK(disk.make_folder(path, kPublicFolder));
  return disk.sync_folder(folder_of(path));
}

Status refuse_what_is_there(const std::string& folder) {
  for (const std::string_view name :
       {kAuthority, kGateCertificate, kGateKey, kAuthorities, kList}) {
    const std::string path = fmt::format("{}/{}", folder, name);
    if (!is_there(path)) continue;
    return Error{ErrorCode::kAlreadyExists,
                 fmt::format("There is a {} already, and nothing is overwritten. 'djinnctl gate "
                             "renew' makes the gate's certificate anew, and what is missing beside "
                             "an authority. For another authority give --credentials, or move that "
                             "folder away: then all certificates of it are worth nothing.",
                             path)};
  }
  return {};
}

Status check(const Founding& founding) {
  DJINN_CHECK(check_trust_domain(founding.trust_domain));
  const auto name = gate_name(founding.trust_domain, founding.host);
  return name ? Status() : name.error();
}

std::vector<std::string> dns_names_of(const Record& record) {
  std::vector<std::string> names;
  for (const std::string& text : record.addresses) {
    const auto address = parse_address(text);
    if (!address || address->is_number) continue;
    if (std::ranges::find(names, address->host) == names.end()) names.push_back(address->host);
  }
  return names;
}

// Gives the name of a principal of the domain; a text that is none of one is taken for a name.
std::string_view name_in(std::string_view text, std::string_view domain) {
  const std::string begin = principal_of(domain, "");
  return text.starts_with(begin) ? text.substr(begin.size()) : text;
}

Result<std::string> read_once_made(const std::string& path) {
  auto text = read_regular_file(path, kPemBytesMax);
  if (text || text.error().code != ErrorCode::kNotFound) return text;
  return Error{ErrorCode::kNotFound,
               fmt::format("There is no {}, so no authority is here. 'djinnctl gate init' makes "
                           "one; --credentials names another folder.",
                           path)};
}

}  // namespace

Result<Authority> Authority::found(Disk& disk, const Clock& clock, const std::string& folder,
                                   const Founding& founding) {
  DJINN_CHECK(check(founding));
  DJINN_CHECK(refuse_what_is_there(folder));
  DJINN_CHECK(make_folders(disk, folder));
  DJINN_TRY(const Fd lock, lock_folder(folder));
  DJINN_CHECK(refuse_what_is_there(folder));  // now that nobody else makes it
  Authority made(disk, clock, folder);
  DJINN_CHECK(made.make(founding));
  DJINN_CHECK(made.write_authority());
  DJINN_TRY(const auto renewed, made.renew());
  DJINN_ASSERT(renewed == GateCertificate::kRenewed);
  return made;
}

Result<Authority> Authority::open(Disk& disk, const Clock& clock, const std::string& folder) {
  Authority opened(disk, clock, folder);
  DJINN_TRY(opened.certificate_pem_, read_once_made(opened.path(kAuthorityCertificate)));
  DJINN_TRY(opened.lock_, lock_folder(opened.path(kAuthority)));
  DJINN_CHECK(opened.load());
  return opened;
}

std::string Authority::path(std::string_view name) const {
  return fmt::format("{}/{}", folder_, name);
}

int64_t Authority::now_s() const {
  return static_cast<int64_t>(clock_->wall_ns() / kNsPerSecond);
}

// Makes the authority in memory.
Status Authority::make(const Founding& founding) {
  DJINN_TRY(const std::string gate, gate_name(founding.trust_domain, founding.host));
  record_.trust_domain = founding.trust_domain;
  record_.gate = principal_of(founding.trust_domain, gate);
  for (const Address& one : founding.addresses) record_.addresses.push_back(one.text());
  if (record_.addresses.empty()) {
    DJINN_TRY(const Address own, parse_address(founding.host));
    record_.addresses.push_back(own.text());
  }
  DJINN_TRY(key_, make_key());
  DJINN_TRY(const Serial serial, random_serial());
  const Order order{.kind = Kind::kAuthority,
                    .common_name = "djinn-gate of " + founding.trust_domain,
                    .principal = "",
                    .serial = serial,
                    .since_s = now_s() - kEarlySeconds,
                    .until_s = now_s() + kAuthorityDays * kDaySeconds};
  DJINN_TRY(certificate_, sign(order, *key_, {nullptr, key_.get()}));
  DJINN_TRY(certificate_pem_, pem_of(*certificate_));
  return {};
}

// Gives the authority its place, whole or not at all, and locked from the start: others find it as
// soon as it has its name.
Status Authority::write_authority() {
  const std::string place = path(kAuthority);
  const std::string beside = unfinished(place);
  std::error_code failed;
  std::filesystem::remove_all(beside, failed);  // of an init that died
  if (failed) return system_error("remove " + beside, failed.value());
  DJINN_CHECK(disk_->make_folder(beside, kSecretFolder));
  DJINN_TRY(lock_, lock_folder(beside));
  DJINN_TRY(const std::string key, pem_of(*key_));
  DJINN_CHECK(disk_->write(beside + "/key.pem", key, kSecret));
  DJINN_CHECK(disk_->write(beside + "/certificate.pem", certificate_pem_, kPublic));
  DJINN_CHECK(disk_->write(beside + "/issued", text_of(record_), kSecret));
  DJINN_CHECK(disk_->sync_folder(beside));
  DJINN_CHECK(disk_->rename(beside, place, Existing::kRefused));
  return disk_->sync_folder(folder_);
}

Status Authority::load() {
  DJINN_TRY(const std::string key, read_secret_file(path(kAuthorityKey), kPemBytesMax));
  DJINN_TRY(key_, key_of(key, path(kAuthorityKey)));
  DJINN_TRY(certificate_, certificate_of(certificate_pem_, path(kAuthorityCertificate)));
  if (!is_key_of(*key_, *certificate_)) {
    return Error{ErrorCode::kMalformed,
                 fmt::format("{} is not the key of {}. Put back the files that were there, from a "
                             "copy.",
                             path(kAuthorityKey), path(kAuthorityCertificate))};
  }
  DJINN_TRY(const std::string text, read_regular_file(path(kRecord), kRecordBytesMax));
  DJINN_TRY(record_, record_of(text, path(kRecord)));
  return {};
}

Result<Ends> Authority::ends() const {
  Ends ends;
  DJINN_TRY(ends.authority_s, end_of(*certificate_));
  if (is_there(path(kGateCertificate))) {
    DJINN_TRY(const std::string pem, read_regular_file(path(kGateCertificate), kPemBytesMax));
    DJINN_TRY(const Certificate gate, certificate_of(pem, path(kGateCertificate)));
    DJINN_TRY(ends.gate_s, end_of(*gate));
  }
  if (is_there(path(kList))) {
    DJINN_TRY(const std::string pem, read_regular_file(path(kList), kRecordBytesMax));
    DJINN_TRY(ends.list_s, end_of_list(pem, path(kList)));
  }
  return ends;
}

// Gives the gate's key; makes one where there is none, and no other one later: certificate and key
// are two files, and whoever reads them must not find two that do not fit.
Result<Key> Authority::gate_key() {
  if (is_there(path(kGateKey))) {
    DJINN_TRY(const std::string pem, read_secret_file(path(kGateKey), kPemBytesMax));
    return key_of(pem, path(kGateKey));
  }
  DJINN_TRY(Key key, make_key());
  DJINN_TRY(const std::string pem, pem_of(*key));
  DJINN_CHECK(put(*disk_, path(kGateKey), pem, kSecret));
  return key;
}

Result<bool> Authority::has_gate_of_another() const {
  if (!is_there(path(kGateCertificate))) return false;
  DJINN_TRY(const std::string pem, read_regular_file(path(kGateCertificate), kPemBytesMax));
  DJINN_TRY(const Certificate gate, certificate_of(pem, path(kGateCertificate)));
  return !is_signed_by(*gate, signer());
}

// Signs a certificate that begins now, and notes it in the record, which is not written yet.
Result<Certificate> Authority::issue(Order order, EVP_PKEY& subject) {
  DJINN_TRY(order.serial, random_serial());
  order.since_s = now_s() - kEarlySeconds;
  DJINN_TRY(Certificate certificate, sign(order, subject, signer()));
  record_.issued.push_back({order.serial, order.principal, order.since_s, order.until_s});
  return certificate;
}

// Writes the record, and then the list of what it says is revoked.
Status Authority::commit() {
  const int64_t now = now_s();
  std::erase_if(record_.issued,
                [now](const Issued& one) { return one.until_s + kKeptDays * kDaySeconds < now; });
  if (record_.issued.size() > kIssuedMax) {
    return Error{ErrorCode::kLimitExceeded,
                 fmt::format("There are {} certificates, and the record takes no more. It forgets "
                             "each a year after its end; give them longer terms.",
                             kIssuedMax)};
  }
  ++record_.list_number;
  ListOrder order{.number = record_.list_number,
                  .since_s = now - kEarlySeconds,
                  .until_s = now + kListDays * kDaySeconds};
  for (const Issued& one : record_.issued) {
    if (one.revoked_s && one.until_s > now) order.revoked.push_back({one.serial, *one.revoked_s});
  }
  DJINN_TRY(const std::string list, sign_list(order, signer()));
  DJINN_CHECK(put(*disk_, path(kRecord), text_of(record_), kSecret));
  return put(*disk_, path(kList), list, kPublic);
}

Result<Enrolled> Authority::enrol(const Enrolment& enrolment) {
  DJINN_CHECK(check_client_name(record_.trust_domain, enrolment.name));
  if (enrolment.days == 0 || enrolment.days > kClientDaysMax) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("A certificate lasts 1 to {} days, and not {}. Enrol anew before it "
                             "ends.",
                             kClientDaysMax, enrolment.days)};
  }
  const int64_t until = now_s() + enrolment.days * kDaySeconds;
  DJINN_TRY(const int64_t authority_until, end_of(*certificate_));
  if (until > authority_until) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("The authority ends before such a certificate would. Give fewer "
                             "--days, or move {} away and begin anew with 'djinnctl gate init'.",
                             folder_)};
  }
  Key key;
  if (enrolment.request) {
    DJINN_TRY(key, key_of_request(*enrolment.request, enrolment.request_file));
  } else {
    DJINN_TRY(key, make_key());
  }
  DJINN_TRY(const Certificate certificate,
            issue({.kind = Kind::kClient,
                   .common_name = enrolment.name,
                   .principal = principal_of(record_.trust_domain, enrolment.name),
                   .until_s = until},
                  *key));
  Enrolled enrolled{record_.issued.back(), "", record_.addresses.front()};
  if (enrolment.address) enrolled.address = enrolment.address->text();
  DJINN_TRY(const std::string certificate_pem, pem_of(*certificate));
  std::string key_pem;
  if (!enrolment.request) {
    DJINN_TRY(key_pem, pem_of(*key));
  }
  DJINN_CHECK(commit());
  enrolled.profile = fmt::format("address: {}\ngate: {}\n\n{}{}{}", enrolled.address, record_.gate,
                                 certificate_pem, key_pem, certificate_pem_);
  return enrolled;
}

Result<std::vector<Issued>> Authority::revoke(std::string_view who) {
  const auto serial = serial_of(who);
  const std::string principal =
      principal_of(record_.trust_domain, name_in(who, record_.trust_domain));
  const int64_t now = now_s();
  const bool is_serial = serial && std::ranges::any_of(record_.issued, [&](const Issued& one) {
                           return one.serial == *serial;
                         });
  std::vector<Issued> revoked;
  for (Issued& one : record_.issued) {
    const bool is_meant = is_serial ? one.serial == *serial : one.principal == principal;
    if (!is_meant || one.until_s <= now) continue;
    if (one.principal == record_.gate) {
      return Error{
          ErrorCode::kInvalidArgument,
          "That is the gate's own certificate, and clients ask for no list of those. If "
          "its key is known to others, remove key.pem, run 'djinnctl gate renew', and have "
          "another authority: who has the old key passes for the gate until it ends."};
    }
    if (!one.revoked_s) one.revoked_s = now;
    revoked.push_back(one);
  }
  if (revoked.empty()) {
    return Error{ErrorCode::kNotFound,
                 fmt::format("Nobody called '{}' has a certificate that has not ended, nor is it "
                             "the serial number of one. 'djinnctl gate list' has all.",
                             showable(who))};
  }
  DJINN_CHECK(commit());
  return revoked;
}

Result<GateCertificate> Authority::renew() {
  if (!is_there(path(kAuthorities))) {
    DJINN_CHECK(put(*disk_, path(kAuthorities), certificate_pem_, kPublic));
  }
  DJINN_TRY(const bool of_another, has_gate_of_another());
  if (of_another) {
    DJINN_CHECK(commit());
    return GateCertificate::kOfAnother;
  }
  DJINN_TRY(const Key key, gate_key());
  DJINN_TRY(const int64_t authority_until, end_of(*certificate_));
  DJINN_TRY(const Certificate certificate,
            issue({.kind = Kind::kGate,
                   .common_name = record_.gate.substr(record_.gate.rfind('/') + 1),
                   .principal = record_.gate,
                   .dns_names = dns_names_of(record_),
                   .until_s = std::min(now_s() + kGateDays * kDaySeconds, authority_until)},
                  *key));
  DJINN_TRY(const std::string pem, pem_of(*certificate));
  DJINN_CHECK(commit());
  DJINN_CHECK(put(*disk_, path(kGateCertificate), pem, kPublic));
  return GateCertificate::kRenewed;
}

}  // namespace djinn::authority
