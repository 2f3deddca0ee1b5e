// SPDX-License-Identifier: Apache-2.0

// Graphs, load plans and model manifests as bytes and back (srg.capnp has the form).
//
// Encoding is canonical: one segment without a segment table, in Cap'n Proto's canonical form.
// Equal structs give equal bytes on every machine, so a hash of the bytes is a fingerprint.
//
// Decoding is for bytes from outside, in private memory: any span, aligned or not. It accepts every
// valid message, canonical or not, that is no larger than its bytes: what names a part of itself
// more than once is refused, so what is decoded has at most some twenty times the bytes. It says
// nothing about meaning: verify a decoded graph (kernel/srg/verify.h), check a decoded plan against
// its files (kernel/load). Errors: kLimitExceeded for more bytes or items than ipc/limits.h and
// kernel/srg/limits.h allow, and for more than the bytes can hold; kMalformed for all else.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernel/base/result.h"
#include "kernel/srg/graph.h"
#include "kernel/srg/load_plan.h"

namespace djinn::ipc {

// What is encoded must be within the decoder's limits: for a graph, verify() has passed it.
[[nodiscard]] std::vector<std::byte> encode(const srg::Graph& graph);
[[nodiscard]] std::vector<std::byte> encode(const srg::LoadPlan& plan);
[[nodiscard]] std::vector<std::byte> encode(const srg::ModelManifest& manifest);

Result<srg::Graph> decode_graph(std::span<const std::byte> bytes);
Result<srg::LoadPlan> decode_load_plan(std::span<const std::byte> bytes);
Result<srg::ModelManifest> decode_manifest(std::span<const std::byte> bytes);

}  // namespace djinn::ipc
