// SPDX-License-Identifier: Apache-2.0

#include "kernel/vmu/window.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "kernel/base/assert.h"
#include "kernel/base/checked.h"

namespace djinn::vmu {

bool is_at_a_limit(const Outcome<void>& grown) {
  return grown.has_failed() && (grown.error().code == ErrorCode::kQuotaExceeded ||
                                grown.error().code == ErrorCode::kOutOfMemory);
}

namespace {

uint64_t sum_of(std::span<const Range> ranges) {
  uint64_t bytes = 0;
  for (const Range& range : ranges) bytes += range.bytes;
  return bytes;
}

}  // namespace

// --- opening

Window::Window(pal::DevicePal& pal, GrantSource& grants, pal::Reservation reservation) noexcept
    : pal_(&pal), grants_(&grants), reservation_(std::move(reservation)) {}

Result<Window> Window::open(pal::DevicePal& pal, GrantSource& grants, WindowMemory memory,
                            std::span<const Range> live) {
  const uint64_t granularity = pal.properties().granularity_bytes;
  if (memory.granted_bytes > memory.bytes || memory.granted_bytes % granularity != 0) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{} granted bytes do not fit a window of {}", memory.granted_bytes,
                             memory.bytes)};
  }
  DJINN_TRY(pal::Reservation reservation, pal.reserve(memory.bytes));
  Window window(pal, grants, std::move(reservation));
  const std::vector<Range> blocks = window.pages_of(live);
  if (window.has_parts()) {
    DJINN_CHECK(window.map_sparse(std::move(memory.chunks)));
    DJINN_CHECK(window.keep_only(blocks, memory.granted_bytes));
  } else {
    DJINN_CHECK(window.take_all(std::move(memory.chunks)));
    DJINN_CHECK(window.check_held(blocks, memory.granted_bytes));
  }
  return window;
}

Status Window::map_sparse(std::vector<Chunk> chunks) {
  if (chunks.size() != 1 || chunks.front().place() != Range{0, size()}) {
    return Error{ErrorCode::kInvalidArgument, "the window has not one extent for all of it"};
  }
  pal::Extent& extent = chunks.front().extent;
  DJINN_CHECK(pal_->map(reservation_, 0, extent, 0, extent.bytes, pal::Access::kReadWrite));
  chunks_.emplace(0, std::move(extent));
  return {};
}

const pal::Extent& Window::sparse() const {
  DJINN_ASSERT(has_parts() && chunks_.size() == 1);
  return chunks_.begin()->second;
}

// Decommits what a predecessor had committed elsewhere, of which this window does not know.
Status Window::decommit_all_but(std::span<const Range> kept) {
  uint64_t at = 0;
  for (const Range& block : kept) {
    if (block.offset > at) DJINN_CHECK(pal_->decommit(sparse(), at, block.offset - at));
    at = block.end();
  }
  if (at == size()) return {};
  return pal_->decommit(sparse(), at, size() - at);
}

Status Window::keep_only(std::vector<Range> blocks, uint64_t granted_bytes) {
  if (blocks.empty() || blocks.back().end() <= granted_bytes) blocks = {{0, granted_bytes}};
  const uint64_t needed_bytes = sum_of(blocks);
  if (needed_bytes > granted_bytes) {
    return Error{ErrorCode::kMalformed, fmt::format("ranges of {} bytes live, but {} are granted",
                                                    needed_bytes, granted_bytes)};
  }
  if (granted_bytes == 0) return {};
  DJINN_CHECK(decommit_all_but(blocks));
  for (const Range& block : blocks) {
    DJINN_CHECK(commit_and_touch(block));
    note_filled(block);
  }
  DJINN_ASSERT(committed_bytes() == needed_bytes);
  if (granted_bytes > needed_bytes) grants_->give_back(granted_bytes - needed_bytes);
  return {};
}

Status Window::check_held(std::span<const Range> blocks, uint64_t granted_bytes) const {
  if (committed_bytes() != granted_bytes) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{} bytes are granted, but the chunks are of {}", granted_bytes,
                             committed_bytes())};
  }
  const bool in_chunks =
      (blocks.empty() || blocks.back().end() <= watermark_bytes_) && holes_in(blocks).empty();
  if (!in_chunks) return Error{ErrorCode::kMalformed, "ranges live where no chunk is"};
  return {};
}

// --- pages and holes

uint64_t Window::granules(uint64_t bytes) const {
  return *align_up(bytes, pal_->properties().granularity_bytes);
}

Range Window::pages_of(Range range) const {
  const uint64_t begin = range.offset - range.offset % pal_->properties().granularity_bytes;
  return {begin, granules(range.end()) - begin};
}

// Gives the pages of all the ranges, which are in order. The blocks that this gives do not touch.
std::vector<Range> Window::pages_of(std::span<const Range> ranges) const {
  std::vector<Range> blocks;
  for (const Range& range : ranges) {
    const Range pages = pages_of(range);
    const bool touches = !blocks.empty() && pages.offset <= blocks.back().end();
    if (!touches) blocks.push_back(pages);
    if (touches) blocks.back().bytes = pages.end() - blocks.back().offset;
  }
  return blocks;
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
  // Two ranges may have a page in common, or touch.
  std::ranges::sort(pieces, {}, &Range::offset);
  std::vector<Range> apart;
  for (const Range& piece : pieces) {
    const bool touches = !apart.empty() && piece.offset <= apart.back().end();
    if (!touches) apart.push_back(piece);
    if (touches)
      apart.back().bytes = std::max(apart.back().end(), piece.end()) - apart.back().offset;
  }
  return apart;
}

// Gives the holes that the pieces lie in; each piece lies in one.
std::vector<Range> Window::whole_holes(std::span<const Range> pieces) const {
  std::vector<Range> whole;
  for (const Range& piece : pieces) {
    const auto hole = std::prev(holes_.upper_bound(piece.offset));
    const Range found{hole->first, hole->second};
    if (whole.empty() || whole.back() != found) whole.push_back(found);
  }
  return whole;
}

// The piece lies in one hole, or behind the watermark.
void Window::note_filled(Range piece) {
  if (piece.offset >= watermark_bytes_) {
    const uint64_t between = piece.offset - watermark_bytes_;
    if (between > 0) holes_[watermark_bytes_] = between;
    hole_bytes_ += between;
    watermark_bytes_ = piece.end();
    return;
  }
  const auto found = std::prev(holes_.upper_bound(piece.offset));
  const Range hole{found->first, found->second};
  DJINN_ASSERT(hole.offset <= piece.offset && piece.end() <= hole.end());
  holes_.erase(found);
  if (hole.offset < piece.offset) holes_[hole.offset] = piece.offset - hole.offset;
  if (piece.end() < hole.end()) holes_[piece.end()] = hole.end() - piece.end();
  hole_bytes_ -= piece.bytes;
}

// Notes that nothing of these pages, which end below the watermark or at it, is committed any more.
void Window::note_hole(Range pages) {
  DJINN_ASSERT(pages.end() <= watermark_bytes_);
  for (const Range& piece : holes_in(std::span(&pages, 1))) note_filled(piece);
  hole_bytes_ += pages.bytes;
  const auto next = holes_.find(pages.end());
  if (next != holes_.end()) {
    pages.bytes += next->second;
    holes_.erase(next);
  }
  const auto behind = holes_.lower_bound(pages.offset);
  const auto before = behind == holes_.begin() ? holes_.end() : std::prev(behind);
  if (before != holes_.end() && before->first + before->second == pages.offset) {
    before->second += pages.bytes;
  } else {
    holes_[pages.offset] = pages.bytes;
  }
}

void Window::lower_watermark() {
  while (!holes_.empty()) {
    const auto last = std::prev(holes_.end());
    if (last->first + last->second < watermark_bytes_) return;
    watermark_bytes_ = last->first;
    hole_bytes_ -= last->second;
    holes_.erase(last);
  }
}

// --- growing

Status Window::commit_and_touch(Range range) {
  return pal::back_with_pages(*pal_, sparse(), reservation_, range.offset, range.bytes,
                              [this] { grants_->backed(); });
}

// Commits all the pieces, for which bytes were granted, or none of them.
Status Window::commit_all(std::span<const Range> pieces) {
  Status committed;
  for (size_t i = 0; i < pieces.size() && committed; ++i) committed = commit_and_touch(pieces[i]);
  if (committed) {
    for (const Range& piece : pieces) note_filled(piece);
    return {};
  }
  // Some of it may be there. If even this fails, the memory is the extent's until that closes, so
  // it stays granted: djinnd counts what is really used.
  bool gone = true;
  for (const Range& piece : pieces) {
    gone &= pal_->decommit(sparse(), piece.offset, piece.bytes).ok();
  }
  if (gone) grants_->give_back(sum_of(pieces));
  return committed;
}

Status Window::take(Chunk chunk) {
  const Range place = chunk.place();
  DJINN_CHECK(
      pal_->map(reservation_, place.offset, chunk.extent, 0, place.bytes, pal::Access::kReadWrite));
  chunk.extent.fd = Fd();  // the mapping holds the memory
  chunks_.emplace(place.offset, std::move(chunk.extent));
  note_filled(place);
  grants_->backed();
  return {};
}

// Chunks that cannot be mapped go back; the others stay, and are what is held.
Status Window::take_all(std::vector<Chunk> chunks) {
  std::ranges::sort(chunks, {}, &Chunk::offset);
  Status taken;
  for (Chunk& chunk : chunks) {
    const Range place = chunk.place();
    Status one = take(std::move(chunk));
    if (one) continue;
    grants_->give_back(place);
    taken = std::move(one);
  }
  return taken;
}

Outcome<void> Window::grow_exactly_to(uint64_t bytes, std::vector<Range> pieces, Amount amount) {
  if (bytes > watermark_bytes_) pieces.push_back({watermark_bytes_, bytes - watermark_bytes_});
  DJINN_TRY(std::vector<Chunk> chunks, grants_->ask(pieces, amount));
  if (!has_parts()) return take_all(std::move(chunks));
  DJINN_ASSERT(chunks.empty());
  return commit_all(pieces);
}

// Gives the end up to which the window tries to grow, which is at least `least`.
uint64_t Window::first_step(uint64_t least) const {
  if (least == watermark_bytes_) return least;
  if (has_parts()) return std::min(align_up(least, kStepBytes).value_or(least), size());
  const uint64_t doubled = watermark_bytes_ + std::max(kChunkBytes, watermark_bytes_);
  return std::min(std::max(least, doubled), size());
}

// Gives the next end to try after a larger one was refused. Chunks go half of the way each time:
// one for each page that is left below a limit would be too many.
uint64_t Window::lesser_step(uint64_t least) const {
  DJINN_ASSERT(refused_end_ > least);
  if (has_parts()) return least;
  const uint64_t half = (refused_end_ - least) / 2;
  return least + half - half % pal_->properties().granularity_bytes;
}

Outcome<void> Window::cover(std::span<const Range> ranges) {
  uint64_t end_bytes = 0;
  for (const Range& range : ranges) end_bytes = std::max(end_bytes, range.end());
  if (end_bytes > size()) {
    return Error{ErrorCode::kOutOfMemory,
                 fmt::format("needs {} bytes, the section ends at {}", end_bytes, size())};
  }
  for (;;) {
    const std::vector<Range> needed = holes_in(ranges);
    if (needed.empty() && end_bytes <= watermark_bytes_) return {};
    // Where memory comes by the chunk a whole hole is filled: a chunk for each page would be too
    // many.
    const bool exact = has_parts() || holes_refused_;
    const std::vector<Range> pieces = exact ? needed : whole_holes(needed);
    const uint64_t least = std::max(granules(end_bytes), watermark_bytes_);
    const uint64_t end = refused_end_ > least ? lesser_step(least) : first_step(least);
    const bool is_more = end > least || pieces != needed;
    Outcome<void> grown = grow_exactly_to(end, pieces, is_more ? Amount::kMore : Amount::kNeeded);
    if (grown.is_pending()) return grown;
    const bool may_be_less = is_at_a_limit(grown) && is_more;
    holes_refused_ = may_be_less;
    refused_end_ = may_be_less ? end : 0;
    if (!grown && !may_be_less) return grown;
  }
}

// --- giving back

// Decommits the pages, which nobody uses, and tells whether any memory went.
bool Window::drop(Range pages) {
  if (pages.bytes == 0) return false;
  const uint64_t gone_before = sum_of(holes_in(std::span(&pages, 1)));
  if (gone_before == pages.bytes) return false;
  if (!pal_->decommit(sparse(), pages.offset, pages.bytes)) return false;
  note_hole(pages);
  return true;
}

void Window::drop_parts(const std::map<uint64_t, uint64_t>& free, uint64_t end_bytes) {
  const uint64_t before = committed_bytes();
  const uint64_t granularity = pal_->properties().granularity_bytes;
  for (const auto& [offset, bytes] : free) {
    const uint64_t begin = granules(offset);
    const uint64_t end = std::min(offset + bytes, watermark_bytes_) / granularity * granularity;
    if (begin < end && end - begin >= kHoleBytesMin) drop({begin, end - begin});
  }
  const uint64_t end = granules(end_bytes);
  if (end < watermark_bytes_) drop({end, watermark_bytes_ - end});
  if (before > committed_bytes()) grants_->give_back(before - committed_bytes());
}

void Window::drop_chunks(const std::map<uint64_t, uint64_t>& free, uint64_t end_bytes) {
  const auto is_unused = [&](Range place) {
    if (place.offset >= end_bytes) return true;
    const auto next = free.upper_bound(place.offset);
    if (next == free.begin()) return false;
    const auto& [offset, bytes] = *std::prev(next);
    return place.end() <= offset + bytes;
  };
  for (auto at = chunks_.begin(); at != chunks_.end();) {
    const Range place{at->first, at->second.bytes};
    const bool goes = is_unused(place) && pal_->unmap(reservation_, place.offset, place.bytes);
    at = goes ? chunks_.erase(at) : std::next(at);
    if (!goes) continue;
    note_hole(place);
    grants_->give_back(place);
  }
}

uint64_t Window::give_back(const std::map<uint64_t, uint64_t>& free, uint64_t end_bytes) {
  const uint64_t before = committed_bytes();
  if (has_parts()) {
    drop_parts(free, end_bytes);
  } else {
    drop_chunks(free, end_bytes);
  }
  lower_watermark();
  return before - committed_bytes();
}

}  // namespace djinn::vmu
