// SPDX-License-Identifier: Apache-2.0

// Admitter: the threads on which the programs of a worker are admitted. What a client's graph makes
// LibTorch do there keeps neither the control thread nor the lane from anything else.
//
//   quick desk   each program comes here first, and has kQuickMs of a processor
//   long desk    what took longer is begun anew here, and may take all that an order allows
//   needed       a run waits for the program: it is the next of its desk
//
// So a graph that takes long delays others that do, and no other by more than kQuickMs. A program
// that is dropped, or whose model is, is given up between two nodes and not answered for.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "daemon/worker/admission_budget.h"
#include "daemon/worker/lane_loop.h"
#include "daemon/worker/outbox.h"
#include "ipc/exit_status.h"
#include "kernel/base/clock.h"

namespace djinn::worker {

class Admitter {
 public:
  // Some 50,000 calls of usual operators: a large model's graph with its symbols.
  static constexpr uint64_t kQuickMs = 500;

  struct Parts {
    exec::Executor& executor;
    LaneLoop& lane;
    Outbox& outbox;
    const Clock& clock;
  };
  explicit Admitter(const Parts& parts);
  // Gives up what it is at.
  ~Admitter();

  using Graph = std::shared_ptr<const std::vector<std::byte>>;
  struct Order {
    ProgramId program;
    std::shared_ptr<MappedModel> model;  // null: the graph names no weights
    Graph graph;
    uint64_t cpu_ms_max = 0;  // beyond that it is refused
  };
  // The lane expects the program already. It is added there and told of, or refused. Any thread.
  void admit(Order order);
  void drop(ProgramId program);
  // Gives up programs of the model; none is left that refers to it when cleared is called, on this
  // thread or one of the admitter's.
  void drop_programs_of(ModelId model, std::function<void()> cleared);
  // A run waits for it.
  void need(ProgramId program);

 private:
  using Looked = ipc::AdmissionDesk;
  struct Job {
    Order order;
    bool is_needed = false;
    [[nodiscard]] bool is_of(ModelId model) const {
      return order.model && order.model->id() == model;
    }
  };
  struct Desk {
    std::condition_variable changed;
    std::deque<Job> jobs;
    std::optional<Job> running;
    std::shared_ptr<void> cleared;  // let go of once running has ended
    std::atomic<bool> given_up{false};
    std::thread thread;
  };
  struct Attempt {
    const Order& order;
    Looked desk;
    AdmissionBudget budget;
    uint64_t sign_due_ns = 0;
    bool takes_long = false;  // too long for this desk
  };
  Desk& at(Looked desk) { return desks_[static_cast<size_t>(desk)]; }
  void work(Looked which);
  // Nothing where it takes too long for the quick desk.
  std::optional<Result<AdmittedProgram>> attempt(const Order& order, Looked which);
  Status go_on(Attempt& attempt);
  // The admission that the desk was at has ended.
  void finish(Looked which, std::optional<Result<AdmittedProgram>> admitted);
  void tell(ProgramId id, Result<AdmittedProgram> admitted);

  Parts parts_;
  std::mutex mutex_;
  std::array<Desk, ipc::kAdmissionDesks> desks_;
  bool closing_ = false;
};

}  // namespace djinn::worker
