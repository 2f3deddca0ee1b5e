// SPDX-License-Identifier: Apache-2.0

// What djinnd and a mover say to each other, as plain structs: see messages.h, and djinn.capnp for
// how they take turns.
//
//   order   something to do with the device's memory; doing it twice is doing it once
//   extent  comes as a descriptor beside the order: a mover keeps none from one order to the next
//
// A mover that could not carry out an order answers Failed and takes the next one. Where it says
// kDeviceLost it ends, with the status kDeviceLostStatus.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "kernel/base/error.h"
#include "kernel/base/keyed_checksum.h"

namespace djinn::ipc {

inline constexpr uint32_t kUploadRanges = 1024;  // of one order, which is one datagram

// A new extent, all zero. Answer: OrderDone (fds: the extent).
struct CreateExtent {
  uint64_t bytes = 0;
  friend bool operator==(const CreateExtent&, const CreateExtent&) = default;
};

// fds: an extent of so many bytes. Answer: OrderDone.
struct ZeroExtent {
  uint64_t bytes = 0;
  friend bool operator==(const ZeroExtent&, const ZeroExtent&) = default;
};

struct UploadRange {
  uint64_t from = 0;  // in the memfd
  uint64_t to = 0;    // in the extent
  uint64_t bytes = 0;
  friend bool operator==(const UploadRange&, const UploadRange&) = default;
};

// fds: a memfd of the host's, an extent of so many bytes. Answer: OrderDone.
struct UploadExtent {
  uint64_t bytes = 0;
  std::vector<UploadRange> ranges;
  friend bool operator==(const UploadExtent&, const UploadExtent&) = default;
};

// fds: an extent of so many bytes. Answer: Checksummed.
struct ChecksumExtent {
  uint64_t bytes = 0;
  ChecksumKey key;
  friend bool operator==(const ChecksumExtent&, const ChecksumExtent&) = default;
};

// Answer: DeviceMeasured.
struct MeasureDevice {
  friend bool operator==(const MeasureDevice&, const MeasureDevice&) = default;
};

struct MoverOrder {
  uint32_t number = 0;  // not 0
  std::variant<CreateExtent, ZeroExtent, UploadExtent, ChecksumExtent, MeasureDevice> body;
  friend bool operator==(const MoverOrder&, const MoverOrder&) = default;
};

// First, once: the device is there, and the mover is confined.
struct MoverReady {
  uint32_t landlock_abi = 0;
  bool seccomp = false;
  std::string name;    // "NVIDIA H200"
  std::string uuid;    // "GPU-12345678-..."
  std::string driver;  // "580.159.04", or the CUDA version where nobody says more
  uint64_t granularity_bytes = 0;
  std::optional<uint32_t> minor{};  // of its node, /dev/nvidiaMINOR, where that is known
  friend bool operator==(const MoverReady&, const MoverReady&) = default;
};

// Of an order; with the number 0, in place of MoverReady: why the device cannot be used.
struct OrderFailed {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  friend bool operator==(const OrderFailed&, const OrderFailed&) = default;
};

struct OrderDone {
  friend bool operator==(const OrderDone&, const OrderDone&) = default;
};

struct Checksummed {
  Checksum sum;
  friend bool operator==(const Checksummed&, const Checksummed&) = default;
};

struct DeviceMeasured {
  uint64_t free_bytes = 0;  // whoever uses the rest
  uint64_t total_bytes = 0;
  uint32_t xid = 0;  // the driver's number of a fault that only a reset ends; 0: none was told
  friend bool operator==(const DeviceMeasured&, const DeviceMeasured&) = default;
};

struct MoverEvent {
  uint32_t number = 0;  // of the order that it answers; 0: of MoverReady, or in its place
  std::variant<MoverReady, OrderFailed, OrderDone, Checksummed, DeviceMeasured> body;
  friend bool operator==(const MoverEvent&, const MoverEvent&) = default;
};

}  // namespace djinn::ipc
