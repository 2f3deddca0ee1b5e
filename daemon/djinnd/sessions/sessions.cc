// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/sessions/sessions.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "daemon/djinnd/loop/descriptors.h"
#include "daemon/djinnd/loop/log.h"
#include "ipc/codec/control_codec.h"
#include "kernel/base/assert.h"
#include "kernel/base/checked.h"
#include "kernel/base/size_text.h"

namespace djinn::daemon {
namespace {

// A client may leave this many answers and notices unread.
constexpr size_t kBacklogMax = 2 * limits::kRequestsPending;
// djinnd looks this often whether a session that was held back may have a worker.
constexpr uint64_t kAttachLookMs = 25;
constexpr uint64_t kLineLookMs = 100;

Event event_of(EventKind kind, const Session& session) {
  Event event{kind, {}, session.domain};
  event.session = session.id;
  return event;
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

Error no_such_device(const std::string& asked, const Devices& devices) {
  std::vector<std::string> names;
  for (const auto& memory : devices.all()) names.push_back(text_of(memory->device()));
  for (const auto& memory : devices.gpus()) names.push_back(text_of(memory->device()));
  return {ErrorCode::kNotFound, fmt::format("djinnd has no device '{}'. It has {}; who names none "
                                            "gets the first.",
                                            asked, fmt::join(names, " and "))};
}

}  // namespace

Sessions::Sessions(const ConnectionHost& host, const Clock& clock, IdSource& ids,
                   const Devices& devices, Quotas& quotas, Domains& domains, Authority& authority,
                   Events& events, QuotaRefusals& refusals, const LaneMemory& lanes,
                   const SessionWork& work, Inquiries& inquiries, SessionListener& listener,
                   SpillRules spill)
    : loop_(host.loop),
      clock_(clock),
      ids_(ids),
      devices_(devices),
      quotas_(quotas),
      domains_(domains),
      authority_(authority),
      events_(events),
      refusals_(refusals),
      memory_work_(work.memory),
      inquiries_(inquiries),
      traffic_(host.traffic),
      deferred_close_(host.deferred_close),
      turns_(host.turns),
      listener_(listener),
      lane_steps_(clock, sessions_),
      deaths_(clock, domains, sessions_),
      sequences_(clock, devices, domains, events, refusals, *this, work.files, sessions_,
                 lane_steps_, deaths_, std::move(spill)),
      idle_memory_(domains, lanes, sessions_, lane_steps_, sequences_.spill()),
      ref_grants_(devices, domains, refusals, sessions_, idle_memory_, *this),
      departed_(host.loop, work.users, [this] { memory_stays(); }),
      attach_timer_(
          host.loop,
          [this] {
            attach_those_that_may([](const Session& session) { return !session.attached; });
          }),
      line_timer_(host.loop, [this] { admit_from_line(); }) {}

void Sessions::emit(EventKind kind, const Session& session, std::string text,
                    std::optional<ErrorCode> error) {
  Event event = event_of(kind, session);
  event.text = std::move(text);
  event.error = error;
  events_.emit(std::move(event));
}

// --- connections

Status Sessions::check_limits(Owner user) {
  if (sessions_.size() + released_.size() >= limits::kSessions ||
      connections_of(user) >= limits::kSessionsPerUser) {
    return Error{
        ErrorCode::kLimitExceeded,
        fmt::format("There are too many sessions: at most {} of one user, {} in all. Close "
                    "one, then repeat. One that djinnd has ended counts until its program closes "
                    "it, too.",
                    limits::kSessionsPerUser, limits::kSessions)};
  }
  const auto closer = deferred_close_.of(user);
  return check_closing(*closer);
}

// Those that have ended, too, until they are closed.
size_t Sessions::connections_of(Owner owner) const {
  const auto here = std::ranges::count_if(
      sessions_.all(), [&](const auto& entry) { return entry.second->domain == owner; });
  const auto gone = std::ranges::count_if(
      released_, [&](const auto& entry) { return entry.second.user == owner; });
  return static_cast<size_t>(here + gone);
}

Status Sessions::check_connections(Owner owner) {
  if (!owner.is_principal()) return check_limits(owner);  // mapped
  const uint32_t most = quotas_.connections_of_principal();
  if (connections_of(owner) >= most) {
    return Error{ErrorCode::kLimitExceeded,
                 fmt::format("This principal has {} here, and djinnd's configuration allows no "
                             "more. Close one, or ask the administrator for a larger {}.",
                             count_text(most, "connection"),
                             quotas_.key_of(owner, QuotaOf::kConnections, 0))};
  }
  const auto all = std::ranges::count_if(
      sessions_.all(), [](const auto& entry) { return entry.second->domain.is_principal(); });
  const auto gone = std::ranges::count_if(
      released_, [](const auto& entry) { return entry.second.user.is_principal(); });
  if (all + gone >= limits::kSessionsOfPrincipals) {
    return Error{ErrorCode::kLimitExceeded,
                 fmt::format("Principals have {} connections here, which is the limit of all of "
                             "them. Try again when one has gone.",
                             limits::kSessionsOfPrincipals)};
  }
  const auto closer = deferred_close_.of(owner);
  return check_closing(*closer);
}

Status Sessions::check_quota(Owner user) const {
  const uint32_t most = quotas_.sessions_of(user);
  if (const uint32_t now = count(user); now >= most) {
    return Error{ErrorCode::kLimitExceeded,
                 fmt::format("This {} has {}, and djinnd's configuration allows {} at a time. "
                             "Close one, or ask the administrator for a larger {}.",
                             user.is_principal() ? "principal" : "user", count_text(now, "session"),
                             most, quotas_.key_of(user, QuotaOf::kSessions, 0))};
  }
  return {};
}

uint32_t Sessions::count(std::optional<Owner> user) const {
  return static_cast<uint32_t>(std::ranges::count_if(sessions_.all(), [user](const auto& entry) {
    const Session& session = *entry.second;
    return (!user || session.domain == *user) && !session.observer &&
           (session.phase == SessionPhase::kAttaching || session.phase == SessionPhase::kLive);
  }));
}

size_t Sessions::files_added(Owner user) const {
  size_t count = 0;
  for (const auto& [id, session] : sessions_.all()) {
    if (session->domain == user) count += session->files.size();
  }
  return count;
}

void Sessions::connected(Fd socket, const Visitor& visitor) {
  Status allowed = check_limits(Owner::of_user(visitor.peer.uid));
  if (!allowed) return turn_away(std::move(socket), visitor, allowed.error());
  add_connection(std::move(socket), visitor);
}

void Sessions::turn_away(Fd socket, const Visitor& visitor, const Error& error) {
  const Owner owner = Owner::of_user(visitor.peer.uid);
  Event event{EventKind::kSessionRefused,
              fmt::format("a connection of {} is refused: {}", events_.user_text(owner),
                          name_of(error.code)),
              owner};
  event.error = error.code;
  event.sentence = ipc::showable_sentence(error.message);
  events_.emit_limited(std::move(event));
  const std::vector<std::byte> notice =
      ipc::encode(ipc::DaemonReply{0, ipc::Failed{error.code, error.message}});
  const auto closer = deferred_close_.of(owner);
  if (!check_closing(*closer)) {  // what it has sent is not received, for it would wait as well
    [[maybe_unused]] const Status told = ipc::send_datagram(socket.get(), notice);
    ::shutdown(socket.get(), SHUT_RDWR);
    return closer->close(std::move(socket));
  }
  Channel channel(loop_, std::move(socket), 1, traffic_, {}, closer->closing());
  channel.send(notice);
}

void Sessions::add_connection(Fd socket, const Visitor& visitor) {
  auto fresh = std::make_unique<Session>();
  const auto id = ids_.next<SessionId>([this](SessionId t) { return find(t) != nullptr; });
  fresh->id = id;
  fresh->device = devices_.first().device();
  fresh->caller = authority_.judge(visitor);
  fresh->entrance = visitor.entrance;
  const Owner owner = fresh->caller.user;
  fresh->domain = owner;
  fresh->pid = visitor.peer.pid;
  quotas_.joined(id, owner, visitor.peer.groups);
  fresh->started_wall_ns = clock_.wall_ns();
  fresh->closer = deferred_close_.of(owner);
  fresh->channel = std::make_unique<Channel>(
      loop_, std::move(socket), kBacklogMax, traffic_,
      Channel::Events{[this, id](ipc::Datagram message) { heard(id, std::move(message)); },
                      [this, id](const Error& error) { disconnected(id, error); },
                      [this, id] { give_owed_in_turn(id); }},
      fresh->closer->closing());
  fresh->channel->take_turns(turns_, owner);
  sessions_.add(std::move(fresh));
}

Status Sessions::take_in(Session& session, const std::string& principal) {
  const auto refused = [this, id = session.id](Owner who, Error error) {
    emit_refused(id, who, error);
    return error;
  };
  if (session.entrance == Entrance::kClients) {
    if (principal.empty()) return {};
    return refused(session.domain,
                   {ErrorCode::kPermissionDenied,
                    "A local user's session is that user's, as the kernel says. Principals are "
                    "named by djinn-gate alone, on the socket that djinnd has for it."});
  }
  if (session.principal == principal && !principal.empty()) return {};  // said Hello before
  if (!session.principal.empty()) {
    return refused(session.domain, {ErrorCode::kPermissionDenied,
                                    "This connection is another principal's already."});
  }
  if (principal.empty()) {
    return refused(session.domain, {ErrorCode::kInvalidArgument,
                                    "This socket is for djinn-gate, which names a principal in "
                                    "each Hello. Programs connect to djinnd.sock."});
  }
  const auto caller = authority_.judge(principal);
  if (!caller) return refused(session.domain, caller.error());
  if (Status allowed = check_connections(caller->user); !allowed) {
    return refused(caller->user, allowed.error());
  }
  session.principal = principal;
  belongs_to(session, *caller, authority_.groups_of(principal));
  return {};
}

void Sessions::belongs_to(Session& session, const Caller& caller, std::vector<gid_t> groups) {
  DJINN_ASSERT(session.phase == SessionPhase::kGreeting && session.channel != nullptr);
  session.caller = caller;
  session.domain = caller.user;
  session.closer = deferred_close_.of(caller.user);
  session.channel->pass_to(caller.user, session.closer->closing());
  quotas_.joined(session.id, caller.user, std::move(groups));
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
  listener_.client_said(session, std::move(message));
}

void Sessions::disconnected(SessionId id, const Error& error) {
  Session* const session = find(id);
  if (session == nullptr || !session->channel) return;
  const Turns::Bill bill(turns_, session->domain);
  if (error.code == ErrorCode::kDisconnected) return leave(id);
  end(*session, error);
}

void Sessions::end(Session& session, const Error& error, std::string by) {
  if (session.phase == SessionPhase::kLeaving) return;
  Event event = event_of(EventKind::kSessionEnded, session);
  event.text = fmt::format("session {} of {} is ended: {}", text_of(session.id),
                           events_.user_text(session.domain), name_of(error.code));
  event.error = error.code;
  event.sentence = ipc::showable_sentence(error.message);
  event.by = std::move(by);
  events_.emit(std::move(event));
  DJINN_ASSERT(session.channel != nullptr);
  session.channel->send(ipc::encode(ipc::DaemonReply{0, ipc::Failed{error.code, error.message}}));
  leave(session.id);
}

void Sessions::end_all(const Error& error) {
  end_those([](const Session&) { return true; }, error);
}

void Sessions::end_all_on(DeviceId device, const Error& error) {
  end_those(
      [device](const Session& session) {
        return session.device == device && !session.observer &&
               session.phase != SessionPhase::kGreeting;
      },
      error);
}

void Sessions::end_all_of(WorkerKey key, const Error& error) {
  end_those([key](const Session& one) { return one.worker() == key && one.has_memory(); }, error);
}

void Sessions::end_those(const std::function<bool(const Session&)>& whose, const Error& error) {
  std::vector<SessionId> ids;
  for (const auto& [id, session] : sessions_.all()) {
    if (whose(*session)) ids.push_back(id);
  }
  for (const SessionId id : ids) {
    if (Session* const session = find(id)) end(*session, error);
  }
}

void Sessions::reply(const Waiter& waiter, ipc::DaemonReply reply, std::span<const int> fds) {
  if (!waiter.session.valid()) return inquiries_.answer(waiter.number, reply);
  Session* const session = find(waiter.session);
  if (session == nullptr || !session->channel || session->pending.erase(waiter.number) == 0) return;
  const std::vector<std::byte> bytes = ipc::encode(reply);
  if (bytes.size() <= limits::kControlMessageBytes) return session->channel->send(bytes, fds);
  session->channel->send(ipc::encode(ipc::DaemonReply{
      waiter.number, ipc::Failed{ErrorCode::kLimitExceeded, "The answer is too large."}}));
}

void Sessions::owe(const Waiter& waiter, std::function<ipc::DaemonReply()> make) {
  if (!waiter.session.valid()) return inquiries_.answer(waiter.number, make());
  Session* const session = find(waiter.session);
  if (session == nullptr || !session->channel) return;
  session->owed.push_back(std::move(make));
  if (session->owed.size() == 1) give_owed_in_turn(session->id);
}

void Sessions::give_owed_in_turn(SessionId id) {
  const Session* const session = find(id);
  if (session == nullptr || session->owed.empty()) return;
  turns_.owe(session->domain, [this, id] { give_owed(id); });
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
  DJINN_ASSERT(session->channel != nullptr && session->parted == nullptr);
  session->phase.enter(SessionPhase::kLeaving);
  session->channel->dismiss();
  session->parted = std::move(session->channel);
  session->files.clear();
  quotas_.left(id);
  refusals_.forget(session->domain, id);
  listener_.session_left(id);
  cancel_requests(*session);
  if (session->attached) return domains_.send(session->worker(), {ipc::DetachSession{id}});
  release(*session);
}

// Requests for memory are given up, and whoever made them is told.
void Sessions::cancel_requests(Session& session) {
  memory_of(session).cancel(Memory::of_session(session.id));
  sequences_.refuse_asks(session);
  ref_grants_.refuse_asks(session);
}

// Only djinnd has the session's memory now, except for what it shares with its client.
void Sessions::release(Session& session) {
  const SessionId id = session.id;
  const Memory::Holder holder = Memory::of_session(id);
  DJINN_ASSERT(session.phase == SessionPhase::kLeaving && !released_.contains(id));
  if (!session.has_memory()) {
    Memory& memory = memory_of(session);
    loop_.dispose(std::move(session.parted));
    sessions_.erase(id);
    return static_cast<void>(memory.release_all(holder));
  }
  const uint64_t shared = session.memory.shared_bytes();
  const uint64_t state = SessionMemory::state_bytes();
  DJINN_ASSERT(memory_of(session).held_by(holder) >= shared + state);
  const uint64_t late = session.ref_bytes_coming + session.ref_bytes_freeing;
  const uint64_t extents = memory_of(session).held_by(holder) - shared - state - late;
  released_[id] = {session.domain, session.device, event_of(EventKind::kSessionRemoved, session),
                   shared, late};
  if (late > 0) ++released_[id].parts;
  departed_.keep(id, session.domain, std::move(session.parted),
                 session.closer->own(std::move(session.memory.memory)), shared,
                 [this, id, shared] { freed(id, shared); });
  sequences_.let_go_of_files(session);
  memory_of(session).set_aside(holder, 0);
  session.close_bells();
  std::vector<Fd> own;
  own.push_back(std::move(session.memory.state));
  memory_work_.close(std::move(own), [this, id, state] { freed(id, state); });
  devices_.extents_of(session.device).free(session.take_extents(), [this, id, extents] {
    freed(id, extents);
  });
  sessions_.erase(id);
}

void Sessions::freed(SessionId id, uint64_t bytes) {
  Released& session = released_.at(id);
  const Turns::Bill bill(turns_, session.user);
  const Memory::Holder holder = Memory::of_session(id);
  Memory& memory = devices_.of(session.device);
  DJINN_ASSERT(session.parts > 0 && bytes <= memory.held_by(holder));
  --session.parts;
  memory.release(holder, bytes);
  session.freed_bytes += bytes;
  const uint64_t left = memory.held_by(holder);
  if (left == 0 || (left == session.shared_bytes && !departed_.is_leaving(id))) emit_freed(session);
  if (session.parts > 0) return;
  DJINN_ASSERT(left == 0);
  memory.release_all(holder);
  released_.erase(id);
  admit_from_line();
}

void Sessions::freed_late(SessionId id, uint64_t bytes) {
  Released& session = released_.at(id);
  DJINN_ASSERT(bytes <= session.late_bytes);
  session.late_bytes -= bytes;
  if (session.late_bytes == 0) return freed(id, bytes);
  devices_.of(session.device).release(Memory::of_session(id), bytes);
  session.freed_bytes += bytes;
}

// If the client keeps the shared memory, the event tells of the rest: the client may keep it as
// long as it likes.
void Sessions::emit_freed(Released& session) {
  if (!session.event) return;
  Event event = *std::exchange(session.event, std::nullopt);
  event.bytes = session.freed_bytes;
  event.text =
      fmt::format("session {} is released: {}", text_of(event.session), size_text(*event.bytes));
  events_.emit(std::move(event));
}

void Sessions::memory_stays() {
  for (auto& [id, session] : released_) {
    const Memory& memory = devices_.of(session.device);
    const bool stays = memory.held_by(Memory::of_session(id)) == session.shared_bytes;
    if (stays && !departed_.is_leaving(id)) emit_freed(session);
  }
  devices_.freed();
}

// --- requests

void Sessions::hello(Session& session, uint32_t number, const ipc::Hello& hello) {
  const Waiter waiter{session.id, number};
  if (hello.version != ipc::kProtocolVersion) {
    return refuse(waiter, {ErrorCode::kUnsupported,
                           fmt::format("djinnd speaks version {} of the protocol, the client {}.",
                                       ipc::kProtocolVersion, hello.version)});
  }
  if (Status taken = take_in(session, hello.principal); !taken) {
    return refuse(waiter, taken.error());
  }
  const auto staging = check_staging_bytes(hello.staging_bytes);
  if (!staging.ok()) return refuse(waiter, staging.error());
  const Memory* const memory = devices_.find(hello.device);
  if (memory == nullptr) return refuse(waiter, no_such_device(hello.device, devices_));
  session.client_name = hello.client_name;
  session.observer = hello.observer;
  session.service = hello.service;
  session.device = memory->device();
  if (hello.observer) {
    session.phase.enter(SessionPhase::kLive);
    return reply(waiter, {number, ipc::Welcome{session.id, 0, 0, memory_of(session).session_quota(),
                                               numerics_}});
  }
  if (draining_) {
    return refuse(waiter, {ErrorCode::kBusy,
                           "djinnd is draining and takes no new session. Try again when it is "
                           "resumed."});
  }
  if (Status allowed = check_quota(session.domain); !allowed) {
    emit_refused(session.id, session.domain, allowed.error());
    return refuse(waiter, allowed.error());
  }
  session.hello = number;
  session.phase.enter(SessionPhase::kAttaching);
  memory_of(session).charge(Memory::of_session(session.id), session.domain);
  in_line_.push_back({session.id, staging.value()});
  admit_from_line();
}

size_t Sessions::count_leaving(Owner user) const {
  const auto let_go = std::ranges::count_if(released_, [&](const auto& entry) {
    return entry.second.user == user && departed_.is_leaving(entry.first);
  });
  const auto attached = std::ranges::count_if(sessions_.all(), [&](const auto& entry) {
    const Session& session = *entry.second;
    return session.domain == user && session.phase == SessionPhase::kLeaving &&
           !lane_steps_.is_long(session.worker());
  });
  return static_cast<size_t>(let_go + attached);
}

void Sessions::admit_from_line() {
  const std::vector<InLine> line = std::exchange(in_line_, {});
  for (const InLine& next : line) {
    Session* const session = find(next.session);
    if (session == nullptr || session->phase != SessionPhase::kAttaching) continue;
    if (count_leaving(session->domain) >= kLeavingMax) {
      in_line_.push_back(next);
      continue;
    }
    memory_of(*session).request(Memory::of_session(next.session),
                                SessionMemory::bytes(next.staging_bytes),
                                [this, next](const Status& granted) {
                                  memory_granted(next.session, next.staging_bytes, granted);
                                });
  }
  if (in_line_.empty()) return;
  lane_steps_.look();  // a step that goes on for long is none to wait for
  line_timer_.start_once(kLineLookMs);
}

void Sessions::memory_granted(SessionId id, uint64_t staging_bytes, const Status& granted) {
  Session* const session = find(id);
  if (session == nullptr || session->phase != SessionPhase::kAttaching) return;
  if (!granted) return withdraw_hello(*session, granted.error());
  const DeviceId device = session->device;
  const uint64_t granule = devices_.extents_of(device).granularity_bytes();
  const uint64_t most = std::min(memory_of(*session).session_quota(), limits::kRefAddressBytes);
  const uint64_t ref_bytes_max = most - most % granule;
  const auto made = [this, id, device, staging_bytes, ref_bytes_max](Result<Fd> refs) {
    has_refs(id, device, staging_bytes, ref_bytes_max, std::move(refs));
  };
  ExtentSource& extents = devices_.extents_of(device);
  extents.extents_have_parts() ? extents.create(ExtentUse::kRefs, ref_bytes_max, made) : made(Fd());
}

void Sessions::has_refs(SessionId id, DeviceId device, uint64_t staging_bytes,
                        uint64_t ref_bytes_max, Result<Fd> made) {
  Session* const session = find(id);
  if (session == nullptr || session->phase != SessionPhase::kAttaching) {
    if (made.ok()) devices_.extents_of(device).free(*std::move(made));
    return;
  }
  if (!made.ok()) return withdraw_hello(*session, made.error());
  DJINN_ASSERT(!session->has_memory() && session->hello != 0);
  Result<SessionMemory> memory = make_memory(*session, staging_bytes);
  if (memory.ok()) session->memory = *std::move(memory);
  session->memory.ref_bytes_max = ref_bytes_max;
  if (made.value().valid()) session->memory.refs[0] = {ref_bytes_max, *std::move(made)};
  if (!memory.ok()) return withdraw_hello(*session, memory.error());
  if (domains_.ready(session->worker())) return attach_or_wait(*session);
  if (domains_.spares_fail(session->device)) {
    withdraw_hello(*session, domains_.spares_failure(session->device));
  }
}

Result<SessionMemory> Sessions::make_memory(const Session& session, uint64_t staging_bytes) {
  DJINN_CHECK(domains_.need(session.worker(), [this](WorkerKey other) { return in_use(other); }));
  DJINN_TRY(SessionMemory made, for_client(SessionMemory::make(staging_bytes)));
  DJINN_CHECK(check_descriptors_left(made.completion_bell.listener));  // the last one that was made
  return made;
}

void Sessions::emit_refused(SessionId session, Owner owner, const Error& error) {
  Event event{
      EventKind::kSessionRefused,
      fmt::format("a session of {} is refused: {}", events_.user_text(owner), name_of(error.code)),
      owner};
  event.session = session;
  event.error = error.code;
  event.sentence = ipc::showable_sentence(error.message);
  events_.emit_limited(std::move(event));
}

// The session is again as it was before its Hello, and may send another one.
void Sessions::withdraw_hello(Session& session, const Error& error) {
  emit_refused(session.id, session.domain, error);
  for (auto& [offset, extent] : session.memory.refs) {
    devices_.extents_of(session.device).free(std::move(extent.fd));
  }
  session.memory = {};
  session.phase.enter(SessionPhase::kGreeting);
  memory_of(session).release_all(Memory::of_session(session.id));
  refuse({session.id, std::exchange(session.hello, 0)}, error);
}

void Sessions::refuse_waiting(DeviceId device, const Error& error) {
  for (const auto& [id, session] : sessions_.all()) {
    if (session->device != device) continue;
    if (session->phase == SessionPhase::kAttaching && session->has_memory()) {
      withdraw_hello(*session, error);
    }
  }
}

void Sessions::end_waiting(DeviceId device, const Error& error) {
  end_those(
      [this, device](const Session& session) {
        return session.device == device && session.phase == SessionPhase::kLive &&
               session.has_memory() && !domains_.ready(session.worker());
      },
      error);
}

void Sessions::attach(Session& session) {
  DJINN_ASSERT(session.has_memory() && !session.attached);
  const SessionMemory& memory = session.memory;
  std::vector<int> fds{memory.memory.get(), memory.state.get(), memory.submission_bell.get(),
                       memory.completion_bell.bell.get()};
  std::vector<ipc::MemoryRange> chunks;
  for (const auto& [offset, extent] : memory.refs) {
    chunks.push_back({offset, extent.bytes});
    fds.push_back(extent.fd.get());
  }
  const bool parts = devices_.extents_of(session.device).extents_have_parts();
  const Error refusal = session.refusal.value_or(Error{ErrorCode::kOk, {}});
  if (session.refusal) {
    Event event = event_of(EventKind::kRunRefused, session);
    event.text = fmt::format("session {}: the run in flight is refused", text_of(session.id));
    event.error = refusal.code;
    event.sentence = ipc::showable_sentence(refusal.message);
    events_.emit_limited(std::move(event));
  }
  const auto groups = static_cast<uint32_t>(std::ranges::count_if(
      session.sequences.all(), [](const auto& entry) { return entry.second.extent.valid(); }));
  domains_.send(
      session.worker(),
      {ipc::AttachSession{session.id, memory.staging_bytes, memory.ref_bytes_max, std::move(chunks),
                          parts ? session.ref_bytes_granted : memory.chunk_bytes(), groups,
                          refusal.code, refusal.message, session.service}},
      fds);
  ++session.attachment;
  // From here on the worker is sent what is new for the session, even before it has answered: it
  // gets the messages in order.
  session.attached = true;
  Deaths::note_attached(session);
  sequences_.send_all(session);
  listener_.session_attached(session.id);
  if (session.phase == SessionPhase::kAttaching) welcome(session);
}

void Sessions::welcome(Session& session) {
  const uint32_t number = std::exchange(session.hello, 0);
  DJINN_ASSERT(number != 0);
  session.phase.enter(SessionPhase::kLive);
  Event event = event_of(EventKind::kSessionNew, session);
  event.text = fmt::format("session {} of {} is welcome", text_of(session.id),
                           events_.user_text(session.domain));
  const bool is_mapped = !session.principal.empty() && !session.domain.is_principal();
  if (is_mapped) event.by = "principal " + session.principal;
  events_.emit(std::move(event));
  const WorkerSupervisor* const worker = domains_.find(session.worker());
  DJINN_ASSERT(worker != nullptr && worker->ready());
  const int fds[] = {session.memory.memory.get(), session.memory.submission_bell.get(),
                     session.memory.completion_bell.listener.get()};
  reply({session.id, number},
        {number, ipc::Welcome{session.id, session.memory.staging_bytes, worker->threads(),
                              memory_of(session).session_quota(), numerics_}},
        fds);
}

// Users must not learn of others' sessions, so another user's session counts as missing.
Result<Session*> Sessions::find_steered(const Caller& caller, SessionId id) const {
  Session* const session = find(id);
  const bool there = session != nullptr && caller.may_steer(session->domain) &&
                     session->phase != SessionPhase::kGreeting &&
                     session->phase != SessionPhase::kLeaving;
  if (!there) return Error{ErrorCode::kNotFound, "There is no such session."};
  return session;
}

void Sessions::cancel_run(const Waiter& waiter, const Caller& caller, SessionId target) {
  const auto session = find_steered(caller, target);
  if (!session) return refuse(waiter, session.error());
  const auto progress = (*session)->has_memory() ? (*session)->memory.progress() : gc::Progress{};
  // A run that waits for memory is in flight, but in no step.
  if (!progress || (progress->running_step == 0 && !progress->in_flight)) {
    return refuse(waiter, {ErrorCode::kNotFound,
                           "The session has no run in flight: there is nothing to cancel."});
  }
  const Status asked = (*session)->memory.cancel_in_flight();
  if (!asked) return refuse(waiter, asked.error());
  domains_.wake_lane((*session)->worker());
  cancel_requests(**session);  // nobody else is kept waiting for it
  Event event = event_of(EventKind::kRunCancelled, **session);
  event.text = fmt::format("a run of session {} of {} is cancelled", text_of(target),
                           events_.user_text((*session)->domain));
  event.by = events_.user_text(caller.user);
  events_.emit(std::move(event));
  done(waiter);
}

void Sessions::terminate(const Waiter& waiter, const Caller& caller, SessionId target) {
  const auto session = find_steered(caller, target);
  if (!session) return refuse(waiter, session.error());
  done(waiter);
  const bool is_own = caller.user == (*session)->domain;
  end(**session,
      {ErrorCode::kCancelled,
       fmt::format("{} ended the session with djinnctl terminate, and what it held is freed. What "
                   "is opened from now on is of a new one.",
                   is_own ? "Its own user" : "An administrator")},
      events_.user_text(caller.user));
}

uint64_t Sessions::leaving_bytes(DeviceId device, std::optional<Owner> user) const {
  uint64_t bytes = 0;
  for (const auto& [id, session] : released_) {
    if (session.device != device || (user && session.user != *user)) continue;
    bytes += devices_.of(device).held_by(Memory::of_session(id)) -
             (departed_.is_leaving(id) ? 0 : session.shared_bytes);
  }
  bytes += idle_memory_.ending_bytes(device, user);
  for (const auto& [id, session] : sessions_.all()) {
    if (session->device != device || (user && session->domain != *user)) continue;
    if (session->phase == SessionPhase::kLeaving) {
      bytes += leaving_bytes_of(*session);
      continue;
    }
    bytes += idle_memory_.coming_bytes(*session);
    for (const auto& [index, group] : session->sequences.all()) bytes += group.leaving_bytes();
  }
  return bytes;
}

uint64_t Sessions::leaving_bytes_of(const Session& session) const {
  DJINN_ASSERT(session.phase == SessionPhase::kLeaving);
  const uint64_t stays = session.parted->has_hung_up() ? 0 : session.memory.shared_bytes();
  return memory_of(session).held_by(Memory::of_session(session.id)) - stays;
}

uint64_t Sessions::held_up_bytes(DeviceId device) const {
  uint64_t bytes = 0;
  for (const auto& [id, session] : sessions_.all()) {
    if (session->device != device) continue;
    const bool leaves = session->phase == SessionPhase::kLeaving;
    if (!leaves && !session->trims && session->sequences.size() == 0) continue;
    if (!lane_steps_.is_long(session->worker())) continue;
    if (leaves) {
      bytes += leaving_bytes_of(*session);
      continue;
    }
    // What the worker has given back already is not held up.
    bytes += idle_memory_.coming_bytes(*session) -
             std::min(session->trimming_bytes, session->ref_bytes_freeing);
    for (const auto& [index, group] : session->sequences.all()) {
      bytes += group.leaving_bytes() - group.freeing_bytes;
    }
  }
  return bytes;
}

void Sessions::on_sequence_added(WorkerKey key, const ipc::SequenceAdded& event) {
  const Status added = sequences_.on_sequence_added(key, event);
  if (!added) end(*find(event.session), added.error());
}

// --- workers

void Sessions::worker_ready(WorkerKey key) {
  deaths_.worker_ready(key);
  attach_those_that_may([key](const Session& session) { return session.worker() == key; });
}

void Sessions::attach_those_that_may(const std::function<bool(const Session&)>& in_question) {
  // Sessions that have ended a worker come last, because their next step may end this worker too.
  for (const bool killers : {false, true}) {
    for (const auto& [id, session] : sessions_.all()) {
      const bool waits = session->has_memory() && session->phase != SessionPhase::kLeaving &&
                         session->has_killed == killers && domains_.ready(session->worker()) &&
                         in_question(*session);
      if (waits) attach_or_wait(*session);
    }
  }
  // Groups that the worker has again may go to disk, and somebody may wait for that.
  for (const auto& memory : devices_.all()) memory->freed();
}

void Sessions::attach_or_wait(Session& session) {
  if (deaths_.may_have_worker(session)) return attach(session);
  attach_timer_.start_once(kAttachLookMs);
}

void Sessions::on_attached(WorkerKey key, const ipc::Attached& event) {
  Session* const session = sessions_.find(event.session, key);
  if (session == nullptr || session->phase == SessionPhase::kLeaving) return;
  session->attach_deaths = 0;
}

void Sessions::on_detached(WorkerKey key, const ipc::Detached& event) {
  Session* const session = sessions_.find(event.session, key);
  if (session != nullptr && session->phase == SessionPhase::kLeaving) release(*session);
}

void Sessions::on_session_broken(WorkerKey key, const ipc::SessionBroken& event) {
  Session* const session = sessions_.find(event.session, key);
  if (session == nullptr || session->phase == SessionPhase::kLeaving) return;
  const bool typed = event.code != ErrorCode::kOk;
  const Error error{typed ? event.code : ErrorCode::kProtocolViolation, event.message};
  end(*session, error);
}

bool Sessions::worker_died(WorkerKey key, const WorkerDeath& death,
                           const std::set<SessionId>& definers) {
  std::vector<SessionId> ids;
  for (const auto& [id, session] : sessions_.all()) {
    if (session->worker() == key && session->has_memory()) ids.push_back(id);
  }
  const bool shared = deaths_.is_shared(key);
  if (shared && !death.was_a_graphs()) deaths_.note_shared(key);
  bool progressed =
      (!death.suspect && death.admitting.empty() && !activity_of(key).in_step) || !definers.empty();
  for (const SessionId id : ids) {
    Session& session = *find(id);
    if (definers.contains(id)) deaths_.note_deadly_graph(session);
    if (session.phase == SessionPhase::kLeaving) {
      progressed |= !death.was_a_graphs() && !shared && deaths_.note_last(session);
      release(session);
    } else {
      progressed |= note_death(session, death, shared);
    }
  }
  devices_.of(key.device).freed();  // what waited for a group that was being spilled
  return progressed;
}

// Gives whether the next worker may start at once, as far as this session is concerned.
bool Sessions::note_death(Session& session, const WorkerDeath& death, bool shared) {
  DJINN_ASSERT(session.has_memory() && session.phase != SessionPhase::kLeaving);
  const bool was_served = std::exchange(session.attached, false);
  if (was_served) session.lost_worker_ns = clock_.monotonic_ns();
  memory_of(session).cancel(Memory::of_session(session.id));
  sequences_.worker_died(session, death);
  RefGrants::worker_died(session);
  if (!was_served) return false;  // held back: what its state says is of a death before
  const Deaths::Verdict verdict = deaths_.note(session, death, shared);
  if (verdict.end) end(session, *verdict.end);
  return verdict.progressed;
}

// --- grants

void Sessions::on_grant_request(WorkerKey key, const ipc::GrantRequest& event) {
  if (event.kind == ipc::GrantKind::kSequence) return sequences_.on_grant_request(key, event);
  ref_grants_.on_request(key, event);
}

bool Sessions::on_grant_return(WorkerKey key, const ipc::GrantReturn& event) {
  return event.kind == ipc::GrantKind::kSequence ? sequences_.on_grant_return(key, event)
                                                 : ref_grants_.on_return(key, event);
}

void Sessions::on_refs_trimmed(WorkerKey key, const ipc::RefsTrimmed& event) {
  ref_grants_.on_trimmed(key, event);
}

// --- what others want to know

LaneActivity Sessions::activity_of(WorkerKey key) {
  LaneActivity activity;
  for (const auto& [id, session] : sessions_.all()) {
    if (session->worker() != key || !session->attached) continue;
    const auto progress = session->memory.progress();
    if (!progress.ok()) continue;
    activity.in_step |= progress.value().running_step != 0;
    activity.count += progress.value().commit + progress.value().heartbeat;
    sequences_.spill().note_use(*session, progress.value());
  }
  return activity;
}

bool Sessions::runs(SessionId id) const {
  const Session* const session = find(id);
  return session != nullptr && session->runs();
}

bool Sessions::any_runs() const {
  return std::ranges::any_of(sessions_.all(),
                             [this](const auto& entry) { return runs(entry.first); });
}

bool Sessions::in_use(WorkerKey key) const {
  return std::ranges::any_of(sessions_.all(), [&](const auto& entry) {
    return entry.second->worker() == key && entry.second->has_memory();
  });
}

}  // namespace djinn::daemon
