// SPDX-License-Identifier: Apache-2.0

// djinn::attend(Tensor query, Tensor key, Tensor value, Tensor? mask, float? scale, bool grouped,
//     bool causal=False) -> Tensor
//
// An internal operator: what kernel/srg/rewrite makes of attention over the buffers of a sequence
// group. query is [rows, heads, tokens, width], key and value are [rows, heads or fewer that are
// shared, keys, width], mask is bool, [rows, 1, tokens, keys], or added to the scores, [rows,
// heads, tokens, keys], or broadcast. Our own kernels compute that, but for many tokens in bfloat16
// where the machine multiplies that itself; all else, causal attention among it, is
// aten::scaled_dot_product_attention, as the graph said before.
//
// djinn::attend_biased(Tensor query, Tensor key, Tensor value, Tensor[] biases, float[] factors,
//     Tensor? seen, Tensor? instead, float scale, bool merged, Tensor? sinks, bool turned)
//     -> Tensor
//
// The same of attention that the graph spells out,
//
//   softmax(where(seen, scale * (query . key), instead) + sum of factor * bias) . value
//
// which is contiguous. Sinks, [rows, heads, tokens, 1] or without the last, are scores beside those
// of the keys that have no value. A turned key is [rows, heads, width, keys]. Query, key and value
// may have rows and heads as one dimension, as the result has where it is merged; query may be
// float32 where key and value are narrower. What hides keys is -inf, or the least number of its
// dtype: if another `instead` than that is given, the graph's own products are computed.
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "kernel/exec/as_before.h"
#include "kernel/exec/fast_rows.h"
#include "kernel/exec/joint_products.h"
#include "kernel/exec/one_thread.h"
#include "kernel/exec/own_operators.h"
#include "kernel/exec/shape_rules.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {
namespace {

// A bucket's top (lane.cc) is on the same side of it as the bucket's other runs.
constexpr int64_t kFewTokens = 32;

using Mask = std::optional<at::Tensor>;

bool is_ours(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  if (query.dim() != 4 || key.dim() != 4 || key.sizes() != value.sizes()) return false;
  const at::ScalarType type = key.scalar_type();
  if (!element_of(type) || value.scalar_type() != type) return false;
  const int64_t width = query.size(3), heads = query.size(1), shared = key.size(1);
  return width > 0 && width <= kernels::kHeadWidthMax && key.size(3) == width &&
         key.size(0) == query.size(0) && query.numel() > 0 && shared > 0 && heads % shared == 0 &&
         query.stride(3) == 1 && key.stride(3) == 1 && value.stride(3) == 1;
}

// Whether it has the sizes [rows, heads, tokens, keys], or 1 in their stead.
bool is_broadcast(const at::Tensor& mask, at::IntArrayRef sizes) {
  if (mask.dim() != 4) return false;
  for (int64_t d = 0; d < 4; ++d) {
    if (mask.size(d) != sizes[static_cast<size_t>(d)] && mask.size(d) != 1) return false;
  }
  return true;
}

using ScoreSizes = std::array<int64_t, 4>;
ScoreSizes sizes_of_scores(const at::Tensor& query, const at::Tensor& key) {
  return {query.size(0), query.size(1), query.size(2), key.size(2)};
}

bool is_ours(const Mask& mask, const at::Tensor& query, const at::Tensor& key) {
  if (!mask) return true;
  if (!is_broadcast(*mask, sizes_of_scores(query, key))) return false;
  const at::ScalarType type = mask->scalar_type();
  if (type == at::kBool) return mask->size(1) == 1;
  return type == at::kFloat || type == query.scalar_type();
}

// --- what is added to scores

// What PyTorch's attention masks add where a key is not to be seen, or less: in bfloat16 and
// float32 nothing is left of a score beside it, and its weight is zero beside any other key's.
float hides_from(at::ScalarType type) {
  return type == at::kHalf ? -65504.0f : -0x1.fep+127f;
}

struct ScoreBias {
  at::Tensor added;  // float32, [rows, heads, tokens, keys] or 1 in their stead
  float factor = 1;
  float hides_from = 0;  // before it is multiplied
};
ScoreBias bias_of(const at::Tensor& given, double factor) {
  return {given.to(at::kFloat), static_cast<float>(factor), hides_from(given.scalar_type())};
}

// Of one row, head and token, by key: a sum, or -inf where a key is hidden. Where all are, each
// that has a finite bias has the same, as softmax makes of it.
class BiasRow {
 public:
  BiasRow(c10::ArrayRef<ScoreBias> biases, const Mask& seen, int64_t row, int64_t head,
          int64_t token)
      : biases_(biases) {
    const auto begin = [&](const at::Tensor& one) {
      return row * step_of(one, 0) + head * step_of(one, 1) + token * step_of(one, 2);
    };
    for (const ScoreBias& one : biases) {
      added_.push_back(one.added.const_data_ptr<float>() + begin(one.added));
    }
    if (!seen) return;
    seen_ = static_cast<const uint8_t*>(seen->const_data_ptr()) + begin(*seen);
    seen_step_ = step_of(*seen, 3);
  }

  void store(float* to, int64_t keys) const {
    if (!store_sums(to, keys, kNone)) store_sums(to, keys, kLeast);
  }

 private:
  static constexpr float kNone = -std::numeric_limits<float>::infinity();
  static constexpr float kLeast = std::numeric_limits<float>::lowest();

  // With that for each number that hides. Gives whether a key is seen.
  bool store_sums(float* to, int64_t keys, float hidden) const {
    for (int64_t j = 0; j < keys; ++j) {
      to[j] = seen_ == nullptr || seen_[j * seen_step_] != 0 ? 0 : hidden;
    }
    for (size_t i = 0; i < biases_.size(); ++i) {
      const ScoreBias& bias = biases_[i];
      const int64_t step = step_of(bias.added, 3);
      for (int64_t j = 0; j < keys; ++j) {
        const float one = added_[i][j * step];
        const bool hides = one <= bias.hides_from;
        to[j] += !hides ? one * bias.factor : one == kNone ? kNone : hidden;
      }
    }
    return std::any_of(to, to + keys, [](float sum) { return sum != kNone; });
  }

  c10::ArrayRef<ScoreBias> biases_;
  c10::SmallVector<const float*, 2> added_;
  const uint8_t* seen_ = nullptr;
  int64_t seen_step_ = 0;
};

// Rows of biases that are worth a thread, in elements.
constexpr int64_t kBiasGrain = 1 << 14;

// For the kernels: the sum of all, [rows, heads, tokens or 1 in their stead, keys].
at::Tensor sum_of(c10::ArrayRef<ScoreBias> biases, const Mask& seen, int64_t keys) {
  ScoreSizes sizes{1, 1, 1, keys};
  const auto widen = [&](const at::Tensor& one) {
    for (int64_t d = 0; d < 3; ++d) {
      auto& size = sizes[static_cast<size_t>(d)];
      size = std::max(size, one.size(d));
    }
  };
  for (const ScoreBias& one : biases) widen(one.added);
  if (seen) widen(*seen);
  const at::Tensor sum = at::empty(sizes, at::kFloat);
  float* const data = sum.mutable_data_ptr<float>();
  const int64_t grain = std::max<int64_t>(kBiasGrain / std::max<int64_t>(keys, 1), 1);
  for_each_part(sizes[0] * sizes[1] * sizes[2], grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t token = i % sizes[2], head = i / sizes[2] % sizes[1];
      const int64_t row = i / sizes[2] / sizes[1];
      BiasRow(biases, seen, row, head, token).store(data + i * keys, keys);
    }
  });
  return sum;
}

// --- calls of the kernels

// Uninitialised, and lies as the operator's that it stands for, for a graph may look at it by
// strides: the fused kernel's lies as the query does, the products of matrices are contiguous.
at::Tensor empty_out(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const Mask& mask, std::optional<double> scale, bool grouped) {
  constexpr auto kMath = static_cast<int64_t>(sdp::SDPBackend::math);
  const bool is_contiguous =
      lies_in_order(query) ||
      at::_fused_sdp_choice(query, key, value, mask, 0.0, false, scale, grouped) == kMath;
  return is_contiguous ? at::empty(query.sizes(), query.options()) : at::empty_like(query);
}

// What is ours, each of four dimensions. A mask is bool; a bias is sum_of() some; sinks are
// float32.
struct Attention {
  at::Tensor query, key, value, out;
  Mask mask, bias;
  float scale = 1;
  Mask sinks = {};
};

float scale_of(const at::Tensor& query, std::optional<double> scale) {
  return static_cast<float>(scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(3)))));
}

bool are_few(const at::Tensor& query) {
  return query.size(2) <= kFewTokens;
}

// Where the machine multiplies bfloat16 itself, PyTorch does so here, and we do not. How many keys
// there are does not decide: runs of one bucket would allocate otherwise than its top.
bool is_ours_of_many(const at::Tensor& query, const Mask& mask) {
  const bool is_theirs =
      query.scalar_type() == at::kBFloat16 && fast_isa() >= IsaLevel::kAvx512Bf16;
  const bool has_gaps = mask && mask->scalar_type() == at::kBool && step_of(*mask, 3) != 1;
  return !is_theirs && !has_gaps;
}

// Where a vector of [rows, heads, tokens, width] is.
struct Place {
  int64_t row = 0;
  int64_t head = 0;
  int64_t token = 0;
};
template <typename Byte>
Byte* place(Byte* data, const at::Tensor& tensor, const Place& at) {
  const int64_t offset =
      at.row * tensor.stride(0) + at.head * tensor.stride(1) + at.token * tensor.stride(2);
  return data + offset * static_cast<int64_t>(tensor.element_size());
}
// The same of what may be broadcast.
int64_t offset_of(const at::Tensor& mask, const Place& at) {
  return at.row * step_of(mask, 0) + at.head * step_of(mask, 1) + at.token * step_of(mask, 2);
}

// The dimension in which the queries of a call differ.
enum class Queries : uint8_t { kHeads = 1, kTokens = 2 };

// Queries from that place on, all of which see the same head of keys.
kernels::Attend call_at(const Attention& it, const Place& at, Queries differ, int64_t queries) {
  const auto dimension = static_cast<int64_t>(differ);
  const auto bytes = [](const at::Tensor& tensor) {
    return static_cast<const std::byte*>(tensor.const_data_ptr());
  };
  const int64_t group = it.query.size(1) / it.key.size(1);
  const Place keys{at.row, at.head / group, 0};
  kernels::Attend call;
  call.query = place(bytes(it.query), it.query, at);
  call.query_stride = it.query.stride(dimension);
  call.query_is_float32 = it.query.scalar_type() == at::kFloat;
  call.key = place(bytes(it.key), it.key, keys);
  call.key_stride = it.key.stride(2);
  call.value = place(bytes(it.value), it.value, keys);
  call.value_stride = it.value.stride(2);
  if (it.mask) {
    // Bytes, for those of an input are the client's, and a bool may be 0 or 1 alone.
    call.mask = static_cast<const uint8_t*>(it.mask->const_data_ptr()) + offset_of(*it.mask, at);
    call.mask_stride = step_of(*it.mask, dimension);
    call.mask_step = step_of(*it.mask, 3);
  }
  if (it.bias) {
    call.bias = it.bias->const_data_ptr<float>() + offset_of(*it.bias, at);
    call.bias_stride = step_of(*it.bias, dimension);
  }
  if (it.sinks) {
    call.sinks = it.sinks->const_data_ptr<float>() + offset_of(*it.sinks, at);
    call.sink_stride = step_of(*it.sinks, dimension);
  }
  call.out = place(static_cast<std::byte*>(it.out.mutable_data_ptr()), it.out, at);
  call.out_stride = it.out.stride(dimension);
  call.queries = queries;
  call.keys = it.key.size(2);
  call.width = it.query.size(3);
  call.scale = it.scale;
  return call;
}

// Products that are worth a thread.
constexpr int64_t kProductsGrain = 1 << 15;

// Calls f(i, thread) for each i of [0, count), which take so many products, on all threads that are
// worth it.
template <typename F>
void for_each(int64_t count, int64_t products, const F& f) {
  const int64_t grain = std::max<int64_t>(kProductsGrain / std::max<int64_t>(products, 1), 1);
  for_each_part(count, grain, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end; ++i) f(i, thread);
  });
}

void attend_many(const Attention& it) {
  const int64_t rows = it.query.size(0), heads = it.query.size(1), tokens = it.query.size(2);
  const int64_t shared = it.key.size(1), group = heads / shared;
  const int64_t products = it.key.size(2) * it.key.size(3);  // of a query
  const auto element = static_cast<size_t>(*element_of(it.key.scalar_type()));
  const kernels::AttendKernels& attend = fast_kernels().attend;
  // Heads of a group have the same values.
  c10::SmallVector<uint8_t, 64> are_finite(static_cast<size_t>(rows * shared));
  for_each(rows * shared, products, [&](int64_t i, int) {
    const Place at{i / shared, i % shared * group, 0};
    are_finite[static_cast<size_t>(i)] =
        attend.are_finite[element](call_at(it, at, Queries::kTokens, tokens)) ? 1 : 0;
  });
  const int64_t each = kernels::attend_scratch(it.key.size(2), it.key.size(3));
  const int64_t threads = std::min<int64_t>(lane_threads(), rows * heads);
  const at::Tensor scratch = at::empty({threads, each}, at::kFloat);
  auto* const scratch_data = scratch.mutable_data_ptr<float>();
  for_each(rows * heads, products * tokens, [&](int64_t i, int thread) {
    kernels::Attend call = call_at(it, {i / heads, i % heads, 0}, Queries::kTokens, tokens);
    call.values_are_finite = are_finite[static_cast<size_t>(i / group)] != 0;
    call.scratch = scratch_data + thread * each;
    attend.tokens[element](call);
  });
}

// Heads that share keys are one call, but where each has a bias of its own.
void attend_few(const Attention& it) {
  const int64_t rows = it.query.size(0), heads = it.query.size(1), tokens = it.query.size(2);
  const int64_t group = it.bias && it.bias->size(1) > 1 ? 1 : heads / it.key.size(1);
  const int64_t calls = heads / group;
  const int64_t products = group * it.key.size(2) * it.key.size(3);
  const auto element = static_cast<size_t>(*element_of(it.key.scalar_type()));
  const kernels::AttendKernel kernel = fast_kernels().attend.heads[element];
  for_each(rows * calls * tokens, products, [&](int64_t i, int) {
    const Place at{i / (calls * tokens), i / tokens % calls * group, i % tokens};
    kernel(call_at(it, at, Queries::kHeads, group));
  });
}

at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  const Mask& mask, std::optional<double> scale, bool grouped, bool causal) {
  if (causal || !is_ours(query, key, value) || query.scalar_type() != key.scalar_type() ||
      !is_ours(mask, query, key) || (!grouped && query.size(1) != key.size(1)) ||
      (!are_few(query) && !is_ours_of_many(query, mask))) {
    return attention_as_before(query, key, value, mask, scale, grouped, causal);
  }
  Attention it{query,
               key,
               value,
               empty_out(query, key, value, mask, scale, grouped),
               {},
               {},
               scale_of(query, scale)};
  if (it.out.stride(3) != 1 && it.out.size(3) > 1) {
    return attention_as_before(query, key, value, mask, scale, grouped, causal);
  }
  const bool is_added = mask && mask->scalar_type() != at::kBool;
  if (is_added) it.bias = sum_of(bias_of(*mask, 1), {}, key.size(2));
  if (mask && !is_added) it.mask = mask;
  (are_few(query) ? attend_few : attend_many)(it);
  return it.out;
}

// --- what a graph spells out

// How many there are. Where there are none, that does not say how many heads each has.
struct Rows {
  int64_t count = 1;
  int64_t heads_if_none = 1;
};
Rows rows_of(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  for (const at::Tensor* const one : {&key, &value, &query}) {
    if (one->dim() == 4) return {one->size(0), one->size(1)};
  }
  return {};
}

// Rows and heads as two dimensions.
at::Tensor in_four(const at::Tensor& tensor, Rows rows) {
  if (tensor.dim() != 3) return tensor;
  const int64_t heads = rows.count == 0 ? rows.heads_if_none : tensor.size(0) / rows.count;
  return tensor.unflatten(0, {rows.count, heads});
}

// A bias or mask, as the scores of that many rows and heads meet it: it may have been added to
// scores with rows and heads as one dimension.
at::Tensor bias_in_four(const at::Tensor& tensor, Rows rows, int64_t heads) {
  if (tensor.dim() == 3 && tensor.size(0) == rows.count * heads) return in_four(tensor, rows);
  at::Tensor wide = tensor;
  while (wide.dim() < 4) wide = wide.unsqueeze(0);
  return wide;
}

// As the scores of one more key.
at::Tensor sinks_in_four(const at::Tensor& given) {
  at::Tensor wide = given.dim() == 4 ? given.squeeze(3) : given;
  while (wide.dim() < 3) wide = wide.unsqueeze(0);
  return wide.unsqueeze(3).to(at::kFloat);
}

at::Tensor products_of(const Attention& it, c10::ArrayRef<ScoreBias> biases, const Mask& seen,
                       const Mask& instead) {
  const OneThread alone(true);
  const at::Tensor keys = it.key.to(it.query.scalar_type()).transpose(2, 3);
  at::Tensor scores = at::mul(at::matmul(it.query, keys), it.scale);
  if (seen) scores = at::where(*seen, scores, *instead);
  for (const ScoreBias& one : biases) scores = at::add(scores, at::mul(one.added, one.factor));
  if (it.sinks) {
    const at::DimVector each{scores.size(0), scores.size(1), scores.size(2), 1};
    scores = at::cat({scores.to(at::kFloat), it.sinks->expand(each)}, -1);
  }
  const at::Tensor weights = at::softmax(scores, -1, at::kFloat).narrow(-1, 0, it.key.size(2));
  return at::matmul(weights.to(it.value.scalar_type()), it.value);
}

bool hides(const at::Tensor& instead) {
  const at::Tensor number = instead.to(at::kFloat);
  return number.numel() == 1 &&
         *number.const_data_ptr<float>() <= hides_from(instead.scalar_type());
}

// Of the result, uninitialised.
at::Tensor empty_biased(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                        bool merged) {
  const at::Tensor wide = in_four(query, rows_of(query, key, value));
  const at::Tensor out =
      at::empty({wide.size(0), wide.size(1), wide.size(2), value.size(-1)}, value.options());
  return merged ? out.flatten(0, 1) : out;
}

bool is_ours_biased(const Attention& it, c10::ArrayRef<ScoreBias> biases, const Mask& seen,
                    const Mask& instead) {
  if (!is_ours(it.query, it.key, it.value)) return false;
  const at::ScalarType type = it.query.scalar_type();
  if (type != it.key.scalar_type() && type != at::kFloat) return false;
  const ScoreSizes scores = sizes_of_scores(it.query, it.key);
  for (const ScoreBias& one : biases) {
    if (!is_broadcast(one.added, scores)) return false;
  }
  if (it.sinks && !is_broadcast(*it.sinks, {scores[0], scores[1], scores[2], 1})) return false;
  if (seen && (!is_broadcast(*seen, scores) || !instead || !hides(*instead))) return false;
  return are_few(it.query) || is_ours_of_many(it.key, {});
}

at::Tensor attend_biased(const at::Tensor& query, const at::Tensor& given, const at::Tensor& value,
                         at::TensorList biases, c10::ArrayRef<double> factors, const Mask& seen,
                         const Mask& instead, double scale, bool merged, const Mask& sinks,
                         bool turned) {
  TORCH_CHECK(biases.size() == factors.size(), "each bias has a factor");
  const at::Tensor key = turned ? given.transpose(-1, -2) : given;
  const Rows rows = rows_of(query, key, value);
  const at::Tensor out = empty_biased(query, key, value, merged);
  Attention it{in_four(query, rows),
               in_four(key, rows),
               in_four(value, rows),
               in_four(out, rows),
               {},
               {},
               static_cast<float>(scale)};
  const int64_t heads = it.query.size(1);
  c10::SmallVector<ScoreBias, 2> all;
  for (size_t i = 0; i < biases.size(); ++i) {
    all.push_back(bias_of(bias_in_four(biases[i], rows, heads), factors[i]));
  }
  if (sinks) it.sinks = sinks_in_four(*sinks);
  const Mask mask = seen ? std::optional(bias_in_four(*seen, rows, heads)) : std::nullopt;
  if (!is_ours_biased(it, all, mask, instead)) {
    it.out.copy_(products_of(it, all, mask, instead));
    return out;
  }
  if (!all.empty() || mask) it.bias = sum_of(all, mask, it.key.size(2));
  (are_few(it.query) ? attend_few : attend_many)(it);
  return out;
}

at::Tensor shape_of_biased(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           at::TensorList, c10::ArrayRef<double>, const Mask&, const Mask&, double,
                           bool merged, const Mask&, bool) {
  return empty_biased(query, key, value, merged);
}

// The shape of the operator that it stands for.
at::Tensor shape_of(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const Mask& mask, std::optional<double> scale, bool grouped, bool causal) {
  static const ShapeRule rule = shape_rule_of("aten::scaled_dot_product_attention");
  return rule({query, key, value, mask, 0.0, causal, scale, grouped}).at(0);
}

}  // namespace

at::Tensor attention_as_before(const at::Tensor& query, const at::Tensor& key,
                               const at::Tensor& value, const std::optional<at::Tensor>& mask,
                               std::optional<double> scale, bool grouped, bool causal) {
  const int threads =
      most_threads_of_attention({query, key, value, mask, 0.0, causal, scale, grouped});
  if (threads > 1) take_leave();  // it has work for several
  const ThreadsAtMost limited(threads);
  return at::scaled_dot_product_attention(query, key, value, mask, 0.0, causal, scale, grouped);
}

void define_fast_attend(OwnLibraries& libraries) {
  libraries.definition.def(
      "attend(Tensor query, Tensor key, Tensor value, Tensor? mask, float? scale, bool grouped, "
      "bool causal=False) -> Tensor");
  libraries.definition.def(
      "attend_biased(Tensor query, Tensor key, Tensor value, Tensor[] biases, float[] factors, "
      "Tensor? seen, Tensor? instead, float scale, bool merged, Tensor? sinks=None, bool "
      "turned=False) -> Tensor");
  libraries.cpu.impl("attend", &attend);
  libraries.cpu.impl("attend_biased", &attend_biased);
  libraries.meta.impl("attend", &shape_of);
  libraries.meta.impl("attend_biased", &shape_of_biased);
}

}  // namespace djinn::exec
