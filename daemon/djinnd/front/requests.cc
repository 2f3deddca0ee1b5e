// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/front/requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "daemon/djinnd/loop/descriptors.h"
#include "ipc/codec/control_codec.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

Error violation(std::string message) {
  return {ErrorCode::kProtocolViolation, std::move(message)};
}

// This is a kind of payload that comes as a memfd.
struct PayloadKind {
  const char* what;
  uint64_t bytes_max;
};
constexpr PayloadKind kPlan{"load plan", limits::kLoadPlanBytes};
constexpr PayloadKind kGraph{"graph", limits::kGraphBytes};

// Gives null if the request has no payload.
const PayloadKind* payload_of(const ipc::ClientRequest& request) {
  const auto* open = std::get_if<ipc::OpenModel>(&request.body);
  if (open != nullptr && open->has_plan) return &kPlan;
  return std::holds_alternative<ipc::DefineProgram>(request.body) ? &kGraph : nullptr;
}

// Makes the request, and moves the files that the session has added into it.
OpenRequest open_request(Session& session, const Waiter& waiter, const ipc::OpenModel& body) {
  DJINN_ASSERT(session.files.size() == session.file_names.size());
  OpenRequest request;
  request.opener = {waiter,   session.domain,       !session.observer, false,
                    body.pin, session.caller.admin, session.device};
  request.label = body.label;
  request.path = body.path;
  request.unpins = body.unpin;
  request.keep_alive_ms = body.keep_alive_ms;
  request.numerics = body.numerics;
  request.files = std::exchange(session.files, {});
  request.file_names = std::exchange(session.file_names, {});
  return request;
}

}  // namespace

size_t descriptors_of(const ipc::ClientRequest& request) {
  if (const auto* files = std::get_if<ipc::AddFiles>(&request.body)) return files->count;
  if (const auto* open = std::get_if<ipc::OpenModel>(&request.body)) return open->has_plan ? 1 : 0;
  return std::holds_alternative<ipc::DefineProgram>(request.body) ? 1 : 0;
}

Status check_turn(const Session& session, const ipc::ClientRequest& request, size_t descriptors) {
  if (request.number == 0 || session.pending.contains(request.number)) {
    return violation("A request needs a number that no pending request has, and not 0.");
  }
  if (session.pending.size() >= limits::kRequestsPending) {
    return violation(
        fmt::format("More than {} requests wait for an answer.", limits::kRequestsPending));
  }
  if (descriptors_of(request) != descriptors) {
    return violation("The message came with another number of descriptors than it says.");
  }
  const bool greets = std::holds_alternative<ipc::Hello>(request.body);
  if (greets != (session.phase == SessionPhase::kGreeting)) {
    return violation("Hello must be the first request, and the only one until its answer.");
  }
  if (session.phase == SessionPhase::kAttaching) {
    return violation("No request may come before the answer to Hello.");
  }
  return {};
}

void Requests::handle(Session& session, ClientMessage message) {
  const auto request = ipc::decode_client_request(message.bytes);
  const uint32_t number = request.ok() ? 0 : ipc::number_of_request(message.bytes);
  const bool answerable = number != 0 && !session.pending.contains(number) &&
                          session.pending.size() < limits::kRequestsPending;
  if (!request.ok()) {
    if (!answerable || request.error().code == ErrorCode::kMalformed) {
      return sessions_.end(session,
                           violation("A message could not be read: " + request.error().message));
    }
    session.pending.insert(number);
    return sessions_.refuse({session.id, number}, request.error());
  }
  const Status turn = check_turn(session, request.value(), message.fds.size());
  if (!turn) return sessions_.end(session, turn.error());
  session.pending.insert(request.value().number);
  DJINN_ASSERT(session.pending.size() <= limits::kRequestsPending);
  if (payload_of(request.value()) != nullptr) {
    DJINN_ASSERT(message.fds.size() == 1);
    return read_payload(session, *std::move(request), message.fds[0]);
  }
  Call call{session, {session.id, request.value().number}, std::move(message.fds), {}};
  fulfil_any(call, request.value());
}

void Requests::fulfil_any(Call& call, const ipc::ClientRequest& request) {
  std::visit([&](const auto& body) { fulfil(call, body); }, request.body);
}

void Requests::read_payload(const Session& session, ipc::ClientRequest request,
                            const SharedFd& payload) {
  DJINN_ASSERT(session.channel != nullptr && payload_of(request) != nullptr);
  session.channel->hold(true);
  payloads_.run(
      session.domain,
      [payload, kind = *payload_of(request), closer = session.closer] {
        return take_payload(*payload, kind.bytes_max, kind.what, *closer);
      },
      [this, id = session.id, request = std::move(request)](Result<Payload> taken) {
        fulfil_with(id, request, std::move(taken));
      },
      [this, id = session.id] { return asks(id) != nullptr; });
}

Session* Requests::asks(SessionId id) {
  Session* const session = sessions_.find(id);
  return session != nullptr && session->channel ? session : nullptr;
}

void Requests::fulfil_with(SessionId id, const ipc::ClientRequest& request,
                           Result<Payload> payload) {
  Session* const session = asks(id);
  if (session == nullptr) return;
  const Turns::Bill bill(turns_, session->domain);
  DJINN_ASSERT(session->pending.contains(request.number));
  session->channel->hold(false);
  const Waiter waiter{id, request.number};
  if (!payload) {
    const auto* const open = std::get_if<ipc::OpenModel>(&request.body);
    if (open == nullptr) return sessions_.refuse(waiter, payload.error());
    return models_.refuse(open_request(*session, waiter, *open), payload.error());
  }
  session->payload_bytes_in += payload->bytes;
  Call call{*session, waiter, {}, *std::move(payload)};
  fulfil_any(call, request);
}

// Who names a GPU that cannot be used is told so, and computes nowhere else.
void Requests::fulfil(Call& call, const ipc::Hello& body) {
  const Gpu* const gpu = gpus_.find(body.device);
  const Status usable = gpu == nullptr ? Status() : gpus_.check_usable(*gpu);
  if (!usable) return sessions_.refuse(call.waiter, usable.error());
  sessions_.hello(call.session, call.waiter.number, body);
}

void Requests::fulfil(Call& call, const ipc::AddFiles& body) {
  std::vector<SharedFd>& files = call.session.files;
  // A refusal takes away the files that the session has added, because the next open is of another
  // model.
  const auto refuse = [&](const Error& error) {
    models_.refuse(open_request(call.session, call.waiter, {}), error);
  };
  if (files.size() + call.fds.size() > limits::kModelFiles) {
    return refuse({ErrorCode::kLimitExceeded,
                   fmt::format("A model has at most {} files.", limits::kModelFiles)});
  }
  const auto no_file = [](const SharedFd& fd) { return may_hold_sockets(*fd); };
  if (std::ranges::any_of(call.fds, no_file)) {
    return refuse({ErrorCode::kInvalidArgument,
                   "A descriptor of a model's file is none of a file. Open the file."});
  }
  if (call.fds.empty()) {
    files.clear();
    call.session.file_names.clear();
    return sessions_.done(call.waiter);
  }
  const Owner user = call.session.domain;
  const Status kept = models_.check_files(user, sessions_.files_added(user), call.fds.size());
  if (!kept) return refuse(kept.error());
  for (SharedFd& fd : call.fds) files.push_back(std::move(fd));
  std::ranges::copy(body.names, std::back_inserter(call.session.file_names));
  call.session.file_names.resize(files.size());
  sessions_.done(call.waiter);
}

void Requests::fulfil(Call& call, const ipc::OpenModel& body) {
  if (!body.has_plan) {
    auto none = no_payload();
    if (!none) return models_.refuse(open_request(call.session, call.waiter, body), none.error());
    call.payload = *std::move(none);
  }
  if (!body.published.empty()) return open_published(call, body);
  OpenRequest request = open_request(call.session, call.waiter, body);
  request.plan = std::move(call.payload);
  models_.open(std::move(request));
}

// Nothing more is heard of the session until the store has been asked, as with a payload.
void Requests::open_published(Call& call, const ipc::OpenModel& body) {
  Session& session = call.session;
  if (!session.files.empty()) {
    return models_.refuse(open_request(session, call.waiter, body),
                          {ErrorCode::kInvalidArgument,
                           "A published model has its own files. Add none, or say no name."});
  }
  session.channel->hold(true);
  published_.open(
      session.caller, body.published, session.closer,
      [this, waiter = call.waiter, body, plan = call.payload](Result<PublishedFiles> found) {
        Session* const asking = asks(waiter.session);
        if (asking == nullptr) return;
        const Turns::Bill bill(turns_, asking->domain);
        asking->channel->hold(false);
        OpenRequest request = open_request(*asking, waiter, body);
        if (!found) return models_.refuse(request, found.error());
        request.files = std::move(found->files);
        request.file_names = std::move(found->names);
        request.plan = plan;
        models_.open(std::move(request));
      });
}

void Requests::fulfil(Call& call, const ipc::ImportModel& body) {
  published_.import(call.waiter, call.session.caller, body, std::exchange(call.session.files, {}),
                    std::exchange(call.session.file_names, {}));
}

void Requests::fulfil(Call& call, const ipc::ListPublished& body) {
  published_.list(call.waiter, call.session.caller, body);
}

void Requests::fulfil(Call& call, const ipc::RemovePublished& body) {
  published_.remove(call.waiter, call.session.caller, body);
}

void Requests::fulfil(Call& call, const ipc::CloseModel& body) {
  models_.close(call.waiter, body.model);
  if (body.model.valid() && !models_.leased_by(body.model, call.waiter.session)) {
    programs_.model_closed(call.waiter.session, call.session.worker(), body.model);
  }
}

void Requests::fulfil(Call& call, const ipc::ReadManifest& body) {
  models_.read_manifest(call.waiter, call.session.caller, body);
}

void Requests::fulfil(Call& call, const ipc::ReadGraph& body) {
  programs_.read_graph(call.waiter, call.session.caller, body);
}

void Requests::fulfil(Call& call, const ipc::UnloadModel& body) {
  models_.unload(call.waiter, call.session.caller, body.model);
}

bool Requests::has_data_path(const Call& call) {
  if (!call.session.observer) return true;
  sessions_.refuse(call.waiter, {ErrorCode::kUnsupported,
                                 "An observer has no data path. Connect without observer."});
  return false;
}

void Requests::fulfil(Call& call, const ipc::DefineProgram& body) {
  if (!has_data_path(call)) return;
  DJINN_ASSERT(call.payload.copy != nullptr);
  programs_.define(call.waiter, call.session.worker(), body.model, std::move(call.payload));
}

void Requests::fulfil(Call& call, const ipc::DropPrograms& body) {
  if (!has_data_path(call)) return;
  programs_.dropped(call.waiter.session, call.session.worker(), body.programs);
  sessions_.done(call.waiter);
}

void Requests::fulfil(Call& call, const ipc::MakeSequence& body) {
  if (!has_data_path(call)) return;
  DJINN_ASSERT(call.session.phase == SessionPhase::kLive && call.session.has_memory());
  sessions_.sequences().make(call.session, call.waiter.number, body.geometry);
}

void Requests::fulfil(Call& call, const ipc::DropSequence& body) {
  if (!has_data_path(call)) return;
  sessions_.sequences().drop(call.session, call.waiter.number, body.sequence);
}

void Requests::fulfil(Call& call, const ipc::GetStatus& body) {
  reports_.status(call.waiter, call.session.caller, body);
}

void Requests::fulfil(Call& call, const ipc::ListSessions& body) {
  reports_.sessions(call.waiter, call.session.caller, body);
}

void Requests::fulfil(Call& call, const ipc::ListModels& body) {
  reports_.models(call.waiter, call.session.caller, body);
}

void Requests::fulfil(Call& call, const ipc::ListUses& body) {
  reports_.uses(call.waiter, call.session.caller, body);
}

void Requests::fulfil(Call& call, const ipc::ListPrograms& body) {
  reports_.programs(call.waiter, call.session.caller, body);
}

void Requests::fulfil(Call& call, const ipc::ListDevices&) {
  reports_.devices(call.waiter);
}

void Requests::fulfil(Call& call, const ipc::ListMemory&) {
  reports_.memory(call.waiter);
}

void Requests::fulfil(Call& call, const ipc::GetOwnMemory&) {
  reports_.own_memory(call.waiter, call.session);
}

void Requests::fulfil(Call& call, const ipc::GetSchedule& body) {
  schedules_.show(call.waiter, call.session.caller, body);
}

void Requests::fulfil(Call& call, const ipc::PinModel& body) {
  models_.pin(call.waiter, call.session.caller, body);
}

void Requests::fulfil(Call& call, const ipc::CancelRun& body) {
  sessions_.cancel_run(call.waiter, call.session.caller, body.session);
}

void Requests::fulfil(Call& call, const ipc::TerminateSession& body) {
  sessions_.terminate(call.waiter, call.session.caller, body.session);
}

void Requests::fulfil(Call& call, const ipc::EvictModel& body) {
  models_.evict(call.waiter, call.session.caller, body);
}

bool Requests::is_admin(const Call& call) {
  if (call.session.caller.admin) return true;
  sessions_.refuse(call.waiter, only_administrators_may());
  return false;
}

void Requests::fulfil(Call& call, const ipc::PlaceModel& body) {
  if (!is_admin(call)) return;
  const Gpu* const gpu = gpus_.find(body.device);
  if (gpu == nullptr) {
    return sessions_.refuse(
        call.waiter, {ErrorCode::kNotFound,
                      fmt::format("djinnd has no GPU '{}'. See 'djinnctl devices'.", body.device)});
  }
  models_.place(call.waiter, body.model, gpu->device());
}

void Requests::fulfil(Call& call, const ipc::SetDraining& body) {
  if (!is_admin(call)) return;
  drain_.set(body.draining, call.session.caller.user);
  sessions_.done(call.waiter);
}

ipc::Collected Requests::collect() {
  const uint64_t before = devices_.granted_bytes();
  ipc::Collected collected;
  collected.programs = programs_.collect();
  collected.workers = domains_.retire_idle([this](WorkerKey key) { return sessions_.in_use(key); });
  collected.bytes = before - std::min(before, devices_.granted_bytes());
  return collected;
}

void Requests::fulfil(Call& call, const ipc::CollectGarbage&) {
  if (!is_admin(call)) return;
  published_.collect();
  sessions_.reply(call.waiter, {call.waiter.number, collect()});
}

void Requests::fulfil(Call& call, const ipc::FollowEvents& body) {
  reports_.events(call.waiter, call.session.caller, body);
}

}  // namespace djinn::daemon
