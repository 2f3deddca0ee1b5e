// SPDX-License-Identifier: Apache-2.0

#include "python/device/device.h"

#include <fmt/ranges.h>
#include <pthread.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/python_headers.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <limits>

#include "kernel/exec/convert.h"
#include "python/device/breaker.h"
#include "python/device/capture.h"
#include "python/device/shadow.h"

namespace djinn::device {
namespace {

// Long enough that a forward pass of a large model is one run, short enough that the daemon starts
// before a loop over many has ended.
constexpr size_t kLogMax = 4096;
// An upload so small is cheaper to send with each run than to keep as a ref.
constexpr size_t kStagedBytesMax = 64 * 1024;
// Runs that may be handed over beside those of the log: releases of refs.
constexpr size_t kRunsBeside = 8;

// What autograd does with the call: it computes gradients, or will.
void annotate(const std::vector<at::Tensor>& tensors, Entry& entry) {
  const auto wants_gradient = [](const at::Tensor& tensor) { return tensor.requires_grad(); };
  if (torch::autograd::get_current_graph_task_id() >= 0) {
    entry.phase = srg::Phase::kTraining;
    entry.residency = srg::Residency::kGradient;
  } else if (at::GradMode::is_enabled() && std::ranges::any_of(tensors, wants_gradient)) {
    entry.phase = srg::Phase::kTraining;
  }
}

at::Tensor make_tensor(const StoragePtr& storage, const Product& product) {
  return strided_tensor(c10::DispatchKey::PrivateUse1, as_torch(storage), product.type,
                        product.sizes, product.strides, product.offset);
}

// A view must carry its base's keys, or it becomes an inference tensor.
at::Tensor make_view(const at::Tensor& base, const Product& product) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(),
      c10::scalarTypeToTypeMeta(product.type));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(product.sizes, product.strides,
                                                      product.offset);
  return tensor;
}

// "aten::add.Tensor [2, 3] [3]", for debugging.
std::string describe(const c10::OperatorHandle& op, const Stack& stack) {
  std::string text = qualified(op.operator_name());
  for (const at::Tensor& tensor : tensors_of(stack)) {
    text += fmt::format(" {}[{}]", c10::toString(tensor.scalar_type()),
                        fmt::join(tensor.sizes(), ", "));
  }
  return text;
}

std::string describe_products(const Recipe* recipe) {
  if (recipe == nullptr) return "gives what djinnd will tell";
  std::string text = "gives";
  for (const Product& product : recipe->products) {
    text += fmt::format(" {}[{}]", c10::toString(product.type), fmt::join(product.sizes, ", "));
  }
  return text;
}

std::vector<at::Tensor> make_results(const Entry& entry, const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < entry.recipe->products.size(); ++i) {
    const Product& product = entry.recipe->products[i];
    switch (product.kind) {
      case Product::Kind::kFresh:
        results.push_back(make_tensor(entry.products[i], product));
        break;
      case Product::Kind::kArgument:
        results.push_back(tensors[product.argument]);
        break;
      case Product::Kind::kView:
        results.push_back(make_view(tensors[product.argument], product));
        break;
      case Product::Kind::kShared:
        results.push_back(make_view(results[product.argument], product));
        break;
      case Product::Kind::kUndefined:
        results.emplace_back();
        break;
    }
  }
  return results;
}

void put_results(const Recipe& recipe, std::vector<at::Tensor> results, Stack& stack) {
  stack.clear();
  if (recipe.list) {
    stack.emplace_back(c10::List<at::Tensor>(std::move(results)));
    return;
  }
  for (at::Tensor& result : results) stack.emplace_back(std::move(result));
}

void refuse_captured(const Storage& storage) {
  TORCH_CHECK_NOT_IMPLEMENTED(storage.location != Location::kInput &&
                                  storage.location != Location::kSequence && storage.log_uses == 0,
                              "The model's code looks at a value that depends on its inputs.");
}

at::Tensor adopt(Described described) {
  StoragePtr storage = storages().make(0);
  Product product;
  const auto type = exec::to_torch(static_cast<DType>(described.shape.dtype));
  TORCH_CHECK(type.has_value(), "djinnd described a result of no dtype.");
  product.type = *type;
  const auto rank = std::min<uint32_t>(described.shape.rank, limits::kRank);
  product.sizes.assign(described.shape.sizes.begin(), described.shape.sizes.begin() + rank);
  product.strides.assign(described.shape.strides.begin(), described.shape.strides.begin() + rank);
  product.offset = static_cast<int64_t>(described.shape.offset);
  int64_t last = product.offset + 1;
  for (uint32_t d = 0; d < rank; ++d) last += (product.sizes[d] - 1) * product.strides[d];
  storage->type = product.type;
  storage->bytes =
      static_cast<uint64_t>(std::max<int64_t>(last, 0)) * c10::elementSize(product.type);
  become_ref(*storage, std::move(described.ref).detach());
  return make_tensor(storage, product);
}

// A sleep without the lock may miss a wake-up that another thread took, which is rare; and whoever
// waits looks this often whether there was a signal. A person who presses Ctrl-C does not notice
// it.
constexpr std::chrono::milliseconds kSlice(50);

// What a wait for djinnd asks now and then: whether a signal's handler has raised something.
// kWithLock: it takes the GIL with the device's lock, which is sound because nobody waits for the
// lock with the GIL. The handler must not use the device, which its own thread has.
// kWithoutLock: it may be asked often.
class Interruption {
 public:
  enum class Place : uint8_t { kWithLock, kWithoutLock };
  explicit Interruption(Place place) : place_(place) {}
  bool operator()() {
    const auto now = std::chrono::steady_clock::now();
    if (place_ == Place::kWithoutLock && now < due_) return false;
    due_ = now + kSlice;
    if (!Py_IsInitialized() || PyGILState_GetThisThreadState() == nullptr) return false;
    const pid_t before = place_ == Place::kWithLock ? ::getpid() : 0;
    const PyGILState_STATE gil = PyGILState_Ensure();
    runs_handler_ = place_ == Place::kWithLock;
    const bool raised = PyErr_CheckSignals() != 0;
    runs_handler_ = false;
    if (raised) {
      python_error error;
      error.persist();
      raised_ = std::make_exception_ptr(std::move(error));
    }
    PyGILState_Release(gil);
    // A child's wait would take its parent's answer.
    return raised || (before != 0 && ::getpid() != before);
  }
  void raise_again() const {
    if (raised_) std::rethrow_exception(raised_);
  }
  // Whether this thread is inside of such a handler, and has the device's lock.
  [[nodiscard]] static bool runs_handler() { return runs_handler_; }

 private:
  Place place_;
  std::chrono::steady_clock::time_point due_ = std::chrono::steady_clock::now() + kSlice;
  std::exception_ptr raised_;
  static thread_local bool runs_handler_;
};
thread_local bool Interruption::runs_handler_ = false;

bool is_set(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && std::string_view(value) != "" && std::string_view(value) != "0";
}

// Of this thread: how many calls of on_tokens it is inside of, and whether it waited there.
struct Following {
  int depth = 0;
  bool waited = false;
};
thread_local Following following;

// Around a call of on_tokens.
class Inside {
 public:
  Inside() : outer_(std::exchange(following, {following.depth + 1, false})) {}
  ~Inside() { following = outer_; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  [[nodiscard]] static bool waited() { return following.waited; }

 private:
  const Following outer_;
};

uint64_t bytes_of(std::span<const StoragePtr> uploads) {
  uint64_t bytes = 0;
  for (const StoragePtr& storage : uploads) bytes += storage->host->size();
  return bytes;
}

}  // namespace

Device::Device()
    : idle_(std::make_unique<IdleWatch>(mutex_, [this] { hand_over_idle(); })),
      connection_(Link::connect_options()),
      blocks_(is_set("DJINN_BLOCKING")) {
  pthread_atfork([] { get().begin_fork(); }, [] { get().end_fork(); }, [] { get().begin_child(); });
}

Device& Device::get() {
  static auto* const device = new Device;
  return *device;
}

Device::Waiting::Waiting() {
  TORCH_CHECK(!Interruption::runs_handler(),
              "A signal handler cannot use the device while the call that it interrupts connects "
              "to djinnd.");
  if (Py_IsInitialized() && PyGILState_Check()) state_ = PyEval_SaveThread();
}
Device::Waiting::~Waiting() {
  if (state_ != nullptr) PyEval_RestoreThread(static_cast<PyThreadState*>(state_));
}

// Who forks has the GIL, which a thread may want that has the lock and waits for djinnd. So there
// is an end to waiting, and it is reached only where there is a session.
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

// Other threads were not copied, and what they have locked or were changing is of no use here. A
// handler's thread has the lock here too, and gives it back when its wait ends.
void Device::begin_child() {
  storages().unlock();
  const bool has_log = std::exchange(fork_has_lock_, false) || Interruption::runs_handler();
  if (!Interruption::runs_handler()) new (&mutex_) TurnLock;
  if (!has_log) new (&log_) Log;
  [[maybe_unused]] const auto* const of_parent = idle_.release();
  idle_ = std::make_unique<IdleWatch>(mutex_, [this] { hand_over_idle(); });
  is_orphan_ = is_orphan_ || link_ != nullptr;
}

Link& Device::link() {
  TORCH_CHECK(
      !is_orphan_,
      "This process was forked from one that uses djinnd, and has no session of its own. "
      "Start it with the method 'spawn', or fork before the first tensor is used. A dataset "
      "that DataLoader's workers read should give tensors of the CPU, which are moved where "
      "they are used; or use num_workers=0.");
  if (link_ == nullptr) {
    Interruption interruption(Interruption::Place::kWithLock);
    const auto client = connection_.open(std::ref(interruption));
    interruption.raise_again();
    link_ = std::make_unique<Link>(*take(client));
    link_->stats() = link_stats_;
    state();
  }
  return *link_;
}

// A session that has ended is let go of, with all that it held; whoever uses the device next
// connects anew, as client::Connection does that.
void Device::notice_end() {
  if (link_ == nullptr || is_orphan_) return;
  const Status alive = connection_.check();
  if (alive) return;
  why_ended_ = alive.error().message;
  link_stats_ = link_->stats();
  link_ = nullptr;
  leaving_.clear();
  sealed_ = {};
  storages().end_session();
  log_.drop_lost();
  ++moves_;
}

uint64_t Device::session() {
  const Turn turn(*this);
  notice_end();
  return storages().session();
}

void Device::refuse_ended(uint64_t session) const {
  if (session != storages().session()) raise({ErrorCode::kDisconnected, why_ended_});
}

void Device::refuse_lost(const Storage& storage) const {
  if (storage.location != Location::kLost) return;
  raise({ErrorCode::kDisconnected, "The value of this tensor is gone. " + why_ended_});
}

void Device::refuse_lost(const Entry& entry) const {
  for (const Operand& operand : entry.operands) refuse_lost(*operand.storage);
}

// --- recording

Entry Device::make_entry(std::shared_ptr<const Recipe> recipe,
                         const std::vector<at::Tensor>& tensors) {
  Entry entry;
  entry.operands.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) entry.operands.push_back(operand_of(tensor));
  refuse_lost(entry);
  annotate(tensors, entry);
  for (const Product& product : recipe->products) {
    entry.products.emplace_back();
    if (product.kind != Product::Kind::kFresh) continue;
    entry.products.back() = storages().make(product.bytes, product.type);
    entry.products.back()->location = Location::kLogged;
  }
  entry.recipe = std::move(recipe);
  return entry;
}

// Records that a new storage is a copy of a view.
StoragePtr Device::append_copy(const Operand& source) {
  const uint64_t bytes = dense_bytes(source.sizes, source.type);
  auto recipe = std::make_shared<Recipe>();
  recipe->op = "aten::clone";
  recipe->arguments.push_back({"", srg::ValueRef{0}});
  Product product;
  product.type = source.type;
  product.sizes = source.sizes;
  product.strides = source.strides;
  product.bytes = bytes;
  recipe->products.push_back(std::move(product));
  Entry entry;
  entry.recipe = std::move(recipe);
  entry.operands.push_back(source);
  entry.products.push_back(storages().make(bytes, source.type));
  entry.products[0]->location = Location::kLogged;
  log_.append(entry);
  return entry.products[0];
}

// A weight is sealed, and a file's tensor is the file's: who writes one gets a copy, and every view
// and tied name follows.
void Device::fork_written(Entry& entry) {
  for (const uint32_t i : entry.recipe->written) {
    const StoragePtr storage = entry.operands[i].storage;
    if (storage->location != Location::kWeight && storage->location != Location::kSource) continue;
    StoragePtr frozen = storages().make(storage->bytes, storage->type);
    frozen->location = storage->location;
    frozen->named = storage->named;
    frozen->held = false;
    log_.rename(storage, frozen);
    append_copy(whole(frozen));
    log_.rename_product(storage);
    storage->location = Location::kLogged;
    storage->named = nullptr;
    ++stats_.forks;
    ++moves_;
  }
}

// One run knows the weights of one model: those of others are copied to refs first.
void Device::one_model(Entry& entry) {
  const uint64_t model = model_of(entry);
  for (Operand& operand : entry.operands) {
    if (operand.storage->location != Location::kWeight || operand.storage->named->owner == model)
      continue;
    const StoragePtr copy = append_copy(whole(operand.storage));
    copy->held = false;
    operand.storage = copy;
  }
}

void Device::append(const c10::OperatorHandle& op, const Stack& stack, Entry& entry) {
  compute_shadows(op, stack, entry);
  ++stats_.recorded;
  if (Capture* const capture = Capture::active()) return capture->append(entry);
  fork_written(entry);
  one_model(entry);
  log_.append(entry);
  idle_->touch();
}

void Device::call(const c10::OperatorHandle& op, Stack& stack) {
  if (debug_level_ >= 1) fmt::print(stderr, "djinn: {}\n", describe(op, stack));
  const std::string what = blocks_ ? describe(op, stack) : std::string();
  const auto begin = std::chrono::steady_clock::now();
  record(op, stack);
  capture_ns_ += static_cast<uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count());
  if (!blocks_) return;
  Turn turn(*this);
  finish(turn, what);
}

void Device::record(const c10::OperatorHandle& op, Stack& stack) {
  const Found found = recipe_for(op, stack);
  if (debug_level_ >= 2) fmt::print(stderr, "djinn:   {}\n", describe_products(found.recipe.get()));
  if (found.failure) return call_on_trial(op, stack, found.failure);
  if (found.recipe == nullptr) return call_open(op, stack);
  record(op, stack, found.recipe, false);
}

// at_once: and hand it over.
void Device::record(const c10::OperatorHandle& op, Stack& stack,
                    const std::shared_ptr<const Recipe>& recipe, bool at_once) {
  const std::vector<at::Tensor> tensors = tensors_of(stack);
  std::vector<at::Tensor> results;
  {
    Turn turn(*this);
    Entry entry = make_entry(recipe, tensors);
    const at::AutoDispatchBelowADInplaceOrView below;
    append(op, stack, entry);
    results = make_results(entry, tensors);
    if (at_once || (log_.size() >= kLogMax && holds_ == 0)) hand_over(turn);
  }
  put_results(*recipe, std::move(results), stack);
}

// Inference failed so often that it may be at fault: djinnd knows.
void Device::call_on_trial(const c10::OperatorHandle& op, Stack& stack,
                           const std::exception_ptr& failure) {
  if (!open_ended(op, stack)->written.empty()) std::rethrow_exception(failure);
  try {
    call_open(op, stack);
  } catch (const c10::Error&) {
    std::rethrow_exception(failure);
  }
  breaker().trip(op);
}

// The shapes depend on data, or only the daemon knows them.
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
    Turn turn(*this);
    wait_for_generations(turn);
    Entry entry = make_entry(recipe, tensors);
    one_model(entry);
    for (const Operand& operand : entry.operands) {
      if (operand.storage->location == Location::kHost)
        put(*operand.storage, *operand.storage->host);
    }
    hand_over(turn);
    refuse_lost(entry);
    for (Described& described : take(link().run_open(open_segment(entry, results)))) {
      made.push_back(adopt(std::move(described)));
    }
    ++stats_.recorded;
  }
  put_results(*recipe, std::move(made), stack);
}

// --- handing over

void Device::flush() {
  Turn turn(*this);
  hand_over(turn);
}

void Device::synchronize() {
  Turn turn(*this);
  complete(turn);
}

// What generations use goes when they have ended, with what is handed over then.
void Device::give_back() {
  Turn turn(*this);
  notice_end();
  if (link_ == nullptr || is_orphan_ || holds_ > 0) return;
  wait_for_generations(turn);
  complete(turn);
}

// What was recorded is handed over, and all that was is done.
void Device::complete(Turn& turn) {
  hand_over(turn);
  wait_for_generations(turn);
  if (link_ != nullptr && !is_orphan_) link_->wait_for_all();
}

DeviceMemory Device::memory() {
  Turn turn(*this);
  notice_end();
  if (holds_ == 0 && link_ != nullptr && !is_orphan_) hand_over(turn);
  DeviceMemory memory;
  if (link_ != nullptr && !is_orphan_) memory.own = take(link_->client().own_memory());
  memory.held_bytes = Held::now() + memory.own.sequence_bytes;
  memory.most_bytes = std::max(Held::most(), memory.held_bytes);
  Held::note_most(memory.most_bytes);
  return memory;
}

void Device::reset_peak() {
  const uint64_t now = memory().held_bytes;
  Held::note_most(now);
}

const LinkStats& Device::link_stats() const {
  return link_ == nullptr ? link_stats_ : link_->stats();
}

// With DJINN_BLOCKING: what was called is done, or this raises why not.
void Device::finish(Turn& turn, std::string_view what) {
  if (!blocks_ || holds_ > 0 || is_orphan_ || Capture::active() != nullptr) return;
  const uint64_t before = link_stats().failures;
  complete(turn);
  if (link_stats().failures == before) return;
  const LinkStats& stats = link_stats();
  raise({lacked_memory(stats.last_code) ? stats.last_code : ErrorCode::kPoisoned,
         fmt::format("{} failed in djinnd: {}", what, stats.last_failure)});
}

void Device::hold() {
  const Turn turn(*this);
  released_.wait(mutex_, [&] { return holds_ == 0 || holder_ == std::this_thread::get_id(); });
  holder_ = std::this_thread::get_id();
  ++holds_;
}

void Device::release_hold() {
  const Turn turn(*this);
  DJINN_ASSERT(holds_ > 0);
  if (--holds_ > 0) return;
  released_.notify_all();
  if (!log_.empty()) idle_->touch();
}

void Device::hand_over(Turn& turn) {
  if (generates() && is_crowded()) wait_for_generations(turn);
  hand_over_now();
}

void Device::hand_over_now() {
  TORCH_CHECK(holds_ == 0 || holder_ != std::this_thread::get_id(),
              "A model is being loaded, and its weights are not in memory yet: no value of the "
              "device can be read before from_pretrained has returned.");
  released_.wait(mutex_, [&] { return holds_ == 0; });
  notice_end();
  release_garbage();
  if (!parameters_.empty()) seal_parameters();
  if (!log_.empty()) hand_over_log();
  note_unused_models();
  let_go();
}

void Device::note_unused_models() {
  for (const uint64_t model : storages().take_unused_models()) {
    leaving_.push_back({ModelId{model}, link().client().last_run()});
  }
}

// A generation is not waited for: what it may use, and what left after that, goes another time.
void Device::let_go() {
  while (!leaving_.empty() && !generates_through(leaving_.front().through)) {
    const Leaving one = leaving_.front();
    leaving_.pop_front();
    link().wait_through(one.through);
    if (const auto* model = std::get_if<ModelId>(&one.what)) take(link().close_model(*model));
    if (const auto* group = std::get_if<SequenceHandle>(&one.what)) {
      take(link().client().drop_sequence(*group));
    }
  }
}

void Device::drop_sequence(uint64_t session, SequenceHandle sequence) noexcept {
  try {
    const Turn turn(*this);
    notice_end();
    if (session != storages().session() || link_ == nullptr || is_orphan_) return;
    leaving_.push_back({sequence, link_->client().last_run()});
    let_go();
  } catch (const std::exception&) {  // the session is gone, and the group with it
    return;
  }
}

// One run knows the weights of one model, so what is moved beside another stays a ref.
void Device::seal_parameters() {
  const std::vector<StoragePtr> found = sealable(parameters_, log_);
  parameters_.clear();
  std::vector<StoragePtr> others = sealed_.match(found);
  size_t loaded = 0;
  if (!others.empty() && storages().leases() == 0) {
    loaded = open_sealed(sealed_.each_once(others));
    others = sealed_.match(others);
  }
  stats_.sealed += found.size() - others.size();
  stats_.shared += found.size() - others.size() - loaded;
}

// Gives how many of them djinnd did not have before. Where there is no room for them, they stay.
size_t Device::open_sealed(const std::vector<StoragePtr>& parameters) {
  const auto file = seal(parameters);
  if (!file) return 0;
  const int number = file->get();
  const auto opened = link().client().open_model({"uploaded", std::span(&number, 1)});
  if (!opened) {
    if (debug_level_ >= 3) fmt::print(stderr, "djinn: not shared: {}\n", opened.error().message);
    return 0;
  }
  link().stats().bytes_up += opened->bytes;
  sealed_.become_weights(parameters,
                         std::make_shared<const Lease>(opened->id.value, opened->bytes));
  return opened->was_resident ? 0 : parameters.size();
}

void Device::hand_over_unless_held(Turn& turn) {
  if (holds_ == 0) {
    hand_over(turn);
  } else {
    notice_end();
  }
}

// What fails is left in the log, and fails again for who needs a value.
void Device::hand_over_idle() {
  notice_end();
  if (link_ == nullptr || is_orphan_ || holds_ > 0 || log_.empty()) return;
  if (generates() && is_crowded()) return;  // whoever needs a value hands it over
  try {
    hand_over_now();
    ++stats_.idle_flushes;
  } catch (const std::exception& error) {
    if (debug_level_ >= 3) fmt::print(stderr, "djinn: nothing handed over: {}\n", error.what());
  }
}

void Device::stop_idle() {
  const Waiting waiting;
  idle_->stop();
}

void Device::hand_over_log() {
  ++stats_.flushes;
  std::vector<size_t> needed = log_.needed();
  put_uploads(log_, needed);
  if (!needed.empty()) link().begin_log();
  Segmenter segmenter(log_, std::move(needed));
  size_t segments = 0;
  try {
    for (; const auto segment = segmenter.next(); ++segments) run_segment(*segment);
  } catch (...) {
    log_.drop(segmenter.taken());  // what was handed over must not run twice
    throw;
  }
  log_.clear();
  if (segments > 1) release_garbage();  // what one left for the next
}

void Device::release_garbage() {
  const std::vector<RefHandle> garbage = storages().take_garbage();
  if (!garbage.empty()) take(link().release(garbage));
}

void Device::run_segment(const Segment& segment) {
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
  take(link().run(segment));
}

void Device::read(const at::Tensor& tensor, std::span<std::byte> out) {
  const Operand view = operand_of(tensor);
  Turn turn(*this);
  if (Capture::active() != nullptr) refuse_captured(*view.storage);
  hand_over(turn);
  wait_for_generations(turn);
  switch (view.storage->location) {
    case Location::kZero:
    case Location::kLogged:  // an empty one
      std::fill(out.begin(), out.end(), std::byte{0});
      return;
    case Location::kHost:
      put(*view.storage, *view.storage->host);
      break;
    case Location::kSource:
      raise({ErrorCode::kUnsupported,
             "The model is being loaded, and this value of its weights is not in memory yet. Read "
             "it after from_pretrained has returned."});
    case Location::kInput:
    case Location::kSequence:
      raise({ErrorCode::kUnsupported, "An input of a capture has no value."});
    case Location::kLost:
      refuse_lost(*view.storage);
      break;
    case Location::kWeight:
    case Location::kRef:
      break;
  }
  take(link().read(view, out));
}

at::Tensor Device::known(const at::Tensor& tensor) {
  const Operand view = operand_of(tensor);
  const Turn turn(*this);
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
  Turn turn(*this);
  const std::vector<size_t> needed = log.needed();
  const std::vector<StoragePtr> uploads = uploads_of(log, needed);
  make_way(turn, bytes_of(uploads), uploads.size());
  put_uploads(log, needed);
  Segment segment = whole_segment(log, needed, outputs, claims_layouts);
  for (const StoragePtr& input : segment.inputs) {
    if (input) input->is_bound = true;
  }
  return segment;
}

// Small uploads cross with the run that needs them, and stay here.
ipc::InputBinding Device::bind_input(uint32_t number, const StoragePtr& storage,
                                     std::vector<client::StagingLease>& staged) {
  refuse_lost(*storage);
  if (storage->location == Location::kRef) return {number, ipc::InputKind::kRef, {}, storage->ref};
  std::vector<std::byte> zeros;
  if (storage->location != Location::kHost) zeros.resize(storage->bytes);
  const std::vector<std::byte>& bytes =
      storage->location == Location::kHost ? *storage->host : zeros;
  if (bytes.size() <= kStagedBytesMax) {
    staged.push_back(take(link().stage(bytes)));
    return {number, ipc::InputKind::kStaging, staged.back().range(), {}};
  }
  put(*storage, bytes);
  return {number, ipc::InputKind::kRef, {}, storage->ref};
}

void Device::run_program(ProgramRun run) {
  Turn turn(*this);
  hand_over(turn);
  uint64_t bytes = 0;
  for (const auto& [number, storage] : run.inputs) bytes += storage->bytes;
  make_way(turn, bytes, run.inputs.size() + 1);
  refuse_ended(run.session);
  ipc::RunBlock block;
  block.sequence = run.sequence;
  block.symbols = std::move(run.symbols);
  block.padding = std::move(run.padding);
  block.inputs = std::move(run.bound);
  std::vector<client::StagingLease> staged;
  for (const auto& [number, storage] : run.inputs) {
    block.inputs.push_back(bind_input(number, storage, staged));
  }
  take(link().run_program(run.program, std::move(block), run.outputs, std::move(staged)));
  finish(turn, "The model's program");
}

// --- generations

Link& Device::link_of(uint64_t session) {
  refuse_ended(session);
  return link();
}

// Takes what has arrived, or sleeps until something may have: one thread for all. Others have the
// lock meanwhile, so the session may have ended.
void Device::take_arrivals(Turn& turn, uint64_t session) {
  client::Client& client = link_of(session).client();
  if (take(client.poll())) return arrived_.notify_all();
  if (one_sleeps_) {
    arrived_.wait_for(turn.lock(), kSlice);
    return;
  }
  auto bells = client.begin_sleep();
  if (!bells) return;
  one_sleeps_ = true;
  {
    const Turn::Pause pause(turn);
    client::Client::sleep(*bells, static_cast<int>(kSlice.count()));
  }
  one_sleeps_ = false;
  arrived_.notify_all();
  if (session != storages().session() || is_orphan_) return;
  // What was done before djinnd ended is there, and counts.
  if (!client.end_sleep(*bells) && !take(client.poll())) notice_end();
}

bool Device::generates() const {
  return generates_through(std::numeric_limits<client::Run>::max());
}

// Whether one is under way that began before that run, or is it.
bool Device::generates_through(client::Run run) const {
  return link_ != nullptr && std::ranges::any_of(generations_, [&](const auto& one) {
           const auto& [session, generation] = one;
           return session == storages().session() && generation <= run &&
                  !link_->client().is_complete(generation);
         });
}

// Runs complete in order: what is handed over now ends behind a generation that is under way.
void Device::wait_for_generations(Turn& turn) {
  if (!generates()) return;
  if (following.depth > 0) following.waited = true;
  const uint64_t session = storages().session();
  const auto settled = [this](size_t* waiting) {
    --*waiting;
    arrived_.notify_all();
  };
  ++settling_;
  const std::unique_ptr<size_t, decltype(settled)> settling(&settling_, settled);
  Interruption interruption(Interruption::Place::kWithoutLock);
  while (generates() && session == storages().session()) {
    take_arrivals(turn, session);
    const Turn::Pause pause(turn);
    if (interruption()) interruption.raise_again();
  }
}

// Whoever waits for generations is not passed by another one. The child of a fork has none of those
// threads.
void Device::wait_for_settling(Turn& turn) {
  Interruption interruption(Interruption::Place::kWithoutLock);
  while (settling_ > 0 && !is_orphan_) {
    arrived_.wait_for(turn.lock(), kSlice);
    const Turn::Pause pause(turn);
    if (interruption()) interruption.raise_again();
  }
}

// What needs so much of the ring and of staging is about to be handed over: with the lock nobody
// waits for room that a generation keeps.
void Device::make_way(Turn& turn, uint64_t bytes, size_t runs) {
  if (generates() && !link_->client().has_room(bytes, runs)) wait_for_generations(turn);
}

// Whether handing over what was recorded might wait for room. A run takes one entry at least.
bool Device::is_crowded() {
  const std::vector<size_t> needed = log_.needed();
  const std::vector<StoragePtr> uploads = uploads_of(log_, needed);
  return !link_->client().has_room(bytes_of(uploads), uploads.size() + needed.size() + kRunsBeside);
}

Followed Device::follow(uint64_t session, uint64_t bytes,
                        const std::function<Result<client::Run>(Link&)>& start,
                        const OnTokens& on_tokens) {
  Turn turn(*this);
  if (following.depth > 0 && generates()) following.waited = true;
  wait_for_settling(turn);
  hand_over_unless_held(turn);
  make_way(turn, bytes, 1);
  const std::pair own(session, take(start(link_of(session))));
  const client::Run run = own.second;
  const auto forget = [this](const auto* one) { generations_.erase(*one); };
  const std::unique_ptr<const std::pair<uint64_t, client::Run>, decltype(forget)> known(&own,
                                                                                        forget);
  generations_.insert(own);
  Interruption interruption(Interruption::Place::kWithoutLock);
  Followed followed;
  bool goes_on = true;
  bool cancelled = false;
  for (;;) {
    if (session != storages().session()) interruption.raise_again();  // before what ended it
    client::Client& client = link_of(session).client();
    const std::vector<client::TokenEvent> tokens = client.take_tokens(run);
    if (tokens.empty() && client.is_complete(run)) break;
    if (goes_on) {
      const Turn::Pause pause(turn);
      const Inside inside;
      goes_on = (tokens.empty() || on_tokens(tokens)) && !interruption();
      followed.waited = followed.waited || Inside::waited();
    } else if (!cancelled && client.is_oldest(run)) {  // others' runs are not given up with it
      client.cancel_through(run);
      cancelled = true;
    }
    if (tokens.empty()) take_arrivals(turn, session);
  }
  followed.outcome = take(link_->client().wait(run));
  interruption.raise_again();
  return followed;
}

void Device::put_uploads(const Log& log, std::span<const size_t> needed) {
  for (const StoragePtr& storage : uploads_of(log, needed)) put(*storage, *storage->host);
}

// The bytes, which may be the storage's own, become a ref, and the storage with them.
void Device::put(Storage& storage, std::span<const std::byte> bytes) {
  become_ref(storage, take(link().put(bytes)));
  storage.host = nullptr;
}

bool Device::replace(const at::Tensor& destination, std::span<const std::byte> bytes,
                     bool is_parameter) {
  const StoragePtr storage = storage_of(destination);
  if (destination.storage_offset() != 0 || bytes.size() != storage->bytes ||
      !destination.is_contiguous()) {
    return false;
  }
  auto host = std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end());
  Turn turn(*this);
  make_way(turn, 0, 1);
  if (storage->log_uses != 0) return false;
  if (storage->location == Location::kWeight || storage->is_bound) ++moves_;
  storage->is_bound = false;
  if (storage->location == Location::kRef) take(link().release(std::span(&storage->ref, 1)));
  storage->location = Location::kHost;
  storage->held_bytes.become(0);
  storage->named = nullptr;
  storage->type = destination.scalar_type();
  storage->shadow =
      may_have_shadow(storage->type, storage->bytes) ? make_shadow(bytes) : c10::Storage();
  storage->host = std::move(host);
  storage->is_parameter = is_parameter;
  if (is_parameter) parameters_.push_back(storage);
  return true;
}

StoragePtr Device::upload(std::span<const std::byte> bytes, at::ScalarType type) {
  StoragePtr storage = storages().make(bytes.size(), type);
  if (bytes.empty()) return storage;
  storage->location = Location::kHost;
  storage->host = std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end());
  if (may_have_shadow(type, bytes.size())) storage->shadow = make_shadow(bytes);
  return storage;
}

void Device::grow(const StoragePtr& storage, uint64_t bytes) {
  Turn turn(*this);
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
  const Turn turn(*this);
  ++stats_.mixed;
}

void Device::state_call(size_t tier) {
  const Turn turn(*this);
  ++stated_.calls.at(tier);
  state();
}

void Device::state_local_model() {
  const Turn turn(*this);
  ++stated_.local_models;
  state();
}

void Device::state() {
  if (link_ != nullptr && !is_orphan_) link_->client().state(stated_);
}

std::optional<ipc::SessionReport> Device::report() {
  const Turn turn(*this);
  notice_end();
  if (link_ == nullptr || is_orphan_) return std::nullopt;
  const SessionId own = link_->client().welcome().session;
  for (ipc::SessionReport& one : take(link_->client().sessions())) {
    if (one.session == own) return std::move(one);
  }
  return std::nullopt;
}

DeviceStats Device::stats() {
  const Turn turn(*this);
  DeviceStats stats = stats_;
  stats.link = link_stats();
  stats.recipes = recipe_stats();
  stats.capture_ns = capture_ns_;
  stats.tripped = breaker().tripped();
  return stats;
}

}  // namespace djinn::device
