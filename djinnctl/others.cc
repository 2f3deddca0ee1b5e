// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/others.h"

namespace djinn::ctl {

Result<std::vector<ipc::SessionReport>> other_sessions(client::Client& client) {
  DJINN_TRY(auto sessions, client.sessions());
  std::erase_if(sessions, [own = client.welcome().session](const ipc::SessionReport& session) {
    return session.session == own;
  });
  return sessions;
}

Result<ipc::StatusReport> status_without_us(client::Client& client) {
  DJINN_TRY(ipc::StatusReport status, client.status());
  if (status.sessions > 0) --status.sessions;
  return status;
}

}  // namespace djinn::ctl
