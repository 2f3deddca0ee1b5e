// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/workers/stats_rounds.h"

#include <algorithm>
#include <utility>

#include "kernel/base/assert.h"

namespace djinn::daemon {

StatsRounds::StatsRounds(Loop& loop, Domains& domains)
    : domains_(domains), timeout_(loop, [this] { end_all(); }) {}

void StatsRounds::ask(const std::function<bool(Owner)>& whose, std::function<void()> over) {
  DJINN_ASSERT(over != nullptr);
  Round round{std::move(over), {}};
  for (const auto& [key, worker] : domains_.all()) {
    if (!worker->ready() || !whose(key.owner)) continue;
    if (!owes(key)) worker->send({ipc::GetWorkerStats{}});
    round.owing.push_back(key);
  }
  rounds_.push_back(std::move(round));
  if (!timeout_.active()) timeout_.start_once(kTimeoutMs);
  end_complete();
}

bool StatsRounds::owes(WorkerKey key) const {
  return std::ranges::any_of(rounds_, [&](const Round& round) {
    return std::ranges::find(round.owing, key) != round.owing.end();
  });
}

void StatsRounds::on_worker_stats(WorkerKey key, const ipc::WorkerStats& stats) {
  if (WorkerSupervisor* const worker = domains_.find(key)) worker->note_stats(stats);
  answered(key);
}

void StatsRounds::worker_died(WorkerKey key) {
  answered(key);
}

void StatsRounds::answered(WorkerKey key) {
  for (Round& round : rounds_) std::erase(round.owing, key);
  end_complete();
}

void StatsRounds::end_complete() {
  std::list<Round> complete;
  for (auto next = rounds_.begin(); next != rounds_.end();) {
    const auto round = next++;
    if (round->owing.empty()) complete.splice(complete.end(), rounds_, round);
  }
  if (rounds_.empty()) timeout_.stop();
  DJINN_ASSERT(std::ranges::none_of(rounds_, [](const Round& r) { return r.owing.empty(); }));
  for (const Round& round : complete) round.over();
}

void StatsRounds::end_all() {
  for (Round& round : rounds_) round.owing.clear();
  end_complete();
}

}  // namespace djinn::daemon
