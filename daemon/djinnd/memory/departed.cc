// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/memory/departed.h"

#include <utility>
#include <vector>

#include "daemon/djinnd/loop/log.h"
#include "kernel/base/assert.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {
namespace {

constexpr uint64_t kLookMs = 500;
constexpr int kLooks = 2;  // after which it stays until further notice

}  // namespace

Departed::Departed(Loop& loop, UserQueues& work, std::function<void()> stays)
    : loop_(loop), work_(work), stays_(std::move(stays)), look_timer_(loop, [this] { look(); }) {}

void Departed::keep(SessionId id, Owner user, std::unique_ptr<Channel> client, SharedFd memory,
                    uint64_t bytes, std::function<void()> freed) {
  DJINN_ASSERT(client != nullptr && memory != nullptr);
  DJINN_ASSERT(!sessions_.contains(id));
  Session& session = sessions_[id];
  session = {user, std::move(client), std::move(memory), bytes, std::move(freed)};
  session.client->await_hang_up([this, id] { hung_up(id); });
}

bool Departed::is_leaving(SessionId id) const {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return true;
  const Session& session = found->second;
  return session.client ? session.client->has_hung_up() : session.looks < kLooks;
}

void Departed::hung_up(SessionId id) {
  DJINN_ASSERT(sessions_.at(id).client != nullptr);
  loop_.dispose(std::move(sessions_.at(id).client));
  if (!look_timer_.active()) look_timer_.start_once(kLookMs);
  free(id);
}

void Departed::free(SessionId id) {
  const Session& session = sessions_.at(id);
  DJINN_ASSERT(session.client == nullptr);  // it may read what is there until it has hung up
  work_.run(
      session.user,
      [memory = session.memory, bytes = session.bytes] { return pal::decommit(*memory, 0, bytes); },
      [this, id](const Status& freed) { tried(id, freed); });
}

// If no thread could be started, or the kernel lacked memory, it is tried again later. Until then
// the memory stays granted.
void Departed::tried(SessionId id, const Status& freed) {
  if (!freed) {
    log_line("the memory of an ended session is not free yet: " + freed.error().message);
    sessions_.at(id).again = true;
    return;
  }
  const auto node = sessions_.extract(id);
  node.mapped().freed();
}

void Departed::look() {
  bool stays = false;
  std::vector<SessionId> again;
  for (auto& [id, session] : sessions_) {
    if (session.client) continue;
    if (!look_timer_.active()) look_timer_.start_once(kLookMs);
    if (std::exchange(session.again, false)) again.push_back(id);
    if (session.looks < kLooks && ++session.looks == kLooks) stays = true;
  }
  for (const SessionId id : again) free(id);
  if (stays) stays_();
}

}  // namespace djinn::daemon
