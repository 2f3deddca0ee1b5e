// SPDX-License-Identifier: Apache-2.0

#include "ipc/codec/mover_codec.h"

#include "ipc/codec/control_wire.h"

namespace djinn::ipc::control {
namespace {

void write_words(wire::Checksum::Builder out, const std::array<uint64_t, 2>& words) {
  out.setFirst(words[0]);
  out.setSecond(words[1]);
}

std::array<uint64_t, 2> read_words(wire::Checksum::Reader in) {
  return {in.getFirst(), in.getSecond()};
}

// --- MoverOrder

void write(wire::MoverOrder::Builder out, const CreateExtent& order) {
  out.setCreateExtent(order.bytes);
}
void write(wire::MoverOrder::Builder out, const ZeroExtent& order) {
  out.setZeroExtent(order.bytes);
}
void write(wire::MoverOrder::Builder out, const UploadExtent& order) {
  auto upload = out.initUploadExtent();
  upload.setBytes(order.bytes);
  write_list(order.ranges, upload.initRanges(count_of(order.ranges)),
             [](wire::UploadRange::Builder to, const UploadRange& range) {
               to.setFrom(range.from);
               to.setTo(range.to);
               to.setBytes(range.bytes);
             });
}
void write(wire::MoverOrder::Builder out, const ChecksumExtent& order) {
  auto checksum = out.initChecksumExtent();
  checksum.setBytes(order.bytes);
  write_words(checksum.initKey(), order.key);
}
void write(wire::MoverOrder::Builder out, const MeasureDevice&) {
  out.setMeasureDevice();
}

UploadRange read_upload_range(wire::UploadRange::Reader in) {
  return {in.getFrom(), in.getTo(), in.getBytes()};
}

UploadExtent read_upload(wire::UploadExtent::Reader in) {
  return {in.getBytes(), read_list(in.getRanges(), kUploadRanges, read_upload_range)};
}

static_assert(std::variant_size_v<decltype(MoverOrder::body)> ==
              wire::MoverOrder::MEASURE_DEVICE + 1);

decltype(MoverOrder::body) read_order_body(wire::MoverOrder::Reader in) {
  switch (in.which()) {
    case wire::MoverOrder::CREATE_EXTENT:
      return CreateExtent{in.getCreateExtent()};
    case wire::MoverOrder::ZERO_EXTENT:
      return ZeroExtent{in.getZeroExtent()};
    case wire::MoverOrder::UPLOAD_EXTENT:
      return read_upload(in.getUploadExtent());
    case wire::MoverOrder::CHECKSUM_EXTENT:
      return ChecksumExtent{in.getChecksumExtent().getBytes(),
                            read_words(in.getChecksumExtent().getKey())};
    case wire::MoverOrder::MEASURE_DEVICE:
      return MeasureDevice{};
  }
  refuse(ErrorCode::kUnsupported, "An order to a mover is unknown to this version.");
}

MoverOrder read_mover_order(wire::MoverOrder::Reader in) {
  return {in.getNumber(), read_order_body(in)};
}

// --- MoverEvent

constexpr uint32_t kNoMinor = 0xffff'ffff;

void write(wire::MoverEvent::Builder out, const MoverReady& event) {
  auto ready = out.initReady();
  ready.setLandlockAbi(event.landlock_abi);
  ready.setSeccomp(event.seccomp);
  ready.setName(text(event.name));
  ready.setUuid(text(event.uuid));
  ready.setDriver(text(event.driver));
  ready.setGranularityBytes(event.granularity_bytes);
  ready.setMinor(event.minor.value_or(kNoMinor));
}
void write(wire::MoverEvent::Builder out, const OrderFailed& event) {
  write_failure(out.initFailed(), event.code, event.message);
}
void write(wire::MoverEvent::Builder out, const OrderDone&) {
  out.setDone();
}
void write(wire::MoverEvent::Builder out, const Checksummed& event) {
  write_words(out.initChecksummed(), event.sum);
}
void write(wire::MoverEvent::Builder out, const DeviceMeasured& event) {
  auto measured = out.initMeasured();
  measured.setFreeBytes(event.free_bytes);
  measured.setTotalBytes(event.total_bytes);
  measured.setXid(event.xid);
}

MoverReady read_ready(wire::MoverReady::Reader in) {
  MoverReady ready{in.getLandlockAbi(),     in.getSeccomp(),           read_name(in.getName()),
                   read_name(in.getUuid()), read_word(in.getDriver()), in.getGranularityBytes()};
  if (in.getMinor() != kNoMinor) ready.minor = in.getMinor();
  return ready;
}

OrderFailed read_order_failed(wire::Failure::Reader in) {
  Error error = read_failure(in, Success::kRefused);
  return {error.code, std::move(error.message)};
}

static_assert(std::variant_size_v<decltype(MoverEvent::body)> == wire::MoverEvent::MEASURED + 1);

decltype(MoverEvent::body) read_event_body(wire::MoverEvent::Reader in) {
  switch (in.which()) {
    case wire::MoverEvent::READY:
      return read_ready(in.getReady());
    case wire::MoverEvent::FAILED:
      return read_order_failed(in.getFailed());
    case wire::MoverEvent::DONE:
      return OrderDone{};
    case wire::MoverEvent::CHECKSUMMED:
      return Checksummed{read_words(in.getChecksummed())};
    case wire::MoverEvent::MEASURED:
      return DeviceMeasured{in.getMeasured().getFreeBytes(), in.getMeasured().getTotalBytes(),
                            in.getMeasured().getXid()};
  }
  refuse(ErrorCode::kUnsupported, "An event of a mover is unknown to this version.");
}

MoverEvent read_mover_event(wire::MoverEvent::Reader in) {
  return {in.getNumber(), read_event_body(in)};
}

}  // namespace
}  // namespace djinn::ipc::control

namespace djinn::ipc {

std::vector<std::byte> encode(const MoverOrder& order) {
  capnp::MallocMessageBuilder message;
  auto out = message.initRoot<wire::MoverOrder>();
  out.setNumber(order.number);
  std::visit([&](const auto& body) { control::write(out, body); }, order.body);
  return control::flatten(message);
}

std::vector<std::byte> encode(const MoverEvent& event) {
  capnp::MallocMessageBuilder message;
  auto out = message.initRoot<wire::MoverEvent>();
  out.setNumber(event.number);
  std::visit([&](const auto& body) { control::write(out, body); }, event.body);
  return control::flatten(message);
}

Result<MoverOrder> decode_mover_order(std::span<const std::byte> bytes) {
  return control::decode_message<wire::MoverOrder>(bytes, control::read_mover_order);
}

Result<MoverEvent> decode_mover_event(std::span<const std::byte> bytes) {
  return control::decode_message<wire::MoverEvent>(bytes, control::read_mover_event);
}

}  // namespace djinn::ipc
