// SPDX-License-Identifier: Apache-2.0

// FakeDaemon: what stands for djinnd and its worker in tests of the client: a thread that answers
// requests and completes every run without looking at it. It can go, come back, and fall silent at
// any moment. Names nothing of this tree, so that tests of djinn.hpp can use it.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace djinn::client::testing {

// Polls a condition that another thread brings about.
bool eventually(const std::function<bool()>& condition);

class FakeDaemon {
 public:
  static constexpr uint64_t kModel = 0x123456;          // every model's id
  static constexpr uint64_t kQuotaBytes = 1024u << 20;  // every session's

  struct Opened {
    bool pin = false;
    std::optional<uint64_t> keep_alive_ms;
    friend bool operator==(const Opened&, const Opened&) = default;
  };

  FakeDaemon();  // runs from here on
  ~FakeDaemon();
  FakeDaemon(const FakeDaemon&) = delete;
  FakeDaemon& operator=(const FakeDaemon&) = delete;

  [[nodiscard]] std::string directory() const;  // goes with this
  [[nodiscard]] std::string host() const;       // "unix:PATH"

  void start();
  // Stops as if it were killed: every connection closes, and nobody listens.
  void stop();
  // Stops so in the midst of the generation that it is stuck in: while the client slept it had just
  // said one more token, and nobody rang. Gives how many it said, each its own index.
  uint32_t stop_after_a_token();
  // Takes connections and reads requests, and answers none.
  void set_silent(bool silent);
  // Does nothing as long as it is set, as if it were stopped by a signal: what comes waits.
  void set_paused(bool paused);
  // Lists and events never end, and parts of manifests have one byte.
  void set_endless(bool endless);
  // Leaves runs as they are, but those that are given up.
  void set_stuck(bool stuck);
  // Runs end with that code (kernel/base/error.h); nothing: they succeed.
  void fail_runs(std::optional<uint16_t> code);
  // Outputs of runs are float32 of so many elements; of one, until then.
  void say_of_outputs(int64_t elements);
  // Answers nobody who opens a model, as long as it is set.
  void hold_opens(bool hold);
  // Refuses the next sessions with that code (kernel/base/error.h); nothing: they are welcome.
  void refuse(std::optional<uint16_t> code);
  // What every model's manifest is, encoded, and how many bytes of it are announced.
  void set_manifest(std::vector<std::byte> manifest, uint64_t bytes);
  // Ends all sessions, with that code and text as the last word.
  void end_sessions(uint16_t code, const std::string& text);

  // Since it was made first:
  [[nodiscard]] uint64_t sessions_made() const;
  [[nodiscard]] std::vector<Opened> opens() const;
  [[nodiscard]] size_t defines() const;  // of programs
  [[nodiscard]] std::vector<uint64_t> dropped()
      const;                                   // programs, from 1 in the order of defines()
  [[nodiscard]] size_t closes() const;         // of models
  [[nodiscard]] size_t sequences() const;      // that are, and were not dropped
  [[nodiscard]] size_t files_added() const;    // for models that nobody has opened
  [[nodiscard]] size_t runs() const;           // that are complete
  [[nodiscard]] bool run_waits() const;        // or did, while it was stuck
  [[nodiscard]] size_t sessions_open() const;  // now
  [[nodiscard]] size_t opens_held() const;     // now

 private:
  class Server;
  std::unique_ptr<Server> server_;
};

}  // namespace djinn::client::testing
