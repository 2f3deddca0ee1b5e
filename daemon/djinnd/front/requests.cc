// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/front/requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "daemon/djinnd/loop/descriptors.h"
#include "ipc/codec/control_codec.h"
#include "ipc/limits.h"

namespace djinn::daemon {
namespace {

Error violation(std::string message) {
  return {ErrorCode::kProtocolViolation, std::move(message)};
}

// A payload that comes as a memfd.
struct PayloadKind {
  const char* what;
  uint64_t bytes_max;
};
constexpr PayloadKind kPlan{"load plan", limits::kLoadPlanBytes};
constexpr PayloadKind kGraph{"graph", limits::kGraphBytes};

// Null: it has none.
const PayloadKind* payload_of(const ipc::ClientRequest& request) {
  const auto* open = std::get_if<ipc::OpenModel>(&request.body);
  if (open != nullptr && open->has_plan) return &kPlan;
  return std::holds_alternative<ipc::DefineProgram>(request.body) ? &kGraph : nullptr;
}

// With the files that the session has added.
OpenRequest open_request(Session& session, const Asker& asker, const ipc::OpenModel& body) {
  OpenRequest request;
  request.opener = {asker, session.domain, !session.observer,
                    false, body.pin,       session.caller.admin};
  request.label = body.label;
  request.path = body.path;
  request.unpins = body.unpin;
  request.keep_alive_ms = body.keep_alive_ms;
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
      return world_.sessions.end(
          session, violation("A message could not be read: " + request.error().message));
    }
    session.pending.insert(number);
    return world_.sessions.refuse({session.id, number}, request.error());
  }
  const Status turn = check_turn(session, request.value(), message.fds.size());
  if (!turn) return world_.sessions.end(session, turn.error());
  session.pending.insert(request.value().number);
  if (payload_of(request.value()) != nullptr) {
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
  session.channel->hold(true);
  world_.payloads.run(
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
  Session* const session = world_.sessions.find(id);
  return session != nullptr && session->channel ? session : nullptr;
}

void Requests::fulfil_with(SessionId id, const ipc::ClientRequest& request,
                           Result<Payload> payload) {
  Session* const session = asks(id);
  if (session == nullptr) return;
  const Turns::Bill bill(world_.turns, session->domain);
  session->channel->hold(false);
  const Asker asker{id, request.number};
  if (!payload) {
    const auto* const open = std::get_if<ipc::OpenModel>(&request.body);
    if (open == nullptr) return world_.sessions.refuse(asker, payload.error());
    return world_.models.refuse(open_request(*session, asker, *open), payload.error());
  }
  session->payload_bytes_in += payload->bytes;
  Call call{*session, asker, {}, *std::move(payload)};
  fulfil_any(call, request);
}

void Requests::fulfil(Call& call, const ipc::Hello& body) {
  world_.sessions.hello(call.session, call.asker.number, body);
}

void Requests::fulfil(Call& call, const ipc::AddFiles& body) {
  std::vector<SharedFd>& files = call.session.files;
  // With those that it has added: what is opened next is another model.
  const auto refuse = [&](const Error& error) {
    world_.models.refuse(open_request(call.session, call.asker, {}), error);
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
  const DomainId user = call.session.domain;
  const Status kept =
      world_.models.check_files(user, world_.sessions.files_added(user), call.fds.size());
  if (!kept) return refuse(kept.error());
  for (SharedFd& fd : call.fds) files.push_back(std::move(fd));
  std::ranges::copy(body.names, std::back_inserter(call.session.file_names));
  call.session.file_names.resize(files.size());
  world_.sessions.done(call.asker);
}

void Requests::fulfil(Call& call, const ipc::OpenModel& body) {
  OpenRequest request = open_request(call.session, call.asker, body);
  if (!body.has_plan) {
    auto none = no_payload();
    if (!none) return world_.models.refuse(request, none.error());
    call.payload = *std::move(none);
  }
  request.plan = std::move(call.payload);
  world_.models.open(std::move(request));
}

void Requests::fulfil(Call& call, const ipc::CloseModel& body) {
  world_.models.close(call.asker, body.model);
  if (body.model.valid() && !world_.models.leased_by(body.model, call.asker.session)) {
    world_.programs.model_closed(call.asker.session, call.session.domain, body.model);
  }
}

void Requests::fulfil(Call& call, const ipc::ReadManifest& body) {
  world_.models.read_manifest(call.asker, body);
}

void Requests::fulfil(Call& call, const ipc::UnloadModel& body) {
  world_.models.unload(call.asker, call.session.caller, body.model);
}

bool Requests::has_data_path(const Call& call) {
  if (!call.session.observer) return true;
  world_.sessions.refuse(call.asker, {ErrorCode::kUnsupported,
                                      "An observer has no data path. Connect without observer."});
  return false;
}

void Requests::fulfil(Call& call, const ipc::DefineProgram& body) {
  if (!has_data_path(call)) return;
  world_.programs.define(call.asker, call.session.domain, body.model, std::move(call.payload));
}

void Requests::fulfil(Call& call, const ipc::MakeSequence& body) {
  if (!has_data_path(call)) return;
  world_.sessions.sequences().make(call.session, call.asker.number, body.geometry);
}

void Requests::fulfil(Call& call, const ipc::DropSequence& body) {
  if (!has_data_path(call)) return;
  world_.sessions.sequences().drop(call.session, call.asker.number, body.sequence);
}

void Requests::fulfil(Call& call, const ipc::GetStatus& body) {
  world_.reports.status(call.asker, call.session.caller, body);
}

void Requests::fulfil(Call& call, const ipc::ListSessions& body) {
  world_.reports.sessions(call.asker, call.session.caller, body);
}

void Requests::fulfil(Call& call, const ipc::ListModels& body) {
  world_.reports.models(call.asker, call.session.caller, body);
}

void Requests::fulfil(Call& call, const ipc::ListUses& body) {
  world_.reports.uses(call.asker, call.session.caller, body);
}

void Requests::fulfil(Call& call, const ipc::ListPrograms& body) {
  world_.reports.programs(call.asker, call.session.caller, body);
}

void Requests::fulfil(Call& call, const ipc::ListDevices&) {
  world_.reports.devices(call.asker);
}

void Requests::fulfil(Call& call, const ipc::ListMemory&) {
  world_.reports.memory(call.asker);
}

void Requests::fulfil(Call& call, const ipc::GetOwnMemory&) {
  world_.reports.own_memory(call.asker, call.session);
}

void Requests::fulfil(Call& call, const ipc::PinModel& body) {
  world_.models.pin(call.asker, call.session.caller, body);
}

void Requests::fulfil(Call& call, const ipc::CancelRun& body) {
  world_.sessions.cancel_run(call.asker, call.session.caller, body.session);
}

void Requests::fulfil(Call& call, const ipc::TerminateSession& body) {
  world_.sessions.terminate(call.asker, call.session.caller, body.session);
}

void Requests::fulfil(Call& call, const ipc::EvictModel& body) {
  world_.models.evict(call.asker, call.session.caller, body);
}

bool Requests::is_admin(const Call& call) {
  if (call.session.caller.admin) return true;
  world_.sessions.refuse(call.asker, only_administrators_may());
  return false;
}

void Requests::fulfil(Call& call, const ipc::SetDraining& body) {
  if (!is_admin(call)) return;
  world_.drain(body.draining);
  world_.sessions.done(call.asker);
}

void Requests::fulfil(Call& call, const ipc::CollectGarbage&) {
  if (!is_admin(call)) return;
  world_.sessions.reply(call.asker, {call.asker.number, world_.collect()});
}

void Requests::fulfil(Call& call, const ipc::FollowEvents& body) {
  world_.reports.events(call.asker, call.session.caller, body);
}

}  // namespace djinn::daemon
