// SPDX-License-Identifier: Apache-2.0

// Tensors of any size through staging. A large tensor crosses in parts: while the worker copies one
// the next is filled, or the last emptied, and the slab stays in the processor's cache.
//
// One thread at a time, as the client.
#pragma once

#include <functional>
#include <span>

#include "ipc/binding.h"
#include "libdjinn-client/client.h"

namespace djinn::client {

// Hears of a run that was submitted; its error ends what is being submitted.
using Submitted = std::function<Status(Run)>;

// Submits what makes the bytes the ref; they may change when this returns. The caller waits for the
// runs, told in their order: one that fails poisons the ref. Errors: kQuotaExceeded for more than a
// session may hold; those of allocate_staging(), submit() and submitted; what was told of is under
// way then.
Status submit_write(Client& client, RefHandle ref, std::span<const std::byte> bytes,
                    const Submitted& submitted);

// The bytes as a new ref, when djinnd has them. Errors: the run's, too; nothing is left then.
Result<RefLease> put(Client& client, std::span<const std::byte> bytes);

// The elements of view, contiguous and in order, whose bytes out has exactly; view.staging is not
// looked at. Errors: those of a read; out may be half written then.
Status read(Client& client, const ipc::ReadBlock& view, std::span<std::byte> out);

}  // namespace djinn::client
