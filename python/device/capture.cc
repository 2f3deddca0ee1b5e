// SPDX-License-Identifier: Apache-2.0

#include "python/device/capture.h"

#include <fmt/format.h>

#include <map>

#include "kernel/srg/random.h"
#include "kernel/srg/rewrite/rewrite.h"
#include "kernel/srg/unify.h"
#include "python/device/opened_models.h"
#include "python/device/shadow.h"

namespace djinn::device {
namespace {

thread_local std::unique_ptr<Capture> current;

at::Tensor make_input(Location location, uint64_t owner, std::string name, at::ScalarType type,
                      at::IntArrayRef sizes) {
  StoragePtr storage = storages().make(dense_bytes(sizes, type), type);
  storage->location = location;
  storage->named =
      std::make_shared<const NamedTensor>(NamedTensor{owner, std::move(name), sizes.vec()});
  return dense_tensor(storage, type, sizes);
}

const char* name_of_role(srg::InputRole role) {
  switch (role) {
    case srg::InputRole::kTokenIds:
      return "token_ids";
    case srg::InputRole::kPositions:
      return "positions";
    case srg::InputRole::kAttentionMask:
      return "attention_mask";
    case srg::InputRole::kUser:
      break;
  }
  return "input";
}

// If a result is still held after its capture, the model's code has kept it.
void check_nothing_kept(const Log& log, const std::vector<Operand>& outputs) {
  for (const Entry& entry : log.entries()) {
    for (const StoragePtr& product : entry.products) {
      if (!product || !product->held) continue;
      const bool is_output =
          std::any_of(outputs.begin(), outputs.end(),
                      [&](const Operand& output) { return output.storage == product; });
      TORCH_CHECK_NOT_IMPLEMENTED(is_output, "The model keeps a tensor that it made (",
                                  entry.recipe->op, ") for a later call.");
    }
  }
}

Product product_of(const Operand& view) {
  Product product;
  product.type = view.type;
  product.sizes = view.sizes;
  product.strides = view.strides;
  product.offset = view.offset;
  product.bytes = view.storage->bytes;
  return product;
}

// Gives the storages of the outputs, whole and each once, and which of them each output is a view
// of.
std::vector<Operand> separate(const std::vector<Operand>& outputs,
                              std::vector<std::pair<size_t, Product>>& views) {
  std::vector<Operand> storages;
  for (const Operand& output : outputs) {
    TORCH_CHECK_NOT_IMPLEMENTED(output.storage->location == Location::kLogged,
                                "The model returns a tensor that it did not make in this call.");
    size_t number = 0;
    while (number < storages.size() && storages[number].storage != output.storage) ++number;
    if (number == storages.size()) storages.push_back(whole(output.storage));
    views.emplace_back(number, product_of(output));
  }
  return storages;
}

// What a run is given: its name is one of these, and a number.
constexpr std::string_view kGiven = "given", kWritten = "state";

void note_given(const srg::Graph& graph, Template& made) {
  for (uint32_t i = 0; i < graph.storages.size(); ++i) {
    const srg::Storage& storage = graph.storages[i];
    if (storage.role == srg::InputRole::kTokenIds) made.token_ids = i;
    if (storage.kind != srg::StorageKind::kInput) continue;
    for (const std::string_view name : {kGiven, kWritten}) {
      if (!storage.name.starts_with(name)) continue;
      const std::string number = storage.name.substr(name.size());
      made.given.emplace_back(i, static_cast<uint32_t>(std::stoul(number)));
    }
  }
}

std::vector<ipc::InputBinding> bind_inputs(const Recording& recording) {
  std::vector<ipc::InputBinding> inputs;
  for (uint32_t i = 0; i < recording.inputs.size(); ++i) {
    if (recording.inputs[i] == nullptr) continue;
    inputs.push_back({i, ipc::InputKind::kRef, {}, recording.inputs[i]->ref});
  }
  return inputs;
}

}  // namespace

Capture* Capture::active() {
  return current.get();
}

namespace {

constexpr size_t kConstantBytesMax = size_t{1} << 20;

// Tensors that captured code makes of numbers of its own, as a scale or the slopes of heads, by
// their bytes. The same code makes the same ones at each size, and recordings of it are one program
// where these are one storage. Nobody but a graph holds them, so nobody writes them.
class Constants {
 public:
  // Entries name the one that is known, if there is one, in place of each that they made.
  void unite(Log& log) {
    std::erase_if(known_, [](const auto& one) { return one.second.expired(); });
    std::vector<StoragePtr> made;
    for (const Entry& entry : log.entries()) {
      for (const Operand& operand : entry.operands) {
        const Storage& storage = *operand.storage;
        const bool is_constant = storage.location == Location::kHost && !storage.held &&
                                 storage.bytes <= kConstantBytesMax;
        if (is_constant) made.push_back(operand.storage);
      }
    }
    for (const StoragePtr& storage : made) {
      if (storage->location != Location::kHost || storage->log_uses == 0) continue;
      std::weak_ptr<Storage>& known = known_[{storage->type, *storage->host}];
      const StoragePtr same = known.lock();
      const bool is_there =
          same && (same->location == Location::kHost || same->location == Location::kRef);
      if (!is_there) known = storage;
      if (is_there && same != storage) log.rename(storage, same);
    }
  }

 private:
  std::map<std::pair<at::ScalarType, std::vector<std::byte>>, std::weak_ptr<Storage>> known_;
};

// It is never destroyed, because storages are not.
Constants& constants() {
  static auto* const all = new Constants;
  return *all;
}

}  // namespace

void Capture::append(Entry entry) {
  const uint64_t model = model_of(entry);
  for (const Operand& operand : entry.operands) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        operand.storage->location != Location::kWeight || operand.storage->named->owner == model,
        "One operator (", entry.recipe->op, ") reads weights of two models.");
  }
  TORCH_CHECK_NOT_IMPLEMENTED(srg::offsets_used(entry.recipe->op, 1) == 0,
                              "The model draws random numbers (", entry.recipe->op, ").");
  for (const uint32_t w : entry.recipe->written) {
    const Storage& storage = *entry.operands[w].storage;
    const bool is_ours =
        storage.location == Location::kLogged || storage.location == Location::kZero ||
        storage.location == Location::kSequence ||
        (storage.location == Location::kInput && storage.named->name.starts_with(kWritten));
    TORCH_CHECK_NOT_IMPLEMENTED(is_ours, "The model writes a tensor that it keeps (",
                                entry.recipe->op, ").");
  }
  log.append(std::move(entry));
}

void Capture::begin() {
  TORCH_CHECK(current == nullptr, "A capture is under way in this thread already.");
  Device::get().flush();
  current = std::make_unique<Capture>();
}

// What the model's code has kept of a capture has no value, and says so where it is used.
Capture::~Capture() {
  static const auto kept = std::make_shared<const Error>(
      Error{ErrorCode::kUnsupported,
            "It was made while the model's code was recorded, and has no value."});
  Device::get().with_log([&](Log&) {
    for (const Entry& entry : log.entries()) {
      for (const StoragePtr& product : entry.products) {
        if (product && product->held && product->location == Location::kLogged) {
          lose(*product, kept);
        }
      }
    }
    log.clear();
  });
}

void Capture::abort() {
  current.reset();
}

std::shared_ptr<const Recording> Capture::finish(const std::vector<at::Tensor>& outputs,
                                                 bool for_generation) {
  TORCH_CHECK(current != nullptr, "No capture is under way in this thread.");
  const std::unique_ptr<Capture> capture = std::move(current);
  std::vector<Operand> views;
  for (const at::Tensor& output : outputs) views.push_back(operand_of(output));
  check_nothing_kept(capture->log, views);
  Device::get().with_log([&](Log&) { constants().unite(capture->log); });
  Recording recording;
  if (!for_generation) {
    views = separate(views, recording.outputs);
    for (const Operand& one : views) {
      recording.stores.emplace_back(one.storage->bytes, one.storage->type);
    }
  }
  for (const Operand& view : views) recording.views.push_back(product_of(view));
  Segment segment = Device::get().settle(capture->log, views, !for_generation);
  recording.graph = std::move(segment.graph);
  recording.inputs = std::move(segment.inputs);
  recording.model = segment.model;
  recording.guards = capture->guards;
  capture->looks.finish();
  recording.looks = std::move(capture->looks);
  return std::make_shared<const Recording>(std::move(recording));
}

namespace {

// Code may look at these values of an input of a capture, where they are known.
void show(const at::Tensor& input, const at::Tensor& known) {
  if (!known.defined()) return;
  TORCH_CHECK(known.scalar_type() == input.scalar_type() && known.sizes() == input.sizes() &&
                  known.is_contiguous(),
              "What is known of an input must have its dtype and sizes.");
  storage_of(input)->shadow =
      make_shadow({static_cast<const std::byte*>(known.const_data_ptr()), known.nbytes()});
}

}  // namespace

at::Tensor Capture::input(srg::InputRole role, at::ScalarType type, at::IntArrayRef sizes,
                          const at::Tensor& known) {
  at::Tensor input =
      make_input(Location::kInput, static_cast<uint64_t>(role), name_of_role(role), type, sizes);
  show(input, known);
  return input;
}

at::Tensor Capture::given(uint32_t number, const at::Tensor& tensor) {
  TORCH_CHECK(number < 64, "A capture is given at most 64 tensors.");
  const auto type = tensor.scalar_type();
  at::Tensor input = make_input(Location::kInput, static_cast<uint64_t>(srg::InputRole::kUser),
                                fmt::format("{}{}", kGiven, number), type, tensor.sizes());
  Capture* const capture = std::exchange(current, nullptr).release();  // not a look of the model's
  const at::Tensor known = Device::get().known(tensor);
  current.reset(capture);
  if (known.defined()) {
    const at::Tensor values = known.contiguous();
    const StoragePtr storage = storage_of(input);
    storage->shadow =
        make_shadow({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
    storage->taint = uint64_t{1} << number;
  }
  return input;
}

at::Tensor Capture::beside(uint32_t number, bool is_written, at::ScalarType type,
                           at::IntArrayRef sizes, const at::Tensor& known) {
  at::Tensor input =
      make_input(Location::kInput, static_cast<uint64_t>(srg::InputRole::kUser),
                 fmt::format("{}{}", is_written ? kWritten : kGiven, number), type, sizes);
  show(input, known);
  return input;
}

at::Tensor Capture::buffer(uint32_t layer, srg::SequencePart part, at::ScalarType type,
                           at::IntArrayRef sizes) {
  const uint64_t owner = uint64_t{layer} << 1 | static_cast<uint64_t>(part);
  return make_input(Location::kSequence, owner, "", type, sizes);
}

srg::Graph unified(const std::vector<std::shared_ptr<const Recording>>& recordings,
                   const std::vector<std::vector<int64_t>>& points,
                   std::vector<srg::Symbol> symbols) {
  TORCH_CHECK(!recordings.empty() && recordings.size() == points.size(),
              "Each recording needs its point.");
  std::vector<srg::Recording> sized;
  for (size_t i = 0; i < recordings.size(); ++i) {
    TORCH_CHECK(recordings[i]->inputs == recordings[0]->inputs &&
                    recordings[i]->model == recordings[0]->model,
                "The model reads other tensors at other sizes.");
    sized.push_back({&recordings[i]->graph, points[i]});
  }
  srg::Graph graph = take(srg::unify(sized, std::move(symbols)));
  graph.name = "captured";
  return graph;
}

namespace {

// Passes are pure, so what the worker makes of the graph is known here.
void note_fast_form(const srg::Graph& graph, srg::FormedWeights formed, Template& made) {
  if (graph.numerics == srg::Numerics::kExact) return;
  srg::Rewriting rewriting = srg::rewrite(graph, std::move(formed));
  made.fast_nodes = rewriting.made;
  made.passes = std::move(rewriting.passes);
}

// wanted: by the program, or else of the model. Weights in int8 are read by fast kernels alone, so
// who chose no numerics has those.
srg::Numerics numerics_for(std::optional<srg::Numerics> wanted, srg::Numerics configured,
                           bool needs_fast) {
  if (wanted) return *wanted;
  return needs_fast && configured == srg::Numerics::kExact ? srg::Numerics::kFast : configured;
}

// Who can have no other form than the fast one hears of it that there is none.
ProgramId defined(Result<ProgramId> program, srg::Numerics numerics, bool needs_fast) {
  const bool is_only_fast = needs_fast || numerics == srg::Numerics::kFastOnly;
  if (!program && is_only_fast && program.error().code == ErrorCode::kUnsupported) {
    raise_as_ours(program.error());
  }
  return take(std::move(program));
}

}  // namespace

std::shared_ptr<const Template> make_template(
    const std::vector<std::shared_ptr<const Recording>>& recordings,
    const std::vector<std::vector<int64_t>>& points, std::vector<srg::Symbol> symbols,
    std::optional<srg::Numerics> numerics) {
  srg::Graph graph = unified(recordings, points, std::move(symbols));
  auto made = std::make_shared<Template>();
  made->operators = graph.nodes.size();
  made->held = recordings[0]->inputs;
  made->outputs = recordings[0]->outputs;
  made->stores = recordings[0]->stores;
  made->views = recordings[0]->views;
  for (const auto& recording : recordings) {
    if (recording->views != made->views) made->views.clear();
  }
  if (recordings.size() == 1) made->looks = recordings[0]->looks;
  note_given(graph, *made);
  made->inputs = bind_inputs(*recordings[0]);
  made->session = storages().session();
  srg::FormedWeights formed = formed_weights_of(recordings[0]->model, graph);
  const bool needs_fast = !formed.empty();
  if (!numerics) numerics = numerics_said_of(recordings[0]->model);
  const auto program = Device::get().with_link_of(made->session, [&](Link& link) {
    graph.numerics = numerics_for(numerics, link.client().welcome().numerics, needs_fast);
    return link.define(graph, ModelId{recordings[0]->model},
                       recordings.size() > 1 ? ProgramUse::kLoop : ProgramUse::kForward);
  });
  made->id = defined(program, graph.numerics, needs_fast);
  made->numerics = graph.numerics;
  note_fast_form(graph, std::move(formed), *made);
  return made;
}

// --- replaying

at::Tensor bindable(const at::Tensor& tensor, std::vector<const void*>& bound) {
  const Location location = storage_of(tensor)->location;
  const void* const address = tensor.storage().data();
  const bool once = std::find(bound.begin(), bound.end(), address) == bound.end();
  const bool plain =
      tensor.is_contiguous() && tensor.storage_offset() == 0 && location != Location::kWeight;
  const at::Tensor ready = once && plain ? tensor : tensor.clone(at::MemoryFormat::Contiguous);
  bound.push_back(ready.storage().data());
  return ready;
}

namespace {

std::vector<at::Tensor> views_of(const std::vector<StoragePtr>& made,
                                 const std::vector<std::pair<size_t, Product>>& outputs) {
  std::vector<c10::Storage> storages;
  for (const StoragePtr& storage : made) storages.push_back(as_torch(storage));
  std::vector<at::Tensor> results;
  for (const auto& [number, view] : outputs) {
    results.push_back(strided_tensor(c10::DispatchKey::PrivateUse1, storages[number], view.type,
                                     view.sizes, view.strides, view.offset));
  }
  return results;
}

}  // namespace

std::vector<at::Tensor> replay(const Template& program, std::vector<at::Tensor> given) {
  std::vector<const void*> bound;
  for (const StoragePtr& held : program.held) {
    if (held) bound.push_back(reinterpret_cast<const void*>(held->address));
  }
  std::vector<std::pair<uint32_t, StoragePtr>> inputs;
  std::vector<at::Tensor> alive;
  for (const auto& [storage, number] : program.given) {
    alive.push_back(bindable(given.at(number), bound));
    inputs.emplace_back(storage, storage_of(alive.back()));
  }
  std::vector<StoragePtr> outputs;
  for (const auto& [bytes, type] : program.stores) outputs.push_back(storages().make(bytes, type));
  ProgramRun run{program.id, program.inputs, std::move(inputs), outputs};
  run.session = program.session;
  Device::get().run_program(std::move(run));
  return views_of(outputs, program.outputs);
}

}  // namespace djinn::device
