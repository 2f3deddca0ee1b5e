// SPDX-License-Identifier: Apache-2.0

// ContestedMemory: a djinnd with 64 MiB, two clients that want them, and an observer.
#pragma once

#include <string>
#include <vector>

#include "daemon/djinnd/testing/test_daemon.h"

namespace djinn::daemon::testing {

struct ContestedMemory {
  static constexpr uint64_t kBytes = uint64_t{64} << 20;

  // more: options of djinnd's.
  explicit ContestedMemory(const std::vector<std::string>& more = {})
      : daemon([&] {
          std::vector<std::string> options{"--memory", std::to_string(kBytes)};
          options.insert(options.end(), more.begin(), more.end());
          return options;
        }()),
        client(daemon),
        other(daemon),
        observer(daemon) {
    client.greet();
    other.greet();
    observer.greet(true);
  }
  // Of what sessions have, or others.
  ipc::MemoryReport pool(ipc::MemoryPool of = ipc::MemoryPool::kSessions) {
    for (const auto& pool : observer.ask<ipc::MemoryList>(ipc::ListMemory{}).pools) {
      if (pool.pool == of) return pool;
    }
    return {};
  }

  TestDaemon daemon;
  TestClient client;
  TestClient other;
  TestClient observer;
};

// A new ref of so many bytes.
inline ErrorCode want_refs(TestClient& client, uint64_t bytes) {
  client.submit_write(bytes);
  return client.completion();
}

}  // namespace djinn::daemon::testing
