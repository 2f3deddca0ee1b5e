// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/memory/quotas.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

std::string_view key_text(QuotaOf what) {
  switch (what) {
    case QuotaOf::kMemory:
      return "memory_quota";
    case QuotaOf::kPins:
      return "pin_quota";
    case QuotaOf::kConnections:
      return "connections_max";
    case QuotaOf::kSessions:
      return "sessions_max";
    case QuotaOf::kModels:
      return "models_max";
  }
  return "";
}

std::optional<uint64_t> value_of(const Quota& quota, QuotaOf what, uint64_t device_bytes) {
  if (what == QuotaOf::kSessions) return quota.sessions;
  if (what == QuotaOf::kModels) return quota.models;
  const std::optional<Amount>& amount = what == QuotaOf::kPins ? quota.pins : quota.memory;
  return amount ? std::optional(amount->of(device_bytes)) : std::nullopt;
}

std::string key_in(const NamedQuota& section, QuotaOf what) {
  return fmt::format("{}.{}.{}", section.is_group ? "group" : "user", section.name, key_text(what));
}

}  // namespace

void Quotas::set(std::vector<NamedQuota> named, Amount pins) {
  named_ = std::move(named);
  pins_ = pins;
}

void Quotas::joined(SessionId session, Owner user, std::vector<gid_t> groups) {
  DJINN_ASSERT(session.valid());
  std::ranges::sort(groups);
  connected_[session] = {user, std::move(groups)};
}

void Quotas::left(SessionId session) {
  connected_.erase(session);
}

const NamedQuota* Quotas::section_of(Owner user) const {
  const auto found = std::ranges::find_if(named_, [&](const NamedQuota& section) {
    return !section.is_group && section.number && Owner::of_user(*section.number) == user;
  });
  return found == named_.end() ? nullptr : &*found;
}

bool Quotas::binds_as_group(const NamedQuota& section, Owner user) const {
  if (!section.is_group || !section.number) return false;
  return std::ranges::any_of(connected_, [&](const auto& entry) {
    return entry.second.user == user &&
           std::ranges::binary_search(entry.second.groups, *section.number);
  });
}

// If several groups bind a user, the largest value of each key counts.
Quota Quotas::of_groups(Owner user, uint64_t device_bytes) const {
  Quota all;
  const auto more = [&](std::optional<Amount>& most, const std::optional<Amount>& other) {
    if (other && (!most || other->of(device_bytes) > most->of(device_bytes))) most = other;
  };
  for (const NamedQuota& section : named_) {
    if (!binds_as_group(section, user)) continue;
    more(all.memory, section.quota.memory);
    more(all.pins, section.quota.pins);
    all.sessions = std::max(all.sessions, section.quota.sessions);
    all.models = std::max(all.models, section.quota.models);
  }
  return all;
}

QuotaInForce Quotas::of(Owner user, uint64_t device_bytes) const {
  QuotaInForce all;
  all.pin_bytes = pins_.of(device_bytes);
  if (named_.empty() && !user.is_principal()) return all;
  Quota quota = user.is_principal() ? principals_.of_each : of_groups(user, device_bytes);
  if (const NamedQuota* const section = section_of(user)) {
    const Quota& own = section->quota;
    if (own.memory) quota.memory = own.memory;
    if (own.pins) quota.pins = own.pins;
    if (own.sessions) quota.sessions = own.sessions;
    if (own.models) quota.models = own.models;
  }
  all.is_own = quota != Quota();
  if (quota.memory) all.memory_bytes = quota.memory->of(device_bytes);
  if (quota.pins) all.pin_bytes = quota.pins->of(device_bytes);
  all.sessions = quota.sessions.value_or(all.sessions);
  all.models = quota.models.value_or(all.models);
  return all;
}

std::string Quotas::key_of(Owner user, QuotaOf what, uint64_t device_bytes) const {
  if (user.is_principal()) return fmt::format("remote.{}", key_text(what));
  const NamedQuota* const own = section_of(user);
  if (own != nullptr && value_of(own->quota, what, device_bytes)) return key_in(*own, what);
  const auto most = value_of(of_groups(user, device_bytes), what, device_bytes);
  for (const NamedQuota& section : named_) {
    const bool binds = most && binds_as_group(section, user) &&
                       value_of(section.quota, what, device_bytes) == most;
    if (binds) return key_in(section, what);
  }
  return what == QuotaOf::kPins ? "memory.pin_quota" : std::string(key_text(what));
}

}  // namespace djinn::daemon
