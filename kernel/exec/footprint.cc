// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/footprint.h"

#include <algorithm>

#include "kernel/base/alignment.h"
#include "kernel/base/checked.h"
#include "kernel/exec/inference.h"
#include "kernel/exec/program.h"
#include "kernel/srg/expr.h"

namespace djinn::exec {
namespace {

// Saturates at 2^64 - 1; with a size that has no value it is none.
uint64_t product_of(uint64_t bytes, std::span<const srg::Expr> sizes,
                    std::span<const int64_t> symbols) {
  for (const srg::Expr& size : sizes) {
    const auto value = srg::evaluate(size, symbols);
    if (!value || *value <= 0) return 0;
    bytes = checked_mul(bytes, static_cast<uint64_t>(*value)).value_or(UINT64_MAX);
  }
  return bytes;
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

Footprint::Footprint(const AdmittedGraph& program, const Inference& inference) {
  if (!has_one_course(inference)) return;
  events_ = inference.samples[0].events;
  for (size_t i = 0; i < inference.samples[0].pieces.size(); ++i) {
    pieces_.push_back(piece_of(inference, i));
  }
  // What kernels of the host hold; those of a GPU take workspaces of their own.
  for (size_t i = 0; i < program.steps.size() && program.device.is_cpu(); ++i) {
    for (HeldBeside& one : held_beside(program, inference, program.steps[i])) {
      held_.push_back({inference.samples[0].at_steps[i], std::move(one)});
    }
  }
}

Footprint::Piece Footprint::piece_of(const Inference& inference, size_t number) {
  const srg::ValueId value = inference.samples[0].pieces[number].value;
  const auto sizes = fit_sizes(inference, value);
  if (!sizes) return {};
  Piece piece;
  piece.bytes = c10::elementSize(inference.samples[0].shapes[value].type);
  for (const srg::Expr& size : *sizes) {
    if (size.is_constant()) {
      piece.bytes = product_of(piece.bytes, {&size, 1}, {});
    } else {
      piece.factors.push_back(size);
    }
  }
  for (size_t i = 0; i < inference.samples.size(); ++i) {
    const uint64_t bytes = product_of(piece.bytes, piece.factors, inference.points[i]);
    if (bytes != inference.samples[i].pieces[number].bytes) return {};
  }
  return piece;
}

uint64_t Footprint::peak_of(std::span<const int64_t> symbols,
                            std::span<const Held> all_held) const {
  std::vector<uint64_t> room;
  room.reserve(pieces_.size());
  for (const Piece& piece : pieces_) {
    const uint64_t bytes = product_of(piece.bytes, piece.factors, symbols);
    room.push_back(align_up(bytes, kTensorAlignment).value_or(UINT64_MAX));
  }
  uint64_t now = 0, most = 0;
  auto held = all_held.begin();
  for (uint32_t at = 0; at <= events_.size(); ++at) {
    for (; held != all_held.end() && held->events == at; ++held) {
      const uint64_t beside = held->beside.bytes_at(symbols);
      most = std::max(most, checked_add(now, beside).value_or(UINT64_MAX));
    }
    if (at == events_.size()) break;
    const PieceEvent& event = events_[at];
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
