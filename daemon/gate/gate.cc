// SPDX-License-Identifier: Apache-2.0

#include "daemon/gate/gate.h"

#include <utility>

#include "daemon/gate/far_session.h"
#include "ipc/codec/control_codec.h"
#include "ipc/rpc/bytes.h"
#include "ipc/rpc/fault.h"
#include "ipc/socket.h"
#include "libdjinn-client/connect_advice.h"

namespace djinn::gate {
namespace {

// What is told of a djinnd that cannot be reached. Where it is, is no principal's to know.
Error unreachable(const Error& error, const SessionsOf& whose) {
  if (!whose.principal.empty()) {
    return {error.code,
            "This djinn-gate reaches no djinnd that listens for gates. Ask who runs it: its log "
            "says why, and djinn-gate(8) what it needs."};
  }
  const std::string& path = whose.socket;
  if (error.code == ErrorCode::kNotFound) {
    return client::nobody_answers(path,
                                  path == client::kServiceSocket && client::service_is_installed());
  }
  if (error.code == ErrorCode::kPermissionDenied) {
    return client::not_allowed(path, client::stranger_to(path));
  }
  return error;
}

}  // namespace

kj::Promise<void> GateServer::open(OpenContext context) {
  context.allowCancellation();
  const auto params = context.getParams();
  // As djinnd's own refusals are told.
  auto refuse = [context](const Error& why) mutable {
    const uint32_t number = ipc::number_of_request(rpc::bytes_of(context.getParams().getHello()));
    const auto answer = ipc::encode(ipc::DaemonReply{number, ipc::Failed{why.code, why.message}});
    context.getResults().setAnswer(rpc::data_of(answer));
  };
  auto socket = ipc::connect_unix(whose_.socket);
  if (!socket) {
    refuse(unreachable(socket.error(), whose_));
    return kj::READY_NOW;
  }
  auto opened = FarSession::open(port_, *std::move(socket), rpc::bytes_of(params.getHello()),
                                 whose_.principal, params.getNear());
  return opened.then(
      [context](FarSession::Opened&& session) mutable {
        auto results = context.getResults();
        results.setAnswer(rpc::data_of(session.answer));
        KJ_IF_MAYBE (begun, session.session) results.setSession(kj::mv(*begun));
      },
      [refuse](kj::Exception&& why) mutable { refuse(rpc::to_error(why)); });
}

}  // namespace djinn::gate
