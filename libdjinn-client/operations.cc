// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/operations.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ipc/codec/srg_codec.h"

namespace djinn::client {
namespace {

SubmissionTarget target_of(ipc::Operation operation) {
  SubmissionTarget target;
  target.operation = operation;
  return target;
}

template <typename Block>
Status submit_and_finish(Client& client, ipc::Operation operation, const Block& block) {
  DJINN_TRY(const Run run, client.submit(target_of(operation), ipc::encode(block)));
  DJINN_CHECK(finish(client, run));
  return {};
}

}  // namespace

Result<Runnable> stage_graph(Client& client, const srg::Graph& graph, ModelId model) {
  DJINN_TRY(StagingLease staged, client.stage(ipc::encode(graph)));
  return Runnable{{}, model, std::move(staged)};
}

Result<Run> submit_run(Client& client, Runnable runnable, const ipc::RunBlock& block,
                       StagingLeases leases) {
  SubmissionTarget target = target_of(ipc::Operation::kRun);
  target.program = runnable.program;
  if (!runnable.program.valid()) {
    target = target_of(ipc::Operation::kRunOnce);
    target.model = runnable.model;
    target.graph = runnable.graph.range();
    leases.read.push_back(std::move(runnable.graph));
  }
  target.series = runnable.series;
  if (target.series == 0) target.begin_within_ms = client.begin_within_ms();
  return client.submit(target, ipc::encode(block), std::move(leases));
}

Result<Run> submit_generate(Client& client, ipc::GenerateBlock block,
                            std::span<const int32_t> prompt,
                            std::optional<uint64_t> begin_within_ms) {
  DJINN_TRY(StagingLease staged, client.stage(std::as_bytes(prompt)));
  block.prompt = staged.range();
  SubmissionTarget target = target_of(ipc::Operation::kGenerate);
  target.begin_within_ms = begin_within_ms.value_or(client.begin_within_ms());
  return client.submit(target, ipc::encode(block), {.read = list_of(std::move(staged))});
}

// A later submission may fill the slot again, because it comes after the release.
Result<Run> submit_release(Client& client, std::span<const RefHandle> refs) {
  const ipc::ReleaseBlock block{{refs.begin(), refs.end()}};
  const auto run = client.submit(target_of(ipc::Operation::kReleaseRefs), ipc::encode(block));
  if (run) {
    for (const RefHandle ref : refs) client.forget_ref(ref);
  } else if (run.error().code == ErrorCode::kCancelled) {
    for (const RefHandle ref : refs) client.drop_ref(ref);
  }
  return run;
}

Result<Outcome> finish(Client& client, Run run) {
  auto outcome = client.wait(run);
  if (!outcome) {
    client.abandon(run);
    return std::move(outcome).error();
  }
  if (outcome->error != ErrorCode::kOk) return Error{outcome->error, std::move(outcome->message)};
  return *std::move(outcome);
}

Status release(Client& client, std::span<const RefHandle> refs) {
  while (!refs.empty()) {
    const auto batch = refs.first(std::min(refs.size(), kReleaseBatch));
    DJINN_TRY(const Run run, submit_release(client, batch));
    DJINN_CHECK(finish(client, run));
    refs = refs.subspan(batch.size());
  }
  return {};
}

Status crop(Client& client, const ipc::CropBlock& block) {
  return submit_and_finish(client, ipc::Operation::kCropSequence, block);
}

Status reorder(Client& client, const ipc::ReorderBlock& block) {
  return submit_and_finish(client, ipc::Operation::kReorderSequence, block);
}

}  // namespace djinn::client
