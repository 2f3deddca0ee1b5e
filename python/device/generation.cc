// SPDX-License-Identifier: Apache-2.0

#include "python/device/generation.h"

#include <algorithm>

#include "ipc/binding.h"
#include "kernel/exec/convert.h"

namespace djinn::device {
namespace {

ipc::GenerateBlock block_for(const GenerationRequest& request, SequenceHandle sequence,
                             uint32_t rows) {
  ipc::GenerateBlock block = request.options;
  block.sequence = sequence;
  block.prefill = request.prefill.program.id.value;
  block.decode = request.decode.program.id.value;
  if (request.late) block.late_decode = request.late->program.id.value;
  if (request.extend) block.extend = request.extend->program.id.value;
  block.rows = rows;
  block.prompt_tokens = request.prompt_tokens;
  block.padding = request.padding;
  return block;
}

// The tensors of a part in the form in which runs bind them. They are to live as long as the
// generation.
std::vector<at::Tensor> bindable_beside(const GenerationPart& part) {
  std::vector<const void*> bound;
  for (const StoragePtr& held : part.program.held) {
    if (held) bound.push_back(reinterpret_cast<const void*>(held->address));
  }
  std::vector<at::Tensor> ready;
  for (const auto& [storage, number] : part.program.given) {
    const at::Tensor& tensor = part.beside.at(number);
    const Location location = storage_of(tensor)->location;
    const bool comes_of_a_run = location == Location::kRef || location == Location::kLogged;
    ready.push_back(
        bindable(comes_of_a_run ? tensor : tensor.clone(at::MemoryFormat::Contiguous), bound));
  }
  return ready;
}

// Precondition: what makes the tensors was handed over.
std::vector<ipc::InputBinding> bindings_of(const Template& program,
                                           const std::vector<at::Tensor>& beside) {
  std::vector<ipc::InputBinding> inputs = program.inputs;
  for (size_t i = 0; i < beside.size(); ++i) {
    const StoragePtr storage = storage_of(beside[i]);
    TORCH_CHECK(storage->location == Location::kRef,
                "What a generation is given was not computed.");
    inputs.push_back({program.given[i].first, ipc::InputKind::kRef, {}, storage->ref});
  }
  return inputs;
}

// Gathers token events into steps: a step is whole when it has a token for each row.
class Steps {
 public:
  Steps(uint32_t rows, const OnStep& on_step) : on_step_(on_step) { result_.tokens.resize(rows); }

  // Gives false when on_step has ended the generation.
  bool take(const std::vector<client::TokenEvent>& events) {
    return std::ranges::all_of(events, [this](const auto& event) { return take(event); });
  }

  GenerationResult finish(const Followed& followed) && {
    result_.random_offset = followed.outcome.random_offset;
    result_.waited = followed.waited;
    return std::move(result_);
  }
  [[nodiscard]] bool ended() const { return ended_; }

 private:
  bool take(const client::TokenEvent& event) {
    if (event.row >= result_.tokens.size()) return true;
    result_.tokens[event.row].push_back(event.token);
    return event.row + 1 != result_.tokens.size() || !on_step_ || tell();
  }
  bool tell() {
    std::vector<int32_t> step;
    for (const auto& row : result_.tokens) step.push_back(row.back());
    ended_ = !on_step_(step);
    return !ended_;
  }

  bool ended_ = false;
  GenerationResult result_;
  const OnStep& on_step_;
};

Result<client::Run> start(Link& link, const ipc::GenerateBlock& block,
                          const GenerationRequest& request) {
  link.stats().bytes_up += request.prompt.size() * sizeof(int32_t);
  return client::submit_generate(link.client(), block, request.prompt, request.begin_within_ms);
}

// --- what a group holds

srg::ValueId add_value(srg::Graph& graph) {
  graph.values.emplace_back();
  return static_cast<srg::ValueId>(graph.values.size() - 1);
}

// Adds a copy of the first tokens of one K or V.
void add_copy(srg::Graph& graph, uint32_t layer, srg::SequencePart part,
              const ipc::SequenceGeometry& group, int64_t tokens) {
  const auto dim = static_cast<int64_t>(group.head_dim);
  const auto head = static_cast<int64_t>(group.capacity) * dim;
  const auto heads = static_cast<int64_t>(group.kv_heads);
  srg::Storage storage;
  storage.kind = srg::StorageKind::kSequence;
  storage.layer = layer;
  storage.part = part;
  graph.storages.push_back(storage);
  const srg::ValueId held = add_value(graph);
  srg::Value& value = graph.values[held];
  value.storage = static_cast<srg::StorageIndex>(graph.storages.size() - 1);
  value.dtype = group.dtype;
  value.sizes = {srg::Expr(int64_t{group.rows}), srg::Expr(heads), srg::Expr(tokens),
                 srg::Expr(dim)};
  value.strides = {srg::Expr(heads * head), srg::Expr(head), srg::Expr(dim), srg::Expr(int64_t{1})};
  const srg::ValueId copy = add_value(graph);
  srg::Value& made = graph.values[copy];
  made.dtype = group.dtype;
  made.claims_sizes = true;
  made.sizes = graph.values[held].sizes;
  made.strides = {srg::Expr(heads * tokens * dim), srg::Expr(tokens * dim), srg::Expr(dim),
                  srg::Expr(int64_t{1})};
  graph.nodes.push_back({"aten::clone", {{"", srg::ValueRef{held}}}, {copy}, {}});
  graph.outputs.push_back(copy);
}

srg::Graph copies_of(const ipc::SequenceGeometry& group, int64_t tokens) {
  srg::Graph graph;
  graph.name = "contents";
  graph.symbols = {{"tokens", 0, 0, srg::SymbolRole::kTokens}};
  for (uint32_t layer = 0; layer < group.layers; ++layer) {
    add_copy(graph, layer, srg::SequencePart::kKey, group, tokens);
    add_copy(graph, layer, srg::SequencePart::kValue, group, tokens);
  }
  return graph;
}

// Runs a graph that appends nothing, and gives all its outputs as refs.
Result<std::vector<client::RefLease>> run_once(client::Client& client, const srg::Graph& graph,
                                               SequenceHandle sequence) {
  DJINN_TRY(client::Runnable runnable, client::stage_graph(client, graph));
  ipc::RunBlock block;
  block.sequence = sequence;
  block.symbols = {0};
  std::vector<client::RefLease> refs;
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    DJINN_TRY(client::RefLease ref, client.new_ref());
    block.outputs.push_back({ipc::OutputKind::kRef, {}, ref.ref()});
    refs.push_back(std::move(ref));
  }
  DJINN_TRY(const client::Run run, client::submit_run(client, std::move(runnable), block));
  DJINN_CHECK(client::finish(client, run));
  return refs;
}

}  // namespace

Group::Group(const ipc::SequenceGeometry& geometry)
    : geometry_(geometry), handle_(take(Device::get().with_link([&](Link& link) {
        session_ = storages().session();
        return link.client().make_sequence(geometry);
      }))) {}

Group::~Group() {
  Device::get().drop_sequence(session_, handle_);
}

// Sessions are numbered as they come, so if the two differ, the one with the lower number has
// ended.
uint64_t Group::session_with(const Template& program) const {
  return std::min(session_, program.session);
}

at::Tensor Group::step(const Template& program, const at::Tensor& ids,
                       const std::vector<uint32_t>& padding) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      program.views.size() == 1 && program.token_ids && program.given.empty(),
      "Its logits have other shapes at other sizes.");
  const Product& view = program.views[0];
  const at::Tensor ready = ids.is_contiguous() && ids.storage_offset() == 0
                               ? ids
                               : ids.clone(at::MemoryFormat::Contiguous);
  StoragePtr logits = storages().make(view.bytes, view.type);
  ProgramRun run{program.id, program.inputs, {{*program.token_ids, storage_of(ready)}}, {logits}};
  run.session = session_with(program);
  run.sequence = handle_;
  run.padding = padding;
  run.symbols = {ids.size(1), 0, 0};  // tokens; past and capacity are djinnd's
  Device::get().run_program(std::move(run));
  return strided_tensor(c10::DispatchKey::PrivateUse1, as_torch(logits), view.type, view.sizes,
                        view.strides, view.offset);
}

std::vector<at::Tensor> Group::contents(int64_t tokens) {
  const srg::Graph graph = copies_of(geometry_, tokens);
  auto refs = take(Device::get().with_settled_link_of(
      session_, [&](Link& link) { return run_once(link.client(), graph, handle_); }));
  const auto type = exec::to_torch(geometry_.dtype).value();
  const std::vector<int64_t> sizes{geometry_.rows, geometry_.kv_heads, tokens, geometry_.head_dim};
  std::vector<at::Tensor> copies;
  for (client::RefLease& ref : refs) {
    StoragePtr storage = storages().make(dense_bytes(sizes, type), type);
    become_ref(*storage, std::move(ref).detach());
    Held::note(Held::now());
    copies.push_back(dense_tensor(storage, type, sizes));
  }
  return copies;
}

void Group::crop(uint64_t tokens) {
  take(Device::get().with_settled_link_of(session_, [&](Link& link) {
    return client::crop(link.client(), {handle_, tokens});
  }));
}

void Group::reorder(const std::vector<uint32_t>& rows) {
  take(Device::get().with_settled_link_of(session_, [&](Link& link) {
    return client::reorder(link.client(), {handle_, rows});
  }));
}

GenerationResult Group::generate(const GenerationRequest& request, const OnStep& on_step) {
  ipc::GenerateBlock block = block_for(request, handle_, geometry_.rows);
  const GenerationPart* const late = request.late ? &*request.late : nullptr;
  const GenerationPart* const extend = request.extend ? &*request.extend : nullptr;
  const std::vector<at::Tensor> at_prompt = bindable_beside(request.prefill);
  const std::vector<at::Tensor> at_token = bindable_beside(request.decode);
  const std::vector<at::Tensor> at_late = late ? bindable_beside(*late) : std::vector<at::Tensor>();
  const std::vector<at::Tensor> at_part =
      extend ? bindable_beside(*extend) : std::vector<at::Tensor>();
  Steps steps(geometry_.rows, on_step);
  const uint64_t bytes = request.prompt.size() * sizeof(int32_t);
  const uint64_t session =
      std::min(session_with(request.prefill.program), session_with(request.decode.program));
  const Followed followed = Device::get().follow(
      session, bytes,
      [&](Link& link) {
        block.prefill_inputs = bindings_of(request.prefill.program, at_prompt);
        block.decode_inputs = bindings_of(request.decode.program, at_token);
        if (late) block.late_inputs = bindings_of(late->program, at_late);
        if (extend) block.extend_inputs = bindings_of(extend->program, at_part);
        return start(link, block, request);
      },
      [&](const std::vector<client::TokenEvent>& events) { return steps.take(events); });
  const client::Outcome& outcome = followed.outcome;
  // When on_step ends a generation, djinnd is ahead of it: the run is cancelled, or is done
  // already.
  // Who set a time is told as programs without PyTorch are, and not of a fault of the device.
  if (outcome.error == ErrorCode::kQueueFull) raise_as_ours({outcome.error, outcome.message});
  if (outcome.error != ErrorCode::kOk && !steps.ended()) raise({outcome.error, outcome.message});
  return std::move(steps).finish(followed);
}

}  // namespace djinn::device
