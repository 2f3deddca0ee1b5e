// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/transfer.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "kernel/base/bytes.h"
#include "kernel/base/size_text.h"
#include "libdjinn-client/operations.h"

namespace djinn::client {
namespace {

// This many parts share the slab: one is filled while the worker copies another, and two more hide
// a late wake-up.
constexpr uint64_t kPartsInSlab = 4;
// Parts of this size stay in a processor's cache between the two copies.
constexpr uint64_t kPartBytesMax = 2u << 20;

uint64_t part_bytes(const Client& client) {
  return std::clamp<uint64_t>(client.welcome().staging_bytes / kPartsInSlab, 1, kPartBytesMax);
}

// A session may never hold more than its quota, so a larger ref is refused here, before a byte is
// read.
Status check_fits(const Client& client, uint64_t bytes) {
  const uint64_t quota = client.welcome().quota_bytes;
  if (bytes <= quota) return {};
  return Error{ErrorCode::kQuotaExceeded,
               "A ref of " + size_text(bytes) + " is more than the " + size_text(quota) +
                   " that a session may hold. Make smaller ones, or ask the administrator for a "
                   "larger memory.session_quota, if djinnd has more memory than that."};
}

Status submit_part(Client& client, const ipc::WriteBlock& whole, std::span<const std::byte> part,
                   const Submitted& submitted) {
  DJINN_TRY(StagingLease staged, client.stage(part));
  ipc::WriteBlock block = whole;
  block.staging = staged.range();
  SubmissionTarget target;
  target.operation = ipc::Operation::kWriteRef;
  DJINN_TRY(const Run run,
            client.submit(target, ipc::encode(block), {.read = list_of(std::move(staged))}));
  return submitted(run);
}

// djinnd has released the ref when this returns, or does so with the client's next submission.
void give_back(Client& client, RefLease ref) {
  const RefHandle handle = ref.ref();
  const auto run = submit_release(client, std::span(&handle, 1));
  if (!run) return;
  std::move(ref).detach();
  [[maybe_unused]] const auto released = finish(client, *run);
}

// --- down

// Holds a part of a read: its view, and where its bytes go.
struct Part {
  ipc::ReadBlock view;
  std::span<std::byte> out;
};

// Splits a read by rows of its first dimension of more than one row, whose bytes are contiguous.
// Parts end at multiples of bytes_max in `out`. New memory comes in huge pages of that size; a page
// that is filled while it is in the cache, where it was just cleared, takes a third less time.
void split(const Part& whole, uint64_t bytes_max, std::vector<Part>& parts) {
  const auto wide =
      std::ranges::find_if(whole.view.sizes, [](const uint64_t size) { return size > 1; });
  if (whole.out.size() <= bytes_max || wide == whole.view.sizes.end()) {
    parts.push_back(whole);
    return;
  }
  const auto d = static_cast<size_t>(wide - whole.view.sizes.begin());
  const uint64_t rows = whole.view.sizes[d];
  const uint64_t row_bytes = whole.out.size() / rows;
  for (uint64_t row = 0; row < rows;) {
    Part part = whole;
    part.out = whole.out.subspan(row * row_bytes);
    const uint64_t piece = bytes_max - reinterpret_cast<uintptr_t>(part.out.data()) % bytes_max;
    const uint64_t count = std::clamp<uint64_t>(piece / row_bytes, 1, rows - row);
    part.view.sizes[d] = count;
    part.view.offset += row * static_cast<uint64_t>(whole.view.strides[d]);
    part.out = part.out.first(count * row_bytes);
    split(part, bytes_max, parts);
    row += count;
  }
}

// Holds the parts of a read that are under way, oldest first.
class Reading {
 public:
  explicit Reading(Client& client) : client_(client) {}

  // If others use the slab, this read finishes its own parts to make room.
  Status begin(Part part) {
    if (flights_.size() + 1 == kPartsInSlab) finish_oldest();
    for (;;) {
      DJINN_CHECK(first_);
      Status begun = try_to_begin(part);
      if (begun || begun.error().code != ErrorCode::kQueueFull || flights_.empty()) return begun;
      finish_oldest();
    }
  }

  // Until the last part has ended, the worker writes into staging.
  Status finish() {
    while (!flights_.empty()) finish_oldest();
    return std::move(first_);
  }

 private:
  struct Flight {
    Run run;
    std::span<std::byte> out;
  };

  Status try_to_begin(Part& part) {
    DJINN_TRY(StagingLease staged, client_.allocate_staging(part.out.size()));
    part.view.staging = staged.range();
    SubmissionTarget target;
    target.operation = ipc::Operation::kReadRef;
    DJINN_TRY(const Run run, client_.submit(target, ipc::encode(part.view),
                                            {.written = list_of(std::move(staged))}));
    flights_.push_back({run, part.out});
    return {};
  }

  void finish_oldest() {
    const Flight flight = flights_.front();
    flights_.pop_front();
    const auto ended = client::finish(client_, flight.run);
    if (ended) {
      copy_bytes(ended->written.front().bytes(), flight.out);
    } else if (first_) {
      first_ = ended.error();
    }
  }

  Client& client_;
  std::deque<Flight> flights_;
  Status first_;  // the first error
};

}  // namespace

Status submit_write(Client& client, RefHandle ref, std::span<const std::byte> bytes,
                    const Submitted& submitted) {
  DJINN_CHECK(check_fits(client, bytes.size()));
  const uint64_t step = part_bytes(client);
  ipc::WriteBlock block{ref, {}, 0, bytes.size()};
  do {
    const uint64_t size = std::min<uint64_t>(step, bytes.size() - block.offset);
    DJINN_CHECK(submit_part(client, block, bytes.subspan(block.offset, size), submitted));
    block.offset += size;
  } while (block.offset < bytes.size());
  return {};
}

Result<RefLease> put(Client& client, std::span<const std::byte> bytes) {
  DJINN_TRY(RefLease ref, client.new_ref());
  std::vector<Run> runs;
  bool is_begun = false;
  // The first part makes room for all. If there is none, the other parts are not read.
  Status first = submit_write(client, ref.ref(), bytes, [&](Run run) -> Status {
    if (std::exchange(is_begun, true)) {
      runs.push_back(run);
      return {};
    }
    DJINN_CHECK(finish(client, run));
    return {};
  });
  for (const Run run : runs) {
    const auto ended = finish(client, run);
    if (first && !ended) first = ended.error();
  }
  if (first) return ref;
  if (is_begun) give_back(client, std::move(ref));
  return std::move(first).error();
}

Status read(Client& client, const ipc::ReadBlock& view, std::span<std::byte> out) {
  if (out.empty()) return {};
  std::vector<Part> parts;
  split({view, out}, part_bytes(client), parts);
  Reading reading(client);
  Status begun;
  for (Part& part : parts) {
    begun = reading.begin(std::move(part));
    if (!begun) break;
  }
  Status ended = reading.finish();
  return begun ? std::move(ended) : std::move(begun);
}

}  // namespace djinn::client
