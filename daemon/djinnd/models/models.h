// SPDX-License-Identifier: Apache-2.0

// Models: opens and shares models, and has the loads done. How they leave again: residency.h.
//
// An open request becomes a load at once, which tells what the files are; only then is it known
// whether the model is there already. So an opening is a request whose files are not yet known, or
// are being compared with a model that may be theirs.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "daemon/djinnd/access/authority.h"
#include "daemon/djinnd/access/replies.h"
#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/loop/id_source.h"
#include "daemon/djinnd/loop/sealed.h"
#include "daemon/djinnd/loop/work_queue.h"
#include "daemon/djinnd/memory/memory.h"
#include "daemon/djinnd/memory/quotas.h"
#include "daemon/djinnd/models/load_queue.h"
#include "daemon/djinnd/models/mappings.h"
#include "daemon/djinnd/models/model.h"
#include "daemon/djinnd/models/pins.h"
#include "daemon/djinnd/models/residency.h"
#include "daemon/djinnd/workers/domains.h"
#include "ipc/limits.h"
#include "kernel/base/clock.h"

namespace djinn::daemon {

struct OpenRequest {
  Opener opener;
  std::string label;
  std::string path;
  std::optional<uint64_t> keep_alive_ms{};
  bool unpins = false;  // ends the user's own pin
  std::vector<SharedFd> files;
  std::vector<std::string> file_names;  // of each, or empty
  Payload plan;                         // or nothing
};

class Models final : private LoadListener, private Residency::Loads {
 public:
  // Of one user's openings and models together: memory that nobody grants.
  static constexpr uint64_t kPlanBytesPerUser = LoadQueue::kLoadsPerUser * limits::kLoadPlanBytes;
  static constexpr uint64_t kManifestBytesPerUser = 2 * limits::kManifestBytes;

  // memory_work frees memory.
  Models(Loop& loop, const Clock& clock, IdSource& ids, SparePool& loaders, Memory& memory,
         const Quotas& quotas, Domains& domains, Replies& replies, const Sessions& sessions,
         Events& events, WorkQueue& memory_work, ModelListener& listener, uint64_t keep_alive_ms);

  // At the start: resident models of a predecessor. One that finds no memory is given up.
  void take_back(std::vector<Model> models);

  // --- requests
  void open(OpenRequest request);
  // Tells who wanted it, and the log.
  void refuse(const OpenRequest& request, const Error& error);
  void close(const Waiter& waiter, ModelId id);
  // Whether the user's models, openings, and files that are added to be opened may keep so many
  // more open. Errors: kLimitExceeded.
  [[nodiscard]] Status check_files(DomainId domain, size_t added, size_t count) const;
  // Only the owner and administrators may; not what another user has pinned, but for
  // administrators.
  void unload(const Waiter& waiter, const Caller& caller, ModelId id);
  // Of a model that the caller sees; pins.h says what they may.
  void pin(const Waiter& waiter, const Caller& caller, const ipc::PinModel& request);
  void evict(const Waiter& waiter, const Caller& caller, const ipc::EvictModel& request);

  // For who has it open.
  void read_manifest(const Waiter& waiter, const ipc::ReadManifest& request);

  // --- sessions
  void session_left(SessionId session);
  [[nodiscard]] bool leased_by(ModelId id, SessionId session);
  [[nodiscard]] uint32_t leases_of(SessionId session) const;
  // Of the models that it holds; those that are being loaded count what is there.
  [[nodiscard]] uint64_t bytes_shared_by(SessionId session) const;
  // Whether a model that it opens has no memory yet.
  [[nodiscard]] bool lacks_memory_for(SessionId session) const;
  // Whether it waits for a model to be read.
  [[nodiscard]] bool loads_for(SessionId session) const;

  // --- workers
  void worker_ready(DomainId domain) { mappings_.worker_ready(domain); }
  void worker_died(DomainId domain, const WorkerDeath& death);
  void on_model_added(DomainId domain, const ipc::ModelAdded& event);
  void on_model_parked(DomainId domain, const ipc::ModelParked& event);
  void on_model_wanted(DomainId domain, const ipc::ModelWanted& event);
  void on_model_dropped(DomainId domain, const ipc::ModelDropped& event);

  // No loader can be started: nobody is kept waiting for one.
  void refuse_waiting() { queue_.refuse_waiting(); }

  // Bytes of models and loads that come free by themselves.
  [[nodiscard]] uint64_t leaving_bytes() const {
    return table_.leaving_bytes() + queue_.leaving_bytes();
  }
  [[nodiscard]] Residency& residency() { return residency_; }
  [[nodiscard]] const Pins& pins() const { return pins_; }
  // Whether a run of the session waits for a model to come back.
  [[nodiscard]] bool awaited_by(SessionId session) const;
  [[nodiscard]] const ModelTable& table() const { return table_; }
  // Of those that were taken back: they wait for others to give way.
  [[nodiscard]] const std::set<ModelId>& returning() const { return returning_; }
  [[nodiscard]] uint64_t bytes_read() const { return bytes_read_; }
  // Whose files were compared with a resident model, since nothing else proved them to be the same.
  [[nodiscard]] uint64_t compared_opens() const { return compared_opens_; }
  [[nodiscard]] uint64_t buffered_reads() const { return buffered_reads_; }
  // That ended with an error, for those who asked for them or for the next source of the model.
  [[nodiscard]] uint64_t loads_failed() const { return loads_failed_; }

 private:
  struct Opening {
    OpenRequest request;  // its files are with the load
    size_t file_count = 0;
    ModelKey key{};             // once they are identified
    ModelId alike{};            // what they are compared with, or will be when it is resident
    std::set<ModelId> other{};  // what they were compared with, and are not
    bool compared = false;      // with any
    bool joins_loads = true;    // other users' first ones; not again, where one has failed it
  };

  // Whether the user may have a plan of so many bytes more. Errors: kLimitExceeded.
  [[nodiscard]] Status check_plans(DomainId domain, uint64_t bytes) const;
  // The model, if the user may steer it. Errors: kNotFound, kPermissionDenied.
  Result<Model*> find_owned(const Caller& caller, ModelId id);
  // Refuses openers whose pins are too much for their quota.
  void refuse_pins(Model& model, uint64_t bytes);
  void load_identified(Load& load, const ipc::Identified& files) override;
  void load_planned(Load& load, const ipc::Planned& plan) override;
  void load_progressed(Load& load, uint64_t bytes_read) override;
  void load_finished(Load& load, const ipc::Loaded& loaded, Fd manifest) override;
  void load_compared(Load& load, bool same) override;
  void load_hashed(Load& load, const ipc::Hashed& hashed) override;
  void load_failed(Load& load, const Error& error) override;
  void load_looked_at(Load& load, bool on_files) override;
  void load_ended(LoadId id) override;
  // Has its files looked at.
  void begin(Opening opening, std::vector<SharedFd> files);
  void begin_again(std::vector<Opening> openings);
  void join(Model& model, const OpenRequest& request);
  // Of an opening whose files are known: which model it is of.
  void decide(LoadId id);
  // For one model more: while djinnd drains only models that are there already are opened. Errors:
  // kBusy, kLimitExceeded.
  Status make_place();
  void join_opening(LoadId id, Model& model);
  // The model is resident, or will not be: for whoever waits to compare their files with it.
  void decide_waiting(ModelId id);
  // The opening's files are not those of the model: it begins anew.
  void try_another(LoadId id);
  // The model leaves: whoever compares files with it goes on without it.
  void end_comparisons(Model& model) override;
  void leave_to_loaders(Model& model) override;
  void become_model(LoadId id, Opening opening, ModelKey key);
  void extents_granted(LoadId id, const std::vector<uint64_t>& sizes, const Status& granted);
  [[nodiscard]] Error with_own_part(Error error, const Model& model) const;
  Status make_extents(Model& model, const std::vector<uint64_t>& sizes);
  Status seal(Model& model, Fd manifest);
  [[nodiscard]] Status check_manifests(const Model& model, uint64_t bytes) const;
  [[nodiscard]] decltype(ipc::DaemonReply::body) opened(ModelId id, bool was_resident);
  // Ends a load that did not become a model, whatever it had become already.
  void fail(LoadId id, const Error& error);
  void fail_opening(const OpenRequest& request, const Error& error);
  void fail_model(LoadId id, Model& model, const LoadFailure& failure);
  void abort_load(LoadId id) override { queue_.abort(id); }
  // Because of the files, or of what serves them: a model that returns has others.
  void source_failed(LoadId id, const Error& error);
  // Likewise, of a model that was never there: who joined the load has files of their own.
  void first_load_failed(LoadId id, Model& model, const Error& error);
  // Its owner's files take too long: the others begin with their own, and the load goes on.
  void leave_alone(Model& model);
  // Openers that are not its owner's, with all that they brought, as openings that do not join it.
  std::vector<Opening> take_others(Model& model);
  // To the log: of one who does not get a model, and of a model.
  void emit_failure(const Opener& opener, const LoadFailure& failure);
  void emit_failure(const Model& model, const LoadFailure& failure);
  void emit_failure(Event event, const LoadFailure& failure);
  // Likewise, or that nobody wants it any more.
  void emit_failed(const Model& model, const LoadFailure& failure);
  void settle(Model& model);
  // Those of the domain, whose worker cannot have the model.
  void refuse_openers(Model& model, DomainId domain, const Error& error);
  void become_resident(Model& model);
  // Of a load that is to bring a model back.
  void identified_again(LoadId id, Model& model, const ipc::Identified& files);
  void read_again(Model& model) override;
  void left(Model& model, SessionId session);
  // An event of the model: about its bytes, seen by its owner.
  void emit(EventKind kind, const Model& model, std::string text,
            std::optional<ErrorCode> error = {});

  Loop& loop_;
  const Clock& clock_;
  IdSource& ids_;
  Memory& memory_;
  Replies& replies_;
  const Sessions& sessions_;
  Events& events_;
  ModelListener& listener_;
  ModelTable table_;
  Pins pins_;
  Mappings mappings_;
  LoadQueue queue_;
  Residency residency_;
  std::set<ModelId> returning_;
  std::map<LoadId, Opening> openings_;
  uint64_t bytes_read_ = 0;
  uint64_t buffered_reads_ = 0;
  uint64_t compared_opens_ = 0;
  uint64_t loads_failed_ = 0;
};

}  // namespace djinn::daemon
