// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/front/schedules.h"

#include <utility>

namespace djinn::daemon {

std::vector<WorkerKey> Schedules::seen_by(const Caller& caller) const {
  std::vector<WorkerKey> keys;
  for (const auto& [key, worker] : domains_.all()) {
    if (worker->ready() && caller.may_steer(key.owner)) keys.push_back(key);
  }
  return keys;
}

void Schedules::show(const Waiter& waiter, const Caller& caller, const ipc::GetSchedule& request) {
  std::vector<WorkerKey> keys;
  if (request.session.valid()) {
    const auto session = sessions_.find_steered(caller, request.session);
    if (!session) return sessions_.refuse(waiter, session.error());
    const WorkerKey key = (*session)->worker();
    if (!(*session)->observer && domains_.ready(key)) keys.push_back(key);
  } else {
    keys = seen_by(caller);
  }
  const Asked asked{waiter, static_cast<uint32_t>(keys.size())};
  if (request.lane >= keys.size()) {
    ipc::ScheduleReport none;
    none.total = asked.total;
    return sessions_.reply(waiter, {waiter.number, std::move(none)});
  }
  const WorkerKey key = keys[request.lane];
  std::vector<Asked>& waiting = asked_[key];
  waiting.push_back(asked);
  if (waiting.size() == 1) domains_.send(key, {ipc::GetLaneSchedule{}}, {});
}

void Schedules::answer(const Asked& asked, WorkerKey key, const ipc::LaneSchedule& schedule) {
  reports_.when_named([this, asked, key, schedule] {
    sessions_.owe(asked.waiter, [this, asked, key, schedule]() -> ipc::DaemonReply {
      return {asked.waiter.number, ipc::ScheduleReport{asked.total, text_of(key.device),
                                                       reports_.name_now(key.owner), schedule}};
    });
  });
}

void Schedules::on_schedule(WorkerKey key, const ipc::LaneSchedule& schedule) {
  const auto found = asked_.find(key);
  if (found == asked_.end()) return;  // a worker may say what it likes
  const std::vector<Asked> waiting = std::move(found->second);
  asked_.erase(found);
  for (const Asked& asked : waiting) answer(asked, key, schedule);
}

void Schedules::worker_died(WorkerKey key) {
  on_schedule(key, {});
}

}  // namespace djinn::daemon
