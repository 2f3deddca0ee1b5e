// SPDX-License-Identifier: Apache-2.0

#include "kernel/load/plan.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "kernel/base/checked.h"
#include "kernel/base/int8_rows.h"
#include "kernel/load/cast.h"
#include "kernel/srg/weight_form.h"

namespace djinn::load {
namespace {

using Sizes = std::vector<uint64_t>;

Error bad(ErrorCode code, std::string_view destination, std::string_view why) {
  return {code, "The load plan's tensor " + quote_name(destination) + " " + std::string(why) + "."};
}

// Describes a file's tensor as a piece sees it: sliced and transposed.
struct View {
  uint32_t file = 0;
  uint64_t offset = 0;  // in the file
  DType dtype = DType::kInvalid;
  Sizes sizes;
  Sizes strides;  // bytes
};

// Holds a destination whose pieces are known to fit it.
struct Part {
  const srg::Destination* destination = nullptr;
  std::vector<View> views;
  uint64_t bytes = 0;
  srg::TensorEntry entry;  // extent and offset once it is placed
};

bool has_no_elements(std::span<const uint64_t> sizes) {
  return std::find(sizes.begin(), sizes.end(), 0u) != sizes.end();
}

// Gives the strides of a contiguous tensor whose bytes are known not to overflow. A tensor without
// elements gets strides of zero.
Sizes contiguous_strides(std::span<const uint64_t> sizes, DType dtype) {
  Sizes strides(sizes.size(), 0);
  if (has_no_elements(sizes)) return strides;
  uint64_t stride = size_of(dtype);
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= sizes[i];
  }
  return strides;
}

// --- pieces to views ----------------------------------------------------------------------------

Status apply_slices(View& view, const srg::Piece& piece, std::string_view destination) {
  std::vector<bool> sliced(view.sizes.size(), false);
  for (const srg::Slice& slice : piece.slices) {
    if (slice.dimension >= view.sizes.size()) {
      return bad(ErrorCode::kOutOfRange, destination, "slices a dimension that does not exist");
    }
    if (sliced[slice.dimension]) {
      return bad(ErrorCode::kInvalidArgument, destination, "slices a dimension twice");
    }
    if (!range_fits(slice.start, slice.length, view.sizes[slice.dimension])) {
      return bad(ErrorCode::kOutOfRange, destination, "slices beyond the end of a dimension");
    }
    sliced[slice.dimension] = true;
    view.offset += slice.start * view.strides[slice.dimension];
    view.sizes[slice.dimension] = slice.length;
  }
  return {};
}

Result<View> view_of(const srg::Piece& piece, std::span<const SafetensorsIndex> files,
                     std::string_view destination) {
  if (piece.file >= files.size()) {
    return bad(ErrorCode::kNotFound, destination, "names a file that the request does not have");
  }
  const TensorRecord* tensor = files[piece.file].find(piece.tensor);
  if (tensor == nullptr) {
    return bad(ErrorCode::kNotFound, destination,
               "reads " + quote_name(piece.tensor) + ", which the file does not have");
  }
  View view{piece.file, tensor->offset, tensor->dtype, tensor->sizes,
            contiguous_strides(tensor->sizes, tensor->dtype)};
  DJINN_CHECK(apply_slices(view, piece, destination));
  if (!piece.transpose) return view;
  const size_t rank = view.sizes.size();
  if (rank < 2) {
    return bad(ErrorCode::kInvalidArgument, destination, "transposes fewer than two dimensions");
  }
  std::swap(view.sizes[rank - 2], view.sizes[rank - 1]);
  std::swap(view.strides[rank - 2], view.strides[rank - 1]);
  return view;
}

// --- views to destinations ----------------------------------------------------------------------

// Tells whether the views, one after the other along a dimension, give the sizes.
bool concatenation_gives(std::span<const View> views, uint32_t dimension, const Sizes& sizes) {
  uint64_t total = 0;
  for (const View& view : views) {
    if (view.sizes.size() != sizes.size()) return false;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (i != dimension && view.sizes[i] != sizes[i]) return false;
    }
    const auto sum = checked_add(total, view.sizes[dimension]);
    if (!sum) return false;
    total = *sum;
  }
  return total == sizes[dimension];
}

Status check_shapes(const srg::Destination& destination, std::span<const View> views) {
  const Error mismatch =
      bad(ErrorCode::kShapeMismatch, destination.name, "has sizes that its pieces do not give");
  if (views.size() == 1) return views[0].sizes == destination.sizes ? Status() : mismatch;
  if (destination.concat_dimension >= destination.sizes.size()) {
    return bad(ErrorCode::kOutOfRange, destination.name,
               "concatenates along a dimension that does not exist");
  }
  return concatenation_gives(views, destination.concat_dimension, destination.sizes) ? Status()
                                                                                     : mismatch;
}

Result<uint64_t> bytes_of(const srg::Destination& destination) {
  const bool is_int8 = destination.form == srg::WeightForm::kInt8;
  const auto elements = is_int8 ? destination.sizes[0] : checked_product(destination.sizes);
  const uint64_t element_bytes =
      is_int8 ? int8_row_bytes(destination.sizes[1]) : size_of(destination.dtype);
  const auto bytes =
      elements ? checked_mul<uint64_t>(*elements, element_bytes) : std::optional<uint64_t>();
  if (!bytes) return bad(ErrorCode::kOutOfRange, destination.name, "has sizes that overflow");
  return *bytes;
}

// Tells whether the destination can have its form at all, whatever its pieces are.
Status check_form(const srg::Destination& destination) {
  if (destination.form == srg::WeightForm::kPlain) return {};
  if (destination.sizes.size() != 2 || has_no_elements(destination.sizes)) {
    return bad(ErrorCode::kUnsupported, destination.name, "is to be int8 and is no matrix");
  }
  if (!srg::is_of_small_floats(destination.dtype)) {
    return bad(ErrorCode::kUnsupported, destination.name,
               "is to be int8 and is neither float32, bfloat16 nor float16");
  }
  if (destination.pieces.size() > 1 && destination.concat_dimension != 0) {
    return bad(ErrorCode::kUnsupported, destination.name,
               "is to be int8, and its rows are concatenated of several pieces");
  }
  if (destination.sizes[1] > srg::kInt8ColumnsMax) {
    return bad(ErrorCode::kLimitExceeded, destination.name, "is to be int8 and has too long rows");
  }
  return {};
}

// A row is read whole.
Status check_rows(const srg::Destination& destination, std::span<const View> views) {
  if (destination.form == srg::WeightForm::kPlain) return {};
  for (const View& view : views) {
    if (view.strides[1] == size_of(view.dtype) || view.sizes[1] == 1) continue;
    return bad(ErrorCode::kUnsupported, destination.name,
               "is to be int8, and its rows do not lie dense in the file");
  }
  return {};
}

Result<Part> part_of(const srg::Destination& destination, std::span<const SafetensorsIndex> files) {
  if (size_of(destination.dtype) == 0) {
    return bad(ErrorCode::kInvalidArgument, destination.name, "has no element type");
  }
  if (destination.sizes.size() > kRankMax) {
    return bad(ErrorCode::kLimitExceeded, destination.name, "has too many dimensions");
  }
  if (destination.pieces.empty()) {
    return bad(ErrorCode::kInvalidArgument, destination.name, "has no pieces");
  }
  Part part;
  part.destination = &destination;
  part.entry = {destination.name, destination.dtype, destination.sizes, 0, 0, 0, destination.form};
  DJINN_CHECK(check_form(destination));
  for (const srg::Piece& piece : destination.pieces) {
    DJINN_TRY(View view, view_of(piece, files, destination.name));
    if (auto cast = element_copy(view.dtype, destination.dtype); !cast) return cast.error();
    part.views.push_back(std::move(view));
  }
  DJINN_TRY(part.bytes, bytes_of(destination));
  DJINN_CHECK(check_shapes(destination, part.views));
  DJINN_CHECK(check_rows(destination, part.views));
  part.entry.bytes = part.bytes;
  return part;
}

Result<std::vector<Part>> parts_of(const srg::LoadPlan& plan,
                                   std::span<const SafetensorsIndex> files) {
  size_t pieces = 0;
  std::vector<Part> parts;
  for (const srg::Destination& destination : plan.destinations) {
    pieces += destination.pieces.size();
    if (pieces > kPiecesMax) {
      return Error{ErrorCode::kLimitExceeded,
                   "The load plan has more than " + std::to_string(kPiecesMax) + " pieces."};
    }
    DJINN_TRY(Part part, part_of(destination, files));
    parts.push_back(std::move(part));
  }
  return parts;
}

// --- names --------------------------------------------------------------------------------------

Status check_names(const srg::LoadPlan& plan) {
  std::vector<std::string_view> names;
  for (const auto& destination : plan.destinations) names.push_back(destination.name);
  for (const auto& alias : plan.aliases) names.push_back(alias.name);
  if (names.empty()) {
    return Error{ErrorCode::kInvalidArgument, "Neither the files nor the plan have any tensor."};
  }
  std::sort(names.begin(), names.end());
  const auto twin = std::adjacent_find(names.begin(), names.end());
  if (twin == names.end()) return {};
  return Error{ErrorCode::kAlreadyExists, "The model would have two tensors named " +
                                              quote_name(*twin) +
                                              ". Give each its own name in a load plan."};
}

srg::LoadPlan every_tensor(std::span<const SafetensorsIndex> files, const srg::LoadPlan& given) {
  srg::LoadPlan plan;
  plan.aliases = given.aliases;
  for (uint32_t file = 0; file < files.size(); ++file) {
    for (const TensorRecord& tensor : files[file].tensors) {
      plan.destinations.push_back(
          {tensor.name, tensor.dtype, tensor.sizes, 0, {{file, tensor.name, {}, false}}});
    }
  }
  return srg::in_form(std::move(plan), given.matrices);
}

void sort_by_name(std::vector<srg::TensorEntry>& tensors) {
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
}

Status add_aliases(srg::ModelManifest& manifest, const std::vector<srg::Alias>& aliases) {
  const size_t own = manifest.tensors.size();
  for (const srg::Alias& alias : aliases) {
    const auto end = manifest.tensors.begin() + static_cast<ptrdiff_t>(own);
    const auto found =
        std::lower_bound(manifest.tensors.begin(), end, alias.destination,
                         [](const auto& entry, const auto& name) { return entry.name < name; });
    if (found == end || found->name != alias.destination) {
      return bad(ErrorCode::kNotFound, alias.name, "is an alias of a tensor that does not exist");
    }
    srg::TensorEntry entry = *found;
    entry.name = alias.name;
    manifest.tensors.push_back(std::move(entry));
  }
  sort_by_name(manifest.tensors);
  return {};
}

// --- layout -------------------------------------------------------------------------------------

// Places tensors one after the other, and begins a new extent when the present one is full.
class Layout {
 public:
  explicit Layout(uint64_t extent_bytes_max) : extent_bytes_max_(extent_bytes_max) {}

  Status place(srg::TensorEntry& entry) {
    if (entry.bytes > extent_bytes_max_) {
      return bad(ErrorCode::kLimitExceeded, entry.name, "is larger than an extent can be");
    }
    auto offset = align_up(cursor_, kTensorAlignment);
    if (!offset || !range_fits(*offset, entry.bytes, extent_bytes_max_)) {
      close_extent();
      offset = 0;
    }
    entry.extent = static_cast<uint32_t>(extents_.size());
    entry.offset = *offset;
    cursor_ = *offset + entry.bytes;
    return {};
  }

  std::vector<uint64_t> finish() && {
    close_extent();
    return std::move(extents_);
  }

 private:
  // invariant: cursor_ <= extent_bytes_max_, a multiple of the granule: rounding cannot overflow.
  void close_extent() {
    extents_.push_back(*align_up(std::max(cursor_, uint64_t{1}), kExtentGranule));
    cursor_ = 0;
  }

  uint64_t extent_bytes_max_;
  uint64_t cursor_ = 0;
  std::vector<uint64_t> extents_;
};

std::pair<uint32_t, uint64_t> first_byte(const Part& part) {
  return {part.views[0].file, part.views[0].offset};
}

Result<srg::ModelManifest> lay_out(std::vector<Part>& parts, uint64_t extent_bytes_max) {
  std::vector<uint32_t> order(parts.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return first_byte(parts[a]) < first_byte(parts[b]);
  });
  Layout layout(extent_bytes_max);
  srg::ModelManifest manifest;
  for (const uint32_t at : order) {
    DJINN_CHECK(layout.place(parts[at].entry));
    manifest.tensors.push_back(parts[at].entry);
  }
  manifest.extent_bytes = std::move(layout).finish();
  sort_by_name(manifest.tensors);
  return manifest;
}

// --- jobs ---------------------------------------------------------------------------------------

bool mergeable(const Loop& outer, const Loop& inner) {
  return outer.source_stride == inner.size * inner.source_stride &&
         outer.target_stride == inner.size * inner.target_stride;
}

std::vector<Loop> loops_of(const View& view, std::span<const uint64_t> target_strides) {
  std::vector<Loop> loops;
  for (size_t i = 0; i < view.sizes.size(); ++i) {
    if (view.sizes[i] != 1) loops.push_back({view.sizes[i], view.strides[i], target_strides[i]});
  }
  std::stable_sort(loops.begin(), loops.end(),
                   [](const Loop& a, const Loop& b) { return a.source_stride > b.source_stride; });
  std::vector<Loop> merged;
  for (const Loop& loop : loops) {
    if (!merged.empty() && mergeable(merged.back(), loop)) {
      merged.back() = {merged.back().size * loop.size, loop.source_stride, loop.target_stride};
    } else {
      merged.push_back(loop);
    }
  }
  return merged;
}

void add_int8_jobs(const Part& part, std::vector<CopyJob>& jobs) {
  const srg::TensorEntry& entry = part.entry;
  const uint64_t row_bytes = int8_row_bytes(entry.sizes[1]);
  uint64_t offset = entry.offset;
  for (const View& view : part.views) {
    const uint64_t rows = view.sizes[0];
    if (rows == 0) continue;
    CopyJob job{view.file, entry.extent, view.offset, offset, view.dtype, entry.dtype, {}, 0};
    if (rows > 1) job.loops.push_back({rows, view.strides[0], row_bytes});
    job.columns = entry.sizes[1];
    jobs.push_back(std::move(job));
    offset += rows * row_bytes;
  }
}

void add_jobs(const Part& part, std::vector<CopyJob>& jobs) {
  const srg::TensorEntry& entry = part.entry;
  if (entry.form == srg::WeightForm::kInt8) return add_int8_jobs(part, jobs);
  const Sizes strides = contiguous_strides(entry.sizes, entry.dtype);
  uint64_t offset = entry.offset;
  for (const View& view : part.views) {
    if (!has_no_elements(view.sizes)) {
      jobs.push_back({view.file, entry.extent, view.offset, offset, view.dtype, entry.dtype,
                      loops_of(view, strides), 0});
    }
    if (part.views.size() == 1) break;
    const uint32_t along = part.destination->concat_dimension;
    offset += view.sizes[along] * strides[along];
  }
}

std::vector<CopyJob> jobs_of(std::span<const Part> parts) {
  std::vector<CopyJob> jobs;
  for (const Part& part : parts) add_jobs(part, jobs);
  std::sort(jobs.begin(), jobs.end(), [](const CopyJob& a, const CopyJob& b) {
    return std::tuple(a.file, a.file_offset, a.extent, a.extent_offset) <
           std::tuple(b.file, b.file_offset, b.extent, b.extent_offset);
  });
  return jobs;
}

uint64_t hull_bytes(std::span<const Loop> loops, uint64_t Loop::*stride, uint64_t innermost) {
  uint64_t bytes = innermost;
  for (const Loop& loop : loops) bytes += (loop.size - 1) * (loop.*stride);
  return bytes;
}

// Gives the bytes of what a job puts to its place by itself: an element, or a row that becomes
// int8.
uint64_t least_read(const CopyJob& job) {
  return size_of(job.from) * std::max<uint64_t>(job.columns, 1);
}
uint64_t least_written(const CopyJob& job) {
  return job.columns > 0 ? int8_row_bytes(job.columns) : size_of(job.to);
}

}  // namespace

uint64_t CopyJob::source_bytes() const {
  return hull_bytes(loops, &Loop::source_stride, least_read(*this));
}
uint64_t CopyJob::target_bytes() const {
  return hull_bytes(loops, &Loop::target_stride, least_written(*this));
}

uint64_t CopyJob::written_bytes() const {
  uint64_t bytes = least_written(*this);
  for (const Loop& loop : loops) bytes *= loop.size;
  return bytes;
}

bool CopyJob::plain() const {
  if (columns > 0 || from != to || loops.size() > 1) return false;
  return loops.empty() ||
         (loops[0].source_stride == size_of(from) && loops[0].target_stride == size_of(to));
}

Result<ReadPlan> resolve(const srg::LoadPlan& plan, std::span<const SafetensorsIndex> files,
                         uint64_t extent_bytes_max) {
  DJINN_ASSERT(extent_bytes_max > 0 && extent_bytes_max % kExtentGranule == 0);
  if (plan.destinations.empty()) {
    const srg::LoadPlan whole = every_tensor(files, plan);
    // If the files do not have the tensor, there is nothing to expand again.
    if (!whole.destinations.empty()) return resolve(whole, files, extent_bytes_max);
  }
  if (plan.matrices != srg::WeightForm::kPlain && !plan.destinations.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 "The load plan has destinations and a form of matrices, which is for all of the "
                 "files' tensors. Give the form to the destinations that are to have it."};
  }
  DJINN_CHECK(check_names(plan));
  DJINN_TRY(std::vector<Part> parts, parts_of(plan, files));
  ReadPlan out;
  DJINN_TRY(out.manifest, lay_out(parts, extent_bytes_max));
  DJINN_CHECK(add_aliases(out.manifest, plan.aliases));
  out.jobs = jobs_of(parts);
  for (const CopyJob& job : out.jobs) out.written_bytes += job.written_bytes();
  return out;
}

}  // namespace djinn::load
