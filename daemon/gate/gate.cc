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

// A djinnd that is not there is told as djinnd's own refusals are.
std::vector<std::byte> refusal(std::span<const std::byte> hello, const Error& error,
                               const std::string& path) {
  Error told = error;
  if (error.code == ErrorCode::kNotFound) {
    told = client::nobody_answers(path,
                                  path == client::kServiceSocket && client::service_is_installed());
  } else if (error.code == ErrorCode::kPermissionDenied) {
    told = client::not_allowed(path, client::stranger_to(path));
  }
  return ipc::encode(
      ipc::DaemonReply{ipc::number_of_request(hello), ipc::Failed{told.code, told.message}});
}

}  // namespace

kj::Promise<void> GateServer::open(OpenContext context) {
  context.allowCancellation();
  const auto params = context.getParams();
  auto refuse = [this, context](const Error& why) mutable {
    const auto answer = refusal(rpc::bytes_of(context.getParams().getHello()), why, path_);
    context.getResults().setAnswer(rpc::data_of(answer));
  };
  auto socket = ipc::connect_unix(path_);
  if (!socket) {
    refuse(socket.error());
    return kj::READY_NOW;
  }
  auto opened = FarSession::open(port_, *std::move(socket),
                                 kj::heapArray<kj::byte>(params.getHello()), params.getNear());
  return opened.then(
      [context](FarSession::Opened&& session) mutable {
        auto results = context.getResults();
        results.setAnswer(rpc::data_of(session.answer));
        KJ_IF_MAYBE (begun, session.session) results.setSession(kj::mv(*begun));
      },
      [refuse](kj::Exception&& why) mutable { refuse(rpc::to_error(why)); });
}

}  // namespace djinn::gate
