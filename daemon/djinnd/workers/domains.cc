// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/workers/domains.h"

#include <fmt/format.h>

#include "kernel/base/assert.h"

namespace djinn::daemon {

Result<WorkerSupervisor*> Domains::need(WorkerKey key, const InUse& in_use) {
  auto& worker = workers_[key];
  if (!worker) {
    worker = std::make_unique<WorkerSupervisor>(loop_, clock_, spares_.of(key.device), listener_,
                                                events_, key, hang_timeout_ms_);
  }
  if (worker->absent()) {
    if (key.owner.is_principal()) {
      DJINN_CHECK(make_place(key, in_use, kDomainsOfPrincipals,
                             [](Owner owner) { return owner.is_principal(); }));
    }
    DJINN_CHECK(make_place(key, in_use, kDomainsMax, [](Owner) { return true; }));
  }
  worker->need();
  DJINN_ASSERT(!worker->absent());
  return worker.get();
}

Status Domains::make_place(WorkerKey key, const InUse& in_use, size_t most,
                           const std::function<bool(Owner)>& competes) {
  size_t alive = 0;
  WorkerSupervisor* idle = nullptr;
  for (const auto& [other, supervisor] : workers_) {
    if (other == key || supervisor->absent() || !competes(other.owner)) continue;
    ++alive;
    if (!in_use(other)) idle = supervisor.get();
  }
  if (alive < most) return {};
  if (idle == nullptr) {
    return Error{ErrorCode::kLimitExceeded,
                 fmt::format("{} {} have a worker, which is the limit. Try again when one of them "
                             "has left.",
                             most, most == kDomainsMax ? "users" : "principals")};
  }
  idle->retire();
  return {};
}

WorkerSupervisor* Domains::find(WorkerKey key) const {
  const auto found = workers_.find(key);
  return found == workers_.end() ? nullptr : found->second.get();
}

void Domains::send(WorkerKey key, const ipc::WorkerCommand& command, std::span<const int> fds) {
  if (WorkerSupervisor* const worker = find(key)) worker->send(command, fds);
}

void Domains::answer_grant(WorkerKey key, uint64_t request, const Status& granted) {
  ipc::GrantAnswer answer;
  answer.request = request;
  if (!granted) {
    answer.code = granted.error().code;
    answer.message = granted.error().message;
  }
  send(key, {answer});
}

void Domains::wake_lane(WorkerKey key) {
  if (WorkerSupervisor* const worker = find(key)) worker->wake_lane();
}

bool Domains::ready(WorkerKey key) const {
  const WorkerSupervisor* const worker = find(key);
  return worker != nullptr && worker->ready();
}

bool Domains::is_to_be_ready(WorkerKey key) const {
  const WorkerSupervisor* const worker = find(key);
  if (worker == nullptr) return false;
  return worker->ready() || (worker->is_coming() && !spares_fail(key.device));
}

std::vector<std::pair<WorkerKey, WorkerSupervisor*>> Domains::all() const {
  std::vector<std::pair<WorkerKey, WorkerSupervisor*>> list;
  for (const auto& [key, worker] : workers_) list.emplace_back(key, worker.get());
  return list;
}

void Domains::abandon(DeviceId device) {
  for (const auto& [key, worker] : workers_) {
    if (key.device == device) worker->abandon("is on a device that is lost");
  }
}

uint32_t Domains::retire_idle(const std::function<bool(WorkerKey)>& in_use) {
  uint32_t retired = 0;
  for (const auto& [key, worker] : workers_) {
    if (worker->absent() || in_use(key)) continue;
    worker->retire();
    ++retired;
  }
  return retired;
}

}  // namespace djinn::daemon
