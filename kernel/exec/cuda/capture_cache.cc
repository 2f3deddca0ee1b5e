// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/cuda/capture_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernel/base/assert.h"
#include "kernel/exec/inner_pulse.h"

namespace djinn::exec {
namespace {

// A run that is given up, or set aside, is so between two operators, whoever calls them.
Status beat(const AdmittedGraph& program, const StepRange& range, const Frame& frame) {
  if (!frame.pulse) return {};
  for (const Step& step : steps_of(program, range)) {
    if (!frame.pulse(program.graph.nodes[step.node].op)) return given_up();
  }
  return {};
}

}  // namespace

void CaptureCache::begin(const AdmittedGraph& program, const Placements& plan, Replayer& places) {
  const auto [found, is_new] = programs_.try_emplace(&program);
  if (is_new) found->second.pieces = pieces_of(program);
  of_ = &found->second;
  plan_ = plan;
  places_ = &places;
  ++run_;
}

Status CaptureCache::advance(const AdmittedGraph& program, std::span<const c10::Storage> storages,
                             Frame& frame, size_t& at) {
  const StepRange range{at, of_->pieces.ends[at]};
  if (range.end == 0 || !places_->fits()) return {};
  Variant* variant = find(at, frame);
  if (variant != nullptr && (variant->captured || is_warm(*variant))) {
    DJINN_CHECK(beat(program, range, frame));
    variant = find(at, frame);  // all may have been dropped meanwhile
  }
  if (variant == nullptr) variant = &add(program, range, frame);
  variant->last_use = run_;
  if (variant->captured) {
    DJINN_TRY(const bool launched, launch(program, range, *variant));
    if (!launched) return {};
    variant->captured->made.put_into(frame, storages, *places_);
    at = range.end;
    return {};
  }
  if (is_warm(*variant)) return capture_behind(program, range, storages, frame, at, *variant);
  ++variant->runs;
  return {};
}

bool CaptureCache::is_warm(const Variant& variant) {
  return !variant.is_given_up && variant.runs >= kRunsBefore;
}

bool CaptureCache::is_now(const Variant& variant, const Frame& frame) const {
  const auto has_its_value = [&](size_t i) {
    return frame.symbols[of_->pieces.fixed_symbols[i]] == variant.symbols[i];
  };
  for (size_t i = 0; i < variant.symbols.size(); ++i) {
    if (!has_its_value(i)) return false;
  }
  return variant.plan == plan_ && variant.slab == places_->slab().data() &&
         variant.next == places_->next() && places_->are_alive(variant.alive) &&
         std::ranges::all_of(variant.seen, [&](const Seen& one) { return one.is_in(frame); });
}

CaptureCache::Variant* CaptureCache::find(size_t at, const Frame& frame) {
  const auto variants = of_->variants.find(at);
  if (variants == of_->variants.end()) return nullptr;
  const auto found = std::ranges::find_if(
      variants->second, [&](const Variant& variant) { return is_now(variant, frame); });
  return found == variants->second.end() ? nullptr : &*found;
}

// The one that was met last is the likeliest to come again.
CaptureCache::Variant& CaptureCache::add(const AdmittedGraph& program, const StepRange& range,
                                         const Frame& frame) {
  std::vector<Variant>& variants = of_->variants[range.begin];
  if (variants.size() == kVariantsMax) {
    const auto oldest = std::ranges::min_element(variants, {}, &Variant::last_use);
    drop(*oldest);
    variants.erase(oldest);
  }
  Variant& variant = variants.emplace_back();
  variant.plan = plan_;
  variant.slab = places_->slab().data();
  variant.next = places_->next();
  variant.alive = places_->alive();
  for (const srg::SymbolIndex symbol : of_->pieces.fixed_symbols) {
    variant.symbols.push_back(frame.symbols[symbol]);
  }
  for (const srg::ValueId id : values_into(steps_of(program, range))) {
    const at::Tensor& tensor = frame.values[id];
    variant.is_given_up |= !tensor.defined();
    if (tensor.defined()) variant.seen.emplace_back(id, tensor);
  }
  return variant;
}

// Gives whether it was: where it was refused its operators are called, from now on.
Result<bool> CaptureCache::launch(const AdmittedGraph& program, const StepRange& range,
                                  Variant& variant) {
  const cudaError_t error = variant.captured->graph.launch(stream_);
  if (error == cudaSuccess) {
    ++stats_.replayed;
    stats_.replayed_launches += variant.captured->graph.nodes();
    return true;
  }
  const std::string why = ::cudaGetErrorString(error);
  drop(variant);
  variant.is_given_up = true;
  DJINN_CHECK(note_failure(program, range, {ErrorCode::kUnsupported, "its graph: " + why}));
  return false;
}

// What the rehearsal needs of the frame is noted before the steps change it.
Status CaptureCache::capture_behind(const AdmittedGraph& program, const StepRange& range,
                                    std::span<const c10::Storage> storages, Frame& frame,
                                    size_t& at, Variant& variant) {
  if (!make_room((range.end - range.begin) * LaunchGraph::kNodeBytes)) {
    variant.runs = 0;
    ++stats_.without_room;
    return {};
  }
  auto rehearsal = Rehearsal::make(program, range, storages, frame, *places_);
  if (!rehearsal) {
    variant.is_given_up = true;
    return note_failure(program, range, rehearsal.error());
  }
  const InnerPulse::Pulse none;
  const InnerPulse no_pulse(none);  // the variant has to stay
  Stack stack;
  for (; at < range.end; ++at) {
    DJINN_CHECK(run_step(program, program.steps[at], storages, frame, stack));
  }
  return rehearse(program, range, **rehearsal, variant);
}

Status CaptureCache::rehearse(const AdmittedGraph& program, const StepRange& range,
                              Rehearsal& rehearsal, Variant& variant) {
  size_t step = range.end;
  auto graph = capture(stream_, [&] { return rehearsal.run(step); });
  auto made = rehearsal.end();
  if (graph && made) {
    if (graph->nodes() < kNodesMin || !make_room(graph->bytes())) {
      variant.is_given_up = true;
      return {};
    }
    ++stats_.captured;
    ++stats_.graphs;
    stats_.bytes += graph->bytes();
    variant.captured.emplace(Captured{*std::move(graph), *std::move(made)});
    return {};
  }
  const Error why = graph ? made.error() : graph.error();
  if (step == range.end) {
    variant.is_given_up = true;
    return note_failure(program, range, why);
  }
  // It is one operator's: those around it are tried without it.
  for (Variant& one : of_->variants[range.begin]) drop(one);
  of_->variants.erase(range.begin);
  take_out(of_->pieces, range.begin, step);
  return note_failure(program, {step, step + 1}, why);
}

Status CaptureCache::note_failure(const AdmittedGraph& program, const StepRange& range,
                                  const Error& why) {
  ++stats_.failed;
  if (is_lost(stream_)) return Error{ErrorCode::kDeviceLost, "The GPU has failed."};
  const auto name_of = [&](size_t step) {
    return describe(program.graph.nodes[program.steps[step].node]);
  };
  notice_(
      fmt::format("No graph was captured, or launched, of {} to {}, which are called one by one "
                  "from now on: {}",
                  name_of(range.begin), name_of(range.end - 1), why.message));
  return {};
}

// Whether so many bytes more may be had.
bool CaptureCache::make_room(uint64_t bytes) {
  while (stats_.bytes + bytes > kBytesMax || stats_.graphs >= kGraphsMax) {
    Variant* oldest = nullptr;
    for (auto& [program, of] : programs_) {
      for (auto& [at, variants] : of.variants) {
        for (Variant& variant : variants) {
          if (!variant.captured || variant.last_use == run_) continue;
          if (oldest == nullptr || variant.last_use < oldest->last_use) oldest = &variant;
        }
      }
    }
    if (oldest == nullptr) return false;
    drop(*oldest);
    oldest->runs = 0;
  }
  return true;
}

void CaptureCache::drop(Variant& variant) {
  if (!variant.captured) return;
  ++stats_.dropped;
  --stats_.graphs;
  stats_.bytes -= variant.captured->graph.bytes();
  variant.captured.reset();
}

void CaptureCache::drop(OfProgram& of) {
  for (auto& [at, variants] : of.variants) {
    for (Variant& variant : variants) drop(variant);
  }
  of.variants.clear();
}

void CaptureCache::forget(const AdmittedGraph& program) {
  const auto found = programs_.find(&program);
  if (found == programs_.end()) return;
  drop(found->second);
  programs_.erase(found);
}

void CaptureCache::drop() {
  for (auto& [program, of] : programs_) drop(of);
  DJINN_ASSERT(stats_.graphs == 0 && stats_.bytes == 0);
}

}  // namespace djinn::exec
