// SPDX-License-Identifier: Apache-2.0

// What leaves a run, from memory that this process can read: what a lane of the host does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "kernel/base/result.h"
#include "kernel/executor/executor.h"

namespace djinn::exec {

// Copies the elements of a view, contiguous and in order, to out, whose size must be exactly
// element count * element size. Never reads the gaps between elements. Errors: kOutOfRange for a
// view that leaves its storage, kInvalidArgument for another size.
Status copy_elements(const OutputView& view, std::span<std::byte> out);

// Copies bytes of a storage, from that byte on, and returns when they are there.
using ReadStorage = std::function<Status(uint64_t offset, std::span<std::byte> to)>;
// Likewise of a view whose storage this process cannot read: what is copied passes through `room`,
// piece by piece, with such gaps as lie inside a piece. room: at least an element. Errors: those of
// `read` besides.
Status copy_elements_through(const OutputView& view, std::span<std::byte> out,
                             std::span<std::byte> room, const ReadStorage& read);

}  // namespace djinn::exec
