// SPDX-License-Identifier: Apache-2.0

#include "ipc/report_text.h"

#include "kernel/srg/names.h"

namespace djinn::ipc {

std::string_view state_text(ModelState state) {
  switch (state) {
    case ModelState::kLoading:
      return "loading";
    case ModelState::kResident:
      return "resident";
    case ModelState::kFailed:
      return "failed";
    case ModelState::kEvicting:
      return "evicting";
    case ModelState::kHost:
      return "host";
    case ModelState::kDisk:
      return "disk";
  }
  return "unknown";
}

std::string_view state_text(WorkerState state) {
  switch (state) {
    case WorkerState::kStarting:
      return "starting";
    case WorkerState::kReady:
      return "ready";
    case WorkerState::kRecovering:
      return "recovering";
    case WorkerState::kFailed:
      return "failed";
  }
  return "unknown";
}

std::string_view state_text(SessionState state) {
  switch (state) {
    case SessionState::kActive:
      return "active";
    case SessionState::kIdle:
      return "idle";
    case SessionState::kWaiting:
      return "waiting";
    case SessionState::kDraining:
      return "draining";
    case SessionState::kLost:
      return "lost";
  }
  return "unknown";
}

std::string_view state_text(ProgramState state) {
  switch (state) {
    case ProgramState::kAdmitting:
      return "admitting";
    case ProgramState::kAdmitted:
      return "admitted";
  }
  return "unknown";
}

std::string_view state_text(DeviceState state) {
  switch (state) {
    case DeviceState::kReady:
      return "ready";
    case DeviceState::kFailed:
      return "failed";
    case DeviceState::kLost:
      return "lost";
    case DeviceState::kStarting:
      return "starting";
  }
  return "unknown";
}

std::string_view workload_text(Workload workload) {
  switch (workload) {
    case Workload::kUnknown:
      return "other";
    case Workload::kTextEncoder:
      return "text in one pass";
    case Workload::kPrefill:
      return "prefill";
    case Workload::kDecode:
      return "decode step";
    case Workload::kVision:
      return "vision";
    case Workload::kAudio:
      return "audio";
    case Workload::kMultimodal:
      return "multimodal";
    case Workload::kTraining:
      return "training step";
  }
  return "unknown";
}

std::string_view tier_text(RunTier tier) {
  switch (tier) {
    case RunTier::kNone:
      return "-";
    case RunTier::kGraph:
      return "0";
    case RunTier::kProgram:
      return "1";
    case RunTier::kGeneration:
      return "2";
  }
  return "-";
}

std::string_view wait_text(SessionWait wait) {
  switch (wait) {
    case SessionWait::kNone:
      return "-";
    case SessionWait::kMemory:
      return "memory";
    case SessionWait::kDevice:
      return "device";
    case SessionWait::kDisk:
      return "disk";
    case SessionWait::kClient:
      return "client";
  }
  return "unknown";
}

std::string_view pool_text(MemoryPool pool) {
  switch (pool) {
    case MemoryPool::kWeights:
      return "weights";
    case MemoryPool::kSessions:
      return "sessions";
    case MemoryPool::kLanes:
      return "lanes";
  }
  return "unknown";
}

std::vector<std::string> copies_of(const ModelReport& model) {
  std::vector<std::string> names;
  for (uint32_t index = 0; index < 32; ++index) {
    if ((model.on_gpus >> index & 1) != 0) names.push_back("cuda:" + std::to_string(index));
  }
  return names;
}

std::string_view numerics_text(const ModelReport& model) {
  return model.numerics ? name_of(*model.numerics) : std::string_view();
}

std::string_view until_text(const ModelReport& model) {
  if (model.pinned) return "unload";
  if (model.leases > 0) return "close";
  if (model.expires_wall_ns > 0) return "expiry";
  return model.state == ModelState::kEvicting ? "leaving" : "pressure";
}

}  // namespace djinn::ipc
