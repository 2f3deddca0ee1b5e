#include "python/device/generation.h"

#include "ipc/session_memory.h"
#include "kernel/base/bytes.h"

namespace djinn::device {
namespace {

ipc::GenerateBlock block_for(const GenerationRequest& request) {
  ipc::GenerateBlock block = request.options;
  block.prefill = request.prefill.id.value;
  block.decode = request.decode.id.value;
  block.rows = request.geometry.rows;
  block.prompt_tokens = request.prompt_tokens;
  block.padding = request.padding;
  block.prefill_inputs = request.prefill.inputs;
  block.decode_inputs = request.decode.inputs;
  return block;
}

// Gathers token events into steps: a step is whole when it has a token for each row.
class Steps {
 public:
  Steps(uint32_t rows, const std::function<void(const std::vector<int32_t>&)>& on_step)
      : result_{std::vector<std::vector<int32_t>>(rows), 0}, on_step_(on_step) {}

  void take(const client::TokenEvent& event) {
    if (event.row >= result_.tokens.size()) return;
    result_.tokens[event.row].push_back(event.token);
    if (event.row + 1 == result_.tokens.size() && on_step_) tell();
  }

  GenerationResult finish(uint64_t random_offset) && {
    result_.random_offset = random_offset;
    return std::move(result_);
  }

 private:
  void tell() const {
    std::vector<int32_t> step;
    for (const auto& row : result_.tokens) step.push_back(row.back());
    on_step_(step);
  }

  GenerationResult result_;
  const std::function<void(const std::vector<int32_t>&)>& on_step_;
};

// A step's tokens cross as completions of the ring, and nothing else does.
uint64_t bytes_of_steps(uint64_t steps, uint64_t rows) {
  const uint64_t completions = (rows + ipc::kTokensPerCompletion - 1) / ipc::kTokensPerCompletion;
  return steps * completions * sizeof(ipc::Completion);
}

Result<GenerationResult> run(Link& link, ipc::GenerateBlock& block,
                             const std::vector<int32_t>& prompt, Steps steps) {
  client::Client& client = link.client();
  const auto bytes = std::as_bytes(std::span(prompt));
  DJINN_TRY(const ipc::StagingRange range, client.allocate_staging(bytes.size()));
  copy_bytes(bytes, client.staging(range));
  block.prompt = {range.offset, bytes.size()};
  client::SubmissionTarget target;
  target.operation = ipc::Operation::kGenerate;
  DJINN_TRY(const client::Run number, client.submit(target, ipc::encode(block), {range}));
  DJINN_TRY(client::Outcome outcome, client.wait(number, [&](const client::TokenEvent& event) {
    if (event.run == number) steps.take(event);
  }));
  if (outcome.error != ErrorCode::kOk) return Error{outcome.error, std::move(outcome.message)};
  link.stats().bytes_up += bytes.size();
  link.stats().bytes_down += bytes_of_steps(outcome.tokens, block.rows);
  return std::move(steps).finish(outcome.random_offset);
}

}  // namespace

Group::Group(const ipc::SequenceGeometry& geometry)
    : handle_(take(Device::get().with_link(
          [&](Link& link) { return link.client().make_sequence(geometry); }))) {}

Group::~Group() {
  try {
    take(Device::get().with_link([&](Link& link) { return link.client().drop_sequence(handle_); }));
  } catch (const std::exception&) {  // the session is gone, and the group with it
    return;
  }
}

at::Tensor Group::step(const Template& program, const at::Tensor& ids) {
  TORCH_CHECK_NOT_IMPLEMENTED(program.views.size() == 1 && program.token_ids,
                              "Its logits have other shapes at other sizes.");
  const Product& view = program.views[0];
  const at::Tensor ready = ids.is_contiguous() && ids.storage_offset() == 0
                               ? ids
                               : ids.clone(at::MemoryFormat::Contiguous);
  StoragePtr logits = storages().make(view.bytes, view.type);
  ProgramRun run{program.id, program.inputs, {{*program.token_ids, storage_of(ready)}}, {logits}};
  run.sequence = handle_;
  run.symbols = {ids.size(1), 0, 0};  // tokens; past and capacity are djinnd's
  Device::get().run_program(std::move(run));
  return strided_tensor(c10::DispatchKey::PrivateUse1, as_torch(logits), view.type, view.sizes,
                        view.strides, view.offset);
}

GenerationResult generate(const GenerationRequest& request,
                          const std::function<void(const std::vector<int32_t>&)>& on_step) {
  ipc::GenerateBlock block = block_for(request);
  return take(Device::get().with_link([&](Link& link) -> Result<GenerationResult> {
    client::Client& client = link.client();
    DJINN_TRY(block.sequence, client.make_sequence(request.geometry));
    auto generated = run(link, block, request.prompt, Steps(request.geometry.rows, on_step));
    Status dropped = client.drop_sequence(block.sequence);
    if (generated && !dropped) return std::move(dropped).error();
    return generated;
  }));
}

}  // namespace djinn::device
