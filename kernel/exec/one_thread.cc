// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/one_thread.h"

#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "kernel/exec/whole_vectors.h"

// In the LibTorch that has MKL: 0 is what other threads have. Gives the former number.
extern "C" int MKL_Set_Num_Threads_Local(int threads) __attribute__((weak));

namespace djinn::exec {
namespace {

using Stack = std::vector<c10::IValue>;

bool names_several(const at::Tensor& index) {
  return index.defined() && index.numel() > 1;
}

// This is for index_copy(self, dim, index, source), in IndexKernel.cpp.
bool index_copy(const Stack& stack) {
  return names_several(stack[2].toTensor());
}

// This is for put(self, index, source, accumulate), in IndexKernel.cpp.
bool put(const Stack& stack) {
  return names_several(stack[1].toTensor());
}

// This is for index_put(self, indices, values, accumulate), in IndexKernel.cpp. A mask names no
// element twice.
bool index_put(const Stack& stack) {
  const auto may_repeat = [](const c10::IValue& one) {
    if (!one.isTensor() || !names_several(one.toTensor())) return false;
    const at::ScalarType type = one.toTensor().scalar_type();
    return type != at::kBool && type != at::kByte;
  };
  const auto indices = stack[1].toListRef();
  return std::any_of(indices.begin(), indices.end(), may_repeat);
}

struct RaceRow {
  std::string_view op;
  Race race;
};

constexpr auto kRaces = std::to_array<RaceRow>({
    {"aten::index_copy", index_copy},
    {"aten::index_copy_", index_copy},
    {"aten::index_put", index_put},
    {"aten::index_put_", index_put},
    {"aten::put", put},
    {"aten::put_", put},
});
static_assert(std::ranges::is_sorted(kRaces, {}, &RaceRow::op));

constexpr auto kKeepBits = std::to_array<std::string_view>({
    "aten::_to_copy",
    "aten::_unsafe_view",
    "aten::abs",
    "aten::add.Scalar",
    "aten::add.Tensor",
    "aten::add_.Scalar",
    "aten::add_.Tensor",
    "aten::addcmul",
    "aten::alias",
    "aten::arange",
    "aten::arange.start",
    "aten::arange.start_step",
    "aten::as_strided",
    "aten::bitwise_and.Tensor",
    "aten::bitwise_not",
    "aten::bitwise_or.Tensor",
    "aten::cat",
    "aten::ceil",
    "aten::clamp",
    "aten::clamp_",
    "aten::clamp_max",
    "aten::clamp_min",
    "aten::clone",
    "aten::constant_pad_nd",
    "aten::contiguous",
    "aten::copy_",
    "aten::cos",
    "aten::detach",
    "aten::div.Scalar",
    "aten::div.Tensor",
    "aten::div_.Tensor",
    "aten::embedding",
    "aten::eq.Scalar",
    "aten::eq.Tensor",
    "aten::erf",
    "aten::exp",
    "aten::expand",
    "aten::expand_as",
    "aten::fill.Scalar",
    "aten::fill_.Scalar",
    "aten::flatten.using_ints",
    "aten::floor",
    "aten::full",
    "aten::full_like",
    "aten::gather",
    "aten::ge.Scalar",
    "aten::ge.Tensor",
    "aten::gelu",
    "aten::gt.Scalar",
    "aten::gt.Tensor",
    "aten::index.Tensor",
    "aten::index_select",
    "aten::layer_norm",
    "aten::le.Scalar",
    "aten::le.Tensor",
    "aten::log",
    "aten::logical_and",
    "aten::logical_not",
    "aten::logical_or",
    "aten::lt.Scalar",
    "aten::lt.Tensor",
    "aten::masked_fill.Scalar",
    "aten::masked_fill.Tensor",
    "aten::masked_fill_.Scalar",
    "aten::maximum",
    "aten::minimum",
    "aten::mul.Scalar",
    "aten::mul.Tensor",
    "aten::mul_.Tensor",
    "aten::narrow",
    "aten::native_layer_norm",
    "aten::ne.Scalar",
    "aten::ne.Tensor",
    "aten::neg",
    "aten::new_ones",
    "aten::new_zeros",
    "aten::ones",
    "aten::ones_like",
    "aten::permute",
    "aten::pow.Tensor_Scalar",
    "aten::reciprocal",
    "aten::relu",
    "aten::repeat",
    "aten::reshape",
    "aten::rsqrt",
    "aten::rsub.Scalar",
    "aten::scalar_tensor",
    "aten::select.int",
    "aten::sigmoid",
    "aten::sign",
    "aten::silu",
    "aten::sin",
    "aten::slice.Tensor",
    "aten::softplus",
    "aten::split.Tensor",
    "aten::split_with_sizes",
    "aten::sqrt",
    "aten::square",
    "aten::squeeze",
    "aten::squeeze.dim",
    "aten::stack",
    "aten::sub.Scalar",
    "aten::sub.Tensor",
    "aten::t",
    "aten::tanh",
    "aten::to.device",
    "aten::to.dtype",
    "aten::to.dtype_layout",
    "aten::to.other",
    "aten::transpose.int",
    "aten::tril",
    "aten::triu",
    "aten::type_as",
    "aten::unbind.int",
    "aten::unflatten.int",
    "aten::unsqueeze",
    "aten::view",
    "aten::view.dtype",
    "aten::view_as",
    "aten::where.ScalarOther",
    "aten::where.ScalarSelf",
    "aten::where.self",
    "aten::zeros",
    "aten::zeros_like",
    "djinn::attend",
    "djinn::attend_biased",
    "djinn::embedding_rows",
    "djinn::gate",
    "djinn::grouped_rows",
    "djinn::kv_append",
    "djinn::layer_norm",
    "djinn::linear_rows",
    "djinn::linears",
    "djinn::rms_norm",
    "djinn::rope",
});
static_assert(std::ranges::is_sorted(kKeepBits));

struct SplitsRow {
  std::string_view op;
  Splits splits;
};

// Found by comparing one thread with several (one_thread_test.cc does for some), and rows alone
// with rows among others (whole_vectors_test.cc); the kernels of the others round alike in both
// ways.
constexpr auto kSplits = std::to_array<SplitsRow>({
    {"aten::add.Scalar", Splits::kFloats},
    {"aten::add.Tensor", Splits::kFloats},
    {"aten::add_.Scalar", Splits::kFloats},
    {"aten::add_.Tensor", Splits::kFloats},
    {"aten::addcmul", Splits::kFloats},
    {"aten::addcmul_", Splits::kFloats},
    {"aten::arange", Splits::kFloats},
    {"aten::arange.start", Splits::kFloats},
    {"aten::arange.start_step", Splits::kFloats},
    {"aten::arctan2", Splits::kFloats},
    {"aten::atan2", Splits::kFloats},
    {"aten::atan2_", Splits::kFloats},
    {"aten::atanh", Splits::kFloats},
    {"aten::atanh_", Splits::kFloats},
    {"aten::celu", Splits::kFloats},
    {"aten::celu_", Splits::kFloats},
    {"aten::cosh", Splits::kFloats},
    {"aten::cosh_", Splits::kFloats},
    {"aten::digamma", Splits::kFloats},
    {"aten::digamma_", Splits::kFloats},
    {"aten::div.Scalar", Splits::kComplex},
    {"aten::div.Tensor", Splits::kComplex},
    {"aten::div.Tensor_mode", Splits::kFloats},
    {"aten::div_.Tensor", Splits::kComplex},
    {"aten::div_.Tensor_mode", Splits::kFloats},
    {"aten::divide.Tensor", Splits::kComplex},
    {"aten::elu", Splits::kFloats},
    {"aten::elu_", Splits::kFloats},
    {"aten::elu_backward", Splits::kFloats},
    {"aten::exp2", Splits::kFloats},
    {"aten::exp2_", Splits::kFloats},
    {"aten::float_power.Scalar", Splits::kFloats},
    {"aten::float_power.Tensor_Scalar", Splits::kFloats},
    {"aten::float_power.Tensor_Tensor", Splits::kFloats},
    {"aten::float_power_.Scalar", Splits::kFloats},
    {"aten::float_power_.Tensor", Splits::kFloats},
    {"aten::gelu", Splits::kFloats},
    {"aten::gelu_", Splits::kFloats},
    {"aten::gelu_backward", Splits::kFloats},
    {"aten::hypot", Splits::kFloats},
    {"aten::hypot_", Splits::kFloats},
    {"aten::igamma", Splits::kFloats},
    {"aten::igamma_", Splits::kFloats},
    {"aten::igammac", Splits::kFloats},
    {"aten::igammac_", Splits::kFloats},
    {"aten::logaddexp", Splits::kFloats},
    {"aten::logaddexp2", Splits::kFloats},
    {"aten::mish", Splits::kFloats},
    {"aten::mish_", Splits::kFloats},
    {"aten::mish_backward", Splits::kFloats},
    {"aten::mul.Scalar", Splits::kComplex},
    {"aten::mul.Tensor", Splits::kComplex},
    {"aten::mul_.Tensor", Splits::kComplex},
    {"aten::multiply.Tensor", Splits::kComplex},
    {"aten::pow.Scalar", Splits::kFloats},
    {"aten::pow.Tensor_Scalar", Splits::kFloats},
    {"aten::pow.Tensor_Tensor", Splits::kFloats},
    {"aten::pow_.Scalar", Splits::kFloats},
    {"aten::pow_.Tensor", Splits::kFloats},
    {"aten::rsqrt", Splits::kFloats},
    {"aten::rsqrt_", Splits::kFloats},
    {"aten::rsub.Scalar", Splits::kFloats},
    {"aten::rsub.Tensor", Splits::kFloats},
    {"aten::selu", Splits::kFloats},
    {"aten::selu_", Splits::kFloats},
    {"aten::sigmoid", Splits::kFloats},
    {"aten::sigmoid_", Splits::kFloats},
    {"aten::silu", Splits::kFloats},
    {"aten::silu_", Splits::kFloats},
    {"aten::silu_backward", Splits::kFloats},
    {"aten::sinh", Splits::kFloats},
    {"aten::sinh_", Splits::kFloats},
    {"aten::softplus", Splits::kFloats},
    {"aten::softplus_backward", Splits::kFloats},
    {"aten::softshrink", Splits::kFloats},
    {"aten::special_i0e", Splits::kFloats},
    {"aten::square", Splits::kComplex},
    {"aten::square_", Splits::kComplex},
    {"aten::sub.Scalar", Splits::kFloats},
    {"aten::sub.Tensor", Splits::kFloats},
    {"aten::sub_.Scalar", Splits::kFloats},
    {"aten::sub_.Tensor", Splits::kFloats},
    {"aten::subtract.Tensor", Splits::kFloats},
    {"aten::true_divide.Tensor", Splits::kComplex},
});
static_assert(std::ranges::is_sorted(kSplits, {}, &SplitsRow::op));

constexpr auto kSums = std::to_array<std::string_view>({
    "aten::add.Scalar",
    "aten::add.Tensor",
    "aten::add_.Scalar",
    "aten::add_.Tensor",
    "aten::rsub.Scalar",
    "aten::rsub.Tensor",
    "aten::sub.Scalar",
    "aten::sub.Tensor",
    "aten::sub_.Scalar",
    "aten::sub_.Tensor",
    "aten::subtract.Tensor",
});
static_assert(std::ranges::is_sorted(kSums));

bool is_number(const c10::IValue& value, int64_t number) {
  return (value.isInt() && value.toInt() == number) ||
         (value.isDouble() && value.toDouble() == static_cast<double>(number));
}

// Calls `see` with each tensor of an argument, in lists too.
template <typename See>
void each_tensor(const c10::IValue& argument, See see) {
  if (argument.isTensor()) {
    if (argument.toTensor().defined()) see(argument.toTensor());
  } else if (argument.isList()) {
    for (const c10::IValue& one : argument.toListRef()) each_tensor(one, see);
  }
}

struct Range {
  const std::byte* begin;
  const std::byte* end;
};

Range range_of(const at::Tensor& tensor) {
  const auto* const begin = static_cast<const std::byte*>(tensor.const_data_ptr());
  if (tensor.numel() == 0) return {begin, begin};
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return {begin, begin + static_cast<uint64_t>(last + 1) * tensor.element_size()};
}

// Tells whether each element that both tensors have is at the same index in both.
bool are_same_view(const at::Tensor& a, const at::Tensor& b) {
  return a.const_data_ptr() == b.const_data_ptr() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.element_size() == b.element_size();
}

// Over another dimension a thread's last elements are computed one by one.
int most_threads_of_softmax(const Stack& stack) {
  const int64_t last = stack[0].toTensor().dim() - 1, dim = stack[1].toInt();
  return dim == -1 || dim == last ? kAnyThreads : 1;
}

int64_t divided_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// PyTorch's fused attention, FlashAttentionKernel.cpp, shares out blocks of queries, each of which
// is computed by itself. Keys and values of 16 bits are packed for a kernel that rounds otherwise,
// of so many tokens and more, and where a thread has so many products for each that is packed.
struct Packing {
  int64_t tokens;
  int64_t products;
};
constexpr Packing kPackingOfHalf{16, 1}, kPackingOfBFloat16{64, 4};

std::optional<Packing> packing_of(const at::Tensor& query, const at::Tensor& key) {
  const at::ScalarType type = query.scalar_type();
  if (type != at::kHalf && type != at::kBFloat16) return std::nullopt;
  const Packing packing = type == at::kHalf ? kPackingOfHalf : kPackingOfBFloat16;
  const bool is_long = std::min(query.size(2), key.size(2)) >= packing.tokens;
  return is_long && at::native::cpublas::could_pack(type) ? std::optional(packing) : std::nullopt;
}

// Of that kernel.
int64_t tokens_of_block(int64_t tokens) {
  return std::min<int64_t>(tokens, tokens >= 768 ? 256 : tokens >= 192 ? 64 : 32);
}

bool lie_askew(const at::Tensor& a, const at::Tensor& b) {
  const Range left = range_of(a), right = range_of(b);
  return left.begin < right.end && right.begin < left.end && !are_same_view(a, b);
}

}  // namespace

// From the shortest stride on, each must step over all that the dimensions before it reach.
bool may_overlap_itself(const at::Tensor& tensor) {
  c10::SmallVector<std::pair<int64_t, int64_t>, 6> dimensions;  // stride, size
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1) dimensions.emplace_back(tensor.stride(i), tensor.size(i));
  }
  std::ranges::sort(dimensions);
  int64_t reached = 0;  // elements behind the first
  for (const auto& [stride, size] : dimensions) {
    if (stride <= reached) return true;
    reached += (size - 1) * stride;
  }
  return false;
}

bool writes_over_inputs(const c10::FunctionSchema& schema, const Stack& stack) {
  bool found = false;
  for (size_t i = 0; i < stack.size(); ++i) {
    const c10::AliasInfo* const alias = schema.arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    each_tensor(stack[i], [&](const at::Tensor& written) {
      found |= written.numel() > 0 && may_overlap_itself(written);
      for (const c10::IValue& other : stack) {
        each_tensor(other, [&](const at::Tensor& read) { found |= lie_askew(written, read); });
      }
    });
  }
  return found;
}

Race race_of(std::string_view op) {
  const auto row = std::ranges::lower_bound(kRaces, op, {}, &RaceRow::op);
  return row != kRaces.end() && row->op == op ? row->race : nullptr;
}

std::vector<std::string_view> operators_with_races() {
  std::vector<std::string_view> names;
  for (const RaceRow& row : kRaces) names.push_back(row.op);
  return names;
}

bool keeps_bits(std::string_view op) {
  return std::ranges::binary_search(kKeepBits, op);
}

// One thread has the most products, and as many for each row whatever rows there are. With t
// threads the kernel packs where ceil(blocks / t) blocks or more are those that make packing worth
// while. The products of one block alone would be shared out themselves.
int most_threads_of_attention(const Stack& stack) {
  const at::Tensor query = stack[0].toTensor(), key = stack[1].toTensor();
  const bool is_causal = stack[5].toBool();
  const auto choice = at::_fused_sdp_choice(
      query, key, stack[2].toTensor(), stack[3].toOptional<at::Tensor>(), stack[4].toDouble(),
      is_causal, stack[6].toOptional<double>(), stack[7].toBool());
  if (choice == static_cast<int64_t>(sdp::SDPBackend::math)) return 1;
  if (query.numel() == 0 || key.numel() == 0) return kAnyThreads;
  const int64_t rows = query.size(0), tokens = query.size(2), keys = key.size(2);
  const int64_t block = tokens_of_block(tokens);
  const int64_t blocks = rows * query.size(1) * divided_up(tokens, block);
  if (blocks == 1) return 1;
  const auto packing = packing_of(query, key);
  if (!packing) return kAnyThreads;
  const int64_t seen = is_causal ? std::min(tokens, keys) : keys;
  const int64_t packed = rows * key.size(1) * keys;
  const int64_t least = divided_up(packing->products * packed, block * seen);
  if (least <= 1 || least > blocks) return kAnyThreads;  // it packs with any number, or with none
  return static_cast<int>(std::min<int64_t>((blocks - 1) / (least - 1), kAnyThreads));
}

MostThreads most_threads(std::string_view op) {
  if (op == "aten::scaled_dot_product_attention") return &most_threads_of_attention;
  if (op == "aten::_softmax") return &most_threads_of_softmax;
  return nullptr;
}

// A sum whose factor, alpha, is 1 is rounded once, and a square as the product that it is.
Splits splits_of(std::string_view op, const Stack& constants) {
  const auto row = std::ranges::lower_bound(kSplits, op, {}, &SplitsRow::op);
  if (row == kSplits.end() || row->op != op) return Splits::kNever;
  const bool is_sum = std::ranges::binary_search(kSums, op);
  if (is_sum && is_number(constants.at(2), 1)) return Splits::kNever;
  const bool is_power = op == "aten::pow.Tensor_Scalar";
  return is_power && is_number(constants.at(1), 2) ? Splits::kComplex : row->splits;
}

bool splits_in(Splits splits, const Stack& stack) {
  if (splits == Splits::kNever) return false;
  at::DimVector sizes;
  bool has_tensor = false;
  for (const c10::IValue& argument : stack) {
    each_tensor(argument, [&](const at::Tensor& tensor) {
      has_tensor = true;
      sizes = at::infer_size_dimvector(sizes, tensor.sizes());
    });
  }
  if (!has_tensor) return splits == Splits::kFloats;  // how many it makes is not known here
  return rounds_apart(splits, stack) && c10::multiply_integers(sizes) > kFewElements;
}

// This counts for calls from this thread alone: at::set_num_threads() would change it for all. That
// has told MKL a number of its own, which goes before OpenMP's.
ThreadsAtMost::ThreadsAtMost(int most) {
  // LibTorch's number is made OpenMP's by the first call of a thread that asks.
  if (most == kAnyThreads || at::get_num_threads() <= most) return;
  former_ = at::get_num_threads();
  omp_set_num_threads(most);
  if (MKL_Set_Num_Threads_Local != nullptr) former_of_mkl_ = MKL_Set_Num_Threads_Local(most);
}

ThreadsAtMost::~ThreadsAtMost() {
  if (former_ == 0) return;
  omp_set_num_threads(former_);
  if (MKL_Set_Num_Threads_Local != nullptr) MKL_Set_Num_Threads_Local(former_of_mkl_);
}

}  // namespace djinn::exec
