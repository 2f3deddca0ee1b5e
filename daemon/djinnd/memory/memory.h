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
// Nobody's request stands in the way of others': what fits is served at once. A large one does not
// starve all the same:
//
//   kept     what comes free while a request waits is its own, up to what it needs, in the order of
//            arrival; none is kept for one that waits for its own user's quota
//   unkept   what was free and too little for who waits; whoever fits in may have it
//
// So what others take past one that waits is at most what was free when it came. It waits as long
// as there is enough on its way (reclaim.h), and is refused else; those behind it then.
//
// invariant: what is kept for all that wait and what is unkept is what is free, after freed().
// A grant ends when its holder acknowledges or is dead; callers release only then.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <utility>
#include <vector>

#include "daemon/djinnd/memory/quotas.h"
#include "daemon/djinnd/memory/reclaim.h"
#include "daemon/djinnd/memory/user_accounts.h"
#include "kernel/base/device_id.h"
#include "kernel/base/ids.h"
#include "kernel/base/owner.h"
#include "kernel/base/result.h"
#include "kernel/vmu/grants.h"

namespace djinn::daemon {

class Memory {
 public:
  using Holder = vmu::Holder;
  using Granted = std::function<void(Status)>;

  // quotas: what users may have.
  Memory(DeviceId device, uint64_t device_bytes, uint64_t session_quota_bytes,
         const Quotas& quotas);

  static Holder of_session(SessionId id) { return {vmu::HolderKind::kSession, id.value}; }
  static Holder of_model(ModelId id) { return {vmu::HolderKind::kModel, id.value}; }
  static Holder of_load(LoadId id) { return {vmu::HolderKind::kLoad, id.value}; }
  static Holder of_lane(WorkerId id) { return {vmu::HolderKind::kLane, id.value}; }
  static Holder of_heap(WorkerId id) { return {vmu::HolderKind::kHeap, id.value}; }

  // The device has so many bytes, and not fewer than before: a GPU's are known when its mover has
  // said them.
  void set_total(uint64_t bytes);
  // Whom to ask for memory when there is none; without, nothing gives way.
  void set_reclaim(Reclaim& reclaim) { reclaim_ = &reclaim; }
  // Something may have fallen idle, and so may have to give way.
  void reconsider() { change(); }
  // The holder's memory counts against the quota of that user, until all of it is released.
  void charge(Holder holder, Owner user) { users_.open(holder, user); }
  // The bytes of all holders that are charged to the user, what lies aside included.
  [[nodiscard]] uint64_t held_by_user(Owner user) const { return users_.held_by(user); }

  // Calls back at once, or later: idle models must give way, or what is gone is not free yet. part:
  // of the holder's memory, for cancel(). Errors: kQuotaExceeded; kOutOfMemory, with what was
  // needed, what is free and who has the rest; kCancelled if the holder ended meanwhile.
  void request(Holder holder, uint64_t bytes, Granted granted, uint64_t part = 0) {
    request({holder, part, bytes, false, std::move(granted)});
  }
  // Likewise of all parts. The log hears nothing where more than is needed is refused.
  void request(Holder holder, uint64_t bytes, Granted granted, vmu::Amount amount) {
    request({holder, 0, bytes, false, std::move(granted), amount == vmu::Amount::kMore});
  }
  // Requests memory for what lies aside, which the quota has room for.
  void request_return(Holder holder, uint64_t bytes, Granted granted, uint64_t part = 0) {
    request({holder, part, bytes, true, std::move(granted)});
  }
  // How much of a session lies elsewhere and may come back: it counts against its quota until then.
  void set_aside(Holder session, uint64_t bytes);

  // What the holder still waits for is answered kCancelled; it keeps what it has.
  void cancel(Holder holder);
  // Cancels requests of that part only.
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
  // What that user's quota leaves for all of theirs together.
  [[nodiscard]] uint64_t left_to(Owner user) const { return users_.left_to(user); }
  // The bytes of all holders of a kind.
  [[nodiscard]] uint64_t held_by(vmu::HolderKind kind) const;
  [[nodiscard]] DeviceId device() const { return device_; }
  [[nodiscard]] uint64_t total_bytes() const { return ledger_.total_bytes(); }
  [[nodiscard]] uint64_t granted_bytes() const { return ledger_.granted_bytes(); }
  [[nodiscard]] uint64_t free_bytes() const { return ledger_.free_bytes(); }
  // Whether the books balance: what holders have is what was granted, and exists. Error: kInternal.
  [[nodiscard]] Status check() const;
  // A session that holds more keeps it, and gets no more.
  void set_session_quota(uint64_t bytes);
  [[nodiscard]] uint64_t session_quota() const { return session_quota_; }

 private:
  friend struct DaemonForTests;

  struct Request {
    Holder holder;
    uint64_t part;
    uint64_t bytes;
    bool returns;
    Granted granted;
    bool or_less = false;
    uint64_t kept = 0;  // for it, of what is free
    [[nodiscard]] uint64_t missing() const { return bytes - kept; }
  };
  using Requests = std::list<Request>;
  using Answers = std::vector<std::pair<Granted, Status>>;
  void request(Request request);
  void cancel_those(const std::function<bool(const Request&)>& wanted);
  // Whether the quotas have room for it. Errors: kQuotaExceeded.
  [[nodiscard]] Status check_quotas(const Request& request) const;
  // That fits, and that the quotas have room for.
  void grant(const Request& request);
  // Whether it fits in the quotas of its user and its session once what comes free by itself is
  // free, and not before.
  [[nodiscard]] bool waits_for_its_own(const Request& request) const;
  // Begins to take back what could make it fit; whether it waits for that now.
  [[nodiscard]] bool begins_to_wait_for_its_own(const Request& request) const;
  void keep_what_came_free();
  // Grants what fits and refuses what no quota or device has room for. Whether it answered anybody:
  // then another who waited for their own user's quota may wait for it no more.
  bool serve(Answers& answers);
  // Has enough come free for all that wait, or for the first; where that cannot be, it is refused,
  // and this gives true.
  bool make_room(Answers& answers);
  void take(Requests::iterator& request, Status status, Answers& answers);
  [[nodiscard]] Status refused(const Request& request, Error why) const;
  [[nodiscard]] Error over_quota(const Request& request) const;
  [[nodiscard]] std::string too_large(uint64_t bytes) const;
  [[nodiscard]] std::string shortage(const Request& request) const;
  // Notes that the holder has another number of bytes now.
  void note(Holder holder);
  void change();

  const DeviceId device_;
  vmu::GrantLedger ledger_;
  UserAccounts users_;
  uint64_t session_quota_;
  Reclaim* reclaim_ = nullptr;
  Requests waiting_;  // in the order of arrival
  uint64_t unkept_;
  std::map<Holder, uint64_t> held_;  // by holder, for sums by kind
};

}  // namespace djinn::daemon
