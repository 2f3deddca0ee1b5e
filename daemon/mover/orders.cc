// SPDX-License-Identifier: Apache-2.0

#include "daemon/mover/orders.h"

#include <fmt/format.h>

#include <span>
#include <utility>

#include "ipc/codec/mover_codec.h"

namespace djinn::mover {
namespace {

Status expect_descriptors(const std::vector<Fd>& fds, size_t count) {
  if (fds.size() == count) return {};
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("An order came with {} descriptors in place of {}.", fds.size(), count)};
}

}  // namespace

Status Orders::run() {
  for (;;) {
    DJINN_TRY(ipc::Datagram datagram, channel_.receive());
    DJINN_TRY(const ipc::MoverOrder order, ipc::decode_mover_order(datagram.bytes));
    Result<Answer> done = std::visit(
        [&](const auto& body) { return carry_out(body, std::move(datagram.fds)); }, order.body);
    if (!done) {
      const Error& error = done.error();
      DJINN_CHECK(channel_.send(
          ipc::encode(ipc::MoverEvent{order.number, ipc::OrderFailed{error.code, error.message}})));
      if (error.code == ErrorCode::kDeviceLost) return error;
      continue;
    }
    const int fd = done->extent.get();
    DJINN_CHECK(channel_.send(ipc::encode(ipc::MoverEvent{order.number, std::move(done->body)}),
                              done->extent.valid() ? std::span(&fd, 1) : std::span<const int>()));
  }
}

Result<pal::Reservation> Orders::map(Fd extent, uint64_t bytes, pal::Access access) {
  pal::cuda::CudaPal& pal = *device_.pal;
  DJINN_TRY(const pal::Extent whole,
            pal.import_extent(std::move(extent), bytes, pal::Seals::kNone));
  DJINN_TRY(pal::Reservation range, pal.reserve(bytes));
  DJINN_CHECK(pal.map(range, 0, whole, 0, bytes, access));
  return range;
}

Result<Orders::Answer> Orders::carry_out(const ipc::CreateExtent& order, Fds fds) {
  DJINN_CHECK(expect_descriptors(fds, 0));
  DJINN_TRY(pal::Extent extent, device_.pal->create("", order.bytes));
  return Answer{ipc::OrderDone{}, std::move(extent.fd)};
}

Result<Orders::Answer> Orders::carry_out(const ipc::ZeroExtent& order, Fds fds) {
  DJINN_CHECK(expect_descriptors(fds, 1));
  DJINN_TRY(pal::Reservation range, map(std::move(fds[0]), order.bytes, pal::Access::kReadWrite));
  DJINN_CHECK(device_.pal->zero(range, 0, order.bytes));
  return Answer{ipc::OrderDone{}};
}

Result<Orders::Answer> Orders::carry_out(const ipc::UploadExtent& order, Fds fds) {
  DJINN_CHECK(expect_descriptors(fds, 2));
  DJINN_TRY(pal::Reservation range, map(std::move(fds[1]), order.bytes, pal::Access::kReadWrite));
  for (const ipc::UploadRange& part : order.ranges) {
    DJINN_CHECK(device_.staging->upload(fds[0], part.from, range, part.to, part.bytes));
  }
  return Answer{ipc::OrderDone{}};
}

Result<Orders::Answer> Orders::carry_out(const ipc::ChecksumExtent& order, Fds fds) {
  DJINN_CHECK(expect_descriptors(fds, 1));
  DJINN_TRY(const pal::Reservation range, map(std::move(fds[0]), order.bytes, pal::Access::kRead));
  KeyedChecksum sum(order.key);
  DJINN_CHECK(device_.staging->download(
      range, 0, order.bytes, [&sum](std::span<const std::byte> bytes) { sum.add(bytes); }));
  return Answer{ipc::Checksummed{sum.value()}};
}

Result<Orders::Answer> Orders::carry_out(const ipc::MeasureDevice&, Fds fds) {
  DJINN_CHECK(expect_descriptors(fds, 0));
  const uint32_t xid = device_.health == nullptr ? 0 : device_.health->fatal_xid();
  // What needs a reset answers no questions either, and the next mover would not hear why.
  if (xid != 0) return Answer{ipc::DeviceMeasured{0, 0, xid}};
  DJINN_TRY(const pal::cuda::DeviceMemory memory, device_.pal->memory());
  return Answer{ipc::DeviceMeasured{memory.free_bytes, memory.total_bytes, 0}};
}

}  // namespace djinn::mover
