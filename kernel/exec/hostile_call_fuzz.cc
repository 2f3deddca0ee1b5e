// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/hostile_call_fuzz.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <string>

#include "kernel/base/random.h"
#include "kernel/exec/fitting_calls_fuzz.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {
namespace {

using c10::TypeKind;
using Sizes = std::vector<int64_t>;

constexpr int64_t kElementsMax = 1 << 15;  // of one input, so that a call takes no time
// One input of a large call has this many elements at most: ATen gives a thread 32768 or more
// (GRAIN_SIZE).
constexpr int64_t kLargeElementsMax = 1 << 17;
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

constexpr auto kSizes = std::to_array<int64_t>({1, 1, 2, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 8, 16, 17});
constexpr auto kSmallNumbers = std::to_array<int64_t>({0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5, -1, -2});
constexpr auto kHostileNumbers = std::to_array<int64_t>(
    {0, -1, -2, 7, 64, 1000, 65536, INT32_MAX, INT32_MIN, int64_t{1} << 32, int64_t{1} << 40,
     -(int64_t{1} << 40), int64_t{1} << 62, kMax, kMax - 1, kMin, kMin + 1});
constexpr auto kDoubles = std::to_array<double>(
    {0.0, 1.0, 1.0, 0.5, 2.0, -1.0, 0.1, 1e-5, -0.0, 3.0, 1e300, 1e-300, 1e38,
     std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
     std::numeric_limits<double>::quiet_NaN()});
constexpr auto kDTypes = std::to_array<DType>(
    {DType::kFloat32, DType::kFloat32, DType::kFloat32, DType::kFloat64,    DType::kBFloat16,
     DType::kFloat16, DType::kInt64,   DType::kInt64,   DType::kInt32,      DType::kInt16,
     DType::kInt8,    DType::kUInt8,   DType::kBool,    DType::kComplex64,  DType::kComplex128,
     DType::kUInt16,  DType::kUInt32,  DType::kUInt64,  DType::kFloat8E4M3, DType::kFloat8E5M2});
constexpr auto kWords = std::to_array<std::string_view>({"mean",
                                                         "sum",
                                                         "none",
                                                         "prod",
                                                         "amax",
                                                         "amin",
                                                         "add",
                                                         "multiply",
                                                         "floor",
                                                         "trunc",
                                                         "tanh",
                                                         "same",
                                                         "valid",
                                                         "ij",
                                                         "xy",
                                                         "constant",
                                                         "reflect",
                                                         "replicate",
                                                         "circular",
                                                         "linear",
                                                         "lower",
                                                         "higher",
                                                         "nearest",
                                                         "midpoint",
                                                         "fro",
                                                         "nuc",
                                                         "reduced",
                                                         "complete",
                                                         "r",
                                                         "L",
                                                         "U",
                                                         "left",
                                                         "right",
                                                         "ij,jk->ik",
                                                         "ij,ij->",
                                                         "ii->i",
                                                         "...i,...i->...",
                                                         "i,j->ij",
                                                         "ij->ji",
                                                         "",
                                                         "nothing"});
constexpr auto kFormats = std::to_array<std::string_view>(
    {"contiguous_format", "preserve_format", "channels_last", "channels_last_3d"});

// These are finite in float32 and in bfloat16.
constexpr auto kHugeNumbers = std::to_array<double>(
    {1e9, -1e9, 2147483648.0, -2147483648.0, 9.3e18, -9.3e18, 1e30, -1e30, 3e38, -3e38});
constexpr auto kFloats =
    std::to_array<DType>({DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16});

// kShares fills with numbers from 0 to 1, which fit most of what takes probabilities. kHuge fills
// with small numbers, and with some that are finite and whose products or differences are not.
enum class Fill : uint8_t { kSmall, kZeros, kIndices, kShares, kHuge, kHostile, kBytes };

struct Input {
  DType dtype = DType::kFloat32;
  Sizes sizes;
  Sizes strides;
  int64_t offset = 0;
  Fill fill = Fill::kSmall;
  int64_t bound = 1;               // kIndices: below it
  uint64_t seed = 0;               // of what fills it
  std::optional<uint32_t> shares;  // another input's storage
};

// This is what a call is before it becomes a graph. `values` has an entry for each argument of the
// schema; empty ones are left out.
struct Draft {
  Sizes theme;  // the sizes that most inputs have something to do with
  DType dtype = DType::kFloat32;
  std::vector<Input> inputs;  // the values of these numbers
  std::vector<std::optional<srg::ArgumentValue>> values;
  size_t results = 1;
  bool claims = false;
  Input claimed;       // sizes and strides of each result
  bool large = false;  // kernels share its inputs' elements among threads
};

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

Sizes contiguous_strides(const Sizes& sizes) {
  Sizes strides(sizes.size(), 1);
  for (size_t i = sizes.size(); i-- > 1;) {
    const unsigned __int128 next = static_cast<unsigned __int128>(strides[i]) *
                                   static_cast<uint64_t>(std::max<int64_t>(sizes[i], 1));
    strides[i - 1] = next > static_cast<uint64_t>(kMax) ? 0 : static_cast<int64_t>(next);
  }
  return strides;
}

// This takes three sizes or more.
Sizes channels_last_strides(Sizes sizes) {
  std::rotate(sizes.begin() + 1, sizes.begin() + 2, sizes.end());
  Sizes strides = contiguous_strides(sizes);
  std::rotate(strides.begin() + 1, strides.end() - 1, strides.end());
  return strides;
}

// This takes sizes that are all above zero.
bool are_more(const Sizes& sizes, int64_t elements_max) {
  int64_t elements = 1;
  for (const int64_t size : sizes) {
    if (size > elements_max / elements) return true;
    elements *= size;
  }
  return false;
}

// Gives one past the last element, from the storage's start. Sizes and strides are small, or the
// input has no elements.
int64_t reached(const Input& input) {
  int64_t last = input.offset;
  for (size_t i = 0; i < input.sizes.size(); ++i) {
    if (input.sizes[i] == 0) return 0;
    last += (input.sizes[i] - 1) * input.strides[i];
  }
  return last + 1;
}

// Multiplies one size of a call's inputs: wherever it is, or in one dimension, which may be the
// batch. So arguments that fitted each other often still do.
struct Growth {
  int64_t size;
  size_t dim;
  size_t rank;  // of the input that it is taken from
  bool everywhere;
  int64_t factor = 1;

  [[nodiscard]] bool takes(int64_t number, size_t at) const {
    return number == size && (everywhere || at == dim);
  }
  void apply(Sizes& sizes) const {
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (takes(sizes[i], i)) sizes[i] *= factor;
    }
  }
  // Multiplies numbers that say the sizes of inputs.
  void apply(srg::ArgumentValue& argument, std::string_view name) const {
    if (auto* const number = std::get_if<srg::Expr>(&argument)) {
      if (takes(number->constant, name == "N" ? 0 : rank)) number->constant *= factor;
    } else if (auto* const list = std::get_if<srg::ExprList>(&argument)) {
      const bool are_sizes = everywhere || list->items.size() == rank;
      for (size_t i = 0; are_sizes && i < list->items.size(); ++i) {
        if (takes(list->items[i].constant, i)) list->items[i].constant *= factor;
      }
    }
  }
  [[nodiscard]] bool leaves_small(const std::vector<Input>& inputs) const {
    return std::ranges::all_of(inputs, [this](const Input& input) {
      Sizes grown = input.sizes;
      apply(grown);
      const bool empty = std::ranges::find(grown, 0) != grown.end();
      return empty || !are_more(grown, kLargeElementsMax);
    });
  }
};

class Maker {
 public:
  Maker(std::string_view op, const c10::FunctionSchema& schema, bool list_output, Draft& draft)
      : op_(op), schema_(schema), list_output_(list_output), draft_(draft) {}

  void make(uint64_t seed) {
    random_ = Random(seed);
    draft_.dtype = one_in(3) ? pick(kDTypes) : DType::kFloat32;
    draft_.large = one_in(5);
    draft_.theme = theme();
    for (const c10::Argument& formal : schema_.arguments()) draft_.values.push_back(any(formal));
    draft_.results = list_output_ ? number_of_results() : schema_.returns().size();
    draft_.claims = one_in(4);
    claim();
  }

  // Begins with a call that fits.
  void take(const srg::Graph& graph) {
    for (const srg::Value& value : graph.values) {
      if (value.storage == srg::kLocalStorage) continue;
      Input& input = draft_.inputs.emplace_back();
      input.dtype = value.dtype;
      for (const srg::Expr& expr : value.sizes) input.sizes.push_back(expr.constant);
      input.strides = contiguous_strides(input.sizes);
      input.seed = draft_.inputs.size();
      input.fill = input.dtype == DType::kInt64 ? Fill::kIndices : Fill::kShares;
    }
    draft_.theme = draft_.inputs[0].sizes;
    draft_.dtype = draft_.inputs[0].dtype;
    const srg::Node& node = graph.nodes[0];
    draft_.values.resize(schema_.arguments().size());
    for (size_t i = 0; i < node.arguments.size(); ++i) draft_.values[i] = node.arguments[i].value;
    draft_.results = node.outputs.size();
    draft_.claimed.sizes = draft_.theme;
    draft_.claimed.strides = contiguous_strides(draft_.theme);
  }

  void change(uint64_t seed) {
    random_ = Random(seed);
    const uint64_t kind = random_.below(14);
    if (kind == 13) {
      lay_askew();
    } else if (kind == 12) {
      grow();
    } else if (kind == 11) {
      change_dtypes();
    } else if (kind == 10) {
      put_channels_last();
    } else if (kind < 5 && !draft_.values.empty()) {
      const size_t at = random_.below(draft_.values.size());
      draft_.values[at] = any(schema_.arguments()[at]);
    } else if (kind < 9 && !draft_.inputs.empty()) {
      change(draft_.inputs[random_.below(draft_.inputs.size())]);
    } else if (list_output_) {
      draft_.results = number_of_results();
    } else {
      draft_.claims = !draft_.claims;
      claim();
    }
  }

 private:
  bool one_in(uint64_t n) { return random_.below(n) == 0; }

  template <typename T, size_t kCount>
  T pick(const std::array<T, kCount>& items) {
    return items[random_.below(kCount)];
  }
  int64_t pick_of(const Sizes& items) {
    return items.empty() ? pick(kSmallNumbers) : items[random_.below(items.size())];
  }

  size_t number_of_results() {
    if (one_in(3)) return static_cast<size_t>(std::clamp<int64_t>(pick_of(draft_.theme), 0, 64));
    return random_.below(6);
  }

  // Gives the dimensions of space of an operator that names them: convolutions, poolings, paddings.
  [[nodiscard]] size_t space() const {
    for (size_t d = 1; d <= 3; ++d) {
      if (has(op_, std::to_string(d) + "d")) return d;
    }
    return 0;
  }

  int64_t size() { return one_in(16) ? 0 : pick(kSizes); }

  Sizes theme() {
    static constexpr std::array<size_t, 12> kRanks{0, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5};
    size_t rank = pick(kRanks);
    if (space() > 0 && !one_in(4)) rank = space() + (one_in(4) ? 1 : 2);
    if (has(op_, "attention") && !one_in(4)) rank = 4;
    Sizes sizes(rank);
    for (int64_t& one : sizes) one = size();
    if (draft_.large) lengthen(sizes);
    fit(sizes);
    return sizes;
  }

  // Doubles one or two dimensions until there are as many elements as there may be.
  void lengthen(Sizes& sizes) {
    if (sizes.empty() || std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return;
    const std::array<size_t, 2> places{random_.below(sizes.size()), random_.below(sizes.size())};
    for (size_t i = 0; !are_more(sizes, kLargeElementsMax / 2); ++i) sizes[places[i % 2]] *= 2;
    if (one_in(2)) --sizes[places[0]];
  }

  // Keeps inputs small. Sizes of tensors without elements may be huge.
  void fit(Sizes& sizes) {
    const bool empty = std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
    if (empty && !sizes.empty() && one_in(6)) {
      int64_t& other = sizes[random_.below(sizes.size())];
      if (other != 0) other = one_in(2) ? int64_t{1} << 40 : INT32_MAX;
    }
    const int64_t elements_max = draft_.large ? kLargeElementsMax : kElementsMax;
    while (!empty && are_more(sizes, elements_max)) {
      *std::max_element(sizes.begin(), sizes.end()) /= 2;
    }
  }

  // Gives sizes that have something to do with the theme's.
  Sizes related() {
    const Sizes& theme = draft_.theme;
    Sizes sizes = theme;
    const size_t cut = random_.below(theme.size() + 1);
    switch (random_.below(18)) {
      case 0:  // a prefix
        sizes.resize(cut);
        break;
      case 1:  // a suffix
        sizes.erase(sizes.begin(), sizes.begin() + static_cast<ptrdiff_t>(cut));
        break;
      case 2:
      case 3:  // one a channel, maybe
        sizes = {theme.size() > 1 && !one_in(3) ? theme[1] : pick_of(theme)};
        break;
      case 4:
        sizes = {};
        break;
      case 5:
        sizes = {pick_of(theme), pick_of(theme)};
        break;
      case 6:
        if (!sizes.empty()) std::swap(sizes.front(), sizes.back());
        break;
      case 7:
        for (size_t i = cut; i < sizes.size(); ++i) sizes[i] = size();
        break;
      case 8:
        sizes.insert(sizes.begin() + static_cast<ptrdiff_t>(cut), size());
        break;
      case 9:
        sizes = {0};
        break;
      case 10:
        for (int64_t& one : sizes) one = one_in(2) ? 1 : one;
        break;
      case 11:
        nudge(sizes);
        break;
      default:  // the theme itself
        break;
    }
    for (int64_t& one : sizes) one = std::max<int64_t>(one, 0);
    fit(sizes);
    return sizes;
  }

  void nudge(Sizes& sizes) {
    if (sizes.empty()) return;
    int64_t& one = sizes[random_.below(sizes.size())];
    static constexpr std::array<int64_t, 5> kSteps{-1, 1, 1, 3, 8};
    one = one_in(4) ? size() : std::max<int64_t>(one + pick(kSteps), 0);
    fit(sizes);
  }

  // --- inputs ---

  Fill fill() {
    static constexpr std::array<Fill, 11> kFills{
        Fill::kSmall, Fill::kSmall, Fill::kSmall,   Fill::kIndices, Fill::kIndices, Fill::kIndices,
        Fill::kZeros, Fill::kHuge,  Fill::kHostile, Fill::kHostile, Fill::kBytes};
    return pick(kFills);
  }

  DType dtype_of(std::string_view name) {
    if (one_in(10)) return pick(kDTypes);
    const bool counts = has(name, "ind") || has(name, "target") || has(name, "offsets") ||
                        has(name, "repeats") || name == "offs";
    if (counts) return one_in(6) ? DType::kInt32 : DType::kInt64;
    if (has(name, "mask") || name == "condition") return DType::kBool;
    return draft_.dtype;
  }

  void lay_out(Input& input) {
    input.strides = contiguous_strides(input.sizes);
    input.offset = 0;
    if (!one_in(3)) return;
    switch (random_.below(5)) {
      case 0:
        std::reverse(input.sizes.begin(), input.sizes.end());
        input.strides = contiguous_strides(input.sizes);
        std::reverse(input.sizes.begin(), input.sizes.end());
        std::reverse(input.strides.begin(), input.strides.end());
        break;
      case 1:  // expanded
        if (!input.strides.empty()) input.strides[random_.below(input.strides.size())] = 0;
        break;
      case 2:  // overlapping
        for (int64_t& stride : input.strides) stride = std::min<int64_t>(stride, 2);
        break;
      case 3:  // with gaps
        for (int64_t& stride : input.strides) stride = stride < 1000000 ? stride * 2 : stride;
        break;
      default:
        input.offset = static_cast<int64_t>(random_.below(9));
        break;
    }
  }

  // Lays two inputs on one storage, one some lines behind the other, with gaps between the lines:
  // nobody sees at a look that they have elements in common.
  void lay_askew() {
    const auto count = static_cast<uint32_t>(draft_.inputs.size());
    if (count < 2) return;
    const auto first = static_cast<uint32_t>(random_.below(count - 1));
    const uint64_t second = first + 1 + random_.below(count - 1 - first);
    draft_.inputs[second].shares = draft_.inputs[first].shares.value_or(first);
    lay_askew(draft_.inputs[first], draft_.inputs[second]);
  }

  void lay_askew(Input& one, Input& other) {
    if (one.sizes.empty() || std::ranges::find(one.sizes, 0) != one.sizes.end()) return;
    Sizes apart = one.sizes;
    ++apart.back();
    one.strides = contiguous_strides(apart);
    other.sizes = one.sizes;
    other.strides = one.strides;
    other.dtype = one.dtype;
    other.offset = one.offset + one.strides.front() * std::max<int64_t>(one.sizes.front() / 4, 1);
  }

  void claim() {
    draft_.claimed.sizes = related();
    lay_out(draft_.claimed);
  }

  srg::ValueId input(std::string_view name) {
    const auto count = static_cast<uint32_t>(draft_.inputs.size());
    if (count > 0 && one_in(12)) return static_cast<srg::ValueId>(random_.below(count));
    Input made;
    made.dtype = dtype_of(name);
    made.sizes = related();
    made.fill = fill();
    made.bound = std::max<int64_t>(one_in(3) ? 2 : pick_of(draft_.theme), 1);
    made.seed = random_.next();
    lay_out(made);
    if (count > 0 && one_in(16)) {
      const auto other = static_cast<uint32_t>(random_.below(count));
      made.shares = draft_.inputs[other].shares.value_or(other);
      if (one_in(2)) lay_askew(draft_.inputs[other], made);
    }
    draft_.inputs.push_back(std::move(made));
    return count;
  }

  void change(Input& input) {
    switch (random_.below(6)) {
      case 0:
        input.sizes = related();
        lay_out(input);
        break;
      case 1:
      case 2:
        nudge(input.sizes);
        lay_out(input);
        break;
      case 3:
        input.dtype = pick(kDTypes);
        break;
      case 4:
        lay_out(input);
        break;
      default:
        input.fill = fill();
        input.seed = random_.next();
        break;
    }
  }

  // Makes the call a large one.
  void grow() {
    draft_.large = true;
    if (draft_.inputs.empty()) return;
    const Sizes sizes = draft_.inputs[random_.below(draft_.inputs.size())].sizes;
    if (sizes.empty()) return;
    const size_t dim = one_in(2) ? 0 : random_.below(sizes.size());
    Growth growth{sizes[dim], dim, sizes.size(), one_in(2)};
    if (growth.size == 0 || growth.size > kLargeElementsMax) return;
    do {
      growth.factor *= 2;
    } while (growth.factor < kLargeElementsMax && growth.leaves_small(draft_.inputs));
    growth.factor /= 2;
    for (Input& input : draft_.inputs) {
      growth.apply(input.sizes);
      input.strides = contiguous_strides(input.sizes);
    }
    growth.apply(draft_.theme);
    for (size_t i = 0; i < draft_.values.size(); ++i) {
      if (draft_.values[i]) growth.apply(*draft_.values[i], schema_.arguments()[i].name());
    }
  }

  // Each dtype has kernels of its own, and most want the same dtype of all inputs.
  void change_dtypes() {
    const DType now = pick(kFloats);
    for (Input& input : draft_.inputs) {
      if (std::ranges::find(kFloats, input.dtype) != kFloats.end()) input.dtype = now;
    }
    draft_.dtype = now;
  }

  // This memory format has kernels of its own, too, and most want it of all inputs.
  void put_channels_last() {
    for (Input& input : draft_.inputs) {
      if (input.sizes.size() >= 3) input.strides = channels_last_strides(input.sizes);
    }
  }

  // --- arguments ---

  std::optional<srg::ArgumentValue> any(const c10::Argument& formal) {
    const c10::Type* type = formal.real_type().get();
    const auto* optional = type->castRaw<c10::OptionalType>();
    if (formal.default_value() && one_in(3)) return std::nullopt;
    if (optional != nullptr && one_in(4)) return srg::None{};
    return typed(formal, optional == nullptr ? *type : *optional->getElementType());
  }

  srg::ArgumentValue typed(const c10::Argument& formal, const c10::Type& type) {
    switch (type.kind()) {
      case TypeKind::TensorType:
        if (formal.alias_info() == nullptr && one_in(25)) return scalar();
        return srg::ValueRef{input(formal.name())};
      case TypeKind::IntType:
      case TypeKind::SymIntType:
        return srg::Expr(integer(formal.name()));
      case TypeKind::FloatType:
        return real();
      case TypeKind::NumberType:
        return scalar();
      case TypeKind::BoolType:
      case TypeKind::SymBoolType:
        return one_in(2);
      case TypeKind::StringType:
        return std::string(pick(kWords));
      case TypeKind::ScalarTypeType:
        return one_in(3) ? pick(kDTypes) : draft_.dtype;
      case TypeKind::LayoutType:
        return std::string("strided");
      case TypeKind::MemoryFormatType:
        return std::string(pick(kFormats));
      case TypeKind::ListType:
        return list(formal, *type.castRaw<c10::ListType>()->getElementType());
      default:
        return srg::None{};
    }
  }

  int64_t integer(std::string_view name) {
    if (one_in(10)) return pick(kHostileNumbers);
    const auto rank = static_cast<int64_t>(draft_.theme.size());
    if (has(name, "dim") || has(name, "axis")) {
      return static_cast<int64_t>(random_.below(static_cast<uint64_t>(2 * rank + 2))) - rank - 1;
    }
    if (name == "HxW") {
      int64_t product = 1;
      for (size_t i = 2; i < draft_.theme.size(); ++i) product *= draft_.theme[i];
      return product;
    }
    if (name == "N" && rank > 0) return draft_.theme[0];
    if (name == "C" && rank > 1) return draft_.theme[1];
    return one_in(2) ? pick_of(draft_.theme) : pick(kSmallNumbers);
  }

  double real() { return one_in(2) ? pick(kDoubles) : static_cast<double>(pick(kSmallNumbers)); }

  srg::ArgumentValue scalar() {
    if (one_in(6)) return one_in(2);
    if (one_in(2)) return real();
    return srg::Expr(one_in(4) ? pick(kHostileNumbers) : pick(kSmallNumbers));
  }

  // Gives a length for a list: the schema's where that says more than one, else one or two numbers
  // for each dimension of space, or any.
  size_t length(const c10::Argument& formal) {
    if (one_in(12)) return random_.below(7);
    const size_t fixed = static_cast<size_t>(formal.N().value_or(0));
    if (has(formal.name(), "pad") && fixed != space()) return fixed > 0 ? fixed : 2 * space();
    if (fixed > 1) return fixed;
    if (has(formal.name(), "mask")) return 3;
    if (space() > 0) return space();
    return random_.below(draft_.theme.size() + 1);
  }

  srg::ExprList integers(const c10::Argument& formal) {
    srg::ExprList list;
    const bool is_shape = has(formal.name(), "size") || has(formal.name(), "shape");
    if (is_shape && !has(formal.name(), "kernel") && one_in(2)) {
      for (const int64_t one : related()) list.items.emplace_back(one);
      return list;
    }
    const size_t count = length(formal);
    const bool is_padding = has(formal.name(), "pad");
    for (size_t i = 0; i < count; ++i) {
      const bool zero = is_padding && one_in(2);
      list.items.emplace_back(zero ? 0 : integer(formal.name()));
    }
    return list;
  }

  srg::ValueList tensors(const c10::Argument& formal, bool optional) {
    srg::ValueList list;
    const size_t count = one_in(10) ? 0 : 1 + random_.below(5);
    for (size_t i = 0; i < count; ++i) {
      const bool none = optional && one_in(4);
      list.ids.push_back(none ? std::nullopt : std::optional(input(formal.name())));
    }
    return list;
  }

  srg::ArgumentValue list(const c10::Argument& formal, const c10::Type& element) {
    switch (element.kind()) {
      case TypeKind::TensorType:
        return tensors(formal, false);
      case TypeKind::OptionalType:
        return tensors(formal, true);
      case TypeKind::FloatType: {
        srg::DoubleList doubles;
        for (size_t i = length(formal); i > 0; --i) doubles.items.push_back(real());
        return doubles;
      }
      case TypeKind::BoolType: {
        srg::BoolList flags;
        for (size_t i = length(formal); i > 0; --i) flags.items.push_back(!one_in(4));
        return flags;
      }
      default:
        return integers(formal);
    }
  }

  std::string_view op_;
  const c10::FunctionSchema& schema_;
  bool list_output_;
  Draft& draft_;
  Random random_{0};
};

// --- bytes ---

double number_for(Fill fill, int64_t bound, Random& random) {
  switch (fill) {
    case Fill::kZeros:
      return 0;
    case Fill::kIndices:
      return static_cast<double>(random.below(static_cast<uint64_t>(bound)));
    case Fill::kShares:
      return static_cast<double>(random.below(101)) / 100;
    case Fill::kHuge:
      if (random.below(2) == 0) return number_for(Fill::kSmall, bound, random);
      return kHugeNumbers[random.below(kHugeNumbers.size())];
    case Fill::kHostile:
      return random.below(2) == 0
                 ? static_cast<double>(kHostileNumbers[random.below(kHostileNumbers.size())])
                 : kDoubles[random.below(kDoubles.size())];
    default:
      return static_cast<double>(static_cast<int64_t>(random.below(401)) - 200) / 100;
  }
}

int64_t integer_for(Fill fill, int64_t bound, Random& random) {
  if (fill == Fill::kHostile || fill == Fill::kHuge)
    return kHostileNumbers[random.below(kHostileNumbers.size())];
  const double number = number_for(fill, bound, random);
  return static_cast<int64_t>(fill == Fill::kSmall ? number * 4 : number);
}

template <typename T>
void put(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

void put_element(std::byte* at, const Input& input, Random& random) {
  const auto real = [&] { return number_for(input.fill, input.bound, random); };
  const auto integer = [&] { return integer_for(input.fill, input.bound, random); };
  switch (input.dtype) {
    case DType::kFloat64:
      return put(at, real());
    case DType::kFloat32:
      return put(at, static_cast<float>(real()));
    case DType::kFloat16:
      return put(at, c10::Half(static_cast<float>(real())));
    case DType::kBFloat16:
      return put(at, c10::BFloat16(static_cast<float>(real())));
    case DType::kComplex64:
      return put(at, std::array<float, 2>{static_cast<float>(real()), static_cast<float>(real())});
    case DType::kComplex128:
      return put(at, std::array<double, 2>{real(), real()});
    case DType::kBool:  // a byte that is neither is a byte that a client may write
      return put(at, static_cast<uint8_t>(input.fill == Fill::kHostile ? random.below(256)
                                                                       : random.below(2)));
    case DType::kInt64:
    case DType::kUInt64:
      return put(at, integer());
    case DType::kInt32:
    case DType::kUInt32:
      return put(at, static_cast<int32_t>(integer()));
    case DType::kInt16:
    case DType::kUInt16:
      return put(at, static_cast<int16_t>(integer()));
    default:
      return put(at, static_cast<int8_t>(integer()));
  }
}

std::vector<std::byte> bytes_of(const Input& input, uint64_t bytes) {
  std::vector<std::byte> made(bytes);
  Random random(input.seed);
  const uint64_t element = size_of(input.dtype);
  for (uint64_t at = 0; at + element <= bytes; at += element) {
    if (input.fill == Fill::kBytes) {
      for (uint64_t i = 0; i < element; ++i) made[at + i] = std::byte(random.below(256));
    } else {
      put_element(made.data() + at, input, random);
    }
  }
  return made;
}

// --- the graph ---

std::vector<srg::Expr> exprs(const Sizes& sizes) {
  return {sizes.begin(), sizes.end()};
}

void add_input(const Draft& draft, uint32_t index, std::vector<uint32_t>& storage_of, Call& call) {
  const Input& input = draft.inputs[index];
  const auto bytes = static_cast<uint64_t>(reached(input)) * size_of(input.dtype);
  if (input.shares) {
    storage_of.push_back(storage_of[*input.shares]);
  } else {
    storage_of.push_back(static_cast<uint32_t>(call.graph.storages.size()));
    srg::Storage& storage = call.graph.storages.emplace_back();
    storage.name = "s" + std::to_string(index);
    call.inputs.push_back(bytes_of(input, bytes));
  }
  std::vector<std::byte>& memory = call.inputs[storage_of.back()];
  if (memory.size() < bytes) memory.resize(bytes);
  srg::Value& value = call.graph.values.emplace_back();
  value.name = "t" + std::to_string(index);
  value.storage = storage_of.back();
  value.dtype = input.dtype;
  value.sizes = exprs(input.sizes);
  value.strides = exprs(input.strides);
  value.offset = input.offset;
}

void add_results(const Draft& draft, srg::Node& node, srg::Graph& graph) {
  for (size_t i = 0; i < draft.results; ++i) {
    const auto id = static_cast<srg::ValueId>(graph.values.size());
    srg::Value& value = graph.values.emplace_back();
    value.name = "r" + std::to_string(i);
    if (draft.claims) {
      value.dtype = draft.dtype;
      value.claims_sizes = true;
      value.sizes = exprs(draft.claimed.sizes);
      value.strides = exprs(draft.claimed.strides);
    }
    node.outputs.push_back(id);
    graph.outputs.push_back(id);
  }
}

}  // namespace

Call make_call(std::string_view op, const Operator& resolved, const Lineage& lineage) {
  const c10::FunctionSchema& schema = resolved.handle.schema();
  Draft draft;
  Maker maker(op, schema, resolved.list_output, draft);
  const auto fitting = lineage[0] == 0 ? fitting_call(op) : std::nullopt;
  if (fitting) {
    maker.take(*fitting);
  } else {
    maker.make(lineage[0]);
  }
  for (size_t i = 1; i < lineage.size(); ++i) maker.change(lineage[i]);

  Call call;
  std::vector<uint32_t> storage_of;
  for (uint32_t i = 0; i < draft.inputs.size(); ++i) add_input(draft, i, storage_of, call);
  srg::Node node;
  node.op = op;
  for (size_t i = 0; i < draft.values.size(); ++i) {
    if (!draft.values[i]) continue;
    node.arguments.push_back({schema.arguments()[i].name(), *std::move(draft.values[i])});
  }
  add_results(draft, node, call.graph);
  call.graph.nodes.push_back(std::move(node));
  return call;
}

}  // namespace djinn::exec
