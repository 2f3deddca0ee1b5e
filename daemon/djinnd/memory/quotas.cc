// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/memory/quotas.h"

#include <algorithm>
#include <utility>

#include "kernel/base/assert.h"

namespace djinn::daemon {

void Quotas::set(std::vector<NamedQuota> named, uint64_t total_bytes, uint64_t pin_bytes) {
  named_ = std::move(named);
  total_bytes_ = total_bytes;
  pin_bytes_ = pin_bytes;
}

void Quotas::joined(SessionId session, Owner user, std::vector<gid_t> groups) {
  DJINN_ASSERT(session.valid());
  std::ranges::sort(groups);
  connected_[session] = {user, std::move(groups)};
}

void Quotas::left(SessionId session) {
  connected_.erase(session);
}

const Quota* Quotas::section_of(Owner user) const {
  const auto found = std::ranges::find_if(named_, [&](const NamedQuota& section) {
    return !section.is_group && section.number && Owner::of_user(*section.number) == user;
  });
  return found == named_.end() ? nullptr : &found->quota;
}

// The largest value of each key.
Quota Quotas::of_groups(Owner user) const {
  Quota all;
  const auto more = [this](std::optional<Amount>& most, const std::optional<Amount>& other) {
    if (other && (!most || other->of(total_bytes_) > most->of(total_bytes_))) most = other;
  };
  for (const NamedQuota& section : named_) {
    if (!section.is_group || !section.number) continue;
    const bool is_member = std::ranges::any_of(connected_, [&](const auto& entry) {
      return entry.second.user == user &&
             std::ranges::binary_search(entry.second.groups, *section.number);
    });
    if (!is_member) continue;
    more(all.memory, section.quota.memory);
    more(all.pins, section.quota.pins);
    all.sessions = std::max(all.sessions, section.quota.sessions);
  }
  return all;
}

QuotaInForce Quotas::of(Owner user) const {
  QuotaInForce all;
  all.pin_bytes = pin_bytes_;
  if (named_.empty()) return all;
  Quota quota = of_groups(user);
  if (const Quota* const own = section_of(user)) {
    if (own->memory) quota.memory = own->memory;
    if (own->pins) quota.pins = own->pins;
    if (own->sessions) quota.sessions = own->sessions;
  }
  all.is_own = quota != Quota();
  if (quota.memory) all.memory_bytes = quota.memory->of(total_bytes_);
  if (quota.pins) all.pin_bytes = quota.pins->of(total_bytes_);
  all.sessions = quota.sessions.value_or(all.sessions);
  return all;
}

}  // namespace djinn::daemon
