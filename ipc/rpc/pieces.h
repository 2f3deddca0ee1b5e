// SPDX-License-Identifier: Apache-2.0

// Pieces of a staging slab, as either side sends and takes them. All throw kj::Exception.
#pragma once

#include <capnp/list.h>
#include <kj/async.h>

#include <span>
#include <utility>
#include <vector>

#include "ipc/rpc/bytes.h"
#include "ipc/rpc/fault.h"
#include "ipc/rpc/gate.capnp.h"
#include "ipc/rpc/mirrored_memory.h"

namespace djinn::rpc {

// Writes a piece to where it says.
void put(MirroredMemory& memory, Piece::Reader piece);
// Fills a list of as many pieces with those ranges of the slab.
void fill(capnp::List<Piece>::Builder list, const MirroredMemory& memory,
          std::span<const ipc::StagingRange> ranges);

// Sends the ranges one after the other, by the other side's stage(). memory outlives what it gives.
template <typename Side>
kj::Promise<void> stage_each(Side& side, const MirroredMemory& memory,
                             std::vector<ipc::StagingRange> ranges) {
  if (ranges.empty()) return kj::READY_NOW;
  auto request = side.stageRequest();
  set(request.initPiece(), ranges.back().offset, require(memory.read(ranges.back())));
  ranges.pop_back();
  return request.send().then([&side, &memory, ranges = std::move(ranges)]() mutable {
    return stage_each(side, memory, std::move(ranges));
  });
}

}  // namespace djinn::rpc
