// SPDX-License-Identifier: Apache-2.0

// Device: the one device of this process, `remote_accelerator:0`. It records operators, keeps them
// until a value is needed, and hands them to djinnd.
//
//   record   an operator called on the device's tensors: its results exist at once, its work later
//   flush    hands over what was recorded; waits for nothing
//   read     a tensor's elements; waits
//
// Locking: one lock guards the log, the storages and the link. Nobody takes the GIL while holding
// it but a wait for a connection that looks for signals: meta kernels in Python run before. Whoever
// waits for the lock, or for djinnd, lets go of the GIL first. A generation lasts: who waits for
// its tokens, or for what comes behind it, lets go of the lock, too: before it hands over
// anything that might have to wait with the lock for room. The code that it calls, for each of
// them, may use the device: what must wait there waits for its end. Who waits for generations waits
// for those that are under way; those that are asked for meanwhile begin when it has what it wants.
// A thread of its own hands the log over when nothing is recorded for a while (idle.h); it connects
// to nobody. The child of a fork has neither that thread nor the session.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "python/device/idle.h"
#include "python/device/link.h"
#include "python/device/log.h"
#include "python/device/recipe.h"
#include "python/device/sealing.h"
#include "python/device/storage.h"
#include "python/device/turn_lock.h"

namespace djinn::device {

struct DeviceStats {
  LinkStats link;
  RecipeStats recipes;
  uint64_t recorded = 0;      // operators
  uint64_t capture_ns = 0;    // spent on recording, inference of shapes included
  uint64_t mixed = 0;         // operands that were on the CPU and crossed
  uint64_t forks = 0;         // weights and sources that were copied to be written
  uint64_t shadow_reads = 0;  // values that were known here
  uint64_t sealed = 0;        // parameters that became weights
  uint64_t shared = 0;        // of those, that djinnd had already
  uint64_t flushes = 0;
  uint64_t idle_flushes = 0;           // of those, because nothing was recorded for a while
  std::vector<std::string> tripped{};  // operators (breaker.h)
};

// What this process has in djinnd.
struct DeviceMemory {
  uint64_t held_bytes = 0;  // tensors, sequence groups, and models that it has open
  uint64_t most_bytes = 0;  // of sequence groups: when somebody asked
  ipc::OwnMemory own;       // what djinnd accounts to its session; zeros where there is none
};

// A run of a program: on what is bound already and on storages, by graph storage; its outputs
// become these.
struct ProgramRun {
  ProgramId program;
  std::vector<ipc::InputBinding> bound;
  std::vector<std::pair<uint32_t, StoragePtr>> inputs;
  std::vector<StoragePtr> outputs;
  SequenceHandle sequence{};
  std::vector<int64_t> symbols{};
  std::vector<uint32_t> padding{};  // by row, when the sequence group is empty; or none
  uint64_t session = 0;             // that the program is of
};

// A generation that has ended.
struct Followed {
  client::Outcome outcome;
  bool waited = false;  // inside of on_tokens for what comes behind it: for its end
};

class Device {
 public:
  // The process's; never destroyed, because tensors may die after everything else.
  static Device& get();

  // Calls an operator: stack holds its arguments, and its results afterwards. Arguments on the CPU
  // are uploaded. Throws NotImplementedError for operators outside the allow-list.
  void call(const c10::OperatorHandle& op, Stack& stack);

  void flush();
  // Hands over what was recorded, and waits until it is done.
  void synchronize();
  // The same, and gives back what no tensor holds any more, models included. Where there is no
  // session there is nothing to give back.
  void give_back();
  // Hands over what was recorded, and asks djinnd.
  DeviceMemory memory();
  // The most is what is held now.
  void reset_peak();
  // Elements of tensor, contiguous and in order; exactly its bytes.
  void read(const at::Tensor& tensor, std::span<std::byte> out);
  // The elements as a CPU tensor if they are known here, else undefined.
  at::Tensor known(const at::Tensor& tensor);
  // All bytes of destination's storage become a copy of these, which are a parameter's that is to
  // be shared (sealing.h) or not. False: something else must be kept of it, and nothing was done.
  bool replace(const at::Tensor& destination, std::span<const std::byte> bytes, bool is_parameter);
  // A storage that holds a copy of bytes.
  StoragePtr upload(std::span<const std::byte> bytes, at::ScalarType type);
  // The storage becomes at least so large; what is new is zero.
  void grow(const StoragePtr& storage, uint64_t bytes);

  // f(link) with everything recorded handed over, unless that is held; without the GIL.
  template <typename F>
  auto with_link(const F& f) {
    Turn turn(*this);
    hand_over_unless_held(turn);
    return f(link());
  }
  // The same, for what that session (Storages::session()) has made. Throws if it has ended.
  template <typename F>
  auto with_link_of(uint64_t session, const F& f) {
    Turn turn(*this);
    hand_over_unless_held(turn);
    refuse_ended(session);
    return f(link());
  }
  // And for what waits for runs: not before the generations that are under way have ended.
  template <typename F>
  auto with_settled_link_of(uint64_t session, const F& f) {
    Turn turn(*this);
    hand_over_unless_held(turn);
    wait_for_generations(turn);
    refuse_ended(session);
    return f(link());
  }
  // Starts a generation, with start(link) that stages so many bytes, and waits for its end. Its
  // tokens go to on_tokens, which
  // may use the device; where that says false, or a signal's handler raises something, it is
  // cancelled, once all that was handed over before it is done.
  using OnTokens = std::function<bool(const std::vector<client::TokenEvent>&)>;
  Followed follow(uint64_t session, uint64_t bytes,
                  const std::function<Result<client::Run>(Link&)>& start,
                  const OnTokens& on_tokens);
  // The sequence group of that session is dropped: at once, or once a generation that is under way
  // has ended. Waits for none, and throws nothing.
  void drop_sequence(uint64_t session, SequenceHandle sequence) noexcept;
  // The number of the session that a use would have now: it has ended if djinnd has.
  uint64_t session();
  // What a capture recorded as one graph, with what it reads at kRef. claims_layouts: also that
  // contiguous results are so; not for a graph that is to be unified with others.
  Segment settle(const Log& log, std::span<const Operand> outputs, bool claims_layouts);

  void run_program(ProgramRun run);

  // f(log), with nothing handed over.
  template <typename F>
  auto with_log(const F& f) {
    const Turn turn(*this);
    return f(log_);
  }
  // While held, nothing recorded is handed over: the thread that holds gets an error when it needs
  // a value, others wait. Holds of one thread nest.
  void hold();
  void release_hold();
  [[nodiscard]] bool is_connected() const { return link_ != nullptr; }
  // Grows whenever a tensor leaves where a template may have it bound: a weight that is written,
  // a ref that is replaced. What was captured before may read what is no longer current.
  [[nodiscard]] uint64_t moves() const { return moves_; }
  // 0 off, 1 each call, 2 what it gives too, 3 each run too: lines on stderr.
  void set_debug_level(int level) { debug_level_ = level; }
  DeviceStats stats();
  void count_mixed();
  // A call took this tier (0 to 2); a model was loaded into this process in djinnd's place. djinnd
  // shows both as what this process says.
  void state_call(size_t tier);
  void state_local_model();
  // What djinnd reports of this process's session; nothing where there is none.
  std::optional<ipc::SessionReport> report();
  // What is recorded from now on is handed over when a value is needed or it is long. For the end
  // of the process.
  void stop_idle();

 private:
  Device();
  // Lets go of the GIL, if this thread has it.
  class Waiting {
   public:
    Waiting();
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    void* state_ = nullptr;
  };
  // This thread has the lock, and not the GIL.
  class Turn {
   public:
    explicit Turn(Device& device) : lock_(device.mutex_) {}
    [[nodiscard]] std::unique_lock<TurnLock>& lock() { return lock_; }
    // Others may have theirs while this one lives: what the device holds may have changed then.
    class Pause {
     public:
      explicit Pause(Turn& turn) : turn_(turn) { turn_.lock_.unlock(); }
      ~Pause() { turn_.lock_.lock(); }
      Pause(const Pause&) = delete;
      Pause& operator=(const Pause&) = delete;

     private:
      Turn& turn_;
    };

   private:
    Waiting waiting_;
    std::unique_lock<TurnLock> lock_;
  };

  // What djinnd is to let go of once the runs are done that may use it.
  struct Leaving {
    std::variant<ModelId, SequenceHandle> what;
    client::Run through = 0;  // the last of them
  };

  Link& link();
  Link& link_of(uint64_t session);
  void take_arrivals(Turn& turn, uint64_t session);
  void wait_for_generations(Turn& turn);
  void wait_for_settling(Turn& turn);
  [[nodiscard]] bool generates() const;
  [[nodiscard]] bool generates_through(client::Run run) const;
  void make_way(Turn& turn, uint64_t bytes, size_t runs);
  [[nodiscard]] bool is_crowded();
  void notice_end();
  void state();
  void refuse_ended(uint64_t session) const;
  void refuse_lost(const Storage& storage) const;
  void refuse_lost(const Entry& entry) const;
  void hand_over(Turn& turn);
  void hand_over_unless_held(Turn& turn);
  void hand_over_now();
  void let_go();
  void note_unused_models();
  [[nodiscard]] const LinkStats& link_stats() const;
  void complete(Turn& turn);
  void finish(Turn& turn, std::string_view what);
  void hand_over_idle();
  void begin_fork();
  void end_fork();
  void begin_child();
  void hand_over_log();
  void release_garbage();
  void seal_parameters();
  size_t open_sealed(const std::vector<StoragePtr>& parameters);
  void run_segment(const Segment& segment);
  ipc::InputBinding bind_input(uint32_t number, const StoragePtr& storage,
                               std::vector<client::StagingLease>& staged);
  void put(Storage& storage, std::span<const std::byte> bytes);
  void put_uploads(const Log& log, std::span<const size_t> needed);
  Entry make_entry(std::shared_ptr<const Recipe> recipe, const std::vector<at::Tensor>& tensors);
  void fork_written(Entry& entry);
  void one_model(Entry& entry);
  StoragePtr append_copy(const Operand& source);
  void append(const c10::OperatorHandle& op, const Stack& stack, Entry& entry);
  void record(const c10::OperatorHandle& op, Stack& stack);
  void record(const c10::OperatorHandle& op, Stack& stack,
              const std::shared_ptr<const Recipe>& recipe, bool at_once);
  void call_on_trial(const c10::OperatorHandle& op, Stack& stack,
                     const std::exception_ptr& failure);
  void call_open(const c10::OperatorHandle& op, Stack& stack);

  TurnLock mutex_;
  Log log_;
  std::unique_ptr<IdleWatch> idle_;  // constant but in the child of a fork
  client::Connection connection_;
  std::unique_ptr<Link> link_;  // to the session that connection_ has
  ipc::ClientStatement stated_;
  LinkStats link_stats_;                            // of the sessions that have ended
  std::string why_ended_;                           // the last of them
  bool is_orphan_ = false;                          // link_ is the parent's
  bool fork_has_lock_ = false;                      // while a fork is under way
  std::vector<std::weak_ptr<Storage>> parameters_;  // uploaded since the log was handed over
  SealedContents sealed_;
  DeviceStats stats_;
  int holds_ = 0;
  std::thread::id holder_;                // while holds_ > 0
  std::condition_variable_any released_;  // holds_ is 0 again
  // That are followed, with the session that each is of.
  std::set<std::pair<uint64_t, client::Run>> generations_;
  size_t settling_ = 0;                  // threads that wait for their end
  std::deque<Leaving> leaving_;          // in order
  bool one_sleeps_ = false;              // for completions, without the lock
  std::condition_variable_any arrived_;  // there may be completions, or nobody sleeps for them
  const bool blocks_;                    // DJINN_BLOCKING: each operator is waited for
  std::atomic<int> debug_level_ = 0;
  std::atomic<uint64_t> capture_ns_ = 0;
  std::atomic<uint64_t> moves_ = 0;
};

// Throws the error, as the exception type that its code means to Python (module.cc).
[[noreturn]] void raise(Error error);

template <typename T>
T take(Result<T> result) {
  if (!result) raise(std::move(result).error());
  return *std::move(result);
}
inline void take(Status status) {
  if (!status) raise(std::move(status).error());
}

}  // namespace djinn::device
