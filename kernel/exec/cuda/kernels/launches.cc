// SPDX-License-Identifier: Apache-2.0
#include "kernel/exec/cuda/kernels/launches.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <string_view>
#include <utility>

namespace djinn::cuda {
namespace {

// Blocks of kGemvThreads that a multiprocessor has at a time, at 64 registers a thread.
constexpr int64_t kGemvBlocksAtOnce = 4;
// Splits of a row that have a block each; of more, each has several.
constexpr int32_t kSplitBlocksMax = 1024;
// What CUDA takes of a grid, in its second and third dimension and in its first.
constexpr int64_t kGridMax = 65535;
constexpr int64_t kRowsMax = int64_t{1} << 31;

constexpr std::array<std::string_view, kElements> kNames = {"float32", "bfloat16", "float16"};

std::string kernel_name(std::string_view kernel, Element element) {
  return fmt::format("djinn_{}_{}", kernel, kNames[static_cast<size_t>(element)]);
}

Error refused(std::string what) {
  return {ErrorCode::kInvalidArgument, std::move(what)};
}

int64_t vector_elements(Element element) {
  return kVectorBytes / bytes_of(element);
}

bool is_aligned(const void* address) {
  return std::bit_cast<uintptr_t>(address) % kVectorBytes == 0;
}

// Whether vectors can be read from `address` on, and from each row of that stride.
Status check_vectors(std::string_view what, const void* address, int64_t stride, Element element) {
  if (address == nullptr) return refused(fmt::format("{} is missing", what));
  if (is_aligned(address) && stride % vector_elements(element) == 0) return {};
  return refused(fmt::format("{} begins, or has rows that begin, at no multiple of {} bytes", what,
                             kVectorBytes));
}

int64_t in_units(int64_t count, int64_t unit) {
  return (count + unit - 1) / unit;
}

Status check(const Gemv& call, Element element) {
  if (call.rows < 1 || call.rows > kGemvRows)
    return refused(fmt::format("{} rows; a Gemv has 1 to {}", call.rows, kGemvRows));
  if (call.count < 1 || call.count > kGemvWeights)
    return refused(fmt::format("{} weights; a Gemv has 1 to {}", call.count, kGemvWeights));
  if (call.inputs < 1 || call.inputs % vector_elements(element) != 0) {
    return refused(fmt::format("{} inputs; a Gemv has a multiple of {}", call.inputs,
                               vector_elements(element)));
  }
  DJINN_CHECK(check_vectors("x", call.x, call.x_stride, element));
  for (const GemvWeight& weight : std::span(call.weights).first(static_cast<size_t>(call.count))) {
    if (weight.outputs < 1) return refused("a weight of no outputs");
    DJINN_CHECK(check_vectors("a weight", weight.weight, call.inputs, element));
    if (weight.y == nullptr && (!call.gated || &weight == call.weights))
      return refused("a weight's outputs have no place");
  }
  if (call.gated && (call.count != 2 || call.weights[0].outputs != call.weights[1].outputs))
    return refused("a gated Gemv has two weights of as many outputs");
  if (call.residual != nullptr && call.count != 1 && !call.gated)
    return refused("a residual is added to the outputs of one weight");
  return {};
}

// Of outputs that a warp computes at once.
int64_t groups_of(const Gemv& call) {
  if (call.gated) return call.weights[0].outputs;
  int64_t groups = 0;
  for (int32_t i = 0; i < call.count; ++i)
    groups += in_units(call.weights[i].outputs, kGemvOutputs);
  return groups;
}

Status check(const Norm& call, Element element) {
  if (call.rows < 1 || call.rows > kRowsMax) return refused(fmt::format("{} rows", call.rows));
  if (call.width < 1 || call.width % vector_elements(element) != 0) {
    return refused(fmt::format("rows of {} elements; a Norm has a multiple of {}", call.width,
                               vector_elements(element)));
  }
  DJINN_CHECK(check_vectors("x", call.x, call.x_stride, element));
  DJINN_CHECK(check_vectors("y", call.y, call.y_stride, element));
  if (!is_aligned(call.weight) || !is_aligned(call.bias))
    return refused(fmt::format("weight or bias begins at no multiple of {} bytes", kVectorBytes));
  return {};
}

Status check_heads(int32_t rows, int32_t heads, int32_t cache_heads, int32_t width) {
  if (rows < 1 || rows > kGridMax) return refused(fmt::format("{} rows", rows));
  if (cache_heads < 1 || heads < 1 || heads % cache_heads != 0 || heads > kGridMax) {
    return refused(fmt::format("{} heads that share {} of keys and values", heads, cache_heads));
  }
  if (width < 1 || width > kHeadWidthMax)
    return refused(fmt::format("heads of {} elements; there may be {}", width, kHeadWidthMax));
  return {};
}

Status check(const RopeAppend& call) {
  DJINN_CHECK(check_heads(call.rows, call.heads, call.cache_heads, call.width));
  if ((call.cos == nullptr) != (call.sin == nullptr))
    return refused("cosines without sines, or the other way round");
  if (call.rotary < 0 || call.rotary > call.width || call.rotary % 2 != 0) {
    return refused(fmt::format("{} of {} elements are to be turned; it must be an even number",
                               call.rotary, call.width));
  }
  for (const void* const address :
       {call.query, call.key, call.value, static_cast<const void*>(call.query_out),
        static_cast<const void*>(call.cache), static_cast<const void*>(call.lengths)}) {
    if (address == nullptr) return refused("an address is missing");
  }
  return {};
}

Status check(const Attend& call, Element element) {
  DJINN_CHECK(check_heads(call.rows, call.heads, call.cache_heads, call.width));
  if (call.width % vector_elements(element) != 0) {
    return refused(fmt::format("heads of {} elements; an Attend has a multiple of {}", call.width,
                               vector_elements(element)));
  }
  if (call.splits < 1) return refused(fmt::format("{} splits", call.splits));
  if (call.appended != 0 && call.appended != 1)
    return refused(
        fmt::format("{} tokens are appended and not counted; it may be one", call.appended));
  DJINN_CHECK(check_vectors("query", call.query, call.query_stride, element));
  if (call.out == nullptr || call.cache == nullptr || call.lengths == nullptr)
    return refused("an address is missing");
  if (call.parts == nullptr || !is_aligned(call.parts))
    return refused(fmt::format("parts begin at no multiple of {} bytes", kVectorBytes));
  return {};
}

Status check(const Draw& call) {
  if (call.rows < 1 || call.rows > kGridMax) return refused(fmt::format("{} rows", call.rows));
  if (call.tokens < 1 || call.tokens > kDrawTokensMax)
    return refused(fmt::format("{} tokens; a Draw has 1 to {}", call.tokens, kDrawTokensMax));
  for (const void* const address :
       {static_cast<const void*>(call.logits), static_cast<const void*>(call.rules),
        static_cast<const void*>(call.lengths), static_cast<const void*>(call.drawn)}) {
    if (address == nullptr) return refused("an address is missing");
  }
  return {};
}

Status check(const TurnedGemv& call, Element element) {
  if (call.rows < 1 || call.rows > kGemvRows)
    return refused(fmt::format("{} rows; a TurnedGemv has 1 to {}", call.rows, kGemvRows));
  if (call.inputs < 1) return refused("a weight of no inputs");
  if (call.outputs < 1 || call.outputs % vector_elements(element) != 0) {
    return refused(fmt::format("{} outputs; a TurnedGemv has a multiple of {}", call.outputs,
                               vector_elements(element)));
  }
  if (call.x == nullptr || call.y == nullptr) return refused("an address is missing");
  return check_vectors("a weight", call.weight, call.weight_stride, element);
}

Status check(const Turn& call) {
  if (call.rows < 1 || call.heads < 1 || call.tokens < 1 ||
      call.rows * call.heads * call.tokens > kRowsMax) {
    return refused(
        fmt::format("[{}, {}, {}] vectors are to be turned", call.rows, call.heads, call.tokens));
  }
  if (call.width < 2 || call.width % 2 != 0)
    return refused(fmt::format("vectors of {} elements; it must be an even number", call.width));
  for (const void* const address : {call.x, call.cos, call.sin, static_cast<const void*>(call.y)}) {
    if (address == nullptr) return refused("an address is missing");
  }
  return {};
}

Status check(const AttendRows& call) {
  if (call.count < 1 || call.count > kGridMax)
    return refused(fmt::format("{} rows are to be described", call.count));
  if (call.tokens < 1 || call.keys < 1 || call.begin < 0)
    return refused(fmt::format("{} tokens over {} keys", call.tokens, call.keys));
  for (const void* const address :
       {call.key, call.value, static_cast<const void*>(call.cache),
        static_cast<const void*>(call.lengths), static_cast<const void*>(call.firsts)}) {
    if (address == nullptr) return refused("an address is missing");
  }
  if (call.mask != nullptr && call.masks == nullptr) return refused("masks have no place");
  return {};
}

// Queries that a block of an Attend computes: those of a group, or some of a large one.
int32_t heads_at_once(int32_t group) {
  if (group == 1) return 1;
  return group <= kHeadsAtOnce / 2 ? kHeadsAtOnce / 2 : kHeadsAtOnce;
}

}  // namespace

Result<Launch> launch_of(const Gemv& call, Element element, uint32_t multiprocessors) {
  DJINN_CHECK(check(call, element));
  const int64_t wanted = in_units(groups_of(call), kGemvThreads / kWarp);
  const int64_t at_once = int64_t{std::max(multiprocessors, 1u)} * kGemvBlocksAtOnce;
  Launch launch;
  launch.kernel = fmt::format("{}_{}", kernel_name("gemv", element),
                              std::bit_ceil(static_cast<uint32_t>(call.rows)));
  launch.grid_x = static_cast<uint32_t>(std::min(wanted, at_once));
  launch.threads = kGemvThreads;
  return launch;
}

Result<Launch> launch_of(const Norm& call, Element element) {
  DJINN_CHECK(check(call, element));
  Launch launch;
  launch.kernel = kernel_name("norm", element);
  launch.grid_x = static_cast<uint32_t>(call.rows);
  launch.threads = kNormThreads;
  launch.shared_bytes = kNormSharedBytes;
  return launch;
}

Result<Launch> launch_of(const RopeAppend& call, Element element) {
  DJINN_CHECK(check(call));
  const int64_t heads = int64_t{call.heads} + 2 * int64_t{call.cache_heads};
  Launch launch;
  launch.kernel = kernel_name("rope_append", element);
  launch.grid_x = static_cast<uint32_t>(in_units(heads, kRopeThreads / kWarp));
  launch.grid_y = static_cast<uint32_t>(call.rows);
  launch.threads = kRopeThreads;
  return launch;
}

Result<AttendLaunches> launches_of(const Attend& call, Element element) {
  DJINN_CHECK(check(call, element));
  const int32_t group = call.heads / call.cache_heads;
  const int32_t at_once = heads_at_once(group);
  AttendLaunches launches;
  Launch& split = launches.split;
  split.kernel = fmt::format("{}_{}", kernel_name("attend", element), at_once);
  split.grid_x = static_cast<uint32_t>(std::min(call.splits, kSplitBlocksMax));
  split.grid_y = static_cast<uint32_t>(call.cache_heads * in_units(group, at_once));
  split.grid_z = static_cast<uint32_t>(call.rows);
  split.threads = kAttendThreads;
  split.shared_bytes = static_cast<uint32_t>(attend_shared_bytes(at_once, call.width));
  Launch& combine = launches.combine;
  combine.kernel = kernel_name("attend_combine", element);
  combine.grid_x = static_cast<uint32_t>(call.heads);
  combine.grid_y = static_cast<uint32_t>(call.rows);
  combine.threads = kAttendThreads;
  return launches;
}

Result<Launch> launch_of(const Draw& call) {
  DJINN_CHECK(check(call));
  Launch launch;
  launch.kernel = "djinn_draw";
  launch.grid_x = static_cast<uint32_t>(call.rows);
  launch.threads = kDrawThreads;
  launch.shared_bytes = static_cast<uint32_t>(draw_shared_bytes(call.tokens));
  return launch;
}

Result<Launch> launch_of(const TurnedGemv& call, Element element) {
  DJINN_CHECK(check(call, element));
  Launch launch;
  launch.kernel = fmt::format("{}_{}", kernel_name("turned_gemv", element),
                              std::bit_ceil(static_cast<uint32_t>(call.rows)));
  launch.grid_x =
      static_cast<uint32_t>(in_units(call.outputs, kTurnedVectors * vector_elements(element)));
  launch.threads = kTurnedThreads;
  launch.shared_bytes = static_cast<uint32_t>(turned_shared_bytes(element));
  return launch;
}

Result<Launch> launch_of(const Gate& call, Element element) {
  if (call.count < 1 || call.count > kRowsMax)
    return refused(fmt::format("{} elements are to be activated", call.count));
  if (call.x == nullptr || call.y == nullptr) return refused("an address is missing");
  Launch launch;
  launch.kernel = kernel_name("gate", element);
  launch.grid_x = static_cast<uint32_t>(in_units(call.count, kGateThreads));
  launch.threads = kGateThreads;
  return launch;
}

Result<Launch> launch_of(const Turn& call, Element element) {
  DJINN_CHECK(check(call));
  Launch launch;
  launch.kernel = kernel_name("turn", element);
  launch.grid_x =
      static_cast<uint32_t>(in_units(call.rows * call.heads * call.tokens, kTurnThreads / kWarp));
  launch.threads = kTurnThreads;
  return launch;
}

Result<Launch> launch_of(const AttendRows& call) {
  DJINN_CHECK(check(call));
  Launch launch;
  launch.kernel = "djinn_attend_rows";
  launch.grid_x = static_cast<uint32_t>(call.count);
  launch.threads = kWarp;
  return launch;
}

}  // namespace djinn::cuda
