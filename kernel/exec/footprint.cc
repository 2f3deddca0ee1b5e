// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/footprint.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "kernel/base/alignment.h"
#include "kernel/base/checked.h"
#include "kernel/exec/inference.h"
#include "kernel/srg/expr.h"

namespace djinn::exec {
namespace {

// Saturates at 2^64 - 1; a size that has no value is none.
uint64_t times(uint64_t bytes, const srg::Expr& size, std::span<const int64_t> symbols) {
  const auto value = srg::evaluate(size, symbols);
  if (!value || *value <= 0) return 0;
  return checked_mul(bytes, static_cast<uint64_t>(*value)).value_or(UINT64_MAX);
}

// Tells whether all meta runs made and released the same pieces in the same order.
bool has_one_course(const Inference& inference) {
  const Sample& first = inference.samples[0];
  return std::ranges::all_of(inference.samples, [&](const Sample& sample) {
    return sample.events == first.events &&
           std::ranges::equal(sample.pieces, first.pieces, {}, &SamplePiece::value,
                              &SamplePiece::value);
  });
}

}  // namespace

Footprint::Footprint(const Inference& inference) {
  if (!has_one_course(inference)) return;
  events_ = inference.samples[0].events;
  for (size_t i = 0; i < inference.samples[0].pieces.size(); ++i) {
    pieces_.push_back(piece_of(inference, i));
  }
}

Footprint::Piece Footprint::piece_of(const Inference& inference, size_t number) {
  const srg::ValueId value = inference.samples[0].pieces[number].value;
  const auto sizes = fit_sizes(inference, value);
  if (!sizes) return {};
  Piece product;
  product.bytes = c10::elementSize(inference.samples[0].shapes[value].type);
  for (const srg::Expr& size : *sizes) {
    if (size.is_constant()) {
      product.bytes = times(product.bytes, size, {});
    } else {
      product.factors.push_back(size);
    }
  }
  for (size_t i = 0; i < inference.samples.size(); ++i) {
    uint64_t bytes = product.bytes;
    for (const srg::Expr& size : product.factors) bytes = times(bytes, size, inference.points[i]);
    if (bytes != inference.samples[i].pieces[number].bytes) return {};
  }
  return product;
}

uint64_t Footprint::peak_bytes(std::span<const int64_t> symbols) const {
  std::vector<uint64_t> room;
  room.reserve(pieces_.size());
  for (const Piece& piece : pieces_) {
    uint64_t bytes = piece.bytes;
    for (const srg::Expr& size : piece.factors) bytes = times(bytes, size, symbols);
    room.push_back(align_up(bytes, kTensorAlignment).value_or(UINT64_MAX));
  }
  uint64_t now = 0, most = 0;
  for (const PieceEvent& event : events_) {
    if (event.is_birth) {
      now = checked_add(now, room[event.piece]).value_or(UINT64_MAX);
      most = std::max(most, now);
    } else {
      now -= std::min(now, room[event.piece]);
    }
  }
  return most;
}

}  // namespace djinn::exec
