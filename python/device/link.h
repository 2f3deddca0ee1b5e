// SPDX-License-Identifier: Apache-2.0

// Link: the device's session with djinnd. Runs are handed over and not waited for; who reads waits.
//
//   series   the runs from one failure to the next (ipc/session_memory.h): where an operator fails,
//            what was called before it has happened, and nothing that comes behind it happens until
//            the failure is settled
//   settle   what the failed runs did not make is lost to the failure, or again what it was before
//            them; a new series begins
//
// A link is of one session; device.h makes the next. One thread at a time: the device's lock is
// held around every call.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "libdjinn-client/connection.h"
#include "libdjinn-client/operations.h"
#include "python/device/log.h"

namespace djinn::device {

struct LinkStats {
  uint64_t runs = 0;
  uint64_t program_runs = 0;  // of those: by id
  uint64_t operators = 0;
  uint64_t reads = 0;
  uint64_t bytes_up = 0;    // tensors
  uint64_t bytes_down = 0;  // tensors
  uint64_t failures = 0;    // runs that failed; who reads what they made gets the error
  std::string last_failure;
  ErrorCode last_code = ErrorCode::kOk;  // of that failure
  uint64_t wait_ns = 0;
  uint64_t schedule_ns = 0;
};

// A result of an open run.
struct Described {
  client::RefLease ref;
  ipc::OutputDescription shape;
};

// The result of a graph that takes most memory, for an error that says there was none.
struct Largest {
  std::string op;
  DType dtype = DType::kInvalid;
  c10::SmallVector<int64_t, 5> sizes;
  uint64_t bytes = 0;
  size_t operators = 0;
};

// Whether the session, its user or djinnd had too little.
[[nodiscard]] bool lacked_memory(ErrorCode code);

// What a program is for; one sort leaves room for the next.
enum class ProgramUse : uint8_t {
  kOften,    // a graph that was recorded again and again
  kForward,  // a call of a ghost
  kLoop,     // a generation
};

class Link {
 public:
  // What a session of the device is connected with.
  static client::ConnectOptions connect_options();

  // client outlives this.
  explicit Link(client::Client& client) : client_(&client) {}

  [[nodiscard]] client::Client& client() { return *client_; }
  [[nodiscard]] LinkStats& stats() { return stats_; }

  // A copy of these bytes becomes a ref, and the storage is at it.
  Status put(Storage& storage, HostBytes bytes);
  // The segments from here on are of another log, whose number this is.
  uint64_t begin_log() { return ++log_; }
  // All that was handed over is done.
  [[nodiscard]] bool is_idle();
  // Something that is done has failed, and this is not settled.
  [[nodiscard]] bool has_failure();
  // Settles it, and gives the first failure. Precondition: all that was handed over is done.
  Error settle_failure();
  // Runs a segment; its outputs go to kRef.
  Status run(Segment segment);
  // Runs a program; these go to kRef. staged: what of staging it reads.
  Status run_program(ProgramId program, ipc::RunBlock block, std::span<const StoragePtr> outputs,
                     std::vector<client::StagingLease> staged);
  // A copy of bytes in staging, to be bound.
  Result<client::StagingLease> stage(std::span<const std::byte> bytes);
  // Runs one, waits, and tells what it made.
  Result<std::vector<Described>> run_open(const Segment& segment);
  // Elements of a view of a ref or weight, contiguous and in order. log: of the read, however often
  // it is tried.
  Status read(const Operand& view, std::span<std::byte> out, uint64_t log);
  // refs: client::kReleaseBatch at most. All are released, or none.
  Status release(std::span<const RefHandle> refs);
  // Waits until all that was handed over is done; whoever reads what a failed run made gets its
  // error. Errors: kCancelled where the wait was given up.
  Status wait_for_all();
  // The same for the runs up to this one.
  Status wait_through(client::Run run);
  // Whether these are done.
  [[nodiscard]] bool is_done_through(client::Run run);
  // The program of a graph that names weights of the model. Errors: kLimitExceeded when djinnd
  // keeps as many for this process, or its user, as it may have.
  Result<ProgramId> define(const srg::Graph& graph, ModelId model, ProgramUse use);
  // Precondition: the runs that use it are done, for control requests overtake what is in the ring.
  // Its programs are as if they had not been defined.
  Status close_model(ModelId model);

 private:
  // What a run makes, and is to be settled where it fails.
  struct Made {
    std::vector<std::weak_ptr<Storage>> outputs;
    std::vector<Before> before;
    std::vector<uint64_t> numbers;  // as Segment's
    HostBytes uploaded;             // what its one output was
  };
  struct Unwaited {
    client::Run run = 0;
    ProgramId program = {};  // or none
    srg::Graph graph = {};   // if it is of the log
    bool is_release = false;
    Made made = {};
    uint64_t held = 0;  // bytes, with what it makes
  };
  struct Defined {
    uint64_t model = 0;
    Largest largest;
  };
  struct Known {
    uint32_t uses = 0;  // logs that it was in
    uint64_t log = 0;   // the last of them
    ProgramId program;
    uint64_t model = 0;
  };

  Result<std::vector<client::RefLease>> bind(const Segment& segment, ipc::RunBlock& block);
  Result<std::vector<client::RefLease>> bind_outputs(size_t count, ipc::RunBlock& block);
  Status submit_run(client::Runnable runnable, const ipc::RunBlock& block,
                    std::span<const StoragePtr> outputs, std::vector<client::RefLease> refs,
                    std::vector<client::StagingLease> staged, Unwaited unwaited);
  Known& look_at(uint64_t hash, uint64_t model, uint64_t log);
  Result<client::Runnable> runnable_for(const Segment& segment, uint64_t log);
  Status read_ref(const Operand& view, std::span<std::byte> out);
  Status read_weight(const Operand& view, std::span<std::byte> out, uint64_t log);
  Result<client::StagingLease> read_to_staging(const Operand& weight, uint64_t bytes, uint64_t log);
  Result<client::Outcome> wait(client::Run run);
  void note(Unwaited run);
  void note_failure(const client::Outcome& outcome, Unwaited run);
  void settle(const Made& made, const std::shared_ptr<const Error>& failure);
  bool is_as_before(const Storage& storage, const Before& before) const;
  [[nodiscard]] bool is_made(const Storage& storage);
  void reap();
  Status take_oldest();
  [[nodiscard]] std::string told(const client::Outcome& outcome, const Unwaited& run) const;

  client::Client* client_;
  LinkStats stats_;
  std::deque<Unwaited> unwaited_;
  std::unordered_map<uint64_t, Known> programs_;   // by hash of the encoded graph and model
  std::unordered_map<uint64_t, Defined> defined_;  // all programs
  bool full_ = false;                              // djinnd took no more
  uint64_t log_ = 0;                               // how many there were
  uint64_t series_ = 1;
  std::optional<Error> failure_;       // the first of the series
  std::optional<uint64_t> failed_at_;  // the number of the entry that failed first
  std::vector<Made> failed_;           // by what failed since then
};

}  // namespace djinn::device
