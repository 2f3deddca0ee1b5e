// SPDX-License-Identifier: Apache-2.0

// Memory: the device's bytes as djinnd grants them, and what happens when they run out: idle
// models give way, and the request is tried once more (ARCHITECTURE section 4, Tiers).
//
//   session holder   refs, sequence groups, state and staging of a session; under its quota
//   user             whose sessions, lane and heap have a quota together (user_accounts.h)
//   load, model      extents of a model, first of its load
//   lane holder      the slab of a worker
//   heap holder      what a worker's lane takes beside its slab
//
// Requests are served in their order: one that waits is not overtaken, but where its own user's
// quota has no room until others of theirs have left.
//
// A grant ends when its holder acknowledges or is dead; callers release only then.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <utility>

#include "daemon/djinnd/memory/user_accounts.h"
#include "kernel/base/ids.h"
#include "kernel/base/result.h"
#include "kernel/vmu/grants.h"

namespace djinn::daemon {

class Memory {
 public:
  using Holder = vmu::Holder;
  using Granted = std::function<void(Status)>;

  Memory(uint64_t device_bytes, uint64_t session_quota_bytes);

  static Holder of_session(SessionId id) { return {vmu::HolderKind::kSession, id.value}; }
  static Holder of_model(ModelId id) { return {vmu::HolderKind::kModel, id.value}; }
  static Holder of_load(LoadId id) { return {vmu::HolderKind::kLoad, id.value}; }
  static Holder of_lane(WorkerId id) { return {vmu::HolderKind::kLane, id.value}; }
  static Holder of_heap(WorkerId id) { return {vmu::HolderKind::kHeap, id.value}; }

  // Frees idle memory: begins to, for so many bytes, and says whether that much will come free.
  // It calls freed() as it does.
  void set_evictor(std::function<bool(uint64_t bytes)> evictor) { evictor_ = std::move(evictor); }

  // Called after each grant and each release.
  void on_change(std::function<void()> changed) { changed_ = std::move(changed); }
  // Called for each request that no memory was found for. user: whom it would have been charged to,
  // if anybody.
  using Refused = std::function<void(const Error&, std::optional<uid_t> user)>;
  void on_refusal(Refused refused) { refused_ = std::move(refused); }
  // Bytes that never give way, for who is refused.
  void set_pinned(std::function<uint64_t()> pinned) { pinned_ = std::move(pinned); }
  // What a user may have in all, and what of it comes free by itself.
  void set_user_quota(UserAccounts::BytesOf quota) { users_.set_quota(std::move(quota)); }
  void set_leaving(UserAccounts::BytesOf leaving) { users_.set_leaving(std::move(leaving)); }
  // The holder's memory counts against the quota of that user, until all of it is released.
  void charge(Holder holder, uid_t user) { users_.open(holder, user); }
  // Of all holders that are charged to the user, what lies aside included.
  [[nodiscard]] uint64_t held_by_user(uid_t user) const { return users_.held_by(user); }

  // Calls back at once, or later: idle models must give way, what is gone is not free yet, or
  // others wait. part: of the holder's memory, for cancel(). Errors: kQuotaExceeded; kOutOfMemory,
  // with what was needed, what is free and who has the rest; kCancelled if the holder ended
  // meanwhile.
  void request(Holder holder, uint64_t bytes, Granted granted, uint64_t part = 0) {
    request({holder, part, bytes, false, std::move(granted)});
  }
  // For what lies aside, which the quota has room for.
  void request_return(Holder holder, uint64_t bytes, Granted granted, uint64_t part = 0) {
    request({holder, part, bytes, true, std::move(granted)});
  }
  // How much of a session lies elsewhere and may come back: it counts against its quota until then.
  void set_aside(Holder session, uint64_t bytes);

  // What the holder still waits for is answered kCancelled; it keeps what it has.
  void cancel(Holder holder);
  // Of that part only.
  void cancel(Holder holder, uint64_t part);
  void release(Holder holder, uint64_t bytes);
  // The holder is gone, and so is what it still waits for. Gives the bytes that it held.
  uint64_t release_all(Holder holder);
  void hand_over(Holder from, Holder to);
  // Tries again what waits.
  void freed();

  [[nodiscard]] uint64_t held_by(Holder holder) const { return ledger_.held_by(holder); }
  // Whether the holder waits for memory.
  [[nodiscard]] bool waits(Holder holder) const;
  // Requests that wait for memory.
  [[nodiscard]] size_t waiting() const { return waiting_.size(); }
  // A sentence for a refusal: what the session that is refused holds itself. Empty of nothing.
  [[nodiscard]] std::string own_part_of(Holder session) const;
  // Of all holders of a kind.
  [[nodiscard]] uint64_t held_by(vmu::HolderKind kind) const;
  [[nodiscard]] uint64_t total_bytes() const { return ledger_.total_bytes(); }
  [[nodiscard]] uint64_t granted_bytes() const { return ledger_.granted_bytes(); }
  // Whether the books balance: what holders have is what was granted, and exists. Error: kInternal.
  [[nodiscard]] Status check() const;
  // Who holds more keeps it, and gets no more.
  void set_session_quota(uint64_t bytes);
  [[nodiscard]] uint64_t session_quota() const { return session_quota_; }

 private:
  struct Request {
    Holder holder;
    uint64_t part;
    uint64_t bytes;
    bool returns;
    Granted granted;
  };
  void request(Request request);
  void cancel_those(const std::function<bool(const Request&)>& wanted);
  Status grant(const Request& request);
  [[nodiscard]] Status refused(const Request& request, Error why) const;
  [[nodiscard]] std::string too_large(uint64_t bytes) const;
  [[nodiscard]] std::string shortage(uint64_t bytes) const;
  // Of the holder: it has another number of bytes now.
  void note(Holder holder);
  void change();

  vmu::GrantLedger ledger_;
  UserAccounts users_;
  uint64_t session_quota_;
  std::function<bool(uint64_t)> evictor_;
  std::function<void()> changed_;
  std::function<uint64_t()> pinned_;
  Refused refused_;
  std::list<Request> waiting_;
  std::map<Holder, uint64_t> held_;  // by holder, for sums by kind
};

}  // namespace djinn::daemon
