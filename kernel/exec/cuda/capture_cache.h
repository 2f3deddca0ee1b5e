// SPDX-License-Identifier: Apache-2.0

// CaptureCache: the pieces of a lane's programs as graphs of the driver's, which launch again what
// their operators did.
//
//   variant  a piece at one set of addresses: of the plan it is in, of what is alive there, of all
//            that its operators use, with the shapes and the fixed symbols. All of that is compared
//            before each launch
//   warm     a variant that was met kRunsBefore times; its steps are then called, and rehearsed
//   once
//            more while the stream is captured. So a capture that fails costs its run nothing: what
//            it was to launch is launched already
//
// A step that cannot be captured is in no piece any more, and the steps before and behind it are
// pieces of their own. Whatever fails is told, and counted; the operators are then called as ever.
//
// invariant: a graph is launched only where its steps, called one by one, would launch the same.
// invariant: graphs have at most kGraphsMax and kBytesMax, and none that the run under way has used
// gives way for another.
//
// The lane's thread.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "kernel/exec/cuda/capture_stats.h"
#include "kernel/exec/cuda/launch_graph.h"
#include "kernel/exec/cuda/piece.h"
#include "kernel/exec/lane_device.h"
#include "kernel/exec/pieces.h"

namespace djinn::exec {

// For whoever tells people.
using Notice = std::function<void(std::string_view)>;

class CaptureCache final : public LanePieces {
 public:
  // A bucket's first runs may have their libraries choose kernels, and most are few.
  static constexpr uint32_t kRunsBefore = 3;
  // Inputs and outputs that take turns have a few addresses each.
  static constexpr size_t kVariantsMax = 4;
  static constexpr uint64_t kGraphsMax = 1024;
  static constexpr uint64_t kBytesMax = uint64_t{16} << 20;
  // A graph of one kernel costs more to launch than the kernel.
  static constexpr size_t kNodesMin = 2;

  // The stream, stats and notice outlive it.
  CaptureCache(cudaStream_t stream, CaptureStats& stats, const Notice& notice)
      : stream_(stream), stats_(stats), notice_(notice) {}
  ~CaptureCache() override { drop(); }
  CaptureCache(const CaptureCache&) = delete;
  CaptureCache& operator=(const CaptureCache&) = delete;

  void begin(const AdmittedGraph& program, const Placements& plan, Replayer& places) override;
  // Error, besides: kDeviceLost.
  Status advance(const AdmittedGraph& program, std::span<const c10::Storage> storages, Frame& frame,
                 size_t& at) override;
  void forget(const AdmittedGraph& program) override;
  void drop() override;

 private:
  struct Captured {
    LaunchGraph graph;
    Made made;
  };
  struct Variant {
    Placements plan;  // held, so that no other has its address
    const std::byte* slab = nullptr;
    size_t next = 0;  // allocation of the plan
    std::vector<Placement> alive;
    std::vector<int64_t> symbols;
    std::vector<Seen> seen;
    uint32_t runs = 0;
    bool is_given_up = false;
    uint64_t last_use = 0;  // by run
    std::optional<Captured> captured;
  };
  struct OfProgram {
    Pieces pieces;
    std::map<size_t, std::vector<Variant>> variants;  // by the piece's first step
  };

  [[nodiscard]] static bool is_warm(const Variant& variant);
  [[nodiscard]] bool is_now(const Variant& variant, const Frame& frame) const;
  Variant* find(size_t at, const Frame& frame);
  Variant& add(const AdmittedGraph& program, const StepRange& range, const Frame& frame);
  Result<bool> launch(const AdmittedGraph& program, const StepRange& range, Variant& variant);
  Status capture_behind(const AdmittedGraph& program, const StepRange& range,
                        std::span<const c10::Storage> storages, Frame& frame, size_t& at,
                        Variant& variant);
  Status rehearse(const AdmittedGraph& program, const StepRange& range, Rehearsal& rehearsal,
                  Variant& variant);
  Status note_failure(const AdmittedGraph& program, const StepRange& range, const Error& why);
  bool make_room(uint64_t bytes);
  void drop(Variant& variant);
  void drop(OfProgram& of);

  cudaStream_t stream_;
  CaptureStats& stats_;
  const Notice& notice_;
  std::map<const AdmittedGraph*, OfProgram> programs_;
  // Of the run:
  OfProgram* of_ = nullptr;
  Placements plan_;
  Replayer* places_ = nullptr;
  uint64_t run_ = 0;
};

}  // namespace djinn::exec
