// SPDX-License-Identifier: Apache-2.0

// Graphs of the forms that passes look for, over random views, dtypes and numbers: the fast form
// gives what the exact one gives, element by element, where elements lie included, or fails as it
// does.
#include <ATen/ops/from_blob.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/mul.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernel/base/random.h"
#include "kernel/exec/executor_for_tests.h"
#include "kernel/exec/guarded_memory_fuzz.h"
#include "kernel/srg/text.h"

namespace djinn::exec {
namespace {

using Sizes = std::vector<int64_t>;

constexpr int64_t kElements = 512;  // of each input
constexpr uint64_t kSeeds = 3000;

int64_t product_of(const Sizes& sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) product *= size;
  return product;
}

// Text of a graph that a pass may take.
class RandomGraph {
 public:
  explicit RandomGraph(uint64_t seed) : random_(seed), is_symbolic_(random_.below(3) == 0) {
    switch (random_.below(5)) {
      case 0:
        cast();
        break;
      case 1:
        random_.below(3) == 0 ? layer_norm() : norm();
        break;
      case 2:
        gate();
        break;
      case 3:
        rope();
        break;
      default:
        random_.below(2) == 0 ? attend() : spell_attention_out();
    }
    for (uint64_t changes = random_.below(3); changes > 0; --changes) change();
  }

  [[nodiscard]] int64_t rows() const { return rows_; }
  [[nodiscard]] std::string text() const {
    std::string all = "srg 1 \"random\"\n";
    if (is_symbolic_) all += "symbol n 1..4\n";
    for (const char* const type : {"float32", "bfloat16", "float16", "float64", "int64", "bool"}) {
      all += fmt::format("input %in_{0} : {0}[{1}]\n", type, kElements);
    }
    for (const char* const type : {"float32", "bfloat16", "float16", "float64", "int64"}) {
      all += fmt::format("weight %w_{0} \"w_{0}\" : {0}[{1}]\n", type, width_);
    }
    all += body_;
    all += "%rr = aten::add.Tensor(%y, 1)\n";
    all += fmt::format("%flat = aten::as_strided(%y, [{0}], [1], 0)\n", count(result_));
    all += fmt::format("%flat_rr = aten::as_strided(%rr, [{0}], [1], 0)\n", count(result_));
    all +=
        "%y32 = aten::_to_copy(%y, dtype=float32)\n%f32 = aten::_to_copy(%flat, dtype=float32)\n";
    all += "%r32 = aten::_to_copy(%flat_rr, dtype=float32)\n";
    return all + "output %y32\noutput %f32\noutput %r32\n" + outputs_;
  }

 private:
  bool rarely() { return random_.below(6) == 0; }
  int64_t one_of(const Sizes& all) { return all[random_.below(all.size())]; }
  std::string type() {
    static const std::vector<std::string> kTypes = {"float32", "bfloat16", "float16", "float64",
                                                    "int64"};
    return kTypes[rarely() ? 3 + random_.below(2) : random_.below(3)];
  }
  std::string any_type() { return rarely() ? "bool" : type(); }
  Sizes sizes(size_t rank) {
    Sizes all;
    for (size_t i = 0; i < rank; ++i) {
      all.push_back(rarely() ? one_of({0, 1}) : one_of({1, 2, 3, 4}));
    }
    rows_ = all.empty() ? 1 : std::max<int64_t>(all[0], 1);
    return all;
  }
  // Of a view of these sizes: dense in some order, or expanded, or one over the other.
  Sizes strides(const Sizes& of) {
    std::vector<size_t> order;
    for (size_t i = of.size(); i-- > 0;) order.push_back(i);
    if (random_.below(2) == 0) {
      for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_.below(i)]);
    }
    Sizes all(of.size());
    int64_t next = rarely() ? 2 : 1;
    for (const size_t i : order) {
      all[i] = rarely() ? one_of({0, 1, 3}) : next;
      next *= std::max<int64_t>(of[i], 1);
      if (rarely()) next += 3;
    }
    return all;
  }
  void view(const std::string& name, const std::string& dtype, const Sizes& of) {
    body_ += fmt::format("%{} = aten::as_strided(%in_{}, [{}], [{}], {})\n", name, dtype, shape(of),
                         fmt::join(strides(of), ", "), random_.below(9));
  }
  // Sizes, or how many elements there are, in words of the graph.
  [[nodiscard]] bool has_rows(const Sizes& of) const {
    return is_symbolic_ && !of.empty() && of[0] == rows_ && rows_ > 0;
  }
  [[nodiscard]] std::string shape(const Sizes& of) const {
    const std::string all = fmt::format("{}", fmt::join(of, ", "));
    return has_rows(of) ? "n" + all.substr(std::min(all.find(','), all.size())) : all;
  }
  [[nodiscard]] std::string count(const Sizes& of) const {
    const int64_t elements = product_of(of);
    return has_rows(of) ? fmt::format("{}*n", elements / rows_) : fmt::format("{}", elements);
  }
  Sizes broadcast(Sizes of) {
    for (int64_t& size : of) {
      if (rarely()) size = rarely() ? 3 : 1;
    }
    return of;
  }

  std::string contiguous(const Sizes& of) {
    Sizes all(of.size());
    int64_t next = 1;
    for (size_t i = of.size(); i-- > 0;) {
      all[i] = next;
      next *= of[i];
    }
    return fmt::format("{}", fmt::join(all, ", "));
  }

  void make_cast(const std::string& to, const std::string& from, const std::string& dtype,
                 const Sizes& of) {
    if (random_.below(3) == 0) {
      body_ += fmt::format("%{} = aten::_to_copy(%{}, dtype={})\n", to, from, dtype);
      return;
    }
    body_ += fmt::format("%{0}z = aten::zeros([{1}], dtype={2})\n", to, count(of), dtype);
    body_ += fmt::format("%{0} = aten::as_strided(%{0}z, [{1}], [{2}], 0)\n", to, shape(of),
                         contiguous(of));
    body_ += fmt::format("%{0}c = aten::copy_(%{0}, %{1}, false)\n", to, from);
  }

  void cast() {
    const Sizes of = sizes(random_.below(4));
    view("x", any_type(), of);
    make_cast("h", "x", any_type(), of);
    static const std::vector<std::string> kThen = {
        "%y = aten::abs(%h)\n", "%y = aten::alias(%h)\n", "%y = aten::mul.Tensor(%h, 2)\n",
        "%hr = aten::detach(%h)\n%y = aten::add.Tensor(%hr, %h)\n"};
    body_ += kThen[random_.below(kThen.size())];
    result_ = of;
  }

  void norm() {
    Sizes of = sizes(1 + random_.below(3));
    of.back() = one_of({1, 2, 5, 16, 33});
    width_ = rarely() ? one_of({1, 5}) : of.back();
    const std::string in = type(), weight = rarely() ? type() : in;
    view("x", in, of);
    const bool widens = in != "float32" || rarely();
    if (widens) make_cast("h", "x", "float32", of);
    const std::string h = widens ? "h" : "x";
    static const std::vector<std::string> kEpsilon = {"1e-06", "1e-05", "0", "1", "-1.0", "1e30"};
    body_ += fmt::format(
        "%p = aten::pow.Tensor_Scalar(%{0}, 2)\n%m = aten::mean.dim(%p, [-1], true)\n"
        "%a = aten::add.Tensor(%m, {1}, alpha={3})\n%r = aten::rsqrt(%a)\n"
        "%n : float32[{2}] = aten::mul.Tensor(%{0}, %r)\n",
        h, rarely() ? kEpsilon[random_.below(kEpsilon.size())] : kEpsilon[0], shape(of),
        rarely() ? 2 : 1);
    if (random_.below(4) == 0) {
      random_.below(2) == 0 ? make_cast("y", "n", rarely() ? type() : in, of)
                            : void(body_ += "%y = aten::alias(%n)\n");
    } else if (random_.below(2) == 0) {
      const bool narrows = weight != "float32" || rarely();
      if (narrows) make_cast("nn", "n", rarely() ? type() : weight, of);
      body_ += fmt::format("%y = aten::mul.Tensor(%w_{}, %{})\n", weight, narrows ? "nn" : "n");
    } else {
      const bool wide = random_.below(2) == 0;
      if (wide) body_ += fmt::format("%wide = aten::_to_copy(%w_{}, dtype=float32)\n", weight);
      body_ +=
          fmt::format("%o = aten::add.Tensor(%{}, 1.0, alpha=1)\n", wide ? "wide" : "w_" + weight);
      body_ += "%s = aten::mul.Tensor(%n, %o)\n";
      const std::string to = rarely() ? any_type() : in;
      body_ += random_.below(2) == 0 ? fmt::format("%y = aten::_to_copy(%s, dtype={})\n", to)
                                     : "%y = aten::alias(%s)\n";
    }
    if (of.back() == 1) of.back() = width_;
    result_ = of;
  }

  void layer_norm() {
    const Sizes of = sizes(1 + random_.below(3));
    width_ = rarely() ? one_of({1, 5}) : of.back();
    const std::string in = type();
    const auto vector = [&] {
      return rarely() ? std::string("none") : "%w_" + (rarely() ? type() : in);
    };
    view("x", in, of);
    const std::string weight = vector(), bias = vector();
    body_ += fmt::format("%y = aten::layer_norm(%x, [{}], {}, {}, {}, true)\n", of.back(), weight,
                         bias, rarely() ? "-1.0" : "1e-05");
    result_ = of;
  }

  void gate() {
    const Sizes of = sizes(random_.below(4));
    const std::string in = any_type();
    view("x", in, of);
    if (random_.below(2) == 0) {
      body_ += fmt::format(
          "%s = aten::mul.Tensor(%x, 0.5)\n%p = aten::pow.Tensor_Scalar(%x, {})\n"
          "%q = aten::mul.Tensor(%p, 0.044715)\n%a = aten::add.Tensor(%x, %q, alpha=1)\n"
          "%b = aten::mul.Tensor(%a, 0.7978845608028654)\n%t = aten::tanh(%b)\n"
          "%o = aten::add.Tensor(%t, {}, alpha=1)\n%y = aten::mul.Tensor(%s, %o)\n",
          random_.below(2) == 0 ? "3" : "3.0", random_.below(2) == 0 ? "1" : "1.0");
      result_ = of;
      return;
    }
    static const std::vector<std::string> kActivations = {"aten::silu(%x)", "aten::gelu(%x)",
                                                          "aten::gelu(%x, approximate=\"none\")",
                                                          "aten::gelu(%x, approximate=\"tanh\")"};
    const std::string& activation = kActivations[random_.below(kActivations.size())];
    if (random_.below(3) == 0) {
      body_ += "%y = " + activation + "\n";
      result_ = of;
      return;
    }
    const Sizes other = rarely() ? broadcast(of) : of;
    view("f", rarely() ? any_type() : in, other);
    body_ += "%s = " + activation + "\n";
    body_ += random_.below(2) == 0 ? "%y = aten::mul.Tensor(%s, %f)\n"
                                   : "%y = aten::mul.Tensor(%f, %s)\n";
    result_ = of;
    for (size_t i = 0; i < of.size(); ++i) result_[i] = of[i] == 1 ? other[i] : of[i];
  }

  void rope() {
    Sizes of = sizes(rarely() ? 1 + random_.below(3) : 4);
    of.back() = rarely() ? one_of({0, 2}) : one_of({2, 4, 16});
    const Sizes lie = strides(of);
    const int64_t offset = random_.below(5), half = of.back() / 2;
    const std::string in = any_type();
    const bool interleaved = random_.below(2) == 0;
    Sizes half_lie = lie;
    if (interleaved) half_lie.back() *= 2;
    const auto part = [&](const std::string& name, Sizes sized, const Sizes& strides, int64_t at) {
      body_ += fmt::format("%{} = aten::as_strided(%in_{}, [{}], [{}], {})\n", name, in,
                           shape(sized), fmt::join(strides, ", "), at);
    };
    Sizes halved = of;
    halved.back() = half;
    part("x", of, lie, offset);
    Sizes tokens = of;
    if (of.size() == 4) tokens[0] = random_.below(2) == 0 ? 1 : of[0], tokens[1] = 1;
    if (rarely()) tokens = broadcast(tokens);
    const std::string angle = rarely() ? any_type() : in;
    view("cos", angle, tokens);
    view("sin", rarely() ? any_type() : angle, rarely() ? broadcast(tokens) : tokens);
    body_ += "%c = aten::mul.Tensor(%x, %cos)\n";
    part("x2", halved, half_lie, offset + (interleaved ? 1 : half) * lie.back());
    body_ += "%neg = aten::neg(%x2)\n";
    part("x1", halved, half_lie, offset);
    body_ += interleaved ? fmt::format(
                               "%st = aten::stack([%neg, %x1], -1)\n"
                               "%t = aten::as_strided(%st, [{}], [{}], 0)\n",
                               shape(of), contiguous(of))
                         : "%t = aten::cat([%neg, %x1], -1)\n";
    body_ += "%s = aten::mul.Tensor(%t, %sin)\n%y = aten::add.Tensor(%c, %s, alpha=1)\n";
    result_ = of;
  }

  // Writes a value somewhere amid the others, or looks at it from outside.
  void change() {
    std::vector<size_t> ends;  // of lines
    for (size_t i = 0; i < body_.size(); ++i) {
      if (body_[i] == '\n') ends.push_back(i + 1);
    }
    const size_t at = ends[random_.below(ends.size())];
    std::vector<std::string> made;  // before
    for (size_t i = 0; i < at; i = body_.find('\n', i) + 1) {
      made.push_back(body_.substr(i, body_.find(' ', i) - i));
    }
    const std::string of = made[random_.below(made.size())];
    const std::string name = fmt::format("%u{}", changes_++);
    static const std::vector<std::string> kWrites = {"aten::add_.Tensor({}, 1)", "aten::neg_({})",
                                                     "aten::mul_.Tensor({}, 2)"};
    if (random_.below(3) > 0) {
      const std::string& write = kWrites[random_.below(kWrites.size())];
      body_.insert(at, name + " = " + fmt::format(fmt::runtime(write), of) + "\n");
    } else {
      body_.insert(at, name + " = aten::_to_copy(" + of + ", dtype=float32)\n");
      outputs_ += "output " + name + "\n";
    }
  }

  void attend() {
    const bool are_many = random_.below(4) == 0;  // tokens; then less of the rest
    const int64_t shared = are_many ? 1 : one_of({1, 2});
    const int64_t group = are_many ? one_of({1, 2}) : one_of({1, 2, 3});
    const int64_t rows = one_of({1, 2});
    rows_ = rows;
    const int64_t tokens = are_many ? one_of({33, 40}) : one_of({1, 2, 5});
    const int64_t keys = rarely() ? one_of({0, 1}) : one_of({3, 9});
    const int64_t width = are_many ? one_of({1, 3}) : one_of({1, 4, 8});
    const std::string in = rarely() ? any_type() : type();
    Sizes query{rows, shared * group, tokens, width}, key{rows, shared, keys, width};
    if (rarely()) query = broadcast(query);
    if (rarely()) key = broadcast(key);
    Sizes value = key;
    if (rarely()) value = broadcast(value);
    const bool grouped = group > 1 ? !rarely() : rarely();
    view("q", in, query);
    view("k", in, key);
    view("v", rarely() ? type() : in, value);
    std::string mask = "none";
    if (random_.below(2) == 0) {
      const bool is_added = random_.below(3) == 0;
      const int64_t heads = is_added ? one_of({1, shared * group}) : 1;
      view("mask", is_added ? in : "bool", broadcast({rows, heads, tokens, keys}));
      mask = "%mask";
    }
    static const std::vector<std::string> kScale = {"none", "0.25", "1", "-1.0", "0"};
    body_ += fmt::format(
        "%y = aten::scaled_dot_product_attention(%q, %k, %v, {}, 0.0, false, scale={}, "
        "enable_gqa={})\n",
        mask, kScale[random_.below(kScale.size())], grouped);
    result_ = {query[0], query[1], query[2], value[3]};
  }

  // A node that gives something of these sizes, as it says.
  void claim(const std::string& name, const std::string& dtype, const Sizes& of,
             const std::string& node) {
    body_ += fmt::format("%{} : {}[{}] = {}\n", name, dtype, shape(of), node);
  }

  // Where a mask hides a key.
  std::string least(const std::string& name, const std::string& dtype) {
    claim(name, dtype, {},
          fmt::format("aten::full([], {}, dtype={})",
                      dtype == "float16" ? "-65504.0" : "-3.3895313892515355e+38", dtype));
    return "%" + name;
  }

  // Of scores of that dtype; gives the dtype that they have then.
  std::string change_scores(const std::string& from, const std::string& to, const std::string& in,
                            const Sizes& of) {
    const std::string wide = in == "float64" ? in : "float32";
    switch (random_.below(6)) {
      case 0:
        claim(to, in, of, fmt::format("aten::div.Tensor(%{}, 4.0)", from));
        return in;
      case 1:
        view(to + "b", wide, broadcast({of[0], 1, of[2], of[3]}));
        claim(to, wide, of, fmt::format("aten::add.Tensor(%{0}, %{1}b, alpha=1)", from, to));
        return wide;
      case 2:
        view(to + "b", "bool", broadcast({1, of[1], of[2], of[3]}));
        body_ += fmt::format("%{0}s = aten::as_strided(%in_{1}, [], [], 2)\n", to, in);
        claim(to, in, of,
              fmt::format("aten::where.self(%{0}b, %{1}, {2})", to, from,
                          random_.below(2) == 0 ? "%" + to + "s" : least(to + "l", in)));
        return in;
      case 3: {
        const Sizes hidden = broadcast({of[0], 1, 1, of[3]});
        view(to + "b", "bool", hidden);
        claim(to + "n", in, {}, fmt::format("aten::zeros([], dtype={})", in));
        const std::string number = least(to + "l", in);
        claim(to + "m", in, hidden, fmt::format("aten::where.self(%{0}b, %{0}n, {1})", to, number));
        claim(to, in, of, fmt::format("aten::add.Tensor(%{0}, %{1}m, alpha=1)", from, to));
        return in;
      }
      case 4:
        make_cast(to, from, "float32", of);
        return "float32";
      default:
        claim(to, in, of,
              fmt::format("aten::mul.Tensor(%{}, {})", from, rarely() ? "-1.0" : "0.5"));
        return in;
    }
  }

  void spell_attention_out() {
    const bool are_many = random_.below(4) == 0;
    const int64_t heads = one_of({1, 2}), tokens = are_many ? 33 : one_of({1, 3});
    const int64_t rows = are_many ? 1 : one_of({1, 2});
    const int64_t keys = one_of({1, 3, 7}), width = are_many ? one_of({1, 3}) : one_of({1, 4, 8});
    rows_ = rows;
    const bool is_merged = !is_symbolic_ && random_.below(2) == 0;
    const std::string in = type();
    const Sizes key{rows, heads, keys, width};
    const auto matrix = [&](int64_t count, int64_t columns) {
      return is_merged ? Sizes{rows * heads, count, columns} : Sizes{rows, heads, count, columns};
    };
    view("q", in, matrix(tokens, width));
    view("k0", in, key);
    view("v0", in, key);
    make_cast("k", "k0", in, key);
    make_cast("v", "v0", in, key);
    Sizes turned_lie = is_merged ? Sizes{keys * width, 1, width}
                                 : Sizes{heads * keys * width, keys * width, 1, width};
    if (rarely()) turned_lie.back() = rarely() ? 0 : 1;
    body_ += fmt::format("%kt = aten::as_strided(%k, [{}], [{}], 0)\n", shape(matrix(width, keys)),
                         fmt::join(turned_lie, ", "));
    const auto reshape = [&](const std::string& to, const std::string& from, const Sizes& of) {
      body_ += fmt::format("%{} = aten::as_strided(%{}, [{}], [{}], 0)\n", to, from, shape(of),
                           contiguous(of));
    };
    const Sizes scores{rows, heads, tokens, keys};
    claim("p", in, matrix(tokens, keys),
          is_merged ? "aten::bmm(%q, %kt)" : "aten::matmul(%q, %kt)");
    if (is_merged) reshape("s0", "p", scores);
    std::string from = is_merged ? "s0" : "p", dtype = in;
    for (uint64_t i = 1 + random_.below(3); i > 0; --i) {
      const std::string to = fmt::format("s{}", i);
      dtype = change_scores(from, to, dtype, scores);
      from = to;
    }
    claim("w", dtype, scores, fmt::format("aten::_softmax(%{}, -1, false)", from));
    make_cast("ww", "w", in, scores);
    if (!is_merged) {
      claim("y", in, matrix(tokens, width), "aten::matmul(%ww, %v)");
    } else {
      reshape("w3", "ww", matrix(tokens, keys));
      reshape("v3", "v", matrix(keys, width));
      claim("y", in, matrix(tokens, width), "aten::bmm(%w3, %v3)");
    }
    result_ = matrix(tokens, width);
  }

  Random random_;
  int64_t width_ = 1;
  Sizes result_;
  int64_t rows_ = 1;  // the first size of x, which may be a symbol
  bool is_symbolic_;
  std::string body_;
  std::string outputs_;
  uint32_t changes_ = 0;
};

// The greatest distance of two elements, as a part of the greatest one; NaNs are alike.
double apart(const at::Tensor& one, const at::Tensor& other) {
  double most = 0, greatest = 1;
  const float* const a = one.const_data_ptr<float>();
  const float* const b = other.const_data_ptr<float>();
  for (int64_t i = 0; i < one.numel(); ++i) {
    if (std::isfinite(a[i])) greatest = std::max(greatest, std::abs(double{a[i]}));
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    const double gap = std::abs(double{a[i]} - double{b[i]});
    most = gap <= most ? most : gap;  // a NaN is the greatest
  }
  return most / greatest;
}

// How a program ended, and what it gave.
struct Ending {
  std::string refusal;  // at admission
  ErrorCode code = ErrorCode::kOk;
  std::vector<at::Tensor> outputs;
  uint32_t fast_nodes = 0;
};

// What is alike in the endings of a graph that is exact and of one that is fast, or how they
// differ.
std::string difference(const Ending& exact, const Ending& fast) {
  if (fast.refusal != exact.refusal) return "refused: " + fast.refusal;
  if (fast.code != exact.code) return fmt::format("ends with {}", static_cast<int>(fast.code));
  for (size_t i = 0; i < exact.outputs.size(); ++i) {
    if (fast.outputs[i].sizes() != exact.outputs[i].sizes()) return "has another shape";
    const double gap = apart(exact.outputs[i], fast.outputs[i]);
    if (!(gap < 0.05)) return fmt::format("output {} differs by {}", i, gap);
  }
  return {};
}

// Inputs behind which nothing may be read.
class FastViews : public ::testing::Test {
 protected:
  FastViews() {
    for (const at::ScalarType type :
         {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kLong, at::kBool}) {
      inputs_.push_back(guarded(type));
    }
  }

  static at::Tensor values_of(at::ScalarType type) {
    at::Tensor values = noise({kElements}, 7 + static_cast<uint64_t>(type));
    if (type == at::kLong) values = at::mul(values, 4);
    if (type == at::kBool) values = at::gt(values, 0);
    return values.to(type);
  }

  at::Tensor guarded(at::ScalarType type) {
    const at::Tensor values = values_.emplace_back(values_of(type));
    const std::span<std::byte> block =
        memory_.place(values.nbytes(), static_cast<uint64_t>(values.element_size()));
    return at::from_blob(block.data(), {kElements}, type);
  }

  // What an earlier run may have written.
  void fill_inputs() {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      std::memcpy(inputs_[i].mutable_data_ptr(), values_[i].const_data_ptr(), values_[i].nbytes());
    }
  }

  static std::map<std::string, at::Tensor> weights_of(const srg::Graph& graph) {
    std::map<std::string, at::Tensor> weights;
    for (const srg::Value& value : graph.values) {
      if (!value.name.starts_with("w_")) continue;
      weights[value.name] =
          at::mul(noise({value.sizes[0].constant}, 9), 4).to(*to_torch(value.dtype));
    }
    return weights;
  }

  // A run gives the same bytes, whatever the slab holds.
  void expect_again(World& world, const std::vector<int64_t>& symbols, const Ending& ending) {
    world.slab.poison();
    fill_inputs();
    EXPECT_EQ(code_of(world.run(symbols, inputs_, true)), ErrorCode::kOk);
    for (size_t i = 0; i < world.lane->outputs().size(); ++i) {
      EXPECT_TRUE(same_bytes(world.output(i), ending.outputs[i])) << "output " << i;
    }
  }

  Ending ending_of(srg::Graph graph, srg::Numerics numerics, int64_t rows) {
    World world(weights_of(graph), true);
    graph.numerics = numerics;
    const std::vector<int64_t> symbols(graph.symbols.size(), rows);
    Ending ending;
    ending.refusal = message_of(world.admit(std::move(graph)));
    if (!ending.refusal.empty()) return ending;
    ending.fast_nodes = world.program->fast_nodes();
    fill_inputs();
    ending.code = code_of(world.run(symbols, inputs_, true));
    if (ending.code != ErrorCode::kOk) return ending;
    for (size_t i = 0; i < world.lane->outputs().size(); ++i) {
      ending.outputs.push_back(world.output(i));
    }
    for (const at::Tensor& input : inputs_) {
      ending.outputs.push_back(input.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true));
    }
    expect_again(world, symbols, ending);
    return ending;
  }

  GuardedMemory memory_{1 << 20};
  std::vector<at::Tensor> values_;
  std::vector<at::Tensor> inputs_;
};

TEST_F(FastViews, give_what_exact_graphs_give_where_it_lies) {
  uint64_t compared = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const RandomGraph random(seed);
    const Result<srg::Graph> graph = srg::parse_text(random.text());
    ASSERT_TRUE(graph.ok()) << graph.error().message << "\n" << random.text();
    const Ending exact = ending_of(*graph, srg::Numerics::kExact, random.rows());
    const Ending fast = ending_of(*graph, srg::Numerics::kFast, random.rows());
    ASSERT_EQ(difference(exact, fast), "") << seed << "\n" << random.text();
    if (fast.fast_nodes > 0 && !fast.outputs.empty()) ++compared;
  }
  EXPECT_GE(compared, kSeeds / 4);
}

}  // namespace
}  // namespace djinn::exec
