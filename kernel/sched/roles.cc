// SPDX-License-Identifier: Apache-2.0

#include "kernel/sched/roles.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "kernel/srg/operands.h"

namespace djinn::sched {
namespace {

using srg::Graph;
using srg::Node;
using srg::StorageKind;
using srg::ValueId;
using Shapes = std::span<const std::optional<Shape>>;

enum class Role : uint8_t {
  kNone,
  kView,
  kEmbedding,
  kNorm,
  kRope,
  kAttention,
  kAppend,
  kRecurrence,
  kMask,
  kRouter,
  kMlp,
  kConvolution,
  kActivation,
  kResidual,
  kLmHead,
  kHead,
  kClients,  // what the client said: no pattern knows it
};

constexpr std::string_view kNames[] = {"",           "view",      "embedding", "norm",
                                       "rope",       "attention", "kv_append", "recurrence",
                                       "mask",       "router",    "mlp",       "convolution",
                                       "activation", "residual",  "lm_head",   "head"};

// What is between two projections, or at a border of layers, is shorter: no walk that begins at
// every node goes farther, so that all of them together are linear.
constexpr size_t kStepsMax = 64;

// Patterns run from the surest to the vaguest, and the first that gives a node a role is right.
class RoleFinder {
 public:
  RoleFinder(Graph& graph, const Dataflow& flow, Shapes shapes)
      : graph_(graph),
        flow_(flow),
        shapes_(shapes),
        roles_(graph.nodes.size(), Role::kNone),
        of_weights_(graph.nodes.size()),
        is_table_(graph.nodes.size()),
        walked_back_(graph.nodes.size()),
        walked_on_(graph.nodes.size()),
        recurs_(graph.nodes.size()) {}

  void run() {
    find_weights();
    name_by_operator();
    name_norms();
    name_rope();
    name_softmax_attention();
    name_attention_inputs();
    name_attention_outputs();
    name_masks();
    name_recurrences();
    name_routers();
    name_head();
    name_mlps();
    name_embeddings();
    name_sums();
    name_results();
    name_projected_inputs();
    name_weights();
    name_copies();
    name_fills();
    tell();
  }

 private:
  using Operand = Dataflow::Operand;

  [[nodiscard]] NodeIndex count() const { return static_cast<NodeIndex>(roles_.size()); }
  [[nodiscard]] Family family(NodeIndex node) const { return flow_.family(node); }
  [[nodiscard]] std::string_view name(NodeIndex node) const {
    return base_name(graph_.nodes[node].op);
  }
  [[nodiscard]] bool is_open(NodeIndex node) const { return roles_[node] == Role::kNone; }

  void give(NodeIndex node, Role role) {
    if (is_open(node)) roles_[node] = role;
  }

  // --- what nodes are, whatever they are for

  // Marks what is computed of weights alone: a cast of one, one plus one.
  void find_weights() {
    for (NodeIndex i = 0; i < count(); ++i) {
      bool any = false, all = true;
      for (const Operand& operand : flow_.operands(i)) {
        const bool weight = is_of_weights(operand);
        any = any || weight;
        all = all && (weight || is_fill(operand));
      }
      of_weights_[i] = any && all && family(i) != Family::kView && !multiplies(i);
    }
  }

  [[nodiscard]] bool is_of_weights(const Operand& operand) const {
    if (operand.producer != kNoNode) return of_weights_[operand.producer];
    return operand.storage != srg::kLocalStorage &&
           graph_.storages[operand.storage].kind == StorageKind::kWeight;
  }

  [[nodiscard]] bool multiplies(NodeIndex node) const {
    switch (family(node)) {
      case Family::kLinear:
      case Family::kLinears:
      case Family::kAddmm:
      case Family::kMatmul:
      case Family::kEmbedding:
        return true;
      default:
        return false;
    }
  }

  [[nodiscard]] bool is_fill(const Operand& operand) const {
    return operand.producer != kNoNode && family(operand.producer) == Family::kFill;
  }

  // A product of something with a weight.
  [[nodiscard]] bool is_projection(NodeIndex node) const {
    switch (family(node)) {
      case Family::kLinear:
      case Family::kLinears:
      case Family::kGroupedMm:
        return true;
      case Family::kAddmm:
        return !adds_to_product(node);
      case Family::kMatmul: {
        const auto operands = flow_.operands(node);
        return operands.size() == 2 && is_of_weights(operands[0]) != is_of_weights(operands[1]);
      }
      default:
        return false;
    }
  }

  // Of scores: it multiplies no weight with what is computed, and adds a table of distances to it.
  [[nodiscard]] bool adds_to_product(NodeIndex node) const {
    const auto operands = flow_.operands(node);
    return family(node) == Family::kAddmm && operands.size() == 3 && !is_of_weights(operands[1]) &&
           !is_of_weights(operands[2]);
  }

  // Neither factor is a weight.
  [[nodiscard]] bool is_product_of_two(NodeIndex node) const {
    return adds_to_product(node) || (family(node) == Family::kMatmul && !is_projection(node));
  }

  [[nodiscard]] bool is_elementwise(NodeIndex node) const {
    switch (family(node)) {
      case Family::kUnary:
      case Family::kBinary:
      case Family::kActivation:
      case Family::kGate:
      case Family::kCopy:
        return true;
      default:
        return false;
    }
  }

  // The one that projects: what a projection reads beside weights.
  [[nodiscard]] NodeIndex input_of(NodeIndex projection) const {
    for (const Operand& operand : flow_.operands(projection)) {
      if (!is_of_weights(operand)) return operand.producer;
    }
    return kNoNode;
  }

  [[nodiscard]] NodeIndex producer(NodeIndex node, size_t i) const {
    const auto operands = flow_.operands(node);
    return i < operands.size() ? operands[i].producer : kNoNode;
  }

  // The node, or what it copies.
  [[nodiscard]] NodeIndex source(NodeIndex node) const {
    return node == kNoNode ? kNoNode : flow_.source(node);
  }

  // Goes back over norms and copies.
  [[nodiscard]] NodeIndex below_norm(NodeIndex node) const {
    for (size_t steps = 0; steps < kStepsMax && node != kNoNode; ++steps) {
      if (roles_[node] != Role::kNorm && family(node) != Family::kCopy) return node;
      node = unscaled_operand(node);
    }
    return kNoNode;
  }

  // Goes back over copies and a product with a number.
  [[nodiscard]] NodeIndex behind_scale(NodeIndex node) const {
    node = source(node);
    const bool scales = node != kNoNode && name(node) == "aten::mul" && is_open(node) &&
                        flow_.operands(node).size() == 1;
    return scales ? source(producer(node, 0)) : node;
  }

  template <typename Visit>
  void for_each_producer(NodeIndex node, Visit visit) const {
    for (const Operand& operand : flow_.operands(node)) {
      if (operand.producer != kNoNode) visit(operand.producer);
    }
  }

  // --- by operator

  void name_by_operator() {
    for (NodeIndex i = 0; i < count(); ++i) {
      if (!graph_.nodes[i].annotation.role.empty()) roles_[i] = Role::kClients;
      if (embeds_patches(i)) give(i, Role::kEmbedding);
      give(i, role_of(family(i)));
    }
  }

  // A convolution of an input whose kernel goes over each place once.
  [[nodiscard]] bool embeds_patches(NodeIndex node) const {
    const auto operands = flow_.operands(node);
    if (family(node) != Family::kConvolution || operands.size() < 2) return false;
    if (graph_.nodes[node].outputs.empty()) return false;
    if (source(operands[0].producer) != kNoNode || is_of_weights(operands[0])) return false;
    const auto& from = shapes_[operands[0].value];
    const auto& kernel = shapes_[operands[1].value];
    const auto& to = shapes_[graph_.nodes[node].outputs[0]];
    constexpr size_t kPlaces = 2;  // the dimensions from here on
    if (!from || !kernel || !to || kernel->sizes.size() <= kPlaces) return false;
    if (from->sizes.size() != kernel->sizes.size() || to->sizes.size() != kernel->sizes.size()) {
      return false;
    }
    for (size_t i = kPlaces; i < kernel->sizes.size(); ++i) {
      const int64_t size = kernel->sizes[i];
      if (size == 1 || to->sizes[i] * size != from->sizes[i]) return false;
    }
    return true;
  }

  static Role role_of(Family family) {
    switch (family) {
      case Family::kView:
        return Role::kView;
      case Family::kAttention:
        return Role::kAttention;
      case Family::kAppend:
        return Role::kAppend;
      case Family::kEmbedding:
        return Role::kEmbedding;
      case Family::kConvolution:
      case Family::kPooling:
        return Role::kConvolution;
      case Family::kNorm:
        return Role::kNorm;
      case Family::kRope:
      case Family::kAngle:
        return Role::kRope;
      default:
        return Role::kNone;
    }
  }

  // --- norms that are spelled out: (x - mean) * rsqrt(mean of squares + epsilon) * weight + bias

  void name_norms() {
    for (NodeIndex i = 0; i < count(); ++i) {
      if (name(i) == "aten::rsqrt") name_norm(i);
      if (family(i) != Family::kNorm) continue;
      name_scales(i);
      for (const Operand& operand : flow_.operands(i)) {
        if (is_of_weights(operand)) name_back(operand.producer, Role::kNorm);
      }
    }
  }

  void name_norm(NodeIndex root) {
    const NodeIndex sum = producer(root, 0);
    if (sum == kNoNode) return;
    const NodeIndex mean = family(sum) == Family::kReduction ? sum : producer(sum, 0);
    if (mean == kNoNode || family(mean) != Family::kReduction) return;
    const NodeIndex square = producer(mean, 0);
    for (const NodeIndex node : {root, sum, mean}) give(node, Role::kNorm);
    if (square != kNoNode && is_elementwise(square)) {
      give(square, Role::kNorm);
      name_difference(producer(square, 0));
    }
    for (const NodeIndex user : flow_.readers(root)) {
      if (name(user) != "aten::mul") continue;
      give(user, Role::kNorm);
      for_each_producer(user, [&](NodeIndex factor) { name_difference(factor); });
      name_scales(user);
    }
  }

  // Names the difference from a mean, and the mean.
  void name_difference(NodeIndex difference) {
    if (difference == kNoNode || name(difference) != "aten::sub") return;
    const NodeIndex mean = producer(difference, 1);
    if (mean == kNoNode || family(mean) != Family::kReduction) return;
    give(difference, Role::kNorm);
    give(mean, Role::kNorm);
  }

  // Names products and sums with weights behind a norm, and what made those weights.
  void name_scales(NodeIndex normed) {
    std::vector<NodeIndex> open{normed};
    while (!open.empty()) {
      const NodeIndex node = open.back();
      open.pop_back();
      for (const NodeIndex user : flow_.readers(node)) {
        const Operand* const scale = scale_of(user);
        if (scale == nullptr) continue;
        if (is_open(user)) open.push_back(user);
        give(user, Role::kNorm);
        name_back(scale->producer, Role::kNorm);
      }
    }
  }

  // Gives the operand that is of weights, of a node that joins one with something.
  [[nodiscard]] const Operand* scale_of(NodeIndex node) const {
    const auto operands = flow_.operands(node);
    if (family(node) != Family::kBinary || operands.size() != 2) return nullptr;
    for (const Operand& operand : operands) {
      if (is_of_weights(operand)) return &operand;
    }
    return nullptr;
  }

  // Names a node and all before it that nobody has named, as far as other work.
  void name_back(NodeIndex from, Role role) {
    std::vector<NodeIndex> open{from};
    while (!open.empty()) {
      const NodeIndex node = open.back();
      open.pop_back();
      if (node == kNoNode || !is_open(node) || is_projection(node)) continue;
      give(node, role);
      for_each_producer(node, [&](NodeIndex before) { open.push_back(before); });
    }
  }

  // --- rotary embedding

  void name_rope() {
    for (NodeIndex i = 0; i < count(); ++i) {
      if (family(i) == Family::kAngle) name_table(i);
    }
    for (NodeIndex i = 0; i < count(); ++i) {
      const auto operands = flow_.operands(i);
      if (family(i) != Family::kRope || operands.size() != 3) continue;
      for (const size_t table : {1, 2}) name_tables_behind(operands[table].producer);
    }
    for (NodeIndex i = 0; i < count(); ++i) {
      const bool turns = name(i) == "aten::neg" || family(i) == Family::kJoin;
      if (turns && is_open(i)) find_tables(i);
    }
    for (NodeIndex i = 0; i < count(); ++i) name_rotation(i);
    for (NodeIndex i = 0; i < count(); ++i) {
      if (family(i) == Family::kEmbedding && is_read_by(i, Role::kRope)) roles_[i] = Role::kRope;
    }
  }

  // Whether all that read it, and somebody does, have that role.
  [[nodiscard]] bool is_read_by(NodeIndex node, Role role) const {
    const auto users = flow_.users(node);
    return !users.empty() &&
           std::ranges::all_of(users, [&](NodeIndex user) { return roles_[user] == role; });
  }

  // Of sines and cosines what they are computed of, and what is made of them alone.
  void name_table(NodeIndex angle) {
    is_table_[angle] = true;
    for_each_producer(angle, [&](NodeIndex before) { name_angles(before); });
  }

  // Products of frequencies with positions are no projections here.
  void name_angles(NodeIndex from) {
    std::vector<NodeIndex> open{from};
    while (!open.empty()) {
      const NodeIndex node = open.back();
      open.pop_back();
      if (!is_open(node)) continue;
      give(node, Role::kRope);
      for_each_producer(node, [&](NodeIndex before) { open.push_back(before); });
    }
  }

  // Tables that came from outside are known by what they are multiplied with: two halves, or two
  // elements, of one value, of which one is negated.
  void find_tables(NodeIndex turned) {
    if (family(turned) != Family::kJoin) return;
    const auto halves = flow_.operands(turned);
    if (halves.size() != 2) return;
    const auto negated = [&](const Operand& half, const Operand& other) {
      return half.producer != kNoNode && name(half.producer) == "aten::neg" &&
             producer(half.producer, 0) == other.producer && other.producer != kNoNode;
    };
    if (!negated(halves[0], halves[1]) && !negated(halves[1], halves[0])) return;
    for (const NodeIndex product : flow_.readers(turned)) {
      if (name(product) != "aten::mul" || !is_open(product)) continue;
      name_turned(turned, product);
      for (const NodeIndex sum : flow_.readers(product)) {
        if (name(sum) == "aten::add") name_sum_of_turned(sum, product);
      }
    }
  }

  void name_turned(NodeIndex turned, NodeIndex product) {
    give(product, Role::kRope);
    give(turned, Role::kRope);
    for_each_producer(turned, [&](NodeIndex half) {
      if (name(half) == "aten::neg") give(half, Role::kRope);
    });
    for_each_producer(product, [&](NodeIndex factor) {
      if (source(factor) != turned) name_tables_behind(factor);
    });
  }

  void name_sum_of_turned(NodeIndex sum, NodeIndex product) {
    give(sum, Role::kRope);
    for_each_producer(sum, [&](NodeIndex other) {
      other = source(other);
      if (other == kNoNode || other == product || name(other) != "aten::mul") return;
      give(other, Role::kRope);
      const NodeIndex table = producer(other, 1);
      if (table != kNoNode) name_tables_behind(table);
    });
  }

  void name_tables_behind(NodeIndex factor) {
    factor = source(factor);
    if (factor != kNoNode && !is_projection(factor)) name_back(factor, Role::kRope);
  }

  // Names what multiplies with tables, and what joins such products.
  void name_rotation(NodeIndex node) {
    if (!is_open(node) || family(node) == Family::kFill) return;
    bool any_table = false, all_tables = true, any_rotated = false;
    for (const Operand& operand : flow_.operands(node)) {
      const NodeIndex from = operand.producer;
      const bool table = from != kNoNode && is_table_[from];
      any_table = any_table || table;
      all_tables = all_tables && table;
      any_rotated = any_rotated || (from != kNoNode && roles_[from] == Role::kRope && !table);
    }
    if (any_table && all_tables) {
      is_table_[node] = true;
      return give(node, Role::kRope);
    }
    if (any_table && family(node) == Family::kBinary) {
      give(node, Role::kRope);
      for_each_producer(node, [&](NodeIndex factor) { name_halves(factor); });
    }
    const bool joins =
        family(node) == Family::kJoin || name(node) == "aten::add" || name(node) == "aten::sub";
    if (any_rotated && joins) give(node, Role::kRope);
  }

  void name_halves(NodeIndex factor) {
    if (!is_open(factor) || is_table_[factor] || family(factor) != Family::kJoin) return;
    give(factor, Role::kRope);
    for_each_producer(factor, [&](NodeIndex half) {
      if (name(half) == "aten::neg") give(half, Role::kRope);
    });
  }

  // --- attention

  // Attention that was not written as one operator: a product, scale and mask, softmax, a product.
  void name_softmax_attention() {
    for (NodeIndex i = 0; i < count(); ++i) {
      if (family(i) != Family::kSoftmax) continue;
      std::vector<NodeIndex> between;
      const NodeIndex scores = scores_before(i, between);
      if (scores == kNoNode) continue;
      between.push_back(i);
      between.push_back(scores);
      for (const NodeIndex node : between) give(node, Role::kAttention);
      scored_.insert(scored_.end(), between.begin(), between.end() - 2);
      if (adds_to_product(scores)) scored_.push_back(scores);
      name_mixing(i);
    }
  }

  // Goes back over scale, mask, bound and cast to a product of two computed things.
  NodeIndex scores_before(NodeIndex softmax, std::vector<NodeIndex>& between) const {
    constexpr int kBetweenMax = 8;
    NodeIndex at = producer(softmax, 0);
    for (int steps = 0; steps < kBetweenMax && at != kNoNode; ++steps) {
      const bool product = family(at) == Family::kMatmul || family(at) == Family::kAddmm;
      if (product) return is_projection(at) ? kNoNode : at;
      if (!is_elementwise(at) || !is_open(at)) return kNoNode;
      between.push_back(at);
      at = scored_operand(at);
    }
    return kNoNode;
  }

  // Of a sum with a mask the other summand: the mask is made of no product.
  [[nodiscard]] NodeIndex scored_operand(NodeIndex node) const {
    for (const Operand& operand : flow_.operands(node)) {
      const NodeIndex from = operand.producer;
      if (from != kNoNode && (is_product_of_two(from) || is_elementwise(from))) return from;
    }
    return producer(node, 0);
  }

  void name_mixing(NodeIndex softmax) {
    std::vector<NodeIndex> open{softmax};
    while (!open.empty()) {
      const NodeIndex node = open.back();
      open.pop_back();
      for (const NodeIndex user : flow_.readers(node)) {
        const bool product = family(user) == Family::kMatmul;
        if (!product && !(is_elementwise(user) && is_open(user))) continue;
        if (!product) open.push_back(user);
        give(user, Role::kAttention);
      }
    }
  }

  [[nodiscard]] bool is_core(NodeIndex node) const {
    return family(node) == Family::kAttention ||
           (is_product_of_two(node) && roles_[node] == Role::kAttention);
  }

  // Names projections whose result reaches attention or the cache, and what is in between.
  void name_attention_inputs() {
    for (NodeIndex i = 0; i < count(); ++i) {
      const bool core = is_core(i);
      if (!core && family(i) != Family::kAppend) continue;
      const size_t first = adds_to_product(i) ? 1 : 0;
      const size_t counted = first == 1 || family(i) == Family::kAttention ? 3 : 2;
      const auto operands = flow_.operands(i);
      for (size_t k = first; k < std::min(counted, operands.size()); ++k) name_heads(operands[k]);
    }
  }

  // What one walk has seen no other looks at again: it would find the same.
  void name_heads(const Operand& of) {
    std::vector<NodeIndex> open{of.producer};
    while (!open.empty()) {
      const NodeIndex node = open.back();
      open.pop_back();
      if (node == kNoNode || walked_back_[node]) continue;
      walked_back_[node] = true;
      if (is_projection(node)) {
        if (!is_open(node)) continue;
        give(node, Role::kAttention);
        open.push_back(normed_before(node));
      } else if (carries_heads(node)) {
        if (family(node) != Family::kCopy) give(node, Role::kAttention);
        for_each_producer(node, [&](NodeIndex before) { open.push_back(before); });
      }
    }
  }

  // Of a projection of a normed projection the first: low ranks of queries, keys and values.
  [[nodiscard]] NodeIndex normed_before(NodeIndex projection) const {
    NodeIndex at = input_of(projection);
    bool normed = false;
    for (int steps = 0; steps < 16 && at != kNoNode; ++steps) {
      if (is_projection(at)) return normed ? at : kNoNode;
      if (roles_[at] != Role::kNorm && family(at) != Family::kCopy) return kNoNode;
      normed = normed || roles_[at] == Role::kNorm;
      at = unscaled_operand(at);
    }
    return kNoNode;
  }

  [[nodiscard]] NodeIndex unscaled_operand(NodeIndex node) const {
    for (const Operand& operand : flow_.operands(node)) {
      if (!is_of_weights(operand)) return operand.producer;
    }
    return kNoNode;
  }

  // It may stand between a projection and attention.
  [[nodiscard]] bool carries_heads(NodeIndex node) const {
    switch (family(node)) {
      case Family::kNorm:
      case Family::kRope:
      case Family::kUnary:
      case Family::kBinary:
      case Family::kCopy:
      case Family::kJoin:
      case Family::kRepeat:
      case Family::kReduction:
        return !is_table_[node];
      default:
        return false;
    }
  }

  // Names the projection that follows attention, what is in between, and what gates it.
  void name_attention_outputs() {
    for (NodeIndex i = 0; i < count(); ++i) {
      if (is_core(i)) name_mixed(i);
    }
  }

  void name_mixed(NodeIndex core) {
    std::vector<NodeIndex> open{core};
    while (!open.empty()) {
      const NodeIndex node = open.back();
      open.pop_back();
      if (walked_on_[node]) continue;
      walked_on_[node] = true;
      for (const NodeIndex user : flow_.readers(node)) {
        const bool passes = is_elementwise(user) || family(user) == Family::kJoin;
        if (is_projection(user)) {
          give(user, Role::kAttention);
        } else if (is_open(user) && passes) {
          give(user, Role::kAttention);
          open.push_back(user);
          for_each_producer(user, [&](NodeIndex gate) { name_gate(gate); });
        } else if (roles_[user] == Role::kNorm && is_last_of_norm(user)) {
          open.push_back(user);
        }
      }
    }
  }

  [[nodiscard]] bool is_last_of_norm(NodeIndex node) const {
    return family(node) == Family::kNorm || name(node) == "aten::mul";
  }

  void name_gate(NodeIndex gate) {
    std::vector<NodeIndex> open{gate};
    while (!open.empty()) {
      const NodeIndex node = source(open.back());
      open.pop_back();
      if (!is_open(node) || family(node) == Family::kCopy) continue;
      const bool stops = is_projection(node);
      if (!stops && !is_elementwise(node) && family(node) != Family::kReduction) continue;
      give(node, Role::kAttention);
      if (!stops) for_each_producer(node, [&](NodeIndex before) { open.push_back(before); });
    }
  }

  // What attention takes beside queries, keys and values, and what is added to scores.
  void name_masks() {
    for (NodeIndex i = 0; i < count(); ++i) {
      const auto operands = flow_.operands(i);
      if (family(i) != Family::kAttention) continue;
      for (size_t k = 3; k < operands.size(); ++k) {
        if (!is_of_weights(operands[k])) name_mask(operands[k].producer);  // those are sinks
      }
    }
    for (const NodeIndex score : scored_) {
      if (adds_to_product(score)) {
        name_mask(producer(score, 0));
      } else {
        for_each_producer(score, [&](NodeIndex before) { name_mask(before); });
      }
    }
  }

  // What is looked up for a distance belongs to it.
  void name_mask(NodeIndex mask) {
    std::vector<NodeIndex> open{mask};
    while (!open.empty()) {
      const NodeIndex node = open.back();
      open.pop_back();
      if (node == kNoNode || is_projection(node)) continue;
      if (!is_open(node) && roles_[node] != Role::kEmbedding) continue;
      roles_[node] = Role::kMask;
      for_each_producer(node, [&](NodeIndex before) { open.push_back(before); });
    }
  }

  // --- layers that keep a state

  // From what writes a state back to the projections of the layer's normed input, and on to the
  // projection of what it gives.
  void name_recurrences() {
    std::vector<NodeIndex> found;
    for (NodeIndex i = 0; i < count(); ++i) {
      if (!is_open(i) || !flow_.writes_input(graph_, i)) continue;
      give(i, Role::kRecurrence);
      walk_to_input(i, found);
    }
    while (!found.empty()) {
      const NodeIndex node = found.back();
      found.pop_back();
      for (const NodeIndex user : flow_.users(node)) {
        if (recurs_[user] || !carries_state(user)) continue;
        recurs_[user] = true;
        give(user, Role::kRecurrence);
        if (!is_projection(user)) found.push_back(user);
        for_each_producer(user, [&](NodeIndex gate) { name_back(gate, Role::kRecurrence); });
      }
    }
  }

  void walk_to_input(NodeIndex written, std::vector<NodeIndex>& found) {
    std::vector<NodeIndex> open{written};
    while (!open.empty()) {
      const NodeIndex node = open.back();
      open.pop_back();
      const bool is_inner_norm = roles_[node] == Role::kNorm;
      for_each_producer(node, [&](NodeIndex before) {
        const bool enters = is_projection(node) && begins_layer(before);
        const bool leaves = is_inner_norm && is_sum_of_two(before);
        if (recurs_[before] || enters || leaves || !carries_state(before)) return;
        recurs_[before] = true;
        give(before, Role::kRecurrence);
        found.push_back(before);
        open.push_back(before);
      });
    }
  }

  // A norm, a convolution and what nobody has named may lie in a layer that keeps a state.
  [[nodiscard]] bool carries_state(NodeIndex node) const {
    return is_open(node) || roles_[node] == Role::kNorm || roles_[node] == Role::kConvolution ||
           roles_[node] == Role::kRecurrence;
  }

  // What a layer's first projections read.
  [[nodiscard]] bool begins_layer(NodeIndex node) const {
    const NodeIndex from = source(node);
    return roles_[from] == Role::kNorm || is_sum_of_two(from);
  }

  [[nodiscard]] bool is_sum_of_two(NodeIndex node) const {
    const auto operands = flow_.operands(node);
    return name(node) == "aten::add" && operands.size() == 2 && !is_of_weights(operands[0]) &&
           !is_of_weights(operands[1]);
  }

  // --- mixtures of experts

  void name_routers() {
    for (NodeIndex i = 0; i < count(); ++i) {
      if (family(i) != Family::kTopK || !is_open(i)) continue;
      name_choice(i);
    }
    for (NodeIndex i = 0; i < count(); ++i) {
      if (is_open(i)) name_routed(i);
    }
  }

  // Names what scores the experts, back to the projection.
  void name_choice(NodeIndex top) {
    give(top, Role::kRouter);
    std::vector<NodeIndex> open{top};
    while (!open.empty()) {
      const NodeIndex node = open.back();
      open.pop_back();
      if (is_projection(node)) continue;
      for_each_producer(node, [&](NodeIndex before) {
        if (!is_open(before)) return;
        give(before, Role::kRouter);
        open.push_back(before);
      });
    }
  }

  // What reads only of routers is routing, but for indices, which put rows in the order of their
  // experts; those, and what mixes them or routing with other things, are the experts' work.
  void name_routed(NodeIndex node) {
    bool routed = false, works = false, other = false;
    for (const Operand& operand : flow_.operands(node)) {
      const NodeIndex from = source(operand.producer);
      if (from == kNoNode || family(from) == Family::kFill) continue;
      const Role role = roles_[from];
      routed = routed || role == Role::kRouter;
      works = works || role == Role::kMlp;
      other = other || (role != Role::kRouter && role != Role::kMlp);
    }
    if (family(node) == Family::kCopy || family(node) == Family::kFill) return;
    if (is_projection(node)) {
      if (routed || works) give(node, Role::kMlp);
      return;
    }
    const bool indexes = makes_indices(node);
    if (routed && !works && !other && !indexes) return give(node, Role::kRouter);
    const bool scales =
        family(node) == Family::kBinary && flow_.operands(node).size() == 1 && !indexes;
    if (routed || (works && !other && !scales)) give(node, Role::kMlp);
  }

  // Whole numbers, or what is compared with some.
  [[nodiscard]] bool makes_indices(NodeIndex node) const {
    const auto& outputs = graph_.nodes[node].outputs;
    if (outputs.empty() || !shapes_[outputs[0]]) return false;
    switch (shapes_[outputs[0]]->dtype) {
      case DType::kBool:
      case DType::kInt32:
      case DType::kInt64:
        return true;
      default:
        return false;
    }
  }

  // --- the head

  void name_head() {
    find_vocabularies();
    for (const ValueId id : graph_.outputs) {
      std::vector<NodeIndex> tail;
      NodeIndex node = flow_.producer_at_end(id);
      while (node != kNoNode && is_elementwise(node) && is_open(node) && tail.size() < kStepsMax) {
        tail.push_back(node);
        node = unscaled_operand(node);
      }
      if (node == kNoNode || !is_open(node) || !is_head(node)) continue;
      give(node, Role::kLmHead);
      for (const NodeIndex one : tail) give(one, Role::kLmHead);
      name_before_head(node);
    }
  }

  // A projection is the head if it makes as many numbers as a table of embeddings has rows, or if
  // it is the last one of a graph that generates.
  [[nodiscard]] bool is_head(NodeIndex node) const {
    if (!is_projection(node)) return false;
    const auto outputs = weight_rows(node);
    return has_sequence_ || (outputs && table_rows_.contains(*outputs));
  }

  void find_vocabularies() {
    has_sequence_ = std::ranges::any_of(graph_.storages, [](const srg::Storage& storage) {
      return storage.kind == StorageKind::kSequence;
    });
    for (NodeIndex i = 0; i < count(); ++i) {
      if (family(i) != Family::kEmbedding) continue;
      if (const auto rows = first_size(i, 0)) table_rows_.insert(*rows);
    }
  }

  [[nodiscard]] std::optional<uint64_t> weight_rows(NodeIndex node) const {
    return family(node) == Family::kLinear ? first_size(node, 1) : std::nullopt;
  }

  [[nodiscard]] std::optional<uint64_t> first_size(NodeIndex node, size_t i) const {
    const auto operands = flow_.operands(node);
    if (i >= operands.size()) return std::nullopt;
    const auto& shape = shapes_[operands[i].value];
    return shape && !shape->sizes.empty() ? std::optional(shape->sizes[0]) : std::nullopt;
  }

  // A projection, an activation and a norm before the head belong to it.
  void name_before_head(NodeIndex head) {
    const NodeIndex at = below_norm(input_of(head));
    if (at == kNoNode || !is_open(at)) return;
    const Region region = region_of(at);
    if (region.leaves.size() != 1 || !region.whole || !is_projection(region.leaves[0])) return;
    if (!is_open(region.leaves[0])) return;
    for (const NodeIndex node : region.nodes) give(node, Role::kLmHead);
    give(region.leaves[0], Role::kLmHead);
  }

  // --- what is between two projections

  // The elementwise work whose result is one node's, and the nodes that it starts from.
  struct Region {
    std::vector<NodeIndex> nodes;
    std::vector<NodeIndex> leaves;
    bool whole = true;   // nothing in it comes from elsewhere
    bool bends = false;  // something in it is not linear
  };

  [[nodiscard]] Region region_of(NodeIndex end) const {
    Region region;
    std::vector<NodeIndex> open{end};
    const auto once = [](const std::vector<NodeIndex>& list, NodeIndex node) {
      return std::ranges::find(list, node) == list.end();
    };
    while (!open.empty() && region.nodes.size() + region.leaves.size() < kStepsMax) {
      const NodeIndex node = open.back();
      open.pop_back();
      const bool inside = !is_projection(node) && is_inside(node);
      if (!inside) {
        if (once(region.leaves, node)) region.leaves.push_back(node);
        continue;
      }
      if (!once(region.nodes, node)) continue;
      region.nodes.push_back(node);
      region.bends = region.bends || is_nonlinear(node);
      for (const Operand& operand : flow_.operands(node)) {
        if (operand.producer != kNoNode) {
          open.push_back(operand.producer);
        } else if (!is_of_weights(operand)) {
          region.whole = false;
        }
      }
    }
    region.whole = region.whole && open.empty();
    return region;
  }

  [[nodiscard]] bool is_inside(NodeIndex node) const {
    if (family(node) == Family::kFill) return true;
    return is_open(node) && (is_elementwise(node) || family(node) == Family::kReduction);
  }

  [[nodiscard]] bool is_nonlinear(NodeIndex node) const {
    const Family what = family(node);
    if (what == Family::kActivation || what == Family::kGate) return true;
    return what == Family::kUnary && name(node) != "aten::neg" &&
           name(node) != "aten::masked_fill" && name(node) != "aten::dropout";
  }

  // Projection, activation, projection; or gate and up, their product, projection. A norm may
  // stand before the last one.
  void name_mlps() {
    for (NodeIndex i = 0; i < count(); ++i) {
      if (!is_projection(i) || !(is_open(i) || roles_[i] == Role::kMlp)) continue;
      const NodeIndex at = below_norm(input_of(i));
      if (at == kNoNode || is_projection(at)) continue;
      const Region region = region_of(at);
      const bool projected = std::ranges::all_of(region.leaves, [&](NodeIndex leaf) {
        return is_projection(leaf) && (is_open(leaf) || roles_[leaf] == Role::kMlp);
      });
      if (!region.bends || !region.whole || region.leaves.empty() || !projected) continue;
      for (const NodeIndex node : region.nodes) {
        if (family(node) != Family::kCopy && family(node) != Family::kFill) give(node, Role::kMlp);
      }
      for (const NodeIndex leaf : region.leaves) give(leaf, Role::kMlp);
      give(i, Role::kMlp);
    }
    name_sums_of_experts();
  }

  // Adds and gates what experts of several kinds give.
  void name_sums_of_experts() {
    for (NodeIndex i = 0; i < count(); ++i) {
      if (!is_open(i) || family(i) == Family::kCopy || family(i) == Family::kFill) continue;
      if (scales_a_layer(i)) continue;
      bool all = true, any = false;
      for (const Operand& operand : flow_.operands(i)) {
        const NodeIndex from = behind_scale(operand.producer);
        if (from == kNoNode) continue;
        if (roles_[from] == Role::kMlp) {
          any = true;
        } else if (!name_expert_gate(from)) {
          all = false;
        }
      }
      if (any && all && is_worked_on(i)) give(i, Role::kMlp);
    }
  }

  // A product with a weight that is then added to what went around the layer.
  [[nodiscard]] bool scales_a_layer(NodeIndex node) const {
    const auto operands = flow_.operands(node);
    if (name(node) != "aten::mul" || operands.size() != 2) return false;
    if (is_of_weights(operands[0]) == is_of_weights(operands[1])) return false;
    const auto users = flow_.users(node);
    return !users.empty() && std::ranges::all_of(users, [&](NodeIndex user) {
      if (family(user) != Family::kView) return is_sum_of_two(user);
      const auto behind = flow_.users(user);
      return !behind.empty() &&
             std::ranges::all_of(behind, [&](NodeIndex one) { return is_sum_of_two(one); });
    });
  }

  // Beside a sum of two results, only products join what an expert gives with something.
  [[nodiscard]] bool is_worked_on(NodeIndex node) const {
    switch (family(node)) {
      case Family::kBinary:
        return flow_.operands(node).size() > 1;
      case Family::kGather:
      case Family::kReduction:
      case Family::kScatter:
        return true;
      default:
        return false;
    }
  }

  // A number for each token that an expert is multiplied with: sigmoid of a projection.
  bool name_expert_gate(NodeIndex node) {
    if (!is_open(node) || name(node) != "aten::sigmoid") return false;
    const NodeIndex projection = source(producer(node, 0));
    if (projection == kNoNode || !is_projection(projection) || !is_open(projection)) return false;
    give(node, Role::kMlp);
    give(projection, Role::kMlp);
    return true;
  }

  // --- what is left

  // What is made of embeddings alone, before anything else is done with them.
  void name_embeddings() {
    for (NodeIndex i = 0; i < count(); ++i) {
      if (family(i) == Family::kEmbedding || (is_open(i) && looks_up(i))) {
        give(i, Role::kEmbedding);
        const NodeIndex ids = producer(i, 1);
        if (ids != kNoNode) name_back(ids, roles_[i]);
        continue;
      }
      const bool joins = is_elementwise(i) || is_projection(i) || family(i) == Family::kJoin;
      if (!is_open(i) || !joins || family(i) == Family::kCopy) continue;
      bool all = true, any = false, learned = false;
      for (const Operand& operand : flow_.operands(i)) {
        const NodeIndex from = source(operand.producer);
        const bool patches = from != kNoNode && family(from) == Family::kConvolution;
        const bool embedded = from != kNoNode && is_embedded(from);
        any = any || patches || embedded;
        learned = learned || embedded || is_of_weights(operand);
        all = all && (from == kNoNode || patches || embedded || of_weights_[from]);
      }
      if (any && all && learned) give(i, Role::kEmbedding);
    }
  }

  // Takes rows of a weight.
  [[nodiscard]] bool looks_up(NodeIndex node) const {
    const auto operands = flow_.operands(node);
    return family(node) == Family::kGather && operands.size() == 2 && is_of_weights(operands[0]) &&
           !is_of_weights(operands[1]);
  }

  // A norm of embeddings is a norm, and what is made of it and others still belongs to them.
  [[nodiscard]] bool is_embedded(NodeIndex node) const {
    node = below_norm(node);
    return node != kNoNode && roles_[node] == Role::kEmbedding;
  }

  // Without a product behind it.
  [[nodiscard]] bool is_activation(NodeIndex node) const {
    return family(node) == Family::kActivation ||
           (family(node) == Family::kGate && flow_.operands(node).size() == 1);
  }

  void name_sums() {
    for (NodeIndex i = 0; i < count(); ++i) {
      if (is_sum_of_two(i)) give(i, Role::kResidual);
    }
    for (NodeIndex i = count(); i-- > 0;) {
      if (is_activation(i)) give(i, Role::kActivation);
      const bool passes = is_elementwise(i) || family(i) == Family::kRepeat ||
                          family(i) == Family::kJoin || family(i) == Family::kGather;
      if (!is_open(i) || !passes || family(i) == Family::kCopy) continue;
      for (const Role role : {Role::kResidual, Role::kLmHead, Role::kMlp}) {
        if (is_read_by(i, role)) give(i, role);
      }
    }
  }

  // What nothing but results is made of; a norm or an activation in between stays one.
  void name_results() {
    std::vector<bool> is_last(count()), leads(count());
    for (const ValueId id : graph_.outputs) {
      if (const NodeIndex node = flow_.producer_at_end(id); node != kNoNode) is_last[node] = true;
    }
    for (NodeIndex i = count(); i-- > 0;) {
      const auto users = flow_.users(i);
      const bool counts =
          family(i) != Family::kView && !of_weights_[i] && (is_last[i] || !users.empty());
      const bool to_results =
          counts && std::ranges::all_of(users, [&](NodeIndex user) { return leads[user]; });
      const bool stays = roles_[i] == Role::kNorm || roles_[i] == Role::kActivation;
      leads[i] = to_results && (is_open(i) || stays);
      if (leads[i]) give(i, Role::kHead);
    }
  }

  // What is projected before the first layer: features of sound, patches that were cut out.
  void name_projected_inputs() {
    std::vector<bool> is_late(count());
    for (NodeIndex i = 0; i < count(); ++i) {
      const Role role = roles_[i];
      bool late = role == Role::kAttention || role == Role::kMlp || role == Role::kResidual;
      for_each_producer(i, [&](NodeIndex before) { late = late || is_late[before]; });
      is_late[i] = late;
      if (!late && is_projection(i)) give(i, Role::kEmbedding);
    }
  }

  // What is made of weights is for who reads it.
  void name_weights() {
    for (NodeIndex i = count(); i-- > 0;) {
      if (!of_weights_[i] || family(i) == Family::kCopy) continue;
      for (const NodeIndex user : flow_.users(i)) give(i, roles_[user]);
    }
  }

  // Wider for who reads it, narrower or as wide for who made it.
  void name_copies() {
    for (NodeIndex i = count(); i-- > 0;) {
      if (is_open(i) && family(i) == Family::kCopy && is_for_reader(i)) {
        for (const NodeIndex user : flow_.users(i)) give(i, roles_[user]);
      }
    }
    for (NodeIndex i = 0; i < count(); ++i) {
      if (!is_open(i) || family(i) != Family::kCopy) continue;
      const NodeIndex from = producer(i, 0);
      if (from != kNoNode && roles_[from] != Role::kView) give(i, roles_[from]);
      for (const NodeIndex user : flow_.users(i)) give(i, roles_[user]);
    }
  }

  [[nodiscard]] bool is_for_reader(NodeIndex copy) const {
    const auto operands = flow_.operands(copy);
    if (operands.empty() || operands[0].producer == kNoNode) return true;
    const Role made = roles_[operands[0].producer];
    const bool inner = made == Role::kNorm || made == Role::kRope || made == Role::kRouter ||
                       made == Role::kAttention || made == Role::kMlp || made == Role::kMask;
    return !inner || width_of(graph_.nodes[copy].outputs, copy) > width_of_value(operands[0].value);
  }

  [[nodiscard]] uint32_t width_of(const std::vector<ValueId>& outputs, NodeIndex copy) const {
    if (is_in_place(graph_.nodes[copy].op)) {
      const auto* target = std::get_if<srg::ValueRef>(&graph_.nodes[copy].arguments[0].value);
      return target == nullptr ? 0 : width_of_value(target->id);
    }
    return outputs.empty() ? 0 : width_of_value(outputs[0]);
  }

  [[nodiscard]] uint32_t width_of_value(ValueId value) const {
    return shapes_[value] ? size_of(shapes_[value]->dtype) : 0;
  }

  // Of what writes it, else of who reads it first.
  void name_fills() {
    for (NodeIndex i = count(); i-- > 0;) {
      const NodeIndex filler = flow_.filler(i);
      if (filler != kNoNode) give(filler, roles_[i]);
    }
    for (NodeIndex i = count(); i-- > 0;) {
      if (!is_open(i) || family(i) != Family::kFill) continue;
      for (const NodeIndex user : flow_.users(i)) give(i, roles_[user]);
    }
  }

  void tell() {
    for (NodeIndex i = 0; i < count(); ++i) {
      if (roles_[i] != Role::kClients) {
        graph_.nodes[i].annotation.role = kNames[static_cast<size_t>(roles_[i])];
      }
    }
  }

  Graph& graph_;
  const Dataflow& flow_;
  const Shapes shapes_;
  std::vector<Role> roles_;
  std::vector<bool> of_weights_;             // each node: made of weights alone
  std::vector<bool> is_table_;               // each node: made of sines and cosines alone
  std::vector<NodeIndex> scored_;            // what bounds, scales and masks scores
  std::vector<bool> walked_back_;            // each node: from attention to its projections
  std::vector<bool> walked_on_;              // each node: from attention to its output's projection
  std::vector<bool> recurs_;                 // each node: walked from a state that is written
  std::unordered_set<uint64_t> table_rows_;  // of embeddings
  bool has_sequence_ = false;
};

}  // namespace

void name_roles(Graph& graph, const Dataflow& flow, Shapes shapes) {
  RoleFinder(graph, flow, shapes).run();
}

}  // namespace djinn::sched
