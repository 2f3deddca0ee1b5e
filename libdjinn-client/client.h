// SPDX-License-Identifier: Apache-2.0

// Client: one session with djinnd, for C++ inside this tree (the C ABI, djinnctl and the Python
// binding stand on it). Control requests wait for their answers; the data path is asynchronous:
// submit() hands a submission over and returns, wait() ends when it is complete.
//
//   Run        the number of a submission; completions carry it
//   Outcome    how a run ended
//   leases     what a submission needs of the session's staging and refs (lease.h)
//
// invariant: runs complete in the order of their submission.
// invariant: at most limits::kSubmissionSlots runs are without a processed completion, so an error
// text is read before its slot has a new tenant. One thread at a time; leases may die on others.
#pragma once

#include <poll.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ipc/binding.h"
#include "ipc/messages.h"
#include "ipc/report_text.h"
#include "ipc/ring.h"
#include "kernel/base/clock.h"
#include "kernel/base/schedule.h"
#include "kernel/pal/memfd.h"
#include "kernel/srg/fingerprint.h"
#include "kernel/srg/load_plan.h"
#include "libdjinn-client/control.h"
#include "libdjinn-client/fork_mark.h"
#include "libdjinn-client/interrupt.h"
#include "libdjinn-client/lease.h"
#include "libdjinn-client/wait.h"

namespace djinn::client {

struct ConnectOptions {
  // As host.h says; empty: DJINN_HOST, else the user's daemon, else the system's
  std::string host;
  std::string name;    // for people, shown by djinnctl sessions
  std::string device;  // "cpu:0": where it is to run; empty: djinnd's first
  // What it gets beside the user's other sessions: a name of schedule.h.
  std::string service_class{name_of(ServiceClass::kNormal)};
  // Client::set_begin_within_ms(), from the beginning.
  uint64_t begin_within_ms = 0;
  uint64_t staging_bytes = limits::kStagingBytesDefault;
  bool observer = false;  // control requests only
  // How long djinnd may take to answer who has had no session of a Connection yet. It gives a new
  // worker a minute, and tells if that was not enough.
  uint64_t answer_ms = 65'000;
  // Control::set_on_silence(), once the session is there; empty: nobody is told.
  std::function<void()> on_silence;
  // It ends waits of the session and for it, and outlives both. nullptr: nothing does.
  Interrupt* interrupt = nullptr;
  // Asked while a call waits; true ends the wait with kCancelled, and changes nothing of what was
  // submitted. Empty: nobody is asked.
  CancelPredicate given_up;
};

struct OpenedModel {
  ModelId id;
  uint64_t bytes = 0;
  bool was_resident = false;
  srg::ModelManifest manifest;
  std::optional<srg::Numerics> numerics{};  // as ipc::ModelOpened's
};

struct LeasedProgram {
  ipc::ProgramDefined defined;
  ProgramLease lease;
};

using Run = uint64_t;

struct Outcome {
  ErrorCode error = ErrorCode::kOk;
  std::string message;
  uint32_t tokens = 0;                  // of a generation
  uint32_t failed_node = 0;             // of a series: which of its graph failed, from 1; 0: none
  uint64_t random_offset = 0;           // of a generation: the next unused one
  std::vector<StagingLease> written{};  // what the submission leased for the run to write
};

// One token of one row of a generation.
struct TokenEvent {
  Run run = 0;
  uint32_t index = 0;  // which token of the run, from 0
  uint32_t row = 0;
  int32_t token = 0;
};

// What a submission is, beside its block.
struct SubmissionTarget {
  ipc::Operation operation = ipc::Operation::kNop;
  ProgramId program;        // kRun
  ModelId model;            // kRunOnce
  uint64_t series = 0;      // kRun, kRunOnce
  ipc::StagingRange graph;  // kRunOnce
  // Refused with kQueueFull where it cannot begin so soon, and has done nothing then; 0: it waits
  // for its turn.
  uint64_t begin_within_ms = 0;
};

// What stands before the name of a model in djinnd's store, where a directory may stand, too.
inline constexpr std::string_view kPublished = "djinn:";

// What a model is read from.
struct ModelFiles {
  std::string label;                     // for people; empty: what the paths say (place.h)
  std::span<const int> files;            // open for reading, in the plan's order; stay the caller's
  std::span<const std::string> paths{};  // of those, or none: what errors and djinnctl call them
  std::string published{};               // of a model in djinnd's store, in place of all files
};

// What outlives an open: how long the model stays when nobody uses it, and how its programs compute
// where nobody else chooses.
struct Retention {
  bool pinned = false;                      // until somebody unpins or unloads it
  std::optional<uint64_t> keep_alive_ms{};  // as ipc::OpenModel says
  bool unpins = false;                      // ends the user's own pin, from an open before
  std::optional<srg::Numerics> numerics{};  // as ipc::OpenModel says
};

class Client {
 public:
  // After it was given up, a run ends with the operator that runs. One that takes longer is left to
  // itself, and so is a run whose worker does not come to it.
  static constexpr uint64_t kGivenUpMs = 2000;

  // Whether a djinnd takes connections where connect() would look for it; makes no session. On
  // another machine one is taken to.
  [[nodiscard]] static bool is_served(const ConnectOptions& options);
  // deadline: how long djinnd may take to answer; nullptr: as long as it takes. Errors: those of
  // Control::connect() and what djinnd answers (kBusy while it is drained), and the deadline's.
  static Result<std::unique_ptr<Client>> connect(const ConnectOptions& options,
                                                 const Deadline* deadline = nullptr);
  // Its leases may live on.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  [[nodiscard]] const ipc::Welcome& welcome() const { return welcome_; }
  [[nodiscard]] bool is_far() const { return control_.is_far(); }
  // What it was connected with: who connects so again has another session of the same kind.
  [[nodiscard]] const ConnectOptions& options() const { return options_; }
  // Whether the session lives; a system call that doesn't wait. Errors: why it has ended.
  Status check();
  // Whether an earlier call met the session's end, or this process was forked from the session's.
  [[nodiscard]] bool has_ended() const { return control_.has_ended() || mark_->is_in_child(); }
  // Whether that end was met, and was somebody's will.
  [[nodiscard]] bool was_terminated() const { return control_.was_terminated(); }

  // --- control
  Result<OpenedModel> open_model(const ModelFiles& from, const srg::LoadPlan* plan = nullptr,
                                 const Retention& stay = {});
  Status close_model(ModelId model);
  Status unload_model(ModelId model);
  // A program that this session has defined is known here: djinnd is not asked again. It is kept as
  // long as the session or, where it names weights, their model is open.
  Result<ipc::ProgramDefined> define_program(const srg::Graph& graph, ModelId model);
  // Likewise, but djinnd may forget it once all its leases are gone and the runs that named it are
  // done.
  Result<LeasedProgram> lease_program(const srg::Graph& graph, ModelId model);
  Result<SequenceHandle> make_sequence(const ipc::SequenceGeometry& geometry);
  Status drop_sequence(SequenceHandle sequence);
  // Does not wait for it.
  void drop_sequence_later(SequenceHandle sequence) {
    control_.give_back(ipc::DropSequence{sequence});
  }
  // deadline: as for connect(); when it ends, so does the use of this session.
  Result<ipc::StatusReport> status(const Deadline* deadline = nullptr);
  Result<std::vector<ipc::SessionReport>> sessions();
  Result<std::vector<ipc::ModelReport>> models();
  // Of a model that models() lists; empty while it is first loaded.
  Result<srg::ModelManifest> manifest(ModelId model);
  // The uses of a model that this user may see.
  Result<std::vector<ipc::UseReport>> uses(ModelId model);
  Result<std::vector<ipc::ProgramReport>> programs();
  // The graph of a program that programs() lists, as it was defined.
  Result<srg::Graph> graph(ProgramId program);
  Result<std::vector<ipc::DeviceReport>> devices();
  Result<std::vector<ipc::MemoryReport>> memory_pools();
  Result<ipc::OwnMemory> own_memory();
  // What the session's lane has decided lately, or for no session each lane that this user may see.
  // Errors: kNotFound.
  Result<std::vector<ipc::ScheduleReport>> schedules(SessionId session);
  Status pin_model(ModelId model, bool pinned);
  // Ends when the bytes are free.
  Status evict_model(const ipc::EvictModel& request);
  // Puts a copy of a model into a GPU's memory; ends when it was compared. Administrators'. Errors:
  // those of ipc::PlaceModel.
  Result<ipc::ModelPlaced> place_model(ModelId model, const std::string& device);
  // Has djinnd take a model's files into its store, each as its path calls it last. Ends when they
  // are on the disk. Errors: those of ipc::ImportModel.
  Result<ipc::ModelImported> import_model(const ModelFiles& from, const std::string& name);
  // The published models that this user may read.
  Result<std::vector<ipc::PublishedReport>> published();
  Status remove_published(const std::string& name);
  // Administrators'. Errors: kPermissionDenied.
  Status set_draining(bool draining);
  Result<ipc::Collected> collect_garbage();
  // The events after that number. wait: until there is one.
  Result<ipc::EventList> events(uint64_t after, bool wait);
  // Act on another session of this user, or on anybody's for root. cancel_run(): kNotFound when it
  // runs nothing.
  Status cancel_run(SessionId session);
  Status terminate_session(SessionId session);

  // --- data path
  // What runs and generations that are submitted from now on say, but those of a series, which
  // others stand behind; 0: nothing.
  void set_begin_within_ms(uint64_t ms) { begin_within_ms_ = ms; }
  [[nodiscard]] uint64_t begin_within_ms() const { return begin_within_ms_; }

  // A range of staging; waits for completions while the slab is full. Its pages are there, so
  // writing them cannot fail. Errors: kLimitExceeded, kQueueFull when the slab is full and nothing
  // is under way, kOutOfMemory, kDisconnected.
  Result<StagingLease> allocate_staging(uint64_t bytes);
  // A staging range with a copy of these bytes. Errors: those of allocate_staging().
  Result<StagingLease> stage(std::span<const std::byte> bytes);

  // Publishes a submission, and takes its leases; where it is refused they are given back at once.
  // Waits while the ring is full, but with a deadline is kQueueFull at once. Errors: also
  // kLimitExceeded for a block over its limit, kDisconnected, those of allocate_staging() for the
  // block.
  Result<Run> submit(const SubmissionTarget& target, std::span<const std::byte> block,
                     StagingLeases leases = {});
  // Whether so many submissions, with so many bytes of staging beside their ordinary blocks, are
  // taken without a wait for the end of a run; an estimate with room to spare.
  [[nodiscard]] bool has_room(uint64_t bytes, size_t runs) const;
  [[nodiscard]] Run last_run() const { return last_run_; }  // that was submitted; 0: none
  // Waits for a run; if it is a generation, its tokens go to on_token meanwhile. It may fork: the
  // child's wait ends with kDisconnected, and touches nothing of its parent's. Each run is waited
  // for once. Errors: kNotFound for a run that was waited for, kDisconnected, kCancelled where the
  // wait was given up, and not the run. A failed run is an Outcome, and so is one that was given up
  // because the call was interrupted, whether or not it has ended within two seconds.
  Result<Outcome> wait(Run run, const std::function<void(const TokenEvent&)>& on_token = {});
  // Nobody will wait for the run: its outcome is dropped when it comes.
  void abandon(Run run);
  // Takes what has arrived, without waiting; true if something had.
  Result<bool> poll();
  [[nodiscard]] bool is_complete(Run run) const { return outcomes_.contains(run); }
  // Every run before this one is complete.
  [[nodiscard]] bool is_oldest(Run run) const {
    return !pending_.empty() && pending_.begin()->first == run;
  }
  // The tokens of a generation that have arrived since the last call; those that nobody took are
  // gone with wait().
  std::vector<TokenEvent> take_tokens(Run run);

  // wait()'s sleep in three parts, for a caller that lets others use the client meanwhile: only
  // sleep() does not use it. A wake-up may have been for somebody else, and somebody else may have
  // taken ours: so a sleep has a time limit.
  using Bells = std::array<pollfd, 2>;
  // Nothing: something has arrived.
  std::optional<Bells> begin_sleep();
  static void sleep(Bells& bells, int timeout_ms);
  // Errors: why the session has ended.
  Status end_sleep(const Bells& bells);
  // wait()'s sleep for one thread that waits for runs of several clients: it ends as soon as one of
  // them has something. They have the first one's interrupt. Errors: kCancelled, and why a session
  // has ended.
  static Status sleep_for_any(std::span<Client* const> clients);
  // Gives up every run up to this one; their outcomes say kCancelled.
  void cancel_through(Run run);
  // States what this process says of its own calls; djinnd's reports show it as that. No system
  // call.
  void state(const ipc::ClientStatement& statement);

  // --- refs
  Result<RefLease> new_ref();
  // The slot of a ref that was detached may be used again; submit the release, too. Nothing happens
  // for one that was forgotten.
  void forget_ref(RefHandle ref) { lender_->free(ref); }
  // A ref that was detached is released with the next submission.
  void drop_ref(RefHandle ref) { lender_->drop(ref); }
  // The largest generation that a ref has had.
  [[nodiscard]] uint32_t last_generation() const { return lender_->last_generation(); }
  // Refs have larger generations from now on; before the first one.
  void begin_generations_after(uint32_t generation) {
    lender_->begin_generations_after(generation);
  }

 private:
  Client(Control control, ipc::Welcome welcome, ForkMark mark, const ConnectOptions& options)
      : control_(std::move(control)),
        welcome_(welcome),
        mark_(std::make_shared<const ForkMark>(std::move(mark))),
        options_(options),
        interrupt_(options.interrupt),
        given_up_(options.given_up),
        begin_within_ms_(options.begin_within_ms),
        lender_(std::make_shared<Lender>(mark_, std::span<std::byte>())) {}

  struct Pending {
    uint64_t submission_index = 0;
    StagingLeases leases;
    bool is_waited_for = true;  // its outcome is kept for wait()
    uint64_t tokens_seen = 0;   // token events delivered, times rows: drops duplicates
  };

  Status attach(std::vector<Fd> fds);
  // All of a list that comes in pages. Errors: kProtocolViolation for more than most reports.
  template <typename List, typename Report>
  Result<std::vector<Report>> all_of(
      std::vector<Report> List::*reports, size_t most,
      const std::function<decltype(ipc::ClientRequest::body)(uint32_t first)>& ask_from);
  Status commit_staging(const ipc::StagingRange& range);
  Status send_files(const ModelFiles& from);
  Result<ipc::ModelOpened> ask_to_open(const ModelFiles& from, const srg::LoadPlan* plan,
                                       const Retention& retention);
  Result<ipc::ModelOpened> send_open(const ModelFiles& from, const srg::LoadPlan* plan,
                                     const Retention& retention);
  Result<srg::ModelManifest> manifest_of(ipc::ModelOpened& opened);
  Result<ipc::ProgramDefined> find_or_define(const srg::Graph& graph, ModelId model);
  Result<ipc::ProgramDefined> ask_to_define(const srg::Graph& graph, ModelId model);
  void forget_programs(ModelId model);
  void drop_unleased_programs();
  Result<Run> publish(const SubmissionTarget& target, std::span<const std::byte> block,
                      Pending pending);
  void release_dropped_refs();
  Status take_completion(const ipc::Completion& completion);
  Status tell_tokens(Run run, const std::function<void(const TokenEvent&)>& on_token);
  void finish(const ipc::Completion& completion);
  // Of a run that was given up and has not ended.
  Outcome leave(Run run);
  Status sleep(const WaitEnds& ends, const Deadline* deadline = nullptr);

  Control control_;
  ipc::Welcome welcome_;
  std::shared_ptr<const ForkMark> mark_;  // of the process that has the session
  ConnectOptions options_;
  Interrupt* interrupt_;
  CancelPredicate given_up_;
  uint64_t begin_within_ms_;
  SystemClock clock_;
  Fd submission_bell_;
  Fd completions_;  // the listener of their bell
  Fd memory_fd_;
  pal::Mapping memory_;
  std::optional<ipc::SessionView> view_;
  std::optional<ipc::ClientRing> ring_;
  std::shared_ptr<Lender> lender_;  // an observer's slab is empty
  uint64_t staging_committed_ = 0;  // bytes of the slab, from its beginning, that have pages
  Run last_run_ = 0;
  bool last_wait_was_short_ = true;  // the next one likely is, too
  bool rang_ = false;                // the worker, since the last wait
  std::map<Run, Pending> pending_;
  std::map<Run, Outcome> outcomes_;
  std::map<Run, std::vector<TokenEvent>> tokens_;  // that nobody has taken
  std::map<std::pair<ModelId, srg::Fingerprint>, ipc::ProgramDefined> defined_;
  std::set<ProgramId> kept_programs_;  // for the whole session
  std::map<ProgramId, Run> unleased_;  // djinnd is to hear of it after that run
};

}  // namespace djinn::client
