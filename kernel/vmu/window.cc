// SPDX-License-Identifier: Apache-2.0

#include "kernel/vmu/window.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "kernel/base/assert.h"
#include "kernel/base/checked.h"

namespace djinn::vmu {

Window::Window(pal::DevicePal& pal, GrantSource& grants, pal::Extent extent,
               pal::Reservation reservation) noexcept
    : pal_(&pal),
      grants_(&grants),
      extent_(std::move(extent)),
      reservation_(std::move(reservation)) {}

Result<Window> Window::open(pal::DevicePal& pal, GrantSource& grants, pal::Extent extent,
                            uint64_t granted_bytes, std::span<const Range> live) {
  const uint64_t granularity = pal.properties().granularity_bytes;
  if (granted_bytes > extent.bytes || granted_bytes % granularity != 0) {
    return Error{
        ErrorCode::kInvalidArgument,
        fmt::format("{} granted bytes do not fit an extent of {}", granted_bytes, extent.bytes)};
  }
  DJINN_TRY(pal::Reservation reservation, pal.reserve(extent.bytes));
  DJINN_CHECK(pal.map(reservation, 0, extent, 0, extent.bytes, pal::Access::kReadWrite));
  Window window(pal, grants, std::move(extent), std::move(reservation));
  std::vector<Range> blocks;  // whole pages, in order and apart
  for (const Range& range : live) {
    const Range pages = window.pages_of(range);
    const bool touches = !blocks.empty() && pages.offset <= blocks.back().end();
    if (!touches) blocks.push_back(pages);
    if (touches) blocks.back().bytes = pages.end() - blocks.back().offset;
  }
  if (blocks.empty() || blocks.back().end() <= granted_bytes) blocks = {{0, granted_bytes}};
  DJINN_CHECK(window.keep_only(std::move(blocks), granted_bytes));
  return window;
}

uint64_t Window::granules(uint64_t bytes) const {
  return *align_up(bytes, pal_->properties().granularity_bytes);
}

Range Window::pages_of(Range range) const {
  const uint64_t begin = range.offset - range.offset % pal_->properties().granularity_bytes;
  return {begin, granules(range.end()) - begin};
}

// What a predecessor had committed elsewhere, and this one does not know of, goes.
Status Window::decommit_all_but(std::span<const Range> kept) {
  uint64_t at = 0;
  for (const Range& block : kept) {
    if (block.offset > at) DJINN_CHECK(pal_->decommit(extent_, at, block.offset - at));
    at = block.end();
  }
  if (at == extent_.bytes) return {};
  return pal_->decommit(extent_, at, extent_.bytes - at);
}

Status Window::keep_only(std::vector<Range> blocks, uint64_t granted_bytes) {
  uint64_t needed_bytes = 0;
  for (const Range& block : blocks) needed_bytes += block.bytes;
  if (needed_bytes > granted_bytes) {
    return Error{ErrorCode::kMalformed, fmt::format("ranges of {} bytes live, but {} are granted",
                                                    needed_bytes, granted_bytes)};
  }
  if (granted_bytes == 0) return {};
  DJINN_CHECK(decommit_all_but(blocks));
  for (const Range& block : blocks) {
    DJINN_CHECK(commit_and_touch(block));
    if (block.offset > watermark_bytes_) {
      holes_[watermark_bytes_] = block.offset - watermark_bytes_;
      hole_bytes_ += block.offset - watermark_bytes_;
    }
    watermark_bytes_ = block.end();
  }
  DJINN_ASSERT(committed_bytes() == needed_bytes);
  if (granted_bytes > needed_bytes) grants_->give_back(granted_bytes - needed_bytes);
  return {};
}

Status Window::commit_and_touch(Range range) {
  return pal::back_with_pages(*pal_, extent_, reservation_, range.offset, range.bytes,
                              [this] { grants_->backed(); });
}

std::vector<Range> Window::holes_in(std::span<const Range> ranges) const {
  std::vector<Range> pieces;
  if (holes_.empty()) return pieces;
  for (const Range& range : ranges) {
    const Range pages = pages_of(range);
    auto hole = holes_.upper_bound(pages.offset);
    if (hole != holes_.begin()) --hole;
    for (; hole != holes_.end() && hole->first < pages.end(); ++hole) {
      const uint64_t begin = std::max(hole->first, pages.offset);
      const uint64_t end = std::min(hole->first + hole->second, pages.end());
      if (begin < end) pieces.push_back({begin, end - begin});
    }
  }
  // Two ranges may have a page in common.
  std::ranges::sort(pieces, {}, &Range::offset);
  std::vector<Range> apart;
  for (const Range& piece : pieces) {
    const uint64_t begin =
        apart.empty() ? piece.offset : std::max(piece.offset, apart.back().end());
    if (begin < piece.end()) apart.push_back({begin, piece.end() - begin});
  }
  return apart;
}

// The piece lies in one hole.
void Window::fill(Range piece) {
  const auto found = std::prev(holes_.upper_bound(piece.offset));
  const Range hole{found->first, found->second};
  DJINN_ASSERT(hole.offset <= piece.offset && piece.end() <= hole.end());
  holes_.erase(found);
  if (hole.offset < piece.offset) holes_[hole.offset] = piece.offset - hole.offset;
  if (piece.end() < hole.end()) holes_[piece.end()] = hole.end() - piece.end();
  hole_bytes_ -= piece.bytes;
}

Status Window::grow_exactly_to(uint64_t bytes, std::vector<Range> pieces, Amount amount) {
  const size_t hole_count = pieces.size();
  if (bytes > watermark_bytes_) pieces.push_back({watermark_bytes_, bytes - watermark_bytes_});
  uint64_t more = 0;
  for (const Range& piece : pieces) more += piece.bytes;
  DJINN_CHECK(grants_->ask(more, amount));
  Status committed;
  for (size_t i = 0; i < pieces.size() && committed; ++i) committed = commit_and_touch(pieces[i]);
  if (!committed) {
    // Some of it may be there. If even this fails, the memory is the extent's until that closes, so
    // it stays granted: djinnd counts what is really used.
    bool gone = true;
    for (const Range& piece : pieces) {
      gone &= pal_->decommit(extent_, piece.offset, piece.bytes).ok();
    }
    if (gone) grants_->give_back(more);
    return committed;
  }
  for (const Range& piece : std::span(pieces).first(hole_count)) fill(piece);
  watermark_bytes_ = std::max(watermark_bytes_, bytes);
  return {};
}

Status Window::cover(std::span<const Range> ranges) {
  uint64_t end_bytes = 0;
  for (const Range& range : ranges) end_bytes = std::max(end_bytes, range.end());
  const std::vector<Range> pieces = holes_in(ranges);
  if (pieces.empty() && end_bytes <= watermark_bytes_) return {};
  if (end_bytes > extent_.bytes) {
    return Error{ErrorCode::kOutOfMemory,
                 fmt::format("needs {} bytes, the section ends at {}", end_bytes, extent_.bytes)};
  }
  const uint64_t least = std::max(granules(end_bytes), watermark_bytes_);
  const uint64_t step = least == watermark_bytes_
                            ? least
                            : std::min(align_up(least, kStepBytes).value_or(least), extent_.bytes);
  if (!step_refused_) {
    const Status stepped =
        grow_exactly_to(step, pieces, step == least ? Amount::kNeeded : Amount::kMore);
    const bool at_a_limit = !stepped && (stepped.error().code == ErrorCode::kQuotaExceeded ||
                                         stepped.error().code == ErrorCode::kOutOfMemory);
    if (!at_a_limit || step == least) return stepped;
  }
  // Close to a limit: only what is needed.
  const Status exact = grow_exactly_to(least, pieces, Amount::kNeeded);
  step_refused_ = !exact && exact.error().code == ErrorCode::kPending;
  return exact;
}

// Takes the range, of whole pages, out of what is committed.
bool Window::punch(Range range) {
  if (range.bytes == 0) return false;
  std::vector<Range> pieces = holes_in(std::span(&range, 1));
  uint64_t known = 0;
  for (const Range& piece : pieces) known += piece.bytes;
  if (known == range.bytes || !pal_->decommit(extent_, range.offset, range.bytes)) return false;
  for (const Range& piece : pieces) fill(piece);
  holes_[range.offset] = range.bytes;
  hole_bytes_ += range.bytes;
  return true;
}

uint64_t Window::give_back(const std::map<uint64_t, uint64_t>& free, uint64_t end_bytes) {
  const uint64_t before = committed_bytes();
  const uint64_t granularity = pal_->properties().granularity_bytes;
  for (const auto& [offset, bytes] : free) {
    const uint64_t begin = granules(offset);
    const uint64_t end = std::min(offset + bytes, watermark_bytes_) / granularity * granularity;
    if (begin < end && end - begin >= kHoleBytesMin) punch({begin, end - begin});
  }
  const uint64_t end = granules(end_bytes);
  if (end < watermark_bytes_ && punch({end, watermark_bytes_ - end})) {
    fill({end, watermark_bytes_ - end});
    watermark_bytes_ = end;
  }
  const uint64_t given = before - committed_bytes();
  if (given > 0) grants_->give_back(given);
  return given;
}

}  // namespace djinn::vmu
