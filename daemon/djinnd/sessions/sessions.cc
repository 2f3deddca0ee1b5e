// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/sessions/sessions.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "daemon/djinnd/loop/descriptors.h"
#include "daemon/djinnd/loop/log.h"
#include "ipc/codec/control_codec.h"
#include "kernel/base/checked.h"
#include "kernel/base/size_text.h"
#include "kernel/gc/sequence_layout.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {
namespace {

// Answers and notices that a client may leave unread.
constexpr size_t kBacklogMax = 2 * limits::kRequestsPending;
// How often to look whether a session that was held back may have a worker.
constexpr uint64_t kAttachLookMs = 25;
// How often the log hears that a quota refuses memory to the same session.
constexpr uint64_t kOverQuotaToldNs = 10'000'000'000;
// A sparse file costs nothing, but addresses end somewhere.
constexpr uint64_t kSequenceFileBytesMax = uint64_t{1} << 40;

Memory::Holder lane_of(DomainId domain) {
  return Memory::of_lane(WorkerId{uint64_t{domain} + 1});
}
Memory::Holder heap_of(DomainId domain) {
  return Memory::of_heap(WorkerId{uint64_t{domain} + 1});
}

// Of a session's memory; 0 for refs.
uint64_t part_of(SequenceHandle sequence) {
  return uint64_t{sequence.generation} << 32 | sequence.index;
}

Event event_of(EventKind kind, const Session& session) {
  Event event{kind, {}, session.domain};
  event.session = session.id;
  return event;
}

// Of a run that ends its workers. op: where it was, if that is known.
Error refusal_of(const std::string& op, std::optional<uint64_t> overran_ms) {
  if (overran_ms) {
    return {ErrorCode::kTimeout,
            fmt::format("{} ran longer than {} s, which is the most that one may take. The run is "
                        "given up; other runs of the session go on. Give it less to do.",
                        op.empty() ? "A part of the run" : "The operator " + op,
                        static_cast<double>(*overran_ms) / 1000)};
  }
  return {ErrorCode::kWorkerLost,
          fmt::format("The run stopped its worker three times{} and made no progress. It is given "
                      "up; other runs of the session go on.",
                      op.empty() ? "" : ", last in the operator " + op + ",")};
}

Status check_closing(const Closer& closer) {
  const size_t waiting = closer.waiting();
  if (waiting <= limits::kClosingPerUser) return {};
  return Error{
      ErrorCode::kLimitExceeded,
      fmt::format("{} descriptors of this user are still being closed. If a file system of "
                  "theirs does not answer, bring it back or unmount it; then repeat.",
                  waiting)};
}

}  // namespace

void Sessions::tell(EventKind kind, const Session& session, std::string text,
                    std::optional<ErrorCode> error) {
  Event event = event_of(kind, session);
  event.text = std::move(text);
  event.error = error;
  world_.events.tell(std::move(event));
}

Session* Sessions::find(SessionId id) const {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second.get();
}

Session* Sessions::find(SessionId id, DomainId domain) const {
  Session* const session = find(id);
  return session != nullptr && session->domain == domain ? session : nullptr;
}

SequenceGroup* Sessions::find_group(SessionId id, DomainId domain, SequenceHandle handle) const {
  Session* const session = find(id, domain);
  return session != nullptr ? session->sequences.lookup(handle) : nullptr;
}

// --- connections

Status Sessions::check_limits(uid_t uid) {
  const auto of_user = std::ranges::count_if(
      sessions_, [&](const auto& entry) { return entry.second->domain == uid; });
  const auto gone =
      std::ranges::count_if(released_, [&](const auto& entry) { return entry.second.user == uid; });
  if (sessions_.size() + released_.size() >= limits::kSessions ||
      of_user + gone >= limits::kSessionsPerUser) {
    return Error{
        ErrorCode::kLimitExceeded,
        fmt::format("There are too many sessions: at most {} of one user, {} in all. Close "
                    "one, then repeat. One that djinnd has ended counts until its program closes "
                    "it, too.",
                    limits::kSessionsPerUser, limits::kSessions)};
  }
  const auto closer = world_.closers.of(uid);
  return check_closing(*closer);
}

Status Sessions::check_quota(uid_t user) const {
  const uint32_t most = world_.quotas.of(user).sessions;
  if (const uint32_t now = count(user); now >= most) {
    return Error{ErrorCode::kLimitExceeded,
                 fmt::format("This user has {} sessions, and djinnd's configuration allows {} at a "
                             "time. Close one, or ask the administrator for more.",
                             now, most)};
  }
  return {};
}

uint32_t Sessions::count(std::optional<uid_t> user) const {
  return static_cast<uint32_t>(std::ranges::count_if(sessions_, [user](const auto& entry) {
    const Session& session = *entry.second;
    return (!user || session.domain == *user) && !session.observer &&
           (session.phase == SessionPhase::kAttaching || session.phase == SessionPhase::kLive);
  }));
}

size_t Sessions::files_added(uid_t user) const {
  size_t count = 0;
  for (const auto& [id, session] : sessions_) {
    if (session->domain == user) count += session->files.size();
  }
  return count;
}

void Sessions::connected(Fd socket, const ipc::PeerCredentials& peer) {
  Status allowed = check_limits(peer.uid);
  if (!allowed) return turn_away(std::move(socket), peer, allowed.error());
  add_connection(std::move(socket), peer);
}

void Sessions::turn_away(Fd socket, const ipc::PeerCredentials& peer, const Error& error) {
  Event event{EventKind::kSessionRefused,
              fmt::format("a connection of {} is refused: {}", world_.events.user_text(peer.uid),
                          name_of(error.code)),
              peer.uid};
  event.error = error.code;
  event.sentence = ipc::showable_sentence(error.message);
  world_.events.tell_refusal(std::move(event));
  const std::vector<std::byte> notice =
      ipc::encode(ipc::DaemonReply{0, ipc::Failed{error.code, error.message}});
  const auto closer = world_.closers.of(peer.uid);
  if (!check_closing(*closer)) {  // what it has sent is not received, for it would wait as well
    [[maybe_unused]] const Status told = ipc::send_datagram(socket.get(), notice);
    ::shutdown(socket.get(), SHUT_RDWR);
    return closer->close(std::move(socket));
  }
  Channel channel(world_.loop, std::move(socket), 1, world_.traffic, {}, closer->closing());
  channel.send(notice);
}

void Sessions::add_connection(Fd socket, const ipc::PeerCredentials& peer) {
  auto fresh = std::make_unique<Session>();
  const auto id = world_.ids.next<SessionId>([this](SessionId t) { return find(t) != nullptr; });
  fresh->id = id;
  fresh->domain = peer.uid;
  fresh->caller = world_.authority.judge(peer.uid, peer.groups);
  fresh->pid = peer.pid;
  world_.quotas.joined(id, peer.uid, peer.groups);
  fresh->started_wall_ns = world_.clock.wall_ns();
  fresh->closer = world_.closers.of(peer.uid);
  fresh->channel = std::make_unique<Channel>(
      world_.loop, std::move(socket), kBacklogMax, world_.traffic,
      Channel::Events{[this, id](ipc::Datagram message) { heard(id, std::move(message)); },
                      [this, id](const Error& error) { disconnected(id, error); },
                      [this, id] { give_owed_in_turn(id); }},
      fresh->closer->closing());
  fresh->channel->take_turns(world_.turns, peer.uid);
  sessions_[id] = std::move(fresh);
}

void Sessions::heard(SessionId id, ipc::Datagram datagram) {
  Session& session = *find(id);
  ClientMessage message{std::move(datagram.bytes), {}};
  for (Fd& fd : datagram.fds) message.fds.push_back(session.closer->own(std::move(fd)));
  if (!message.fds.empty()) {
    Status may_stay = check_closing(*session.closer);
    if (may_stay) may_stay = check_descriptors_left(*message.fds.back());
    if (!may_stay) return end(session, may_stay.error());
  }
  world_.request(session, std::move(message));
}

void Sessions::disconnected(SessionId id, const Error& error) {
  Session* const session = find(id);
  if (session == nullptr || !session->channel) return;
  const Turns::Bill bill(world_.turns, session->domain);
  if (error.code == ErrorCode::kDisconnected) return leave(id);
  end(*session, error);
}

void Sessions::end(Session& session, const Error& error) {
  if (session.phase == SessionPhase::kLeaving) return;
  Event event = event_of(EventKind::kSessionEnded, session);
  event.text = fmt::format("session {} of {} is ended: {}", text_of(session.id),
                           world_.events.user_text(session.domain), name_of(error.code));
  event.error = error.code;
  event.sentence = ipc::showable_sentence(error.message);
  world_.events.tell(std::move(event));
  session.channel->send(ipc::encode(ipc::DaemonReply{0, ipc::Failed{error.code, error.message}}));
  leave(session.id);
}

void Sessions::end_all(const Error& error) {
  std::vector<SessionId> ids;
  for (const auto& [id, session] : sessions_) ids.push_back(id);
  for (const SessionId id : ids) {
    if (Session* const session = find(id)) end(*session, error);
  }
}

void Sessions::reply(const Asker& asker, ipc::DaemonReply reply, std::span<const int> fds) {
  if (!asker.session.valid()) return world_.inquiries.answer(asker.number, reply);
  Session* const session = find(asker.session);
  if (session == nullptr || !session->channel || session->pending.erase(asker.number) == 0) return;
  const std::vector<std::byte> bytes = ipc::encode(reply);
  if (bytes.size() <= limits::kControlMessageBytes) return session->channel->send(bytes, fds);
  session->channel->send(ipc::encode(ipc::DaemonReply{
      asker.number, ipc::Failed{ErrorCode::kLimitExceeded, "The answer is too large."}}));
}

void Sessions::owe(const Asker& asker, std::function<ipc::DaemonReply()> make) {
  if (!asker.session.valid()) return world_.inquiries.answer(asker.number, make());
  Session* const session = find(asker.session);
  if (session == nullptr || !session->channel) return;
  session->owed.push_back(std::move(make));
  if (session->owed.size() == 1) give_owed_in_turn(session->id);
}

void Sessions::give_owed_in_turn(SessionId id) {
  const Session* const session = find(id);
  if (session == nullptr || session->owed.empty()) return;
  world_.turns.owe(session->domain, [this, id] { give_owed(id); });
}

void Sessions::give_owed(SessionId id) {
  Session* const session = find(id);
  if (session == nullptr || !session->channel || session->owed.empty()) return;
  if (session->channel->has_backlog()) return;  // until it is flushed
  const auto make = std::move(session->owed.front());
  session->owed.pop_front();
  const ipc::DaemonReply answer = make();
  reply({id, answer.number}, answer);
  give_owed_in_turn(id);
}

void Sessions::leave(SessionId id) {
  Session* const session = find(id);
  if (session == nullptr || session->phase == SessionPhase::kLeaving) return;
  session->go(SessionPhase::kLeaving);
  session->channel->dismiss();
  session->parted = std::move(session->channel);
  session->files.clear();
  world_.quotas.left(id);
  over_quota_told_ns_.erase({session->domain, id});
  world_.left(id);
  cancel_requests(*session);
  if (session->has_memory() && world_.domains.ready(session->domain)) {
    return world_.domains.send(session->domain, {ipc::DetachSession{id}});
  }
  release(*session);
}

// What it asks memory for is given up; who asked is told.
void Sessions::cancel_requests(Session& session) {
  world_.memory.cancel(Memory::of_session(session.id));
  for (auto& [index, group] : session.sequences.all()) refuse_asks(session, group);
}

void Sessions::refuse_asks(const Session& session, SequenceGroup& group) {
  for (const ipc::GrantRequest& request : std::exchange(group.asks, {})) {
    answer_grant(session.domain, request.request,
                 Error{ErrorCode::kCancelled, "What the memory was for is given up."});
  }
}

// Nobody but djinnd has the session's memory any more, and its client what it shares with it.
void Sessions::release(Session& session) {
  const SessionId id = session.id;
  const Memory::Holder holder = Memory::of_session(id);
  if (!session.has_memory()) {
    world_.loop.dispose(std::move(session.parted));
    sessions_.erase(id);
    return static_cast<void>(world_.memory.release_all(holder));
  }
  const uint64_t shared = session.memory.shared_bytes();
  const uint64_t own = world_.memory.held_by(holder) - shared;
  released_[id] = {session.domain, event_of(EventKind::kSessionRemoved, session), shared};
  departed_.keep(id, session.domain, std::move(session.parted),
                 session.closer->own(std::move(session.memory.memory)), shared,
                 [this, id, shared] { freed(id, shared); });
  spill_.let_go_of_files(session);
  session.close_bells();
  world_.memory_work.close(session.take_memory(), [this, id, own] { freed(id, own); });
  sessions_.erase(id);
}

void Sessions::freed(SessionId id, uint64_t bytes) {
  Released& session = released_.at(id);
  const Turns::Bill bill(world_.turns, session.user);
  const Memory::Holder holder = Memory::of_session(id);
  world_.memory.release(holder, bytes);
  session.freed_bytes += bytes;
  const uint64_t left = world_.memory.held_by(holder);
  if (left == 0 || (left == session.shared_bytes && !departed_.is_leaving(id))) tell_freed(session);
  if (left > 0) return;
  world_.memory.release_all(holder);
  released_.erase(id);
}

// Where its client keeps what they share, of the rest: that may be for as long as the client likes.
void Sessions::tell_freed(Released& session) {
  if (!session.event) return;
  Event event = *std::exchange(session.event, std::nullopt);
  event.bytes = session.freed_bytes;
  event.text =
      fmt::format("session {} is released: {} bytes", text_of(event.session), *event.bytes);
  world_.events.tell(std::move(event));
}

void Sessions::memory_stays() {
  for (auto& [id, session] : released_) {
    if (!departed_.is_leaving(id) && session.freed_bytes > 0) tell_freed(session);
  }
  world_.memory.freed();
}

// --- requests

void Sessions::hello(Session& session, uint32_t number, const ipc::Hello& hello) {
  const Asker asker{session.id, number};
  if (hello.version != ipc::kProtocolVersion) {
    return refuse(asker, {ErrorCode::kUnsupported,
                          fmt::format("djinnd speaks version {} of the protocol, the client {}.",
                                      ipc::kProtocolVersion, hello.version)});
  }
  const auto staging = check_staging_bytes(hello.staging_bytes);
  if (!staging.ok()) return refuse(asker, staging.error());
  session.client_name = hello.client_name;
  session.observer = hello.observer;
  if (hello.observer) {
    session.go(SessionPhase::kLive);
    return reply(asker, {number, ipc::Welcome{session.id, 0, 0, world_.memory.session_quota()}});
  }
  if (draining_) {
    return refuse(asker, {ErrorCode::kBusy,
                          "djinnd is draining and takes no new session. Try again when it is "
                          "resumed."});
  }
  if (Status allowed = check_quota(session.domain); !allowed) {
    tell_refused(session, allowed.error());
    return refuse(asker, allowed.error());
  }
  session.hello = number;
  session.go(SessionPhase::kAttaching);
  world_.memory.charge(Memory::of_session(session.id), session.domain);
  world_.memory.request(Memory::of_session(session.id), SessionMemory::bytes(staging.value()),
                        [this, id = session.id, bytes = staging.value()](const Status& granted) {
                          memory_granted(id, bytes, granted);
                        });
}

void Sessions::memory_granted(SessionId id, uint64_t staging_bytes, const Status& granted) {
  Session* const session = find(id);
  if (session == nullptr || session->phase != SessionPhase::kAttaching) return;
  if (!granted) return withdraw_hello(*session, granted.error());
  const Status made = make_memory(*session, staging_bytes);
  if (!made) return withdraw_hello(*session, made.error());
  if (world_.domains.ready(session->domain)) return attach_or_wait(*session);
  if (world_.domains.spares_fail()) withdraw_hello(*session, world_.domains.spares_failure());
}

Status Sessions::make_memory(Session& session, uint64_t staging_bytes) {
  DJINN_CHECK(world_.domains.need(session.domain, [this](DomainId d) { return in_use(d); }));
  DJINN_TRY(session.memory, SessionMemory::make(staging_bytes, world_.memory.session_quota()));
  return check_descriptors_left(
      session.memory.completion_bell.listener);  // the last one that was made
}

void Sessions::tell_refused(const Session& session, const Error& error) {
  Event event = event_of(EventKind::kSessionRefused, session);
  event.text = fmt::format("a session of {} is refused: {}",
                           world_.events.user_text(session.domain), name_of(error.code));
  event.error = error.code;
  event.sentence = ipc::showable_sentence(error.message);
  world_.events.tell_refusal(std::move(event));
}

// The session is as it was before its Hello, and may try another.
void Sessions::withdraw_hello(Session& session, const Error& error) {
  tell_refused(session, error);
  session.memory = {};
  session.go(SessionPhase::kGreeting);
  world_.memory.release_all(Memory::of_session(session.id));
  refuse({session.id, std::exchange(session.hello, 0)}, error);
}

void Sessions::refuse_waiting(const Error& error) {
  for (const auto& [id, session] : sessions_) {
    if (session->phase == SessionPhase::kAttaching && session->has_memory()) {
      withdraw_hello(*session, error);
    }
  }
}

void Sessions::end_waiting(const Error& error) {
  std::vector<SessionId> waiting;
  for (const auto& [id, session] : sessions_) {
    const bool waits = session->phase == SessionPhase::kLive && session->has_memory() &&
                       !world_.domains.ready(session->domain);
    if (waits) waiting.push_back(id);
  }
  for (const SessionId id : waiting) {
    if (Session* const session = find(id)) end(*session, error);
  }
}

void Sessions::attach(Session& session) {
  const SessionMemory& memory = session.memory;
  const int fds[] = {memory.memory.get(), memory.state.get(), memory.refs.get(),
                     memory.submission_bell.get(), memory.completion_bell.bell.get()};
  const Error refusal = session.refusal.value_or(Error{ErrorCode::kOk, {}});
  if (session.refusal) {
    Event event = event_of(EventKind::kRunRefused, session);
    event.text = fmt::format("session {}: the run in flight is refused", text_of(session.id));
    event.error = refusal.code;
    event.sentence = ipc::showable_sentence(refusal.message);
    world_.events.tell_refusal(std::move(event));
  }
  const auto groups = static_cast<uint32_t>(std::ranges::count_if(
      session.sequences.all(), [](const auto& entry) { return entry.second.memfd.valid(); }));
  world_.domains.send(
      session.domain,
      {ipc::AttachSession{session.id, memory.staging_bytes, memory.ref_bytes_max,
                          session.ref_bytes_granted, groups, refusal.code, refusal.message}},
      fds);
  // From here on the worker gets what is new behind these, before it has answered too.
  session.attached = true;
  for (const auto& [index, group] : session.sequences.all()) {
    if (group.memfd.valid()) send_sequence(session, group);
  }
  if (session.phase == SessionPhase::kAttaching) welcome(session);
}

void Sessions::welcome(Session& session) {
  const uint32_t number = std::exchange(session.hello, 0);
  session.go(SessionPhase::kLive);
  tell(EventKind::kSessionNew, session,
       fmt::format("session {} of {} is welcome", text_of(session.id),
                   world_.events.user_text(session.domain)));
  const WorkerSupervisor* const worker = world_.domains.find(session.domain);
  const int fds[] = {session.memory.memory.get(), session.memory.submission_bell.get(),
                     session.memory.completion_bell.listener.get()};
  reply({session.id, number},
        {number, ipc::Welcome{session.id, session.memory.staging_bytes, worker->threads(),
                              world_.memory.session_quota()}},
        fds);
}

// Users do not learn of others' sessions, so one of somebody else is one that is not there.
Result<Session*> Sessions::find_steered(const Caller& caller, SessionId id) const {
  Session* const session = find(id);
  const bool there = session != nullptr && caller.may_steer(session->domain) &&
                     session->phase != SessionPhase::kGreeting &&
                     session->phase != SessionPhase::kLeaving;
  if (!there) return Error{ErrorCode::kNotFound, "There is no such session."};
  return session;
}

void Sessions::cancel_run(const Asker& asker, const Caller& caller, SessionId target) {
  const auto session = find_steered(caller, target);
  if (!session) return refuse(asker, session.error());
  const auto progress = (*session)->has_memory() ? (*session)->memory.progress() : gc::Progress{};
  // One that waits for memory is in flight and in no step.
  if (!progress || (progress->running_step == 0 && !progress->in_flight)) {
    return refuse(asker, {ErrorCode::kNotFound, "The session has no run in flight."});
  }
  const Status asked = (*session)->memory.cancel_in_flight();
  if (!asked) return refuse(asker, asked.error());
  world_.domains.wake_lane((*session)->domain);
  cancel_requests(**session);  // nobody else is kept waiting for it
  done(asker);
}

void Sessions::terminate(const Asker& asker, const Caller& caller, SessionId target) {
  const auto session = find_steered(caller, target);
  if (!session) return refuse(asker, session.error());
  done(asker);
  end(**session, {ErrorCode::kCancelled, "An administrator ended the session. Connect again."});
}

// --- sequence groups

void Sessions::make_sequence(Session& session, uint32_t number,
                             const ipc::SequenceGeometry& geometry) {
  const Status begun = add_sequence(session, number, geometry);
  if (!begun) refuse({session.id, number}, begun.error());
}

Status Sessions::add_sequence(Session& session, uint32_t number, const ipc::SequenceGeometry& g) {
  DJINN_CHECK(check_geometry(g));
  DJINN_TRY(const gc::SequenceLayout layout,
            gc::SequenceLayout::make(g.banks * g.rows, g.layers, g.kv_heads, g.head_dim,
                                     size_of(g.dtype), g.capacity));
  if (layout.file_bytes() > kSequenceFileBytesMax) {
    return Error{ErrorCode::kLimitExceeded,
                 "The sequence group is too large. Lower its capacity or its rows."};
  }
  DJINN_TRY(Fd memfd, pal::make_memfd("djinn-sequence", layout.file_bytes(), pal::Seals::kShared));
  DJINN_CHECK(check_descriptors_left(memfd));
  DJINN_TRY(SequenceGroup* const group, session.sequences.make(g));
  group->memfd = std::move(memfd);
  group->asker = {session.id, number};
  if (session.attached) send_sequence(session, *group);
  return {};
}

void Sessions::send_sequence(const Session& session, const SequenceGroup& group) {
  const bool spilled = group.place == GroupPlace::kSpilled;
  std::vector<int> fds{group.memfd.get()};
  if (spilled) fds.push_back(group.spill_file.get());
  world_.domains.send(
      session.domain,
      {ipc::AddSequence{session.id, group.handle, group.geometry,
                        spilled ? group.spilled_bytes : group.held_bytes(), spilled}},
      fds);
}

void Sessions::drop_sequence(Session& session, uint32_t number, SequenceHandle handle) {
  const Asker asker{session.id, number};
  auto found = session.sequences.find(handle);
  if (!found) return refuse(asker, found.error());
  SequenceGroup& group = **found;
  if (group.phase == GroupPhase::kAdding) {
    return refuse(asker, {ErrorCode::kBusy, "The sequence group is still being made."});
  }
  group.phase = GroupPhase::kDropping;
  group.asker = asker;
  world_.memory.cancel(Memory::of_session(session.id), part_of(handle));
  refuse_asks(session, group);
  if (!session.attached) return erase_sequence(session, group);  // no worker has it
  world_.domains.send(session.domain, {ipc::ReleaseSequence{session.id, handle}});
}

// Its memory is there, and counts, until it is free.
void Sessions::erase_sequence(const Session& session, SequenceGroup& group) {
  if (!group.memfd.valid()) return;
  group.phase = GroupPhase::kDropping;
  spill_.let_go_of_file(group);
  std::vector<Fd> memory;
  memory.push_back(std::move(group.memfd));
  world_.memory_work.close(std::move(memory), [this, id = session.id, handle = group.handle] {
    sequence_freed(id, handle);
  });
}

void Sessions::sequence_freed(SessionId id, SequenceHandle handle) {
  Session* const session = find(id);
  SequenceGroup* const group = session != nullptr ? session->sequences.lookup(handle) : nullptr;
  if (group == nullptr) return;
  const Asker asker = group->asker;
  const uint64_t bytes = group->granted_bytes;
  session->sequences.erase(handle);
  spill_.note_aside(*session);
  world_.memory.release(Memory::of_session(id), bytes);
  if (asker.number != 0) done(asker);
}

uint64_t Sessions::leaving_bytes(std::optional<uid_t> user) const {
  const auto of_session = [this](SessionId id, uint64_t stays) {
    return world_.memory.held_by(Memory::of_session(id)) - stays;
  };
  uint64_t bytes = 0;
  for (const auto& [id, session] : released_) {
    if (user && session.user != *user) continue;
    bytes += of_session(id, departed_.is_leaving(id) ? 0 : session.shared_bytes);
  }
  for (const auto& [id, session] : sessions_) {
    if (user && session->domain != *user) continue;
    if (session->phase == SessionPhase::kLeaving) {
      bytes += of_session(id, session->parted->has_hung_up() ? 0 : session->memory.shared_bytes());
      continue;
    }
    for (const auto& [index, group] : session->sequences.all()) bytes += group.leaving_bytes();
  }
  return bytes;
}

void Sessions::hear(DomainId domain, const ipc::SequenceAdded& event) {
  Session* const session = find(event.session, domain);
  SequenceGroup* const group = session ? session->sequences.lookup(event.sequence) : nullptr;
  if (group == nullptr || group->phase == GroupPhase::kDropping) return;
  const Asker asker = std::exchange(group->asker, {});
  if (event.code == ErrorCode::kOk) {
    group->deaths = 0;
    group->phase = GroupPhase::kLive;
    return reply(asker, {asker.number, ipc::SequenceMade{event.sequence}});
  }
  const Error error{event.code, event.message};
  if (asker.number == 0) return end(*session, error);  // it was there before the worker died
  erase_sequence(*session, *group);
  refuse(asker, error);
}

void Sessions::hear(DomainId domain, const ipc::SequenceDropped& event) {
  SequenceGroup* const group = find_group(event.session, domain, event.sequence);
  if (group == nullptr || group->phase != GroupPhase::kDropping) return;
  erase_sequence(*find(event.session), *group);
}

// What is gone meanwhile is nothing to answer for.
bool Sessions::hear(DomainId domain, const ipc::SequenceSpilled& event) {
  SequenceGroup* const group = find_group(event.session, domain, event.sequence);
  return group == nullptr || spill_.hear(*find(event.session), *group, event);
}

void Sessions::hear(DomainId domain, const ipc::SequenceRestored& event) {
  SequenceGroup* const group = find_group(event.session, domain, event.sequence);
  if (group != nullptr) spill_.restored(*find(event.session), *group);
}

// --- workers

void Sessions::worker_ready(DomainId domain) {
  attach_those_that_may([domain](const Session& session) { return session.domain == domain; });
}

void Sessions::attach_those_that_may(const std::function<bool(const Session&)>& in_question) {
  for (const auto& [id, session] : sessions_) {
    const bool waits = session->has_memory() && session->phase != SessionPhase::kLeaving &&
                       world_.domains.ready(session->domain) && in_question(*session);
    if (waits) attach_or_wait(*session);
  }
}

void Sessions::attach_or_wait(Session& session) {
  if (may_have_worker(session)) return attach(session);
  attach_timer_.start_once(kAttachLookMs);
}

bool Sessions::may_have_worker(const Session& session) const {
  const uint64_t now_ns = world_.clock.monotonic_ns();
  const bool has_spare = world_.domains.has_spare();
  if (!session.quarantine.is_over(now_ns, has_spare)) return false;
  const auto others = newcomers_.find(session.domain);
  if (others == newcomers_.end() || others->second.is_over(now_ns, has_spare)) return true;
  const auto progress = session.memory.progress();
  return progress && progress->commit > 0;
}

void Sessions::hear(DomainId domain, const ipc::Attached& event) {
  Session* const session = find(event.session, domain);
  if (session == nullptr || session->phase == SessionPhase::kLeaving) return;
  session->attach_deaths = 0;
}

void Sessions::hear(DomainId domain, const ipc::Detached& event) {
  Session* const session = find(event.session, domain);
  if (session != nullptr && session->phase == SessionPhase::kLeaving) release(*session);
}

void Sessions::hear(DomainId domain, const ipc::SessionBroken& event) {
  Session* const session = find(event.session, domain);
  if (session == nullptr || session->phase == SessionPhase::kLeaving) return;
  const bool typed = event.code != ErrorCode::kOk;
  const Error error{typed ? event.code : ErrorCode::kProtocolViolation, event.message};
  end(*session, error);
}

bool Sessions::worker_died(DomainId domain, const WorkerDeath& death) {
  world_.memory.release_all(lane_of(domain));
  world_.memory.release_all(heap_of(domain));
  std::vector<SessionId> ids;
  for (const auto& [id, session] : sessions_) {
    if (session->domain == domain && session->has_memory()) ids.push_back(id);
  }
  bool progressed = !death.suspect.has_value() && !activity_of(domain).in_step;
  for (const SessionId id : ids) {
    Session& session = *find(id);
    if (session.phase == SessionPhase::kLeaving) {
      progressed |= note_last_death(session);
      release(session);
    } else {
      progressed |= note_death(session, death);
    }
  }
  world_.memory.freed();  // what waited for a group that was being spilled
  return progressed;
}

// Gives whether the next worker may come at once, as far as this session tells.
bool Sessions::note_death(Session& session, const WorkerDeath& death) {
  const bool was_served = std::exchange(session.attached, false);
  world_.memory.cancel(Memory::of_session(session.id));
  note_group_deaths(session, death);
  if (!was_served) return false;  // held back: what its state says is of a death before
  const auto progress = session.memory.progress();
  if (!progress.ok()) {
    end(session, progress.error());
    return false;
  }
  session.deaths.note(progress.value());
  const uint64_t steps =
      progress->commit - std::exchange(session.commit_at_death, progress->commit);
  const bool went_on = steps > (session.refusal ? 1 : 0);  // the refusal is committed as well
  if (steps > 0) session.refusal.reset();
  const bool in_step = progress->running_step != 0;
  if (in_step) {
    session.quarantine.note_death(went_on, world_.clock.monotonic_ns());
    note_killer(session);
    // Or the next death would be in this step, too, before a worker has taken the session in.
    const Status left = session.memory.leave_step();
    if (!left) log("a dead worker's step stays open: {}", left.error().message);
  }
  if (in_step && (death.overran_ms || session.deaths.exhausted())) {
    session.refusal = refusal_of(progress->op, death.overran_ms);
  }
  const OwedAnswer attaching{OwedAnswer::Kind::kAttachSession, session.id.value, {}};
  // Twice the usual: the submission in flight may be what kills, and is refused first.
  if (death.suspect == attaching) ++session.attach_deaths;
  if (session.attach_deaths >= 2 * limits::kDeathsWithoutProgress || session.deaths.hopeless()) {
    end(session, {ErrorCode::kWorkerLost, "The worker died whenever it served the session."});
  }
  return went_on || in_step;
}

// Likewise of one whose client is gone: the death is its own no less.
bool Sessions::note_last_death(Session& session) {
  const auto progress = session.memory.progress();
  const bool in_step = progress && progress->running_step != 0;
  if (in_step) note_killer(session);
  return in_step;
}

void Sessions::note_killer(Session& session) {
  if (std::exchange(session.has_killed, true)) return;  // its own quarantine holds it back
  newcomers_[session.domain].note_death(world_.clock.monotonic_ns());
}

// Groups that were being dropped are dropped now; one that kills the worker is refused.
void Sessions::note_group_deaths(Session& session, const WorkerDeath& death) {
  std::vector<SequenceHandle> gone;
  for (auto& [index, group] : session.sequences.all()) {
    spill_.worker_died(session, group);
    const OwedAnswer adding{OwedAnswer::Kind::kAddSequence, session.id.value, group.handle};
    const bool kills = death.suspect == adding && ++group.deaths >= limits::kDeathsWithoutProgress;
    if (group.phase == GroupPhase::kDropping || kills) gone.push_back(group.handle);
  }
  for (const SequenceHandle handle : gone) {
    SequenceGroup& group = *session.sequences.lookup(handle);
    const Asker asker = group.asker;
    const bool refused = group.phase != GroupPhase::kDropping && asker.number != 0;
    if (refused) group.asker = {};
    erase_sequence(session, group);
    if (refused) {
      refuse(asker, {ErrorCode::kWorkerLost, "The worker died whenever it took in the group."});
    }
  }
}

// --- grants

void Sessions::hear(DomainId domain, const ipc::GrantRequest& event) {
  if (event.bytes == 0) {
    return answer_grant(domain, event.request,
                        Error{ErrorCode::kInvalidArgument, "A grant needs at least one byte."});
  }
  if (event.kind == ipc::GrantKind::kSlab) {
    world_.memory.charge(lane_of(domain), domain);
    world_.memory.request(
        lane_of(domain), event.bytes,
        [this, domain, event](const Status& status) { give_slab(domain, event, status); });
    return;
  }
  if (event.kind == ipc::GrantKind::kHeap) {
    world_.memory.charge(heap_of(domain), domain);
    world_.memory.request(heap_of(domain), event.bytes,
                          [this, domain, event](const Status& status) {
                            tell_over_quota(domain, {}, status);
                            answer_grant(domain, event.request, status);
                          });
    return;
  }
  grant(domain, event);
}

void Sessions::grant(DomainId domain, const ipc::GrantRequest& event) {
  Session* const session = find(event.session, domain);
  const bool known =
      session != nullptr && session->phase != SessionPhase::kLeaving && session->has_memory() &&
      (event.kind == ipc::GrantKind::kRefs || session->sequences.lookup(event.sequence) != nullptr);
  if (!known) {
    return answer_grant(domain, event.request,
                        Error{ErrorCode::kCancelled, "The session has ended."});
  }
  if (event.kind == ipc::GrantKind::kSequence &&
      Spill::put_off(*session->sequences.lookup(event.sequence), event)) {
    return;
  }
  const bool fits =
      event.kind != ipc::GrantKind::kRefs ||
      range_fits(session->ref_bytes_granted, event.bytes, session->memory.ref_bytes_max);
  if (!fits) {
    const Status refused = Error{
        ErrorCode::kQuotaExceeded,
        fmt::format("The session's refs would take more than its quota of {}. Release some, then "
                    "repeat.",
                    size_text(session->memory.ref_bytes_max))};
    tell_over_quota(domain, session->id, refused);
    return answer_grant(domain, event.request, refused);
  }
  const Memory::Holder holder = Memory::of_session(session->id);
  const auto answer = [this, domain, event](const Status& status) {
    granted(domain, event, status);
  };
  const uint64_t part = part_of(event.sequence);
  if (returns(*session, event)) {
    return world_.memory.request_return(holder, event.bytes, answer, part);
  }
  world_.memory.request(holder, event.bytes, answer, part);
}

// Whether it is for the return of a group from disk.
bool Sessions::returns(Session& session, const ipc::GrantRequest& event) {
  if (event.kind != ipc::GrantKind::kSequence) return false;
  const SequenceGroup* const group = session.sequences.lookup(event.sequence);
  return group != nullptr && event.bytes <= group->aside_bytes();
}

// Of each session, and of each user's lane, once in a while: who is refused may ask again at once.
void Sessions::tell_over_quota(DomainId domain, SessionId session, const Status& status) {
  if (status || status.error().code != ErrorCode::kQuotaExceeded) return;
  const uint64_t now_ns = world_.clock.monotonic_ns();
  const auto [told, is_first] = over_quota_told_ns_.try_emplace({domain, session}, now_ns);
  if (!is_first && now_ns - told->second < kOverQuotaToldNs) return;
  told->second = now_ns;
  const std::string user = world_.events.user_text(domain);
  Event event = device_event(
      EventKind::kMemoryRefused,
      session.valid() ? fmt::format("memory is refused to session {} of {}", text_of(session), user)
                      : fmt::format("memory is refused to the worker of {}", user));
  event.owner = domain;
  event.session = session;
  event.error = status.error().code;
  event.sentence = ipc::showable_sentence(status.error().message);
  world_.events.tell(std::move(event));
}

void Sessions::granted(DomainId domain, const ipc::GrantRequest& event, const Status& status) {
  Session* const session = find(event.session, domain);
  if (session != nullptr) tell_over_quota(domain, session->id, status);
  if (session == nullptr || !status) return answer_grant(domain, event.request, status);
  if (event.kind == ipc::GrantKind::kRefs) {
    session->ref_bytes_granted += event.bytes;
  } else if (SequenceGroup* const group = session->sequences.lookup(event.sequence)) {
    group->granted_bytes += event.bytes;
    spill_.note_aside(*session);
  } else {
    world_.memory.release(Memory::of_session(session->id), event.bytes);
  }
  answer_grant(domain, event.request, status);
}

bool Sessions::hear(DomainId domain, const ipc::GrantReturn& event) {
  if (event.kind == ipc::GrantKind::kSlab || event.kind == ipc::GrantKind::kHeap) {
    const bool slab = event.kind == ipc::GrantKind::kSlab;
    const Memory::Holder holder = slab ? lane_of(domain) : heap_of(domain);
    if (event.bytes > world_.memory.held_by(holder)) return false;
    world_.memory.release(holder, event.bytes);
    return true;
  }
  Session* const session = find(event.session, domain);
  if (session == nullptr) return true;  // all of it was given back with the session
  SequenceGroup* const group = session->sequences.lookup(event.sequence);
  const bool of_group = event.kind == ipc::GrantKind::kSequence;
  if (of_group && group == nullptr) return true;
  uint64_t& granted = of_group ? group->granted_bytes : session->ref_bytes_granted;
  if (event.bytes > (of_group ? group->held_bytes() : granted)) return false;
  granted -= event.bytes;
  spill_.note_aside(*session);
  world_.memory.release(Memory::of_session(session->id), event.bytes);
  return true;
}

void Sessions::give_slab(DomainId domain, const ipc::GrantRequest& event, const Status& status) {
  tell_over_quota(domain, {}, status);
  if (!status) return answer_grant(domain, event.request, status);
  const auto slab = pal::make_memfd("djinn-slab", event.bytes, pal::Seals::kSize);
  if (!slab.ok()) {
    world_.memory.release(lane_of(domain), event.bytes);
    return answer_grant(domain, event.request, slab.error());
  }
  if (world_.memory.held_by(lane_of(domain)) < event.bytes) return;  // it died meanwhile
  // The new one replaces the former, which nothing runs on while the lane asks.
  world_.memory.release(lane_of(domain), world_.memory.held_by(lane_of(domain)) - event.bytes);
  const int fds[] = {slab.value().get()};
  world_.domains.send(domain, {ipc::GiveSlab{event.request, event.bytes}}, fds);
}

void Sessions::answer_grant(DomainId domain, uint64_t request, const Status& status) {
  ipc::GrantAnswer answer;
  answer.request = request;
  if (!status) {
    answer.code = status.error().code;
    answer.message = status.error().message;
  }
  world_.domains.send(domain, {answer});
}

// --- what others want to know

LaneActivity Sessions::activity_of(DomainId domain) {
  LaneActivity activity;
  for (const auto& [id, session] : sessions_) {
    if (session->domain != domain || !session->attached) continue;
    const auto progress = session->memory.progress();
    if (!progress.ok()) continue;
    activity.in_step |= progress.value().running_step != 0;
    activity.count += progress.value().commit + progress.value().heartbeat;
    spill_.note_use(*session, progress.value());
  }
  return activity;
}

bool Sessions::runs(SessionId id) const {
  const Session* const session = find(id);
  return session != nullptr && session->runs();
}

bool Sessions::any_runs() const {
  return std::ranges::any_of(sessions_, [this](const auto& entry) { return runs(entry.first); });
}

bool Sessions::in_use(DomainId domain) const {
  return std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
    return entry.second->domain == domain && entry.second->has_memory();
  });
}

}  // namespace djinn::daemon
