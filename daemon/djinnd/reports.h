// Reports: what djinnctl shows. A user sees what is theirs, administrators all.
#pragma once

#include <functional>
#include <list>

#include "daemon/djinnd/domains.h"
#include "daemon/djinnd/memory.h"
#include "daemon/djinnd/models.h"
#include "daemon/djinnd/programs.h"
#include "daemon/djinnd/sessions.h"

namespace djinn::daemon {

class Reports {
 public:
  struct World {
    Loop& loop;
    const Clock& clock;
    Memory& memory;
    Domains& domains;
    Models& models;
    Programs& programs;
    Sessions& sessions;
    Events& events;
  };
  explicit Reports(World world);

  // Asks the workers for their counts first, and waits for them briefly.
  void status(const Asker& asker, const ipc::GetStatus& request);
  void sessions(const Asker& asker, const Caller& caller, const ipc::ListSessions& request);
  void models(const Asker& asker, const Caller& caller, const ipc::ListModels& request);
  // The same lists, whole.
  [[nodiscard]] std::vector<ipc::SessionReport> sessions_seen_by(const Caller& caller);
  [[nodiscard]] std::vector<ipc::ModelReport> models_seen_by(const Caller& caller);
  void programs(const Asker& asker, const Caller& caller, const ipc::ListPrograms& request);
  // Sums over all users, as in status: nothing of others shows in them but how much is left.
  void devices(const Asker& asker);
  void memory(const Asker& asker);

  void events(const Asker& asker, const Caller& caller, const ipc::FollowEvents& request);
  // An event was told; who follows hears of it soon.
  void event_told();
  void session_left(SessionId session);
  void set_draining(bool draining) { draining_ = draining; }

  void hear(DomainId domain, const ipc::WorkerStats& stats);
  void worker_died(DomainId domain);

 private:
  static constexpr uint64_t kStatsTimeoutMs = 250;

  struct Waiting {
    Asker asker;
    ipc::GetStatus request;
    std::vector<DomainId> owing;
  };
  struct Follower {
    Asker asker;
    Caller caller;
    ipc::FollowEvents request;
  };
  [[nodiscard]] ipc::EventList events_for(const Follower& follower) const;
  void answer_followers();
  void answer_ready();
  void answer_all();
  [[nodiscard]] ipc::StatusReport make_status(const ipc::GetStatus& request);
  [[nodiscard]] ipc::SessionReport report_of(const Session& session);
  [[nodiscard]] ipc::ModelReport report_of(const Model& model);
  // Of all reports, those from the first asked for on that fit a message.
  template <typename List, typename Item>
  void reply_page(const Asker& asker, std::vector<Item> reports, std::vector<Item> List::*items,
                  uint32_t first);
  [[nodiscard]] ipc::ProgramReport report_of(const Program& program);
  [[nodiscard]] ipc::SessionWait wait_of(const Session& session, bool running) const;
  [[nodiscard]] ipc::MemoryReport weights_report() const;
  [[nodiscard]] ipc::MemoryReport sessions_report() const;
  [[nodiscard]] ipc::MemoryReport lanes_report() const;

  World world_;
  uint64_t started_wall_ns_;
  std::string cpu_name_;
  UserNames names_;
  std::list<Waiting> waiting_;
  Timer timeout_;
  std::list<Follower> followers_;
  Timer follow_;
  bool draining_ = false;
};

}  // namespace djinn::daemon
