#include "kernel/exec/shape_rules.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "kernel/exec/torch_headers.h"

namespace djinn::exec {
namespace {

using Results = std::vector<at::Tensor>;
using Arguments = std::vector<c10::IValue>;

at::Tensor meta_tensor(at::IntArrayRef sizes, at::ScalarType type) {
  return at::empty(sizes, at::TensorOptions().dtype(type).device(c10::kMeta));
}

size_t wrapped(int64_t dimension, int64_t rank) {
  TORCH_CHECK_INDEX(dimension >= -rank && dimension < rank, "dimension ", dimension,
                    " is out of range for ", rank, " dimensions");
  return static_cast<size_t>(dimension < 0 ? dimension + rank : dimension);
}

Results embedding(const Arguments& arguments) {
  const at::Tensor& weight = arguments[0].toTensor();
  const at::Tensor& indices = arguments[1].toTensor();
  TORCH_CHECK_VALUE(weight.dim() == 2, "weight must have two dimensions");
  std::vector<int64_t> sizes = indices.sizes().vec();
  sizes.push_back(weight.size(1));
  return {meta_tensor(sizes, weight.scalar_type())};
}

Results index_select(const Arguments& arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  const at::Tensor& index = arguments[2].toTensor();
  TORCH_CHECK_VALUE(index.dim() <= 1, "index must have one dimension");
  std::vector<int64_t> sizes = self.sizes().vec();
  if (!sizes.empty()) sizes[wrapped(arguments[1].toInt(), self.dim())] = index.numel();
  return {meta_tensor(sizes, self.scalar_type())};
}

// The CPU's kernels give [batch, tokens, heads, dim] strides for four dimensions.
Results attention(const Arguments& arguments) {
  const at::Tensor& query = arguments[0].toTensor();
  const at::Tensor& key = arguments[1].toTensor();
  const at::Tensor& value = arguments[2].toTensor();
  TORCH_CHECK_VALUE(query.dim() >= 2 && key.dim() == query.dim() && value.dim() == query.dim(),
                    "query, key and value must have the same number of dimensions, two or more");
  TORCH_CHECK_VALUE(query.size(-1) == key.size(-1),
                    "query and key differ in their last dimension: ", query.size(-1), " and ",
                    key.size(-1));
  TORCH_CHECK_VALUE(key.size(-2) == value.size(-2), "key has ", key.size(-2), " tokens, value ",
                    value.size(-2));
  std::vector<int64_t> sizes = query.sizes().vec();
  sizes.back() = value.size(-1);
  if (query.dim() != 4) return {meta_tensor(sizes, query.scalar_type())};
  std::swap(sizes[1], sizes[2]);
  return {meta_tensor(sizes, query.scalar_type()).transpose(1, 2)};
}

Results like_input(const Arguments& arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  return {meta_tensor(input.sizes(), input.scalar_type())};
}

struct Rule {
  std::string_view op;
  Results (*apply)(const Arguments&);
};

constexpr std::array<Rule, 4> kRules{{
    {"aten::embedding", embedding},
    {"aten::index_select", index_select},
    {"aten::scaled_dot_product_attention", attention},
    {"aten::rms_norm", like_input},
}};

}  // namespace

std::optional<Results> apply_shape_rule(const c10::OperatorHandle& op, const Arguments& stack) {
  const c10::OperatorName& name = op.operator_name();
  if (!name.overload_name.empty()) return std::nullopt;
  for (const Rule& rule : kRules) {
    if (rule.op == name.name) return rule.apply(stack);
  }
  return std::nullopt;
}

}  // namespace djinn::exec
