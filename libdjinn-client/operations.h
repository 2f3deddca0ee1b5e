// SPDX-License-Identifier: Apache-2.0

// What a client asks of its session's data path, each operation once: the C ABI, the Python
// binding, the PyTorch device and the model classes call these, beside put() and read() of
// transfer.h.
//
//   submit_...    hands a run over and returns; Client::wait() tells how it ended
//   the others    wait for their run, and its error is theirs
//
// Errors of all: those of Client::submit() and Client::stage(). One thread at a time, as the
// client.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "ipc/binding.h"
#include "libdjinn-client/client.h"

namespace djinn::client {

// What a run runs: a program, or a graph that is used once.
struct Runnable {
  ProgramId program;    // invalid: the graph
  ModelId model;        // whose weights the graph names; invalid: none
  StagingLease graph;   // encoded
  uint64_t series = 0;  // ipc::Submission; 0: of none
};

// A graph that is used once, in staging.
Result<Runnable> stage_graph(Client& client, const srg::Graph& graph, ModelId model = {});

// Of these two a run of no series says Client::begin_within_ms(). leases: the staging that block
// names.
Result<Run> submit_run(Client& client, Runnable runnable, const ipc::RunBlock& block,
                       StagingLeases leases = {});
// prompt: as block.prompt describes it, which this fills in. begin_within_ms: nothing: the
// client's.
Result<Run> submit_generate(Client& client, ipc::GenerateBlock block,
                            std::span<const int32_t> prompt,
                            std::optional<uint64_t> begin_within_ms = {});
// The refs' slots may be used again when this has succeeded. refs: kReleaseBatch at most.
Result<Run> submit_release(Client& client, std::span<const RefHandle> refs);
inline constexpr size_t kReleaseBatch = 512;  // a binding block of so many handles is small

// Waits for a run, and abandons it where the wait is given up. Errors: those of Client::wait(), and
// how the run failed.
Result<Outcome> finish(Client& client, Run run);

// Any number of them.
Status release(Client& client, std::span<const RefHandle> refs);
Status crop(Client& client, const ipc::CropBlock& block);
Status reorder(Client& client, const ipc::ReorderBlock& block);

}  // namespace djinn::client
