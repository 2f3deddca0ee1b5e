// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/client.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "ipc/bell.h"
#include "ipc/codec/control_codec.h"
#include "ipc/codec/srg_codec.h"
#include "kernel/base/bytes.h"
#include "kernel/base/checked.h"
#include "kernel/base/spin.h"
#include "libdjinn-client/connect_advice.h"
#include "libdjinn-client/host.h"
#include "libdjinn-client/lease_socket.h"
#include "libdjinn-client/naming_file.h"
#include "libdjinn-client/place.h"
#include "libdjinn-client/wait.h"

namespace djinn::client {
namespace {

// The wake-ups of the other process and of this one together take this long. A shorter run ends
// while its client spins. For a longer one, spinning would only take a core from it.
constexpr uint64_t kSpinNs = 40'000;
// A wait that was slept through may have been this long only because of the two wake-ups. After one
// that was no longer, the next wait spins again; otherwise both sides would sleep for good.
constexpr uint64_t kShortWaitNs = 4 * kSpinNs;
// This is enough for a few runs of a small model.
constexpr uint64_t kStagingCommitMin = 64 * 1024;

// As ipc::Submission has it. What is later than the clock goes is no deadline.
uint64_t deadline_ns(const Clock& clock, uint64_t within_ms) {
  if (within_ms == 0) return 0;
  const auto within_ns = checked_mul(within_ms, kNsPerMs);
  return within_ns ? checked_add(*within_ns, clock.monotonic_ns()).value_or(0) : 0;
}
// has_room() counts this much for a submission's binding block. It is enough for a hundred tensors.
constexpr uint64_t kBlockBytes = 4096;

// A list that changes while its pages are read has at most this many items.
constexpr size_t kSessionsListed = size_t{2} * limits::kSessions;
constexpr size_t kModelsListed = size_t{2} * limits::kModels;
constexpr size_t kUsersListed = kSessionsListed + kModelsListed;  // who is there has one of them
constexpr size_t kPublishedListed = size_t{1} << 16;  // four times what a store may have
constexpr size_t kProgramsListed = size_t{limits::kSessions} * limits::kProgramsPerUser;

Status check_listed(size_t reports, size_t most) {
  if (reports <= most) return {};
  return not_as_djinnd_answers(ErrorCode::kProtocolViolation,
                               "The daemon's list is longer than any of djinnd's.");
}

Error bad_manifest(const char* what) {
  return not_as_djinnd_answers(ErrorCode::kProtocolViolation, what);
}

Result<srg::ModelManifest> read_manifest(std::span<const std::byte> content) {
  auto manifest = ipc::decode_manifest(content);
  if (manifest) return manifest;
  return not_as_djinnd_answers(manifest.error().code,
                               "The model's manifest cannot be read: " + manifest.error().message);
}

std::string_view file_name_of(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

Result<ServiceClass> service_of(const std::string& name) {
  if (const auto service = service_class_of(name)) return *service;
  return Error{ErrorCode::kInvalidArgument,
               "'" + ipc::showable_name(name) +
                   "' is no service class: name interactive, normal, batch or idle."};
}

struct PartSizes {
  uint64_t part = 0;  // bytes; a smaller one is the last
  uint64_t all = 0;   // at most
};
// Asks for one part after the other, from its offset on, and gives all bytes; more of them are
// `over`.
template <typename Ask>
Result<std::vector<std::byte>> whole_of(const PartSizes& sizes, const Error& over, const Ask& ask) {
  std::vector<std::byte> content;
  for (bool more = true; more;) {
    DJINN_TRY(const auto next, ask(content.size()));
    content.insert(content.end(), next.bytes.begin(), next.bytes.end());
    if (content.size() > sizes.all) return over;
    more = next.bytes.size() == sizes.part;
  }
  return content;
}

}  // namespace

bool Client::is_served(const ConnectOptions& options) {
  const auto host = resolve_host(options.host);
  return host && (host->is_far() || LeaseSocket::connect(host->path));
}

Result<std::unique_ptr<Client>> Client::connect(const ConnectOptions& options,
                                                const Deadline* deadline) {
  DJINN_TRY(const ServiceClass service, service_of(options.service_class));
  DJINN_TRY(const Host host, resolve_host(options.host));
  if (options.interrupt != nullptr) DJINN_CHECK(options.interrupt->open());
  DJINN_TRY(Control control, Control::connect(host, deadline));
  control.set_interrupt(options.interrupt);
  if (options.observer) control.set_observer();
  ipc::Hello hello;
  hello.client_name = ipc::showable_name(options.name);
  hello.staging_bytes = options.staging_bytes;
  hello.observer = options.observer;
  hello.device = options.device;
  hello.service = service;
  std::vector<Fd> fds;
  DJINN_TRY(const auto welcome, control.ask<ipc::Welcome>(std::move(hello), &fds, {}, deadline));
  DJINN_TRY(ForkMark mark, ForkMark::make());
  control.set_given_up(options.given_up);
  control.set_on_silence(options.on_silence);
  std::unique_ptr<Client> client(new Client(std::move(control), welcome, std::move(mark), options));
  if (!options.observer) DJINN_CHECK(client->attach(std::move(fds)));
  return client;
}

Client::~Client() {
  lender_->end();
}

Status Client::attach(std::vector<Fd> fds) {
  if (fds.size() != 3) {
    return not_as_djinnd_answers(ErrorCode::kProtocolViolation,
                                 "The session came without its descriptors.");
  }
  const uint64_t bytes = ipc::SessionLayout::bytes(welcome_.staging_bytes);
  const Status verified = pal::verify_memfd(fds[0], bytes, pal::Seals::kShared);
  if (!verified) {
    return not_as_djinnd_answers(verified.error().code, "The session's memory is refused: " +
                                                            verified.error().message + ".");
  }
  DJINN_TRY(memory_, pal::map_shared(fds[0], bytes, pal::Access::kReadWrite));
  memory_fd_ = std::move(fds[0]);
  submission_bell_ = std::move(fds[1]);
  completions_ = std::move(fds[2]);
  DJINN_TRY(view_, ipc::SessionView::over(memory_.bytes()));
  ring_.emplace(*view_);
  lender_ = std::make_shared<Lender>(mark_, view_->staging());
  return {};
}

Status Client::check() {
  if (mark_->is_in_child()) return forked();
  return control_.check_notices();
}

// --- control

Status Client::send_files(const ModelFiles& from) {
  DJINN_ASSERT(from.paths.empty() || from.paths.size() == from.files.size());
  for (size_t sent = 0; sent < from.files.size();) {
    const size_t count = std::min<size_t>(from.files.size() - sent, limits::kControlDescriptors);
    ipc::AddFiles request{static_cast<uint32_t>(count), {}};
    for (size_t i = sent; i < sent + count && !from.paths.empty(); ++i) {
      request.names.push_back(ipc::showable_name(file_name_of(from.paths[i])));
    }
    DJINN_CHECK(
        control_.ask<ipc::Done>(std::move(request), nullptr, from.files.subspan(sent, count)));
    sent += count;
  }
  return {};
}

Result<OpenedModel> Client::open_model(const ModelFiles& from, const srg::LoadPlan* plan,
                                       const Retention& retention) {
  DJINN_TRY(ipc::ModelOpened opened, naming_file(ask_to_open(from, plan, retention), from.paths));
  auto manifest = manifest_of(opened);
  if (!manifest) {
    control_.give_back(ipc::CloseModel{opened.model});
    return std::move(manifest).error();
  }
  return OpenedModel{opened.model, opened.bytes, opened.was_resident, *std::move(manifest),
                     opened.numerics};
}

Result<ipc::ModelOpened> Client::ask_to_open(const ModelFiles& from, const srg::LoadPlan* plan,
                                             const Retention& retention) {
  auto opened = send_open(from, plan, retention);
  if (!opened && opened.error().code == ErrorCode::kCancelled) control_.give_back(ipc::AddFiles{});
  return opened;
}

Result<ipc::ModelOpened> Client::send_open(const ModelFiles& from, const srg::LoadPlan* plan,
                                           const Retention& retention) {
  DJINN_CHECK(send_files(from));
  const std::string place =
      from.published.empty() ? place_of(from.paths) : std::string(kPublished) + from.published;
  ipc::OpenModel request;
  request.published = from.published;
  request.label = ipc::showable_name(from.label.empty() ? label_of(place) : from.label);
  request.path = showable_place(place);
  request.has_plan = plan != nullptr;
  request.pin = retention.pinned;
  request.keep_alive_ms = retention.keep_alive_ms;
  request.unpin = retention.unpins;
  request.numerics = retention.numerics;
  Fd plan_fd;
  if (plan != nullptr) {
    DJINN_TRY(plan_fd, pal::make_sealed_memfd("djinn-plan", ipc::encode(*plan)));
  }
  const int plan_number = plan_fd.get();
  return control_.ask<ipc::ModelOpened>(std::move(request), nullptr,
                                        std::span(&plan_number, plan_fd.valid() ? 1 : 0));
}

Result<srg::ModelManifest> Client::manifest_of(ipc::ModelOpened& opened) {
  if (opened.manifest_bytes > limits::kManifestBytes) {
    return bad_manifest("The model's manifest is over its limit.");
  }
  std::vector<std::byte> content = std::move(opened.manifest);
  while (content.size() < opened.manifest_bytes) {
    DJINN_TRY(const ipc::ManifestPart next,
              control_.ask<ipc::ManifestPart>(ipc::ReadManifest{opened.model, content.size()}));
    const uint64_t left = opened.manifest_bytes - content.size();
    if (next.bytes.size() != std::min<uint64_t>(left, limits::kManifestPartBytes)) {
      return bad_manifest("A part of the model's manifest is not as long as was said.");
    }
    content.insert(content.end(), next.bytes.begin(), next.bytes.end());
  }
  if (content.size() != opened.manifest_bytes) {
    return bad_manifest("The model's manifest is not as long as was said.");
  }
  return read_manifest(content);
}

Status Client::close_model(ModelId model) {
  forget_programs(model);
  DJINN_CHECK(control_.ask<ipc::Done>(ipc::CloseModel{model}));
  return {};
}

Status Client::unload_model(ModelId model) {
  forget_programs(model);
  DJINN_CHECK(control_.ask<ipc::Done>(ipc::UnloadModel{model}));
  return {};
}

// djinnd keeps what a session has defined for as long as the session has the model, so its first
// answer holds. Only a run that finds its program missing (the graph kills workers) takes it back.
Result<ipc::ProgramDefined> Client::define_program(const srg::Graph& graph, ModelId model) {
  DJINN_TRY(auto defined, find_or_define(graph, model));
  kept_programs_.insert(defined.program);
  return defined;
}

Result<LeasedProgram> Client::lease_program(const srg::Graph& graph, ModelId model) {
  if (!mark_->is_in_child()) drop_unleased_programs();
  DJINN_TRY(auto defined, find_or_define(graph, model));
  ProgramLease lease(lender_, defined.program);
  return LeasedProgram{std::move(defined), std::move(lease)};
}

// A program whose last lease has ended may have been leased again since. It also stays while a run
// that names it is under way: djinnd hears this message before the worker hears of the run.
void Client::drop_unleased_programs() {
  for (const ProgramId program : lender_->take_unleased()) unleased_[program] = last_run_;
  for (const ProgramId program : control_.take_late_programs()) unleased_[program] = last_run_;
  if (unleased_.empty()) return;
  std::erase_if(unleased_, [this](const auto& one) {
    return kept_programs_.contains(one.first) || lender_->is_leased(one.first);
  });
  ipc::DropPrograms request;
  for (const auto& [program, last_run] : unleased_) {
    const bool is_done = pending_.empty() || last_run < pending_.begin()->first;
    if (is_done && request.programs.size() < limits::kProgramsPerUser) {
      request.programs.push_back(program);
    }
  }
  if (request.programs.empty()) return;
  const auto told = control_.tell(request);
  if (!told || !*told) return;  // later, where the session lives
  for (const ProgramId program : request.programs) unleased_.erase(program);
  std::erase_if(defined_, [&](const auto& one) {
    return std::ranges::binary_search(request.programs, one.second.program);
  });
}

Result<ipc::ProgramDefined> Client::find_or_define(const srg::Graph& graph, ModelId model) {
  const auto key = std::pair(model, srg::fingerprint_of(graph));
  if (const auto known = defined_.find(key); known != defined_.end() && !has_ended()) {
    return known->second;
  }
  DJINN_TRY(auto defined, ask_to_define(graph, model));
  ipc::ProgramDefined& known = defined_[key] = defined;
  known.was_cached = true;
  return defined;
}

void Client::forget_programs(ModelId model) {
  std::erase_if(defined_, [&](const auto& entry) {
    const bool of_model = entry.first.first == model;
    if (of_model) kept_programs_.erase(entry.second.program);
    return of_model;
  });
}

Result<ipc::ProgramDefined> Client::ask_to_define(const srg::Graph& graph, ModelId model) {
  DJINN_TRY(const Fd memfd, pal::make_sealed_memfd("djinn-graph", ipc::encode(graph)));
  const int number = memfd.get();
  return control_.ask<ipc::ProgramDefined>(ipc::DefineProgram{model}, nullptr,
                                           std::span(&number, 1));
}

Result<SequenceHandle> Client::make_sequence(const ipc::SequenceGeometry& geometry) {
  DJINN_TRY(const auto made, control_.ask<ipc::SequenceMade>(ipc::MakeSequence{geometry}));
  return made.sequence;
}

Status Client::drop_sequence(SequenceHandle sequence) {
  DJINN_CHECK(control_.ask<ipc::Done>(ipc::DropSequence{sequence}));
  return {};
}

Result<ipc::StatusReport> Client::status(const Deadline* deadline) {
  DJINN_TRY(auto all, control_.ask<ipc::StatusReport>(ipc::GetStatus{}, nullptr, {}, deadline));
  while (all.workers.size() < all.workers_total || all.users.size() < all.users_total) {
    ipc::GetStatus next;
    next.first_worker = static_cast<uint32_t>(std::max(all.workers.size(), all.users.size()));
    DJINN_TRY(auto page, control_.ask<ipc::StatusReport>(next, nullptr, {}, deadline));
    if (page.workers.empty() && page.users.empty()) break;
    std::ranges::move(page.workers, std::back_inserter(all.workers));
    std::ranges::move(page.users, std::back_inserter(all.users));
    DJINN_CHECK(check_listed(std::max(all.workers.size(), all.users.size()), kUsersListed));
  }
  return all;
}

template <typename List, typename Report>
Result<std::vector<Report>> Client::all_of(
    std::vector<Report> List::*reports, size_t most,
    const std::function<decltype(ipc::ClientRequest::body)(uint32_t first)>& ask_from) {
  std::vector<Report> all;
  for (;;) {
    DJINN_TRY(auto page, control_.ask<List>(ask_from(static_cast<uint32_t>(all.size()))));
    std::vector<Report>& more = page.*reports;
    const bool last = more.empty() || all.size() + more.size() >= page.total;
    std::ranges::move(more, std::back_inserter(all));
    DJINN_CHECK(check_listed(all.size(), most));
    if (last) return all;
  }
}

Result<std::vector<ipc::SessionReport>> Client::sessions() {
  return all_of(&ipc::SessionList::sessions, kSessionsListed, [](uint32_t first) {
    ipc::ListSessions next;
    next.first = first;
    return next;
  });
}

Result<std::vector<ipc::ModelReport>> Client::models() {
  return all_of(&ipc::ModelList::models, kModelsListed, [](uint32_t first) {
    ipc::ListModels next;
    next.first = first;
    return next;
  });
}

Result<srg::ModelManifest> Client::manifest(ModelId model) {
  DJINN_TRY(const auto content,
            whole_of({limits::kManifestPartBytes, limits::kManifestBytes},
                     bad_manifest("The model's manifest is over its limit."), [&](uint64_t offset) {
                       return control_.ask<ipc::ManifestPart>(ipc::ReadManifest{model, offset});
                     }));
  if (content.empty()) return srg::ModelManifest{};
  return read_manifest(content);
}

Result<std::vector<ipc::UseReport>> Client::uses(ModelId model) {
  return all_of(&ipc::UseList::uses, kSessionsListed, [model](uint32_t first) {
    return ipc::ListUses{model, first};
  });
}

Result<std::vector<ipc::ProgramReport>> Client::programs() {
  return all_of(&ipc::ProgramList::programs, kProgramsListed, [](uint32_t first) {
    ipc::ListPrograms next;
    next.first = first;
    return next;
  });
}

Result<srg::Graph> Client::graph(ProgramId program) {
  DJINN_TRY(const auto content,
            whole_of({limits::kGraphPartBytes, limits::kGraphBytes},
                     not_as_djinnd_answers(ErrorCode::kProtocolViolation,
                                           "The program's graph is over its limit."),
                     [&](uint64_t offset) {
                       return control_.ask<ipc::GraphPart>(ipc::ReadGraph{program, offset});
                     }));
  auto graph = ipc::decode_graph(content);
  if (graph) return graph;
  return not_as_djinnd_answers(graph.error().code,
                               "The program's graph cannot be read: " + graph.error().message);
}

Result<std::vector<ipc::DeviceReport>> Client::devices() {
  DJINN_TRY(auto list, control_.ask<ipc::DeviceList>(ipc::ListDevices{}));
  return std::move(list.devices);
}

Result<std::vector<ipc::MemoryReport>> Client::memory_pools() {
  DJINN_TRY(auto list, control_.ask<ipc::MemoryList>(ipc::ListMemory{}));
  return std::move(list.pools);
}

Result<ipc::OwnMemory> Client::own_memory() {
  return control_.ask<ipc::OwnMemory>(ipc::GetOwnMemory{});
}

Result<std::vector<ipc::ScheduleReport>> Client::schedules(SessionId session) {
  std::vector<ipc::ScheduleReport> reports;
  for (uint32_t lane = 0;; ++lane) {
    DJINN_TRY(auto report, control_.ask<ipc::ScheduleReport>(ipc::GetSchedule{session, lane}));
    if (lane >= report.total) return reports;
    reports.push_back(std::move(report));
  }
}

Status Client::pin_model(ModelId model, bool pinned) {
  DJINN_CHECK(control_.ask<ipc::Done>(ipc::PinModel{model, pinned}));
  return {};
}

Status Client::evict_model(const ipc::EvictModel& request) {
  DJINN_CHECK(control_.ask<ipc::Done>(request));
  return {};
}

Result<ipc::ModelImported> Client::import_model(const ModelFiles& from, const std::string& name) {
  const auto imported = [&]() -> Result<ipc::ModelImported> {
    DJINN_CHECK(send_files(from));
    return control_.ask<ipc::ModelImported>(ipc::ImportModel{name});
  };
  return naming_file(imported(), from.paths);
}

Result<std::vector<ipc::PublishedReport>> Client::published() {
  return all_of(&ipc::PublishedList::published, kPublishedListed, [](uint32_t first) {
    ipc::ListPublished next;
    next.first = first;
    return next;
  });
}

Status Client::remove_published(const std::string& name) {
  DJINN_CHECK(control_.ask<ipc::Done>(ipc::RemovePublished{name}));
  return {};
}

Result<ipc::ModelPlaced> Client::place_model(ModelId model, const std::string& device) {
  return control_.ask<ipc::ModelPlaced>(ipc::PlaceModel{model, device});
}

Status Client::set_draining(bool draining) {
  DJINN_CHECK(control_.ask<ipc::Done>(ipc::SetDraining{draining}));
  return {};
}

Result<ipc::Collected> Client::collect_garbage() {
  return control_.ask<ipc::Collected>(ipc::CollectGarbage{});
}

Result<ipc::EventList> Client::events(uint64_t after, bool wait) {
  DJINN_TRY(ipc::EventList list, control_.ask<ipc::EventList>(ipc::FollowEvents{after, wait}));
  if (!list.events.empty() && list.last <= after) {
    return not_as_djinnd_answers(ErrorCode::kProtocolViolation,
                                 "The daemon tells the same events again.");
  }
  return list;
}

Status Client::cancel_run(SessionId session) {
  DJINN_CHECK(control_.ask<ipc::Done>(ipc::CancelRun{session}));
  return {};
}

Status Client::terminate_session(SessionId session) {
  DJINN_CHECK(control_.ask<ipc::Done>(ipc::TerminateSession{session}));
  return {};
}

// --- data path

Result<StagingLease> Client::allocate_staging(uint64_t bytes) {
  for (;;) {
    const auto range = lender_->allocate(bytes);
    if (range) {
      StagingLease lease(lender_, *range);
      DJINN_CHECK(commit_staging(*range));
      return lease;
    }
    if (range.error().code != ErrorCode::kQueueFull || pending_.empty()) return range.error();
    DJINN_CHECK(sleep({interrupt_, &given_up_}));
    DJINN_CHECK(poll());
  }
}

Result<StagingLease> Client::stage(std::span<const std::byte> bytes) {
  DJINN_TRY(StagingLease lease, allocate_staging(bytes.size()));
  copy_bytes(bytes, lease.bytes());
  return lease;
}

// The slab is sparse at first, because most sessions use little of it. It grows by doubling, so a
// session that has found its size makes no system call here.
Status Client::commit_staging(const ipc::StagingRange& range) {
  const uint64_t end = range.offset + range.bytes;
  if (end <= staging_committed_) return {};
  const uint64_t through =
      std::min(std::max({end, 2 * staging_committed_, kStagingCommitMin}), welcome_.staging_bytes);
  DJINN_CHECK(pal::commit_ahead(memory_fd_, ipc::SessionLayout::kStagingOffset + staging_committed_,
                                through - staging_committed_));
  staging_committed_ = through;
  return {};
}

Result<Run> Client::submit(const SubmissionTarget& target, std::span<const std::byte> block,
                           StagingLeases leases) {
  if (mark_->is_in_child()) return forked();
  if (block.size() > limits::kBindingTableBytes) {
    return Error{ErrorCode::kLimitExceeded,
                 "The run binds too much: its block is over 64 KiB. Split the run."};
  }
  release_dropped_refs();
  drop_unleased_programs();
  return publish(target, block, {0, std::move(leases)});
}

// A release fails as a whole if one of its refs was never made, as after a run that was cancelled.
// So each ref is released alone.
void Client::release_dropped_refs() {
  SubmissionTarget target;
  target.operation = ipc::Operation::kReleaseRefs;
  while (const auto ref = lender_->take_dropped()) {
    const auto block = ipc::encode(ipc::ReleaseBlock{{*ref}});
    if (!publish(target, block, {0, {}, false})) return lender_->drop(*ref);
    lender_->free(*ref);
  }
}

Result<Run> Client::publish(const SubmissionTarget& target, std::span<const std::byte> block,
                            Pending pending) {
  control_.send_owed_without_wait();
  const uint64_t begin_by_ns = deadline_ns(clock_, target.begin_within_ms);
  if (pending_.size() >= limits::kSubmissionSlots) DJINN_CHECK(poll());  // some may be done
  while (pending_.size() >= limits::kSubmissionSlots) {
    if (begin_by_ns != 0) {
      return Error{ErrorCode::kQueueFull,
                   "256 submissions of this session are not done, and there is no room for one "
                   "that is to begin in time. Wait for some of them, and submit it again."};
    }
    DJINN_CHECK(sleep({interrupt_, &given_up_}));
    DJINN_CHECK(poll());
  }
  ipc::Submission submission;
  submission.operation = static_cast<uint16_t>(target.operation);
  submission.run = last_run_ + 1;
  submission.program = target.program.value;
  submission.model = target.model.value;
  submission.series = target.series;
  submission.graph_offset = static_cast<uint32_t>(target.graph.offset);
  submission.graph_bytes = static_cast<uint32_t>(target.graph.bytes);
  submission.begin_by_ns = begin_by_ns;
  if (!block.empty()) {
    DJINN_TRY(StagingLease staged, stage(block));
    submission.binding_offset = staged.range().offset;
    submission.binding_bytes = static_cast<uint32_t>(block.size());
    pending.leases.read.push_back(std::move(staged));
  }
  if (target.operation != ipc::Operation::kReleaseRefs) lender_->note_submission();
  DJINN_TRY(pending.submission_index, ring_->publish(submission));
  pending_[++last_run_] = std::move(pending);
  if (ring_->worker_must_be_woken()) {
    ipc::ring_submission_bell(submission_bell_);
    rang_ = true;
  }
  return last_run_;
}

// Dropped refs are released with the next submission, which takes room as well. In the child of a
// fork nobody waits for room.
bool Client::has_room(uint64_t bytes, size_t runs) const {
  if (mark_->is_in_child()) return true;
  const size_t all_runs = runs + lender_->dropped();
  return pending_.size() + all_runs <= limits::kSubmissionSlots &&
         bytes + all_runs * kBlockBytes <= lender_->free_bytes() / 2;
}

Result<Outcome> Client::wait(Run run, const std::function<void(const TokenEvent&)>& on_token) {
  const uint64_t began_ns = clock_.monotonic_ns();
  Spin spin(clock_, last_wait_was_short_ ? kSpinNs : 0);
  if (std::exchange(rang_, false)) spin.share_core();
  std::optional<Deadline> given_up;  // the run was, and may end until then
  for (;;) {
    if (!given_up && interrupt_ != nullptr && interrupt_->is_raised()) {
      if (mark_->is_in_child()) return forked();  // what the call has asked has forked
      cancel_through(run);
      given_up.emplace(clock_, kGivenUpMs);
    }
    DJINN_TRY(const bool arrived, poll());
    DJINN_CHECK(tell_tokens(run, on_token));
    if (const auto found = outcomes_.find(run); found != outcomes_.end()) {
      Outcome outcome = std::move(found->second);
      outcomes_.erase(found);
      last_wait_was_short_ = clock_.monotonic_ns() - began_ns < kShortWaitNs;
      return outcome;
    }
    if (!pending_.contains(run)) {
      return Error{ErrorCode::kNotFound, "There is no such run, or it was waited for already."};
    }
    if (arrived) {
      spin.restart();
    } else if (!spin.wait()) {
      const Status slept = given_up ? sleep({}, &*given_up) : sleep({interrupt_, &given_up_});
      const bool cancels = !given_up && interrupt_ != nullptr && interrupt_->is_raised();
      if (slept || (cancels && slept.error().code == ErrorCode::kCancelled)) continue;
      if (slept.error().code == ErrorCode::kTimeout) return leave(run);
      // Runs that were done before djinnd ended are there, and count.
      DJINN_CHECK(poll());
      DJINN_CHECK(tell_tokens(run, on_token));
      if (!outcomes_.contains(run)) return slept.error();
    }
  }
}

void Client::abandon(Run run) {
  outcomes_.erase(run);
  tokens_.erase(run);
  if (const auto found = pending_.find(run); found != pending_.end()) {
    found->second.is_waited_for = false;
  }
}

Result<bool> Client::poll() {
  bool any = false;
  for (;;) {
    DJINN_TRY(const std::optional<ipc::Completion> completion, ring_->take());
    if (!completion) break;
    any = true;
    DJINN_CHECK(take_completion(*completion));
  }
  if (any && ring_->worker_is_blocked()) ipc::ring_submission_bell(submission_bell_);
  return any;
}

Status Client::take_completion(const ipc::Completion& completion) {
  // This run is over: a new worker told its end once more.
  const auto found = pending_.find(completion.run);
  if (found == pending_.end()) return {};
  if (completion.kind == static_cast<uint16_t>(ipc::CompletionKind::kDone)) {
    finish(completion);
    return {};
  }
  if (!found->second.is_waited_for) return {};
  if (completion.row_count > ipc::kTokensPerCompletion ||
      completion.first_row + completion.row_count > limits::kRows) {
    return Error{ErrorCode::kProtocolViolation, "A completion of the daemon is out of range."};
  }
  const uint64_t key = uint64_t{completion.index} * limits::kRows + completion.first_row + 1;
  if (key <= found->second.tokens_seen) return {};  // told before its worker died
  found->second.tokens_seen = key;
  std::vector<TokenEvent>& tokens = tokens_[completion.run];
  for (uint32_t i = 0; i < completion.row_count; ++i) {
    tokens.push_back(
        {completion.run, completion.index, completion.first_row + i, completion.tokens[i]});
  }
  return {};
}

std::vector<TokenEvent> Client::take_tokens(Run run) {
  const auto found = tokens_.find(run);
  if (found == tokens_.end()) return {};
  std::vector<TokenEvent> tokens = std::move(found->second);
  tokens_.erase(found);
  return tokens;
}

Status Client::tell_tokens(Run run, const std::function<void(const TokenEvent&)>& on_token) {
  for (const TokenEvent& event : take_tokens(run)) {
    if (on_token) on_token(event);
    if (mark_->is_in_child()) return forked();
  }
  return {};
}

void Client::finish(const ipc::Completion& completion) {
  const auto found = pending_.find(completion.run);
  Pending& pending = found->second;
  Outcome outcome;
  outcome.error = static_cast<ErrorCode>(completion.error);
  outcome.tokens = completion.index;
  outcome.failed_node = completion.error == 0 ? 0 : completion.index;
  outcome.random_offset = completion.random_offset;
  if (outcome.error != ErrorCode::kOk) {
    const auto text = view_->error_text(pending.submission_index);
    outcome.message.assign(text.begin(), std::ranges::find(text, '\0'));
    if (outcome.error == ErrorCode::kNotFound) defined_.clear();  // it may be the program
  }
  outcome.written = std::move(pending.leases.written);
  if (pending.is_waited_for) outcomes_[completion.run] = std::move(outcome);
  pending_.erase(found);
}

// What the run may still write stays its own until its completion comes, whenever that is.
Outcome Client::leave(Run run) {
  abandon(run);
  Outcome outcome;
  outcome.error = ErrorCode::kCancelled;
  outcome.message =
      "The run was given up, and has not ended yet: its operator takes long, or its worker or "
      "djinnd does not answer. Runs that come after it wait for its end.";
  return outcome;
}

Status Client::sleep(const WaitEnds& ends, const Deadline* deadline) {
  std::optional<Bells> bells = begin_sleep();
  if (!bells) return {};
  Status woken = wait_for(*bells, ends, deadline);
  Status lives = end_sleep(*bells);
  return woken ? std::move(lives) : std::move(woken);
}

std::optional<Client::Bells> Client::begin_sleep() {
  if (!ring_->prepare_to_sleep()) return std::nullopt;
  return Bells{pollfd{completions_.get(), POLLIN, 0}, pollfd{control_.fd(), POLLIN, 0}};
}

void Client::sleep(Bells& bells, int timeout_ms) {
  ::poll(bells.data(), bells.size(), timeout_ms);
}

Status Client::end_sleep(const Bells& bells) {
  ring_->finish_sleep();
  if (bells[0].revents & POLLIN) ipc::take_rings(completions_);
  return bells[1].revents != 0 ? control_.check_notices() : Status{};
}

Status Client::sleep_for_any(std::span<Client* const> clients) {
  std::vector<pollfd> entries;
  size_t asleep = 0;
  for (; asleep < clients.size(); ++asleep) {
    const std::optional<Bells> bells = clients[asleep]->begin_sleep();
    if (!bells) break;
    entries.insert(entries.end(), bells->begin(), bells->end());
  }
  Status status;
  if (asleep == clients.size()) {
    const Client& first = *clients.front();
    status = wait_for(entries, {first.interrupt_, &first.given_up_}, nullptr);
  }
  for (size_t i = 0; i < asleep; ++i) {
    Status lives = clients[i]->end_sleep({entries[2 * i], entries[2 * i + 1]});
    if (status) status = std::move(lives);
  }
  return status;
}

void Client::cancel_through(Run run) {
  if (mark_->is_in_child()) return;  // a token callback has forked: the run is the parent's
  ring_->cancel_through(run);
  ipc::ring_submission_bell(submission_bell_);  // a run that waits for memory is looked at again
}

void Client::state(const ipc::ClientStatement& statement) {
  if (ring_ && !mark_->is_in_child()) ring_->state(statement);
}

// --- refs

Result<RefLease> Client::new_ref() {
  DJINN_TRY(const RefHandle ref, lender_->allocate_ref());
  return RefLease(lender_, ref);
}

}  // namespace djinn::client
