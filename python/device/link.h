// SPDX-License-Identifier: Apache-2.0

// Link: the device's session with djinnd. Runs are handed over and not waited for; who reads waits.
// A run that fails poisons what it would have made, so its error comes with the first read of that.
//
// A link is of one session; device.h makes the next. One thread at a time: the device's lock is
// held around every call.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
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

  // A copy of bytes as a ref.
  Result<RefHandle> put(std::span<const std::byte> bytes);
  // The segments from here on are of another log.
  void begin_log() { ++log_; }
  // Runs a segment; its outputs go to kRef.
  Status run(const Segment& segment);
  // Runs a program; these go to kRef. staged: what of staging it reads.
  Status run_program(ProgramId program, ipc::RunBlock block, std::span<const StoragePtr> outputs,
                     std::vector<client::StagingLease> staged);
  // A copy of bytes in staging, to be bound.
  Result<client::StagingLease> stage(std::span<const std::byte> bytes);
  // Runs one, waits, and tells what it made.
  Result<std::vector<Described>> run_open(const Segment& segment);
  // Elements of a view of a ref or weight, contiguous and in order.
  Status read(const Operand& view, std::span<std::byte> out);
  Status release(std::span<const RefHandle> refs);
  // Waits until all that was handed over is done; whoever reads what a failed run made gets its
  // error.
  void wait_for_all();
  // The same for the runs up to this one.
  void wait_through(client::Run run);
  // The program of a graph that names weights of the model. Errors: kLimitExceeded when djinnd
  // keeps as many for this process, or its user, as it may have.
  Result<ProgramId> define(const srg::Graph& graph, ModelId model, ProgramUse use);
  // Precondition: the runs that use it are done, for control requests overtake what is in the ring.
  // Its programs are as if they had not been defined.
  Status close_model(ModelId model);

 private:
  struct Unwaited {
    client::Run run;
    ProgramId program = {};  // or none
    Largest largest = {};    // of a graph that came with its run
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
                    std::vector<client::StagingLease> staged, Largest largest);
  Known& look_at(uint64_t hash, uint64_t model);
  Result<client::Runnable> runnable_for(const Segment& segment);
  Status read_ref(const Operand& view, std::span<std::byte> out);
  Status read_weight(const Operand& view, std::span<std::byte> out);
  Result<client::StagingLease> read_to_staging(const Operand& weight, uint64_t bytes);
  Result<client::Outcome> wait(client::Run run);
  Error explained(Error error);
  void note(Unwaited run);
  void reap();
  void take_oldest();
  [[nodiscard]] std::string largest_of(const Unwaited& one) const;

  client::Client* client_;
  LinkStats stats_;
  std::deque<Unwaited> unwaited_;
  std::unordered_map<uint64_t, Known> programs_;   // by hash of the encoded graph and model
  std::unordered_map<uint64_t, Defined> defined_;  // all programs
  bool full_ = false;                              // djinnd took no more
  uint64_t log_ = 0;                               // how many there were
};

}  // namespace djinn::device
