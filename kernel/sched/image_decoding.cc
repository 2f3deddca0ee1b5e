// SPDX-License-Identifier: Apache-2.0

#include "kernel/sched/image_decoding.h"

#include <algorithm>
#include <string_view>

#include "kernel/sched/operators.h"

namespace djinn::sched {
namespace {

using srg::Graph;
using srg::StorageKind;
using srg::ValueId;

constexpr uint64_t kChannelsMax = 4;  // red, green, blue and what is opaque

class ImageDecoding {
 public:
  ImageDecoding(const Graph& graph, const Dataflow& flow,
                std::span<const std::optional<Shape>> shapes)
      : graph_(graph), flow_(flow), shapes_(shapes), decodes_(graph.nodes.size()) {}

  std::vector<bool> run() && {
    const NodeIndex image = find_image();
    if (image == kNoNode) return std::move(decodes_);
    if (!is_given_image(pixels_of(made_by(image)))) {
      decodes_.assign(decodes_.size(), true);
      return std::move(decodes_);
    }
    find_data();
    if (!decode_behind_enlarging()) mark_convolutions_before(image);
    return std::move(decodes_);
  }

 private:
  using MaybeShape = std::optional<Shape>;

  [[nodiscard]] static bool is_image(const MaybeShape& shape) {
    return shape && shape->sizes.size() == 4 && shape->sizes[1] <= kChannelsMax;
  }

  // 0 of what is no image's shape.
  [[nodiscard]] static uint64_t pixels_of(const MaybeShape& shape) {
    return shape && shape->sizes.size() == 4 ? shape->sizes[2] * shape->sizes[3] : 0;
  }

  // The shape of its first result, if it has one.
  [[nodiscard]] MaybeShape made_by(NodeIndex node) const {
    const auto& outputs = graph_.nodes[node].outputs;
    return outputs.empty() ? std::nullopt : shapes_[outputs[0]];
  }

  // Whether each number of its result is made of one of what it is given, or of few beside it.
  [[nodiscard]] bool is_pointwise(NodeIndex node) const {
    const Family family = flow_.family(node);
    return family == Family::kUnary || family == Family::kActivation || family == Family::kBinary ||
           family == Family::kCopy;
  }

  // The last node of an output that is an image. The output may be any view of it.
  [[nodiscard]] NodeIndex find_image() const {
    for (const ValueId id : graph_.outputs) {
      const NodeIndex last = flow_.producer_at_end(id);
      if (last == kNoNode || !is_image(made_by(last))) continue;
      NodeIndex node = last;
      while (node != kNoNode && (is_pointwise(node) || enlarges(node))) {
        if (flow_.family(node) == Family::kConvolution || flow_.operands(node).empty()) break;
        node = flow_.operands(node)[0].producer;
      }
      if (node != kNoNode && flow_.family(node) == Family::kConvolution) return last;
    }
    return kNoNode;
  }

  // Latents have four channels and more, and fewer pixels than what is made of them.
  [[nodiscard]] bool is_given_image(uint64_t pixels_made) const {
    for (ValueId id = 0; id < graph_.values.size(); ++id) {
      const srg::StorageIndex storage = graph_.values[id].storage;
      if (storage == srg::kLocalStorage || !is_image(shapes_[id])) continue;
      if (graph_.storages[storage].kind != StorageKind::kInput) continue;
      const uint64_t pixels = pixels_of(shapes_[id]);  // one: a number for each channel
      const bool is_coloured = shapes_[id]->sizes[1] == 1 || shapes_[id]->sizes[1] == 3;
      if (pixels > 1 && (is_coloured || pixels >= pixels_made)) return true;
    }
    return false;
  }

  [[nodiscard]] bool is_shuffle(NodeIndex node) const {
    return base_name(graph_.nodes[node].op) == "aten::pixel_shuffle";
  }

  [[nodiscard]] bool enlarges(NodeIndex node) const {
    const bool may = is_shuffle(node) || flow_.family(node) == Family::kConvolution ||
                     base_name(graph_.nodes[node].op).starts_with("aten::upsample_");
    if (!may || flow_.operands(node).empty()) return false;
    const uint64_t before = pixels_of(shapes_[flow_.operands(node)[0].value]);
    return before > 0 && pixels_of(made_by(node)) > before;
  }

  // Whether it depends on what the run is given: tables of positions are enlarged, too.
  void find_data() {
    has_data_.resize(graph_.nodes.size());
    for (NodeIndex i = 0; i < graph_.nodes.size(); ++i) {
      has_data_[i] = std::ranges::any_of(flow_.operands(i), [&](const auto& one) {
        if (one.producer != kNoNode) return static_cast<bool>(has_data_[one.producer]);
        return one.storage != srg::kLocalStorage &&
               graph_.storages[one.storage].kind == StorageKind::kInput;
      });
    }
  }

  // Gives whether there is a node that enlarges.
  bool decode_behind_enlarging() {
    bool found = false;
    for (NodeIndex i = 0; i < graph_.nodes.size(); ++i) {
      const bool begins = has_data_[i] && enlarges(i);
      found = found || begins;
      const bool is_behind = std::ranges::any_of(flow_.operands(i), [&](const auto& one) {
        return one.producer != kNoNode && decodes_[one.producer];
      });
      if (begins || is_behind) decodes_[i] = true;
      if (begins && is_shuffle(i)) mark_convolutions_before(i);
    }
    return found;
  }

  // With what is done to their numbers; a sum of two that depend on data ends them.
  void mark_convolutions_before(NodeIndex node) {
    const auto is_sum = [&](NodeIndex at) {
      return std::ranges::count_if(flow_.operands(at), [&](const auto& one) {
               return one.producer != kNoNode && has_data_[one.producer];
             }) > 1;
    };
    while (node != kNoNode && has_data_[node] && !is_sum(node)) {
      const bool goes_on =
          is_pointwise(node) || is_shuffle(node) || flow_.family(node) == Family::kConvolution;
      if (!goes_on) return;
      decodes_[node] = true;
      node = flow_.operands(node)[0].producer;
    }
  }

  const Graph& graph_;
  const Dataflow& flow_;
  const std::span<const MaybeShape> shapes_;
  std::vector<bool> decodes_;
  std::vector<bool> has_data_;
};

}  // namespace

std::vector<bool> into_image(const Graph& graph, const Dataflow& flow,
                             std::span<const std::optional<Shape>> shapes) {
  return ImageDecoding(graph, flow, shapes).run();
}

}  // namespace djinn::sched
