// SPDX-License-Identifier: Apache-2.0

// Session: one program's connection to djinnd for Python. Calls wait without the GIL; calls of
// several threads take turns, because a client::Client serves one thread at a time.
//
//   Turn       one call's exclusive use of the client
//   Held       a handle, and the number of the session that it belongs to (client::Connection)
//   Input      what a run reads: a buffer's bytes or a ref
//   Output     where an output goes: nowhere, staging (so many bytes at most), or a new ref
//
// invariant: nobody holds the session's lock while waiting for the GIL but a token callback and a
// wait for djinnd that looks for signals, and what they call may not use its own session. Nobody
// waits for the lock with the GIL. So the two never wait for each other.
#pragma once

#include <atomic>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "libdjinn-client/connection.h"
#include "python/binding/convert.h"

namespace djinn::python {

template <typename Handle>
struct Held {
  Handle handle;
  uint64_t session = 0;
};

struct OpenedModel {
  client::OpenedModel model;
  uint64_t session = 0;
};

// A parsed graph, with an id once djinnd has admitted it.
struct Program {
  std::shared_ptr<const srg::Graph> graph;
  uint64_t session = 0;                                 // of id or model; 0: it has neither
  ProgramId id;                                         // invalid: runs once
  ModelId model;                                        // whose weights it names; invalid: none
  std::vector<ipc::OutputShape> outputs;                // of an admitted one
  std::shared_ptr<const client::ProgramLease> lease{};  // likewise
};

struct Output {
  enum class Kind { kNone, kStaging, kRef } kind = Kind::kNone;
  uint64_t bytes = 0;
};

using Input = std::variant<std::span<const std::byte>, Held<RefHandle>>;

struct RunArguments {
  std::vector<int64_t> symbols;  // in the graph's order
  std::map<std::string, Input> inputs;
  std::vector<Output> outputs;  // in the graph's order
  Held<SequenceHandle> sequence;
};

struct RunOutput {
  ipc::OutputDescription description;
  std::vector<std::byte> bytes;  // kStaging
  Held<RefHandle> ref;           // kRef
};

// What all waits of a turn ask now and then: whether the session was closed meanwhile, or a
// signal's handler has raised something. The turn ends then.
class Interruption {
 public:
  explicit Interruption(const std::atomic<bool>& closed) : closed_(closed) {}
  // Whether the wait is to end. Called without the GIL.
  bool operator()();
  // Raises again what the handler raised. Called with the GIL.
  void raise_again() const;

 private:
  const std::atomic<bool>& closed_;
  std::exception_ptr raised_;
};

class Session {
 public:
  // reconnect_wait_ms: as client::Connection has it.
  Session(client::ConnectOptions options, std::optional<uint64_t> reconnect_wait_ms);

  // What djinnd said of the session that there is, or that was the last. Any thread.
  [[nodiscard]] ipc::Welcome welcome() const;
  // Closes the session for good: ends what another thread waits for, else waits for its turn.
  void close();
  [[nodiscard]] bool closed() const { return closed_; }
  // Reconnects as client::Connection::reconnect() does. Raises for a session that was closed.
  void reconnect(uint64_t wait_ms);

  // f(client) as one turn, without the GIL, with a new session where the last one has ended. Raises
  // kBusy inside of a token callback, and what a signal's handler raised.
  template <typename F>
  auto turn(const F& f) -> decltype(f(std::declval<client::Client&>())) {
    return take_turn(
        [](client::Connection& connection, const client::CancelPredicate& given_up) {
          return connection.open(given_up);
        },
        f);
  }
  // The same for what belongs to that session (0: to none). Throws kDisconnected if it is gone.
  template <typename F>
  auto turn_of(uint64_t session, const F& f) -> decltype(f(std::declval<client::Client&>())) {
    if (session == 0) return turn(f);
    return take_turn([session](client::Connection& connection,
                               const client::CancelPredicate&) { return connection.of(session); },
                     f);
  }
  // The same, to give something back. Does nothing if its session is gone, which gave it back.
  template <typename F>
  void give_back(uint64_t session, const F& f) {
    bool gone = false;
    const Status done = turn_of(session, [&](client::Client& client) {
      Status given = f(client);
      gone = client.has_ended();
      return given;
    });
    if (done || gone || done.error().code == ErrorCode::kDisconnected) return;
    raise(done.error());
  }
  // Leaves the session to the parent. Called in the child of a fork, before it has other threads.
  void after_fork();
  // The number of the session that this turn is of.
  [[nodiscard]] uint64_t number() const { return connection_->session(); }

  OpenedModel open_directory(const std::string& path, const srg::LoadPlan* plan,
                             const client::Retention& retention);
  OpenedModel open_files(const std::string& label, const std::vector<std::string>& paths,
                         const srg::LoadPlan* plan, const client::Retention& retention);
  // session: the model's; 0 without a model.
  Program define(const std::string& text, ModelId model, uint64_t session);
  std::vector<RunOutput> run(const Program& program, const RunArguments& arguments);

  Held<RefHandle> put(std::span<const std::byte> bytes);
  void read(uint64_t session, const ipc::ReadBlock& view, std::span<std::byte> out);
  void release(const Held<RefHandle>& ref);
  void crop(uint64_t session, const ipc::CropBlock& block);
  void reorder(uint64_t session, const ipc::ReorderBlock& block);
  // Releases with the next turn that uses refs: what a garbage collector may call anywhere.
  void release_later(const Held<RefHandle>& ref);

 private:
  template <typename Choose, typename F>
  auto take_turn(const Choose& choose, const F& f) -> decltype(f(std::declval<client::Client&>())) {
    refuse_reentry();
    Interruption interruption(closed_);
    auto result = [&]() -> decltype(f(std::declval<client::Client&>())) {
      const py::gil_scoped_release released;
      const std::lock_guard lock(mutex_);
      if (connection_ == nullptr) {
        return Error{ErrorCode::kDisconnected,
                     "The session is closed. Open another one with djinn.connect()."};
      }
      const Owner owner(owner_);
      const client::CancelPredicate given_up = std::ref(interruption);
      const client::Interrupt::Call call(interrupt_, given_up);
      DJINN_TRY(client::Client* const client, choose(*connection_, given_up));
      learn(*client);
      return f(*client);
    }();
    interruption.raise_again();
    return result;
  }
  // The thread that has the turn, while it has it.
  class Owner {
   public:
    explicit Owner(std::atomic<std::thread::id>& owner) : owner_(owner) {
      owner_ = std::this_thread::get_id();
    }
    ~Owner() { owner_ = std::thread::id(); }
    Owner(const Owner&) = delete;
    Owner& operator=(const Owner&) = delete;

   private:
    std::atomic<std::thread::id>& owner_;
  };

  client::ConnectOptions interruptible(client::ConnectOptions options);
  void refuse_reentry() const;
  void learn(const client::Client& client);
  Status release_garbage(client::Client& client);

  client::Interrupt interrupt_;  // asks the turn's Interruption
  std::mutex mutex_;             // guards connection_
  std::unique_ptr<client::Connection> connection_;
  std::atomic<bool> closed_ = false;
  std::atomic<std::thread::id> owner_;
  mutable std::mutex small_mutex_;  // guards what is below; held for moments only
  ipc::Welcome welcome_;
  std::vector<Held<RefHandle>> garbage_;
};

// Parses text; raises djinn.Error with the line and column of what is wrong.
std::shared_ptr<const srg::Graph> parse_graph(const std::string& text);

void add_session(py::module_& module);
void add_models(py::module_& module);

}  // namespace djinn::python
