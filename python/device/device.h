// SPDX-License-Identifier: Apache-2.0

// Device: the one device of this process, `remote_accelerator:0`. It records operators, keeps them
// until a value is needed, and hands them to djinnd.
//
//   call     an operator on the device's tensors: its results exist at once, its work later
//            (recorder.h)
//   flush    hands over what was recorded; waits for nothing
//   read     a tensor's elements; waits
//   follow   a generation, until its end (generations.h)
//
// Locking: one lock guards the log, the storages, the session (session_life.h) and what goes there
// (uploads.h). Nobody takes the GIL while holding it but a wait that looks for signals: meta
// kernels in Python run before. A thread that waits for the lock, or for djinnd, lets go of the GIL
// first (turn.h). One that waits for a generation's tokens, for what comes behind it, or for runs
// to be done, lets go of the lock, too, so that a signal's handler may use the device. In the waits
// that are left, amid a hand-over, Ctrl-C alone is heard (interruption.h). A call that raises what
// a handler raised has recorded nothing, unless it waits for its own result: where memory is short,
// where shapes depend on data, or with DJINN_BLOCKING. A thread of the device's own hands the log
// over when nothing is recorded for a while (idle.h); it connects to nobody. The child of a fork
// has neither that thread nor the session.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "python/device/errors.h"
#include "python/device/generations.h"
#include "python/device/idle.h"
#include "python/device/log.h"
#include "python/device/recipe.h"
#include "python/device/recorder.h"
#include "python/device/room.h"
#include "python/device/session_life.h"
#include "python/device/storage.h"
#include "python/device/turn.h"
#include "python/device/uploads.h"

namespace djinn::device {

struct DeviceStats {
  LinkStats link;
  RecipeStats recipes;
  Recorder::Stats recorder;
  Uploads::Stats uploads;
  uint64_t capture_ns = 0;    // spent on recording, inference of shapes included
  uint64_t mixed = 0;         // operands that were on the CPU and crossed
  uint64_t shadow_reads = 0;  // values that were known here
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
  // The same, of a session that is made where there is none. Throws if djinnd cannot be reached,
  // and in the child of a fork.
  DeviceMemory memory_connected();
  // The most is what is held now.
  void reset_peak();
  // Elements of tensor, contiguous and in order; exactly its bytes.
  void read(const at::Tensor& tensor, std::span<std::byte> out);
  // What failed that was to make the tensor's value, or "" where its session has ended; nothing
  // where it has one. Waits, and raises no failure.
  std::optional<std::string> why_without_value(const at::Tensor& tensor);
  // The elements as a CPU tensor if they are known here, else undefined.
  at::Tensor known(const at::Tensor& tensor);
  // All bytes of destination's storage become a copy of these, which are a parameter's that is to
  // be shared (sealing.h) or not. False: something else must be kept of it, and nothing was done.
  bool replace(const at::Tensor& destination, std::span<const std::byte> bytes, bool is_parameter);
  // The storage becomes at least so large; what is new is zero.
  void grow(const StoragePtr& storage, uint64_t bytes);

  // f(link) with everything recorded handed over, unless that is held; without the GIL.
  template <typename F>
  auto with_link(const F& f) {
    Turn turn(mutex_);
    hand_over_unless_held(turn);
    return f(session_.link());
  }
  // The same, for what that session (Storages::session()) has made. Throws if it has ended.
  template <typename F>
  auto with_link_of(uint64_t session, const F& f) {
    Turn turn(mutex_);
    hand_over_unless_held(turn);
    return f(session_.link_of(session));
  }
  // The same, for an f that waits for runs: it is called once the generations under way have ended.
  template <typename F>
  auto with_settled_link_of(uint64_t session, const F& f) {
    Turn turn(mutex_);
    hand_over_unless_held(turn);
    generations_.wait(turn);
    return f(session_.link_of(session));
  }
  // Starts a generation, with start(link) that stages so many bytes, and waits for its end, as
  // Generations::follow() says.
  Followed follow(uint64_t session, uint64_t bytes, const Generations::Start& start,
                  const Generations::OnTokens& on_tokens);
  // The sequence group of that session is dropped: at once, or once a generation that is under way
  // has ended. Waits for no generation, and throws nothing.
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
    const Turn turn(mutex_);
    return f(log_);
  }
  // While held, nothing recorded is handed over: the thread that holds gets an error when it needs
  // a value, others wait. Holds of one thread nest.
  void hold();
  void release_hold();
  [[nodiscard]] bool is_connected() const { return session_.has_link(); }
  // Whether this is the child of a fork, whose session is its parent's.
  [[nodiscard]] bool is_forked() const { return session_.is_orphan(); }
  // 0 off, 1 each call, 2 what it gives too, 3 each run too: lines on stderr.
  void set_debug_level(int level) { debug_level_ = level; }
  DeviceStats stats();
  void count_mixed();
  // Those of djinnd's configuration; exact where there is no session.
  srg::Numerics numerics();
  // See SessionLife for these four.
  void set_service_class(const std::string& name);
  void state_call(size_t tier);
  void state_local_model();
  std::optional<ipc::SessionReport> report();
  // Ends the idle thread, as the process ends: what is recorded from now on is handed over when a
  // value is needed or the log is long.
  void stop_idle();

 private:
  Device();
  // What djinnd is to let go of once the runs are done that may use it.
  struct Leaving {
    std::variant<ModelId, SequenceHandle> what;
    client::Run through = 0;  // the last of them
  };

  void begin_fork();
  void end_fork();
  void begin_child();
  void forget_session();
  [[nodiscard]] bool is_crowded();
  [[nodiscard]] bool is_log_long();
  void await_release(Turn& turn);
  void hand_over(Turn& turn);
  void hand_over_unless_held(Turn& turn);
  void hand_over_settled(Turn& turn);
  void hand_over_now();
  void hand_over_idle();
  void hand_over_log();
  void run_segment(Segment segment);
  void release_garbage();
  void note_unused_models();
  void let_go();
  void complete(Turn& turn);
  void complete_runs(Turn& turn);
  void see_to_room(Turn& turn, const Entry& entry);
  [[nodiscard]] bool may_fail();
  void settle();
  void raise_failure();
  void complete_or_raise(Turn& turn);
  DeviceMemory memory_of(Turn& turn);
  void finish(Turn& turn, std::string_view what);
  Status read_soon(const Operand& view, std::span<std::byte> out, uint64_t log);
  bool is_blank_or_put(Storage& storage);
  void record(const c10::OperatorHandle& op, Stack& stack);
  void record(const c10::OperatorHandle& op, Stack& stack,
              const std::shared_ptr<const Recipe>& recipe, bool at_once);
  void call_on_trial(const c10::OperatorHandle& op, Stack& stack,
                     const std::exception_ptr& failure);
  void call_open(const c10::OperatorHandle& op, Stack& stack);

  TurnLock mutex_;
  std::atomic<int> debug_level_ = 0;
  Log log_;
  std::unique_ptr<IdleWatch> idle_;  // constant but in the child of a fork
  SessionLife session_;
  Generations generations_{session_};
  Recorder recorder_{log_, session_};
  Uploads uploads_{session_, debug_level_};
  std::deque<Leaving> leaving_;  // in order
  DeviceStats stats_;
  Room room_;
  std::optional<Error> owed_;   // a failure that is settled, and that nobody was told
  bool fork_has_lock_ = false;  // while a fork is under way
  int holds_ = 0;
  std::thread::id holder_;                // while holds_ > 0
  std::condition_variable_any released_;  // holds_ is 0 again
  const bool blocks_;                     // DJINN_BLOCKING: each operator is waited for
  std::atomic<uint64_t> capture_ns_ = 0;
};

}  // namespace djinn::device
