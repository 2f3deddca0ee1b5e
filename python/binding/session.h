// Session: one connection to djinnd for Python. Calls wait without the GIL; calls of several
// threads take turns, because a client::Client serves one thread at a time.
//
//   Turn       one call's exclusive use of the client
//   Input      what a run reads: a buffer's bytes or a ref
//   Output     where an output goes: nowhere, staging (so many bytes at most), or a new ref
//
// invariant: nobody holds the session's lock while waiting for the GIL but a token callback, and a
// callback that uses its own session is refused. So the two locks never wait for each other.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "libdjinn-client/client.h"
#include "python/binding/convert.h"

namespace djinn::python {

// A parsed graph, with an id once djinnd has admitted it.
struct Program {
  std::shared_ptr<const srg::Graph> graph;
  ProgramId id;                           // invalid: runs once
  ModelId model;                          // whose weights it names; invalid: none
  std::vector<ipc::OutputShape> outputs;  // of an admitted one
};

struct Output {
  enum class Kind { kNone, kStaging, kRef } kind = Kind::kNone;
  uint64_t bytes = 0;
};

using Input = std::variant<std::span<const std::byte>, RefHandle>;

struct RunArguments {
  std::vector<int64_t> symbols;  // in the graph's order
  std::map<std::string, Input> inputs;
  std::vector<Output> outputs;  // in the graph's order
  SequenceHandle sequence;
};

struct RunOutput {
  ipc::OutputDescription description;
  std::vector<std::byte> bytes;  // kStaging
  RefHandle ref;                 // kRef
};

class Session {
 public:
  explicit Session(const client::ConnectOptions& options);

  [[nodiscard]] const ipc::Welcome& welcome() const { return welcome_; }
  void close();
  [[nodiscard]] bool closed();

  // f(client) as one turn, without the GIL. Raises kBusy inside of a token callback.
  template <typename F>
  auto turn(const F& f) -> decltype(f(std::declval<client::Client&>())) {
    refuse_reentry();
    const py::gil_scoped_release released;
    const std::lock_guard lock(mutex_);
    if (client_ == nullptr) return Error{ErrorCode::kDisconnected, "The session is closed."};
    owner_ = std::this_thread::get_id();
    auto result = f(*client_);
    owner_ = std::thread::id();
    return result;
  }

  client::OpenedModel open_directory(const std::string& path, const srg::LoadPlan* plan,
                                     const client::Stay& stay);
  client::OpenedModel open_files(const std::string& label, const std::vector<std::string>& paths,
                                 const srg::LoadPlan* plan, const client::Stay& stay);
  Program define(const std::string& text, ModelId model);
  std::vector<RunOutput> run(const Program& program, const RunArguments& arguments);

  RefHandle put(std::span<const std::byte> bytes);
  std::vector<std::byte> read(ipc::ReadBlock block);
  void release(RefHandle ref);
  void crop(const ipc::CropBlock& block);
  void reorder(const ipc::ReorderBlock& block);
  // Releases with the next turn that uses refs: what a garbage collector may call anywhere.
  void release_later(RefHandle ref);

 private:
  void refuse_reentry() const;
  Status release_garbage(client::Client& client);

  ipc::Welcome welcome_;
  std::mutex mutex_;  // guards client_
  std::unique_ptr<client::Client> client_;
  std::atomic<std::thread::id> owner_;
  std::mutex garbage_mutex_;
  std::vector<RefHandle> garbage_;
};

// Parses text; raises djinn.Error with the line and column of what is wrong.
std::shared_ptr<const srg::Graph> parse_graph(const std::string& text);

void add_session(py::module_& module);
void add_models(py::module_& module);

}  // namespace djinn::python
