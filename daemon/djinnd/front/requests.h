// SPDX-License-Identifier: Apache-2.0

// Requests: a client's messages, decoded, checked for their turn and handed to whoever fulfils
// them. A breach of the protocol ends that session and nothing else (ARCHITECTURE rule 5).
//
// A payload, which came as a memfd, is read off the loop, in its user's turn. Nothing more is heard
// of its session meanwhile: so requests are fulfilled in the order of their coming, and of each
// session one payload is read at a time.
#pragma once

#include <vector>

#include "daemon/djinnd/access/user_queues.h"
#include "daemon/djinnd/front/drain.h"
#include "daemon/djinnd/front/published.h"
#include "daemon/djinnd/front/reports.h"
#include "daemon/djinnd/front/schedules.h"
#include "daemon/djinnd/loop/sealed.h"
#include "daemon/djinnd/models/models.h"
#include "daemon/djinnd/programs/programs.h"
#include "daemon/djinnd/sessions/sessions.h"
#include "daemon/djinnd/workers/gpu.h"
#include "ipc/messages.h"

namespace djinn::daemon {

// How many descriptors come with a request. Pure.
[[nodiscard]] size_t descriptors_of(const ipc::ClientRequest& request);
// Whether the request is in its turn: Hello first and once, numbers fresh, no more pending than
// allowed, as many descriptors as the message says. Pure. Errors: kProtocolViolation.
Status check_turn(const Session& session, const ipc::ClientRequest& request, size_t descriptors);

class Requests {
 public:
  Requests(const Devices& devices, const Gpus& gpus, Domains& domains, Sessions& sessions,
           Models& models, Programs& programs, Reports& reports, Schedules& schedules,
           UserQueues& payloads, Turns& turns, Drain& drain, Published& published)
      : devices_(devices),
        gpus_(gpus),
        domains_(domains),
        sessions_(sessions),
        models_(models),
        programs_(programs),
        reports_(reports),
        schedules_(schedules),
        payloads_(payloads),
        turns_(turns),
        drain_(drain),
        published_(published) {}

  void handle(Session& session, ClientMessage message);

 private:
  struct Call {
    Session& session;
    Waiter waiter;
    std::vector<SharedFd> fds;
    Payload payload;
  };
  void read_payload(const Session& session, ipc::ClientRequest request, const SharedFd& payload);
  Session* asks(SessionId id);  // unless it has ended
  void fulfil_with(SessionId id, const ipc::ClientRequest& request, Result<Payload> payload);
  void fulfil_any(Call& call, const ipc::ClientRequest& request);
  void fulfil(Call& call, const ipc::Hello& body);
  void fulfil(Call& call, const ipc::AddFiles& body);
  void fulfil(Call& call, const ipc::OpenModel& body);
  void open_published(Call& call, const ipc::OpenModel& body);
  void fulfil(Call& call, const ipc::CloseModel& body);
  void fulfil(Call& call, const ipc::ImportModel& body);
  void fulfil(Call& call, const ipc::ListPublished& body);
  void fulfil(Call& call, const ipc::RemovePublished& body);
  void fulfil(Call& call, const ipc::ReadManifest& body);
  void fulfil(Call& call, const ipc::ReadGraph& body);
  void fulfil(Call& call, const ipc::UnloadModel& body);
  void fulfil(Call& call, const ipc::DefineProgram& body);
  void fulfil(Call& call, const ipc::DropPrograms& body);
  void fulfil(Call& call, const ipc::MakeSequence& body);
  void fulfil(Call& call, const ipc::DropSequence& body);
  void fulfil(Call& call, const ipc::GetStatus& body);
  void fulfil(Call& call, const ipc::ListSessions& body);
  void fulfil(Call& call, const ipc::ListModels& body);
  void fulfil(Call& call, const ipc::ListUses& body);
  void fulfil(Call& call, const ipc::ListPrograms& body);
  void fulfil(Call& call, const ipc::ListDevices& body);
  void fulfil(Call& call, const ipc::ListMemory& body);
  void fulfil(Call& call, const ipc::GetOwnMemory& body);
  void fulfil(Call& call, const ipc::GetSchedule& body);
  void fulfil(Call& call, const ipc::PinModel& body);
  void fulfil(Call& call, const ipc::CancelRun& body);
  void fulfil(Call& call, const ipc::TerminateSession& body);
  void fulfil(Call& call, const ipc::EvictModel& body);
  void fulfil(Call& call, const ipc::PlaceModel& body);
  void fulfil(Call& call, const ipc::SetDraining& body);
  void fulfil(Call& call, const ipc::CollectGarbage& body);
  void fulfil(Call& call, const ipc::FollowEvents& body);
  // Refuses others.
  bool is_admin(const Call& call);
  ipc::Collected collect();
  bool has_data_path(const Call& call);

  const Devices& devices_;
  const Gpus& gpus_;
  Domains& domains_;
  Sessions& sessions_;
  Models& models_;
  Programs& programs_;
  Reports& reports_;
  Schedules& schedules_;
  UserQueues& payloads_;
  Turns& turns_;
  Drain& drain_;
  Published& published_;
};

}  // namespace djinn::daemon
