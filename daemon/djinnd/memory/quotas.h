// SPDX-License-Identifier: Apache-2.0

// Quotas: how much one user may have of each device, in all sessions together, as the configuration
// says of users and groups.
//
//   quota      what a section of the configuration says, key by key; a key left out says nothing
//   in force   what binds a user: their own section's keys, then the groups', then what holds for
//              everybody
//   groups     those of a user's connections that are open, as they were when these were made
//   principal  who comes from another machine: no section is theirs, and one quota is each one's
//
// invariant: of several groups the largest value binds, so another group never takes anything away.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "daemon/djinnd/memory/quantity.h"
#include "ipc/limits.h"
#include "kernel/base/ids.h"
#include "kernel/base/owner.h"
#include "kernel/base/result.h"

namespace djinn::daemon {

struct Quota {
  std::optional<Amount> memory;      // beside models
  std::optional<Amount> pins;        // of models
  std::optional<uint32_t> sessions;  // at a time
  std::optional<uint32_t> models;    // kept at a time
  friend bool operator==(const Quota&, const Quota&) = default;
};

// A section: [user.NAME], or [group.NAME].
struct NamedQuota {
  bool is_group = false;
  std::string name;
  std::optional<uint32_t> number;  // of the user or group; nothing: there is none
  Quota quota;
  friend bool operator==(const NamedQuota&, const NamedQuota&) = default;
};

// Section [remote]: what each principal may have.
struct PrincipalQuota {
  Quota of_each{Amount{uint64_t{16} << 30}, Amount{0}, 16, limits::kModelsPerUser};
  uint32_t connections = 64;  // sessions, and what only looks
  friend bool operator==(const PrincipalQuota&, const PrincipalQuota&) = default;
};

// What a quota is of; connections: of principals.
enum class QuotaOf : uint8_t { kMemory, kPins, kConnections, kSessions, kModels };

struct QuotaInForce {
  uint64_t memory_bytes = std::numeric_limits<uint64_t>::max();
  uint64_t pin_bytes = std::numeric_limits<uint64_t>::max();
  uint32_t sessions = limits::kSessionsPerUser;
  uint32_t models = limits::kModelsPerUser;
  bool is_own = false;  // a section binds the user, or they are a principal
  friend bool operator==(const QuotaInForce&, const QuotaInForce&) = default;
};

class Quotas {
 public:
  // pins: of whom no section says another number.
  void set(std::vector<NamedQuota> named, Amount pins);
  void set_principals(const PrincipalQuota& quota) { principals_ = quota; }
  // A connection of the user is made, and has ended.
  void joined(SessionId session, Owner user, std::vector<gid_t> groups);
  void left(SessionId session);

  // device_bytes: what may be granted of the device in question, which shares are of.
  [[nodiscard]] QuotaInForce of(Owner user, uint64_t device_bytes) const;
  [[nodiscard]] uint32_t connections_of_principal() const { return principals_.connections; }
  // On all devices together.
  [[nodiscard]] uint32_t sessions_of(Owner user) const { return of(user, 0).sessions; }
  [[nodiscard]] uint32_t models_of(Owner user) const { return of(user, 0).models; }
  // The configuration's key that binds the user, for who is told of a refusal:
  // "user.ann.memory_quota". Where no section says anything, that of everybody.
  [[nodiscard]] std::string key_of(Owner user, QuotaOf what, uint64_t device_bytes) const;

 private:
  struct Connected {
    Owner user;
    std::vector<gid_t> groups;
  };
  [[nodiscard]] const NamedQuota* section_of(Owner user) const;
  [[nodiscard]] bool binds_as_group(const NamedQuota& section, Owner user) const;
  [[nodiscard]] Quota of_groups(Owner user, uint64_t device_bytes) const;

  std::vector<NamedQuota> named_;
  Amount pins_{std::numeric_limits<uint64_t>::max()};
  PrincipalQuota principals_;
  std::map<SessionId, Connected> connected_;
};

}  // namespace djinn::daemon
