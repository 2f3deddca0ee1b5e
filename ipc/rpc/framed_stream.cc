// SPDX-License-Identifier: Apache-2.0

#include "ipc/rpc/framed_stream.h"

#include <capnp/serialize-packed.h>
#include <capnp/serialize.h>
#include <kj/io.h>
#include <string.h>

#include "ipc/rpc/fault.h"

namespace djinn::rpc {
namespace {

constexpr size_t kHeadBytes = 2 * sizeof(uint32_t);
constexpr size_t kPackedBytesMax = 16 * 1024;
// A round trip of 40 ms at 50 MB/s; what is on its way is memory of both sides.
constexpr int kWindowBytes = 2 << 20;

// Packed words, with what they are read from.
class PackedFrame final : private kj::ArrayInputStream, public capnp::PackedMessageReader {
 public:
  PackedFrame(kj::Array<kj::byte> bytes, capnp::ReaderOptions limits)
      : ArrayInputStream(bytes),
        PackedMessageReader(static_cast<kj::ArrayInputStream&>(*this), limits),
        bytes_(kj::mv(bytes)) {}

 private:
  kj::Array<kj::byte> bytes_;
};

kj::Own<capnp::MessageReader> read_frame(kj::Array<kj::byte> bytes, uint32_t words,
                                         capnp::ReaderOptions options) {
  if (bytes.size() != words * sizeof(capnp::word)) {
    if (capnp::computeUnpackedSizeInWords(bytes) != words) {
      raise(breach("A message is not as long as was said."));
    }
    return kj::heap<PackedFrame>(kj::mv(bytes), options);
  }
  auto copy = kj::heapArray<capnp::word>(words);  // aligned
  memcpy(copy.begin(), bytes.begin(), bytes.size());
  auto reader = kj::heap<capnp::FlatArrayMessageReader>(copy, options);
  return reader.attach(kj::mv(copy));
}

kj::Array<kj::byte> frame_of(kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>> segments) {
  const size_t words = capnp::computeSerializedSizeInWords(segments);
  const size_t bytes = words * sizeof(capnp::word);
  if (bytes > kFrameBytesMax) raise(breach("A message is longer than one may be."));
  kj::VectorOutputStream out(kHeadBytes + bytes);
  uint32_t head[2] = {0, static_cast<uint32_t>(words)};
  out.write(head, sizeof head);
  if (bytes <= kPackedBytesMax) capnp::writePackedMessage(out, segments);
  // Packed, what has no zeros is longer.
  if (bytes > kPackedBytesMax || out.getArray().size() - kHeadBytes >= bytes) {
    kj::VectorOutputStream raw(kHeadBytes + bytes);
    raw.write(head, sizeof head);
    capnp::writeMessage(raw, segments);
    auto frame = kj::heapArray<kj::byte>(raw.getArray());
    head[0] = static_cast<uint32_t>(bytes);
    memcpy(frame.begin(), head, sizeof head);
    return frame;
  }
  auto frame = kj::heapArray<kj::byte>(out.getArray());
  head[0] = static_cast<uint32_t>(frame.size() - kHeadBytes);
  memcpy(frame.begin(), head, sizeof head);
  return frame;
}

}  // namespace

kj::Promise<kj::Maybe<capnp::MessageReaderAndFds>> FramedStream::tryReadMessage(
    kj::ArrayPtr<kj::AutoCloseFd>, capnp::ReaderOptions options, kj::ArrayPtr<capnp::word>) {
  using Read = kj::Maybe<capnp::MessageReaderAndFds>;
  return stream_.tryRead(head_, kHeadBytes, kHeadBytes)
      .then([this, options](size_t got) -> kj::Promise<Read> {
        if (got == 0) return Read(nullptr);
        silence_.heard();
        if (got < kHeadBytes) raise({ErrorCode::kDisconnected, "The connection ended early."});
        const uint64_t unpacked = uint64_t{head_[1]} * sizeof(capnp::word);
        if (unpacked > kFrameBytesMax || head_[0] > unpacked || head_[0] == 0) {
          raise(breach("A message is longer than one may be."));
        }
        auto bytes = kj::heapArray<kj::byte>(head_[0]);
        auto all = read(bytes);
        return all.then([bytes = kj::mv(bytes), words = head_[1], options]() mutable -> Read {
          return capnp::MessageReaderAndFds{read_frame(kj::mv(bytes), words, options), nullptr};
        });
      });
}

// By pieces: a slow network is not silent.
kj::Promise<void> FramedStream::read(kj::ArrayPtr<kj::byte> bytes) {
  return stream_.tryRead(bytes.begin(), 1, bytes.size()).then([this, bytes](size_t got) mutable {
    if (got == 0) raise({ErrorCode::kDisconnected, "The connection ended early."});
    silence_.heard();
    if (got == bytes.size()) return kj::Promise<void>(kj::READY_NOW);
    return read(kj::arrayPtr(bytes.begin() + got, bytes.size() - got));
  });
}

kj::Promise<void> FramedStream::writeMessage(
    kj::ArrayPtr<const int>, kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>> segments) {
  auto frame = frame_of(segments);
  auto written = stream_.write(frame.begin(), frame.size());
  return written.attach(kj::mv(frame));
}

kj::Promise<void> FramedStream::writeMessages(
    kj::ArrayPtr<kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>>> messages) {
  if (messages.size() == 0) return kj::READY_NOW;
  kj::Vector<kj::byte> frames;
  for (const auto& segments : messages) frames.addAll(frame_of(segments));
  auto all = frames.releaseAsArray();
  auto written = stream_.write(all.begin(), all.size());
  return written.attach(kj::mv(all));
}

kj::Maybe<int> FramedStream::getSendBufferSize() {
  return kWindowBytes;
}

kj::Promise<void> FramedStream::end() {
  stream_.shutdownWrite();
  return kj::READY_NOW;
}

}  // namespace djinn::rpc
