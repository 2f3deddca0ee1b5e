// SPDX-License-Identifier: Apache-2.0

#include "python/device/device.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>

#include "python/device/breaker.h"
#include "python/device/capture.h"
#include "python/device/interruption.h"
#include "python/device/results.h"
#include "python/device/shadow.h"

namespace djinn::device {
namespace {

// The log is long enough that a forward pass of a large model is one run, and short enough that
// djinnd starts before a loop over many passes has ended.
constexpr size_t kLogMax = 4096;
// A backward pass that finds no room goes on to record up to this many.
constexpr size_t kBackwardMax = 8 * kLogMax;
// This many runs may be handed over beside those of the log: releases of refs.
constexpr size_t kRunsBeside = 8;
// A log is handed over when so much is free for it: more than most take.
constexpr size_t kRunsUsual = limits::kSubmissionSlots / 2;
constexpr uint64_t kUploadUsual = uint64_t{4} << 20;
// A smaller value is asked for at once, and comes with its run's end: the wait for a larger one
// begins when all before it is done.
constexpr uint64_t kReadAtOnceMax = uint64_t{8} << 20;

bool has_room(Link& link) {
  return link.client().has_room(kUploadUsual, kRunsUsual) || link.is_idle();
}

void refuse_captured(const Storage& storage) {
  TORCH_CHECK_NOT_IMPLEMENTED(storage.location != Location::kInput &&
                                  storage.location != Location::kSequence && storage.log_uses == 0,
                              "The model's code looks at a value that depends on its inputs.");
}

// Makes the error with which the first reader is told of a failure. `who` says what failed.
Error told(std::string_view who, const Error& failure) {
  const bool is_given_up =
      failure.code == ErrorCode::kWorkerLost || failure.code == ErrorCode::kCancelled;
  const std::string_view stays =
      is_given_up ? "What it was to write in place is as it was before."
                  : "What was called before it has happened, what was called after it has not.";
  const std::string_view end = failure.message.ends_with('.') ? " " : ". ";
  return {lacked_memory(failure.code) ? failure.code : ErrorCode::kPoisoned,
          fmt::format("{} failed in djinnd: {}{}{}", who, failure.message, end, stays)};
}

void clear(std::span<std::byte> bytes) {
  std::ranges::fill(bytes, std::byte{0});
}

bool is_set(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && std::string_view(value) != "" && std::string_view(value) != "0";
}

}  // namespace

Device::Device()
    : idle_(std::make_unique<IdleWatch>(mutex_, [this] { hand_over_idle(); })),
      session_([this] { forget_session(); }),
      blocks_(is_set("DJINN_BLOCKING")) {
  pthread_atfork([] { get().begin_fork(); }, [] { get().end_fork(); }, [] { get().begin_child(); });
}

Device& Device::get() {
  static auto* const device = new Device;
  return *device;
}

// The thread that forks has the GIL. Another one may have the lock, and need the GIL to look for
// signals while it waits for djinnd. So this waits for the lock for a limited time.
void Device::begin_fork() {
  const int most = Interruption::runs_handler() ? 0 : 100;
  for (int tries = 0; tries < most && !fork_has_lock_; ++tries) {
    fork_has_lock_ = mutex_.try_lock();
    if (!fork_has_lock_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  storages().lock();
}

void Device::end_fork() {
  storages().unlock();
  if (std::exchange(fork_has_lock_, false)) mutex_.unlock();
}

// Other threads were not copied, so what they had locked or were changing is of no use here. If a
// handler forked, this thread has the lock, and gives it back when its wait ends.
void Device::begin_child() {
  Interruption::note_fork();
  storages().unlock();
  const bool has_log = std::exchange(fork_has_lock_, false) || Interruption::runs_handler();
  if (!Interruption::runs_handler()) new (&mutex_) TurnLock;
  if (!has_log) new (&log_) Log;
  [[maybe_unused]] const auto* const of_parent = idle_.release();
  idle_ = std::make_unique<IdleWatch>(mutex_, [this] { hand_over_idle(); });
  session_.become_orphan();
}

// What the session held is lost, and nothing that needs it can be handed over any more.
void Device::forget_session() {
  owed_.reset();
  leaving_.clear();
  uploads_.forget_weights();
  storages().end_session();
  log_.drop_lost();
}

uint64_t Device::session() {
  const Turn turn(mutex_);
  session_.notice_end();
  return storages().session();
}

// --- calls

void Device::call(const c10::OperatorHandle& op, Stack& stack) {
  if (debug_level_ >= 1) fmt::print(stderr, "djinn: {}\n", describe(op, stack));
  const std::string what = blocks_ ? describe(op, stack) : std::string();
  const auto begin = std::chrono::steady_clock::now();
  record(op, stack);
  capture_ns_ += static_cast<uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count());
  if (!blocks_) return;
  Turn turn(mutex_);
  finish(turn, what);
}

void Device::record(const c10::OperatorHandle& op, Stack& stack) {
  const Found found = recipe_for(op, stack);
  if (debug_level_ >= 2) fmt::print(stderr, "djinn:   {}\n", describe_products(found.recipe.get()));
  if (found.failure) return call_on_trial(op, stack, found.failure);
  if (found.recipe == nullptr) return call_open(op, stack);
  record(op, stack, found.recipe, false);
}

// If at_once, the entry is also handed over.
void Device::record(const c10::OperatorHandle& op, Stack& stack,
                    const std::shared_ptr<const Recipe>& recipe, bool at_once) {
  const std::vector<at::Tensor> tensors = tensors_of(stack);
  std::vector<at::Tensor> results;
  {
    Turn turn(mutex_);
    if (is_log_long()) hand_over(turn);
    Entry entry = recorder_.make_entry(recipe, tensors);
    const at::AutoDispatchBelowADInplaceOrView below;
    const bool is_logged = recorder_.append(op, stack, entry);
    if (is_logged) idle_->touch();
    results = make_results(entry, tensors);
    if (at_once) hand_over(turn);
    if (is_logged) see_to_room(turn, entry);
  }
  put_results(*recipe, std::move(results), stack);
}

// Tells whether the log is to be handed over before it grows. The program waits for a thread of
// autograd's inside of PyTorch, where no signal is heard; so such a thread waits for no room.
bool Device::is_log_long() {
  if (log_.size() < kLogMax || holds_ > 0) return false;
  Link* const link = session_.live();
  const bool would_wait = link != nullptr && !has_room(*link);
  return !would_wait || !Recorder::is_amid_backward() || log_.size() >= kBackwardMax;
}

// An operator that may find no memory is waited for, so that its error is raised here and not
// later.
void Device::see_to_room(Turn& turn, const Entry& entry) {
  if (!room_.may_be_short(entry)) return;
  if (holds_ > 0 || session_.is_orphan() || generations_.any() || !room_.is_short(log_)) return;
  // The kernel may need as much memory again as its result.
  room_.note_free(take(session_.link().client().own_memory()).free_bytes / 2);
  if (!room_.is_short(log_)) return;
  complete_or_raise(turn);
  room_.note_free(0);
}

// Inference failed so often that the fault may lie with inference itself, so djinnd is asked.
void Device::call_on_trial(const c10::OperatorHandle& op, Stack& stack,
                           const std::exception_ptr& failure) {
  if (!open_ended(op, stack)->written.empty()) std::rethrow_exception(failure);
  synchronize();  // what was called before may have failed
  try {
    call_open(op, stack);
  } catch (const c10::Error&) {
    std::rethrow_exception(failure);
  }
  breaker().trip(op);
}

// The shapes depend on data, or only djinnd knows them.
void Device::call_open(const c10::OperatorHandle& op, Stack& stack) {
  TORCH_CHECK_NOT_IMPLEMENTED(Capture::active() == nullptr, "The shapes that ",
                              op.operator_name().name, " gives depend on data.");
  const auto recipe = open_ended(op, stack);
  if (!recipe->products.empty()) return record(op, stack, recipe, true);
  TORCH_CHECK_NOT_IMPLEMENTED(recipe->written.empty(), recipe->op,
                              " writes an argument, and nothing "
                              "tells the shape of its result without running it. Call the "
                              "operator that returns a new tensor.");
  const std::vector<at::Tensor> tensors = tensors_of(stack);
  const size_t results = op.schema().returns().size();
  std::vector<at::Tensor> made;
  {
    Turn turn(mutex_);
    complete_or_raise(turn);
    hand_over_settled(turn);
    Entry entry = recorder_.make_entry(recipe, tensors);
    recorder_.keep_to_one_model(entry);
    hand_over_now();  // copies that it keeps to
    for (const Operand& operand : entry.operands) {
      if (operand.storage->location == Location::kHost) uploads_.put(*operand.storage);
    }
    auto described = session_.link().run_open(open_segment(entry, results));
    if (!described) raise_failure();
    for (Described& one : take(std::move(described))) made.push_back(adopt(std::move(one)));
    recorder_.count_run();
  }
  put_results(*recipe, std::move(made), stack);
}

// --- handing over

void Device::flush() {
  Turn turn(mutex_);
  hand_over(turn);
}

void Device::synchronize() {
  Turn turn(mutex_);
  complete_or_raise(turn);
}

// Refs that generations use are released after these have ended, with what is handed over then.
void Device::give_back() {
  Turn turn(mutex_);
  session_.notice_end();
  if (session_.live() == nullptr || holds_ > 0) return;
  generations_.wait(turn);
  complete(turn);
}

// Hands over what was recorded, and waits until all that was handed over is done.
void Device::complete(Turn& turn) {
  hand_over(turn);
  generations_.wait(turn);
  complete_runs(turn);
}

void Device::complete_runs(Turn& turn) {
  if (session_.live() == nullptr) return;
  const client::Run last = session_.client().last_run();
  generations_.wait_until(turn, [last](Link& link) { return link.is_done_through(last); });
}

// Storages that were to be written and were not are as before; those of a failed operator are lost.
void Device::settle() {
  Link* const link = session_.live();
  if (link == nullptr || !link->has_failure()) return;
  take(link->wait_for_all());
  const Error failure = link->settle_failure();
  if (lacked_memory(failure.code)) room_.forget();
  if (!owed_) owed_ = failure;
  log_.drop_lost();
}

// Raises, once, the failure of an operator that was called before. What is handed over afterwards
// runs again.
void Device::raise_failure() {
  settle();
  if (owed_) raise(told("An earlier operator", *std::exchange(owed_, std::nullopt)));
}

void Device::complete_or_raise(Turn& turn) {
  complete(turn);
  raise_failure();
}

DeviceMemory Device::memory() {
  Turn turn(mutex_);
  session_.notice_end();
  return memory_of(turn);
}

DeviceMemory Device::memory_connected() {
  Turn turn(mutex_);
  session_.notice_end();
  session_.link_at_once();
  return memory_of(turn);
}

DeviceMemory Device::memory_of(Turn& turn) {
  if (holds_ == 0 && session_.live() != nullptr) hand_over(turn);
  const bool settles = !generations_.any();
  if (settles) {  // what was refused is not held
    complete_runs(turn);
    settle();
  }
  DeviceMemory memory;
  if (Link* const link = session_.live()) memory.own = take(link->client().own_memory());
  memory.held_bytes = Held::now() + memory.own.sequence_bytes;
  if (settles) Held::note(memory.held_bytes);
  memory.most_bytes = Held::most();
  return memory;
}

void Device::reset_peak() {
  const uint64_t now = memory().held_bytes;
  Held::reset_most(now);
}

// With DJINN_BLOCKING, waits until the call is done, or raises why it is not.
void Device::finish(Turn& turn, std::string_view what) {
  if (!blocks_ || holds_ > 0 || session_.is_orphan() || Capture::active() != nullptr) return;
  complete(turn);
  settle();
  if (owed_) raise(told(what, *std::exchange(owed_, std::nullopt)));
}

void Device::await_release(Turn& turn) {
  Interruption interruption(Interruption::Place::kWithoutLock);
  while (holds_ > 0 && holder_ != std::this_thread::get_id()) {
    released_.wait_for(turn.lock(), kSlice);
    const Turn::Pause pause(turn);
    if (interruption()) interruption.raise_again();
  }
}

void Device::hold() {
  Turn turn(mutex_);
  await_release(turn);
  holder_ = std::this_thread::get_id();
  ++holds_;
}

void Device::release_hold() {
  const Interruption::Deferred whole;
  const Turn turn(mutex_);
  DJINN_ASSERT(holds_ > 0);
  if (--holds_ > 0) return;
  released_.notify_all();
  if (!log_.empty()) idle_->touch();
}

void Device::hand_over(Turn& turn) {
  if (generations_.any() && is_crowded()) generations_.wait(turn);
  generations_.wait_until(turn, &has_room);
  await_release(turn);
  hand_over_now();
}

// Nobody else uses the device from the end of its last wait on: what the device holds now stays
// until this thread's next wait without the lock, and no generation is in a read's way.
void Device::hand_over_settled(Turn& turn) {
  hand_over(turn);
  while (generations_.any()) {
    generations_.wait(turn);
    hand_over(turn);
  }
}

void Device::hand_over_now() {
  TORCH_CHECK(holds_ == 0 || holder_ != std::this_thread::get_id(),
              "A model is being loaded, and its weights are not in memory yet: no value of the "
              "device can be read before from_pretrained has returned.");
  session_.notice_end();
  release_garbage();
  uploads_.seal_parameters(log_);
  if (!log_.empty()) hand_over_log();
  note_unused_models();
  let_go();
}

void Device::note_unused_models() {
  for (const uint64_t model : storages().take_unused_models()) {
    leaving_.push_back({ModelId{model}, session_.link().client().last_run()});
  }
}

// A generation is not waited for. What it may use, and what left after that, is let go another
// time.
void Device::let_go() {
  while (!leaving_.empty() && !generations_.any_through(leaving_.front().through)) {
    const Leaving one = leaving_.front();
    take(session_.link().wait_through(one.through));
    leaving_.pop_front();
    if (const auto* model = std::get_if<ModelId>(&one.what))
      take(session_.link().close_model(*model));
    if (const auto* group = std::get_if<SequenceHandle>(&one.what)) {
      take(session_.link().client().drop_sequence(*group));
    }
  }
}

void Device::drop_sequence(uint64_t session, SequenceHandle sequence) noexcept {
  try {
    const Interruption::Deferred whole;
    const Turn turn(mutex_);
    session_.notice_end();
    Link* const link = session_.live();
    if (session != storages().session() || link == nullptr) return;
    leaving_.push_back({sequence, link->client().last_run()});
    let_go();
  } catch (const std::exception&) {  // the session is gone, and the group with it
    return;
  }
}

void Device::hand_over_unless_held(Turn& turn) {
  if (holds_ == 0) {
    hand_over(turn);
  } else {
    session_.notice_end();
  }
}

// An entry that fails is left in the log, and fails again for whoever needs a value. Others need
// the lock, so room is not waited for.
void Device::hand_over_idle() {
  session_.notice_end();
  if (session_.live() == nullptr || holds_ > 0 || log_.empty()) return;
  if (generations_.any() && is_crowded()) return;  // whoever needs a value hands it over
  if (!has_room(*session_.live())) return idle_->touch();
  try {
    hand_over_now();
    ++stats_.idle_flushes;
  } catch (const std::exception& error) {
    if (debug_level_ >= 3) fmt::print(stderr, "djinn: nothing handed over: {}\n", error.what());
  }
}

void Device::stop_idle() {
  const WithoutGil without_gil;
  idle_->stop();
}

void Device::hand_over_log() {
  ++stats_.flushes;
  std::vector<size_t> needed = log_.needed();
  uploads_.put_all(log_, needed);
  if (!needed.empty()) session_.link().begin_log();
  Segmenter segmenter(log_, std::move(needed));
  size_t segments = 0;
  try {
    for (; auto segment = segmenter.next(); ++segments) run_segment(*std::move(segment));
  } catch (...) {
    log_.drop(segmenter.taken());  // what was handed over must not run twice
    throw;
  }
  log_.clear();
  room_.note_hand_over();
  if (segments > 1) release_garbage();  // what one left for the next
}

// What is not released stays garbage.
void Device::release_garbage() {
  const std::vector<RefHandle> garbage = storages().take_garbage();
  std::span<const RefHandle> left = garbage;
  Status released;
  while (released && !left.empty()) {
    const auto batch = left.first(std::min(left.size(), client::kReleaseBatch));
    released = session_.link().release(batch);
    if (released) left = left.subspan(batch.size());
  }
  for (const RefHandle ref : left) storages().discard(ref);
  take(std::move(released));
}

void Device::run_segment(Segment segment) {
  if (debug_level_ >= 3) {
    const auto& nodes = segment.graph.nodes;
    const auto is_training = [](const srg::Node& node) {
      return node.annotation.phase == srg::Phase::kTraining;
    };
    const auto is_gradient = [](const srg::Node& node) {
      return node.annotation.residency == srg::Residency::kGradient;
    };
    fmt::print(stderr,
               "djinn: a run of {} operators, {} of training, {} for gradients, on {} storages, "
               "leaving {}\n",
               segment.operators, std::ranges::count_if(nodes, is_training),
               std::ranges::count_if(nodes, is_gradient), segment.inputs.size(),
               segment.outputs.size());
  }
  take(session_.link().run(std::move(segment)));
}

void Device::read(const at::Tensor& tensor, std::span<std::byte> out) {
  const Operand view = operand_of(tensor);
  Turn turn(mutex_);
  if (Capture::active() != nullptr) refuse_captured(*view.storage);
  hand_over_settled(turn);
  if (is_blank_or_put(*view.storage)) return clear(out);
  const uint64_t log = session_.link().begin_log();
  Status done = read_soon(view, out, log);
  if (!done && done.error().code == ErrorCode::kCancelled) {
    CtrlC::raise_again();
    complete_runs(turn);
    hand_over_settled(turn);
    if (is_blank_or_put(*view.storage)) return clear(out);
    done = session_.link().read(view, out, log);
  }
  raise_failure();
  take(std::move(done));
}

// A value that does not come soon is asked for anew when all before it is done, which is waited for
// without the lock. Errors: kCancelled, also for one that is too large to be asked for before that.
Status Device::read_soon(const Operand& view, std::span<std::byte> out, uint64_t log) {
  if (out.size() > kReadAtOnceMax) return Error{ErrorCode::kCancelled, "The value is large."};
  const CtrlC::Hurry hurry;
  return session_.link().read(view, out, log);
}

// Tells whether every byte is zero; else the value is in djinnd afterwards. Throws where it is
// nowhere.
bool Device::is_blank_or_put(Storage& storage) {
  switch (storage.location) {
    case Location::kZero:
    case Location::kLogged:  // an empty one
      return true;
    case Location::kHost:
      uploads_.put(storage);
      break;
    case Location::kSource:
      raise({ErrorCode::kUnsupported,
             "The model is being loaded, and this value of its weights is not in memory yet. Read "
             "it after from_pretrained has returned."});
    case Location::kInput:
    case Location::kSequence:
      raise({ErrorCode::kUnsupported, "An input of a capture has no value."});
    case Location::kLost:
      session_.refuse_lost(storage);
      break;
    case Location::kWeight:
    case Location::kRef:
      break;
  }
  return false;
}

std::optional<std::string> Device::why_without_value(const at::Tensor& tensor) {
  const StoragePtr storage = storage_of(tensor);
  Turn turn(mutex_);
  session_.notice_end();
  if (storage->location != Location::kLost && !session_.is_orphan()) session_.link_at_once();
  if (holds_ == 0 && !session_.is_orphan() && Capture::active() == nullptr) {
    complete(turn);
    settle();
  }
  if (storage->location != Location::kLost) return std::nullopt;
  return storage->failure ? storage->failure->message : "";
}

at::Tensor Device::known(const at::Tensor& tensor) {
  const Operand view = operand_of(tensor);
  const Turn turn(mutex_);
  if (!view.storage->shadow) return {};
  ++stats_.shadow_reads;
  at::Tensor elements = shadow_view(view).clone(at::MemoryFormat::Contiguous);
  Capture* const capture = Capture::active();
  if (capture != nullptr && view.storage->taint != 0) {
    capture->guards |= view.storage->taint;
    capture->looks.look(view, elements);
  }
  return elements;
}

Segment Device::settle(const Log& log, std::span<const Operand> outputs, bool claims_layouts) {
  Turn turn(mutex_);
  const std::vector<size_t> needed = log.needed();
  const std::vector<StoragePtr> uploads = uploads_of(log, needed);
  generations_.make_way(turn, bytes_of(uploads), uploads.size());
  uploads_.put_all(log, needed);
  Segment segment = whole_segment(log, needed, outputs, claims_layouts);
  for (const StoragePtr& input : segment.inputs) {
    if (input) input->is_bound = true;
  }
  return segment;
}

void Device::run_program(ProgramRun run) {
  Turn turn(mutex_);
  uint64_t bytes = 0;
  for (const auto& [number, storage] : run.inputs) bytes += storage->bytes;
  do {  // another thread may record something for the inputs while this one waits for room
    hand_over(turn);
  } while (generations_.make_way(turn, bytes, run.inputs.size() + 1));
  session_.refuse_ended(run.session);
  ipc::RunBlock block;
  block.sequence = run.sequence;
  block.symbols = std::move(run.symbols);
  block.padding = std::move(run.padding);
  block.inputs = std::move(run.bound);
  std::vector<client::StagingLease> staged;
  for (const auto& [number, storage] : run.inputs) {
    block.inputs.push_back(uploads_.bind(number, storage, staged));
  }
  take(session_.link().run_program(run.program, std::move(block), run.outputs, std::move(staged)));
  finish(turn, "The model's program");
}

// Tells whether handing over what was recorded might wait for room. A run takes one entry at least.
bool Device::is_crowded() {
  const std::vector<size_t> needed = log_.needed();
  const std::vector<StoragePtr> uploads = uploads_of(log_, needed);
  return !session_.client().has_room(bytes_of(uploads),
                                     uploads.size() + needed.size() + kRunsBeside);
}

Followed Device::follow(uint64_t session, uint64_t bytes, const Generations::Start& start,
                        const Generations::OnTokens& on_tokens) {
  Turn turn(mutex_);
  generations_.queue_up(turn);
  hand_over_unless_held(turn);
  if (Link* const link = session_.live(); link != nullptr && !generations_.any()) {
    complete_runs(turn);  // it would go on from what an operator that failed has left
    raise_failure();
  }
  generations_.make_way(turn, bytes, 1);
  return generations_.follow(turn, session, start, on_tokens);
}

// Tells whether an operator that was called before may fail. What it leaves unchanged must be there
// then.
bool Device::may_fail() {
  Link* const link = session_.live();
  return !log_.empty() || (link != nullptr && !link->is_idle());
}

bool Device::replace(const at::Tensor& destination, std::span<const std::byte> bytes,
                     bool is_parameter) {
  const StoragePtr storage = storage_of(destination);
  if (destination.storage_offset() != 0 || bytes.size() != storage->bytes ||
      !destination.is_contiguous()) {
    return false;
  }
  HostBytes host = copy_of(bytes);
  Turn turn(mutex_);
  generations_.make_way(turn, 0, 1);
  if (may_fail() && storage->location != Location::kZero) return false;
  return uploads_.replace(storage, destination.scalar_type(), std::move(host), is_parameter);
}

void Device::grow(const StoragePtr& storage, uint64_t bytes) {
  Turn turn(mutex_);
  if (bytes <= storage->bytes) return;
  hand_over(turn);
  TORCH_CHECK_NOT_IMPLEMENTED(
      storage->location == Location::kZero || storage->bytes == 0,
      "Growing a tensor of the device in place (resize_) would move what it holds. Make a larger "
      "one, and copy into it.");
  storage->location = Location::kZero;
  storage->bytes = bytes;
  storage->shadow = {};
}

void Device::count_mixed() {
  const Turn turn(mutex_);
  ++stats_.mixed;
}

srg::Numerics Device::numerics() {
  const Turn turn(mutex_);
  Link* const link = session_.live();
  return link == nullptr ? srg::Numerics::kExact : link->client().welcome().numerics;
}

void Device::set_service_class(const std::string& name) {
  const Turn turn(mutex_);
  session_.set_service_class(name);
}

void Device::state_call(size_t tier) {
  const Turn turn(mutex_);
  session_.state_call(tier);
}

void Device::state_local_model() {
  const Turn turn(mutex_);
  session_.state_local_model();
}

std::optional<ipc::SessionReport> Device::report() {
  const Turn turn(mutex_);
  session_.notice_end();
  return session_.report();
}

DeviceStats Device::stats() {
  const Turn turn(mutex_);
  DeviceStats stats = stats_;
  stats.link = session_.stats();
  stats.recipes = recipe_stats();
  stats.recorder = recorder_.stats();
  stats.uploads = uploads_.stats();
  stats.capture_ns = capture_ns_;
  stats.tripped = breaker().tripped();
  return stats;
}

}  // namespace djinn::device
