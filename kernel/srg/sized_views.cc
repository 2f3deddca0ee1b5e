// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/sized_views.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "kernel/base/checked.h"

namespace djinn::srg {
namespace {

using Sizes = std::vector<int64_t>;

Sizes numbers_of(const std::vector<Expr>& exprs) {
  Sizes numbers;
  for (const Expr& expr : exprs) numbers.push_back(expr.constant);
  return numbers;
}

std::vector<Expr> exprs_of(const Sizes& numbers) {
  return {numbers.begin(), numbers.end()};
}

// Nothing on overflow.
std::optional<int64_t> count_of(const Sizes& sizes) {
  int64_t count = 1;
  for (const int64_t size : sizes) {
    const auto product = checked_mul(count, size);
    if (!product) return std::nullopt;
    count = *product;
  }
  return count;
}

// Whether elements of such sizes, with these strides, lie in a row of all; where a dimension has
// one element, its stride says nothing.
bool lie_in_a_row(const Sizes& sizes, const Sizes& strides) {
  std::optional<int64_t> expected = 1;
  for (size_t d = sizes.size(); d-- > 0 && expected;) {
    if (sizes[d] != 1 && strides[d] != *expected) return false;
    expected = checked_mul(*expected, sizes[d]);
  }
  return expected.has_value();
}

// What a node aten::as_strided(base, sizes, strides, offset) shows of a base that is claimed to be
// of some sizes, contiguous.
struct View {
  ValueId base = 0;
  Sizes base_sizes;
  Sizes sizes;
  Sizes strides;
  int64_t offset = 0;

  [[nodiscard]] bool is_whole() const {
    return offset == 0 && count_of(sizes) == count_of(base_sizes) && lie_in_a_row(sizes, strides);
  }

  // Of the elements that it shows again and again, each once.
  [[nodiscard]] View once() const {
    View view = *this;
    for (size_t d = 0; d < strides.size(); ++d) {
      if (strides[d] == 0) view.sizes[d] = 1;
    }
    return view;
  }

  // The one dimension in which it is less than the base.
  [[nodiscard]] std::optional<size_t> part() const {
    if (sizes.size() != base_sizes.size()) return std::nullopt;
    if (!lie_in_a_row(base_sizes, strides)) return std::nullopt;
    std::optional<size_t> found;
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d] == base_sizes[d]) continue;
      if (found) return std::nullopt;
      found = d;
    }
    if (!found || offset < 0 || strides[*found] < 1) return std::nullopt;
    if (offset % strides[*found] != 0) return std::nullopt;
    const int64_t begin = offset / strides[*found];
    const bool fits = begin <= base_sizes[*found] && sizes[*found] <= base_sizes[*found] - begin;
    return fits ? found : std::nullopt;
  }
};

std::optional<View> view_of(const Graph& graph, const Node& node) {
  if (node.op != "aten::as_strided" || node.arguments.size() != 4) return std::nullopt;
  const auto* base = std::get_if<ValueRef>(&node.arguments[0].value);
  const auto* sizes = std::get_if<ExprList>(&node.arguments[1].value);
  const auto* strides = std::get_if<ExprList>(&node.arguments[2].value);
  const auto* offset = std::get_if<Expr>(&node.arguments[3].value);
  if (base == nullptr || sizes == nullptr || strides == nullptr || offset == nullptr) {
    return std::nullopt;
  }
  // What claims sizes and no strides was contiguous where it was recorded.
  const Value& value = graph.values[base->id];
  if (value.storage != kLocalStorage || !value.claims_sizes || !value.strides.empty()) {
    return std::nullopt;
  }
  View view{base->id, numbers_of(value.sizes), numbers_of(sizes->items), numbers_of(strides->items),
            offset->constant};
  if (view.sizes.size() != view.strides.size() || !count_of(view.base_sizes)) return std::nullopt;
  return view;
}

bool reads(const Argument& argument, ValueId id) {
  if (const auto* one = std::get_if<ValueRef>(&argument.value)) return one->id == id;
  const auto* list = std::get_if<ValueList>(&argument.value);
  return list != nullptr && std::ranges::find(list->ids, std::optional(id)) != list->ids.end();
}

// Whether all that is done with a value is to copy it elsewhere, which repeats what is one element
// there and more here.
bool is_only_copied(const Graph& graph, ValueId id) {
  if (std::ranges::find(graph.outputs, id) != graph.outputs.end()) return false;
  return std::ranges::all_of(graph.nodes, [id](const Node& node) {
    for (size_t i = 0; i < node.arguments.size(); ++i) {
      if (!reads(node.arguments[i], id)) continue;
      if (node.op != "aten::copy_" || i != 1) return false;
    }
    return true;
  });
}

// The node's one size, if it makes a row of zeros.
const Expr* row_of(const Node& node) {
  if (node.op != "aten::zeros" || node.arguments.empty()) return nullptr;
  const auto* sizes = std::get_if<ExprList>(&node.arguments[0].value);
  return sizes != nullptr && sizes->items.size() == 1 ? sizes->items.data() : nullptr;
}

class Rewriting {
 public:
  Rewriting(std::span<const Graph* const> graphs, const CanFit& can_fit) : can_fit_(can_fit) {
    for (const Graph* graph : graphs) graphs_.push_back(*graph);
  }

  // Rows first: their views are of their sizes then.
  std::optional<std::vector<Graph>> run() && {
    const size_t nodes = graphs_[0].nodes.size();
    for (size_t i = 0; i < nodes; ++i) shape_row(i);
    for (size_t i = 0; i < nodes; ++i) say_by_sizes(i);
    if (!has_changed_) return std::nullopt;
    return std::move(graphs_);
  }

 private:
  template <typename Of>
  [[nodiscard]] bool fits(Of&& of) const {
    Sizes numbers;
    for (const Graph& graph : graphs_) numbers.push_back(of(graph));
    return can_fit_(numbers);
  }

  // Of node i in each graph; empty if it is no such view in one of them.
  [[nodiscard]] std::vector<View> views_at(size_t i) const {
    std::vector<View> views;
    for (const Graph& graph : graphs_) {
      auto view = view_of(graph, graph.nodes[i]);
      if (!view) return {};
      views.push_back(*std::move(view));
    }
    return views;
  }

  void shape_row(size_t i) {
    for (const Graph& graph : graphs_) {
      if (row_of(graph.nodes[i]) == nullptr) return;
    }
    if (fits([i](const Graph& graph) { return row_of(graph.nodes[i])->constant; })) return;
    const ValueId row = graphs_[0].nodes[i].outputs.at(0);
    for (size_t user = i + 1; user < graphs_[0].nodes.size(); ++user) {
      const std::vector<View> views = views_at(user);
      if (views.empty() || views[0].base != row) continue;
      if (!std::ranges::all_of(views, &View::is_whole)) continue;
      for (size_t g = 0; g < graphs_.size(); ++g) {
        const std::vector<Expr> sizes = exprs_of(views[g].sizes);
        graphs_[g].nodes[i].arguments[0].value = ExprList{sizes};
        graphs_[g].values[row].sizes = sizes;
      }
      has_changed_ = true;
      return;
    }
  }

  void say_by_sizes(size_t i) {
    const std::vector<View> views = views_at(i);
    if (views.empty() || have_strides_that_fit(views)) return;
    std::vector<View> once;
    for (const View& view : views) once.push_back(view.once());
    if (std::ranges::all_of(views, &View::is_whole)) {
      take_whole(i, views);
    } else if (std::ranges::all_of(once, &View::is_whole) &&
               is_only_copied(graphs_[0], graphs_[0].nodes[i].outputs.at(0))) {
      take_whole(i, once);
    } else if (const auto part = views[0].part()) {
      take_part(i, views, *part);
    }
  }

  [[nodiscard]] bool have_strides_that_fit(const std::vector<View>& views) const {
    for (size_t d = 0; d < views[0].strides.size(); ++d) {
      Sizes strides;
      for (const View& view : views) strides.push_back(view.strides[d]);
      if (!can_fit_(strides)) return false;
    }
    return true;
  }

  void take_whole(size_t i, const std::vector<View>& views) {
    for (size_t g = 0; g < graphs_.size(); ++g) {
      Node& node = graphs_[g].nodes[i];
      node.op = "aten::view";
      node.arguments.resize(2);
      node.arguments[1].value = ExprList{exprs_of(views[g].sizes)};
    }
    has_changed_ = true;
  }

  void take_part(size_t i, const std::vector<View>& views, size_t dim) {
    if (!std::ranges::all_of(views, [&](const View& view) { return view.part() == dim; })) return;
    for (size_t g = 0; g < graphs_.size(); ++g) {
      const View& view = views[g];
      const int64_t begin = view.offset / view.strides[dim];
      Node& node = graphs_[g].nodes[i];
      node.op = "aten::slice.Tensor";
      node.arguments.resize(1);
      for (const int64_t number :
           {static_cast<int64_t>(dim), begin, begin + view.sizes[dim], int64_t{1}}) {
        node.arguments.push_back({"", Expr(number)});
      }
    }
    has_changed_ = true;
  }

  const CanFit& can_fit_;
  std::vector<Graph> graphs_;
  bool has_changed_ = false;
};

}  // namespace

std::optional<std::vector<Graph>> with_sized_views(std::span<const Graph* const> graphs,
                                                   const CanFit& can_fit) {
  return Rewriting(graphs, can_fit).run();
}

}  // namespace djinn::srg
