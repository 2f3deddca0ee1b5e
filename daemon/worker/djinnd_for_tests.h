// SPDX-License-Identifier: Apache-2.0

// DjinndTest: a worker's way to djinnd, and its questions about memory. The test is djinnd.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <utility>

#include "daemon/worker/code_for_tests.h"
#include "daemon/worker/grants.h"
#include "ipc/codec/control_codec.h"

namespace djinn::worker {

class DjinndTest : public ::testing::Test {
 protected:
  // What the worker says next, which is of that kind; which graphs it looks at it says often.
  template <typename Event>
  Event heard() {
    pollfd entry{djinnd_.socket().get(), POLLIN, 0};
    if (::poll(&entry, 1, 20'000) != 1) {
      ADD_FAILURE() << "nothing is said";
      return {};
    }
    const auto event = ipc::decode_worker_event(djinnd_.receive()->bytes);
    if constexpr (!std::is_same_v<Event, ipc::ProgramLookedAt>) {
      if (std::holds_alternative<ipc::ProgramLookedAt>(event->body)) return heard<Event>();
    }
    const auto* const body = std::get_if<Event>(&event->body);
    EXPECT_NE(body, nullptr) << "something else is said";
    return body != nullptr ? *body : Event{};
  }
  [[nodiscard]] bool nothing_is_said() const {
    pollfd entry{djinnd_.socket().get(), POLLIN, 0};
    return ::poll(&entry, 1, 0) == 0;
  }
  void answer(const ipc::GrantRequest& request, ErrorCode code = ErrorCode::kOk) {
    grants_.deliver(ipc::GrantAnswer{request.request, code, {}});
  }

  // As djinnd opens one for a group.
  static Fd nameless_file() {
    std::string path = ::testing::TempDir() + "group-XXXXXX";
    Fd file(::mkstemp(path.data()));
    EXPECT_TRUE(file.valid());
    ::unlink(path.c_str());
    return file;
  }
  // Is called when something has come that the lane awaits; set before there is a second thread.
  std::function<void()> on_arrival_ = [] {};

  ipc::SocketPair pair_ = *ipc::make_socket_pair();
  child::Channel worker_{std::move(pair_.left)};
  child::Channel djinnd_{std::move(pair_.right)};
  Outbox outbox_{worker_};
  Waits waits_{[this] { on_arrival_(); }};
  Grants grants_{outbox_, waits_};
};

}  // namespace djinn::worker
