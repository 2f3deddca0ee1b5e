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

// Packed words, which lie elsewhere.
class PackedFrame final : private kj::ArrayInputStream, public capnp::PackedMessageReader {
 public:
  PackedFrame(kj::ArrayPtr<const kj::byte> bytes, capnp::ReaderOptions limits)
      : ArrayInputStream(bytes),
        PackedMessageReader(static_cast<kj::ArrayInputStream&>(*this), limits) {}
};

// memory: begins with the frame's bytes.
kj::Own<capnp::MessageReader> read_frame(kj::Array<capnp::word> memory, const uint32_t (&head)[2],
                                         capnp::ReaderOptions options) {
  const auto [bytes, words] = head;
  if (bytes == words * sizeof(capnp::word)) {
    return kj::heap<capnp::FlatArrayMessageReader>(memory, options).attach(kj::mv(memory));
  }
  const auto packed = memory.asBytes().slice(0, bytes);
  if (capnp::computeUnpackedSizeInWords(packed) != words) {
    raise(breach("A message is not as long as was said."));
  }
  return kj::heap<PackedFrame>(packed, options).attach(kj::mv(memory));
}

using Frame = kj::Own<kj::VectorOutputStream>;

// A frame with what write() puts into it.
template <typename Write>
Frame frame_with(size_t words, const Write& write) {
  auto frame = kj::heap<kj::VectorOutputStream>(kHeadBytes + words * sizeof(capnp::word));
  uint32_t head[2] = {0, static_cast<uint32_t>(words)};
  frame->write(head, sizeof head);
  write(*frame);
  head[0] = static_cast<uint32_t>(frame->getArray().size() - kHeadBytes);
  memcpy(frame->getArray().begin(), head, sizeof head);
  return frame;
}

Frame frame_of(kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>> segments) {
  const size_t words = capnp::computeSerializedSizeInWords(segments);
  const size_t bytes = words * sizeof(capnp::word);
  if (bytes > kFrameBytesMax) raise(breach("A message is longer than one may be."));
  if (bytes <= kPackedBytesMax) {
    Frame packed = frame_with(words, [&](auto& out) { capnp::writePackedMessage(out, segments); });
    // What has no zeros is longer so.
    if (packed->getArray().size() < kHeadBytes + bytes) return packed;
  }
  return frame_with(words, [&](auto& out) { capnp::writeMessage(out, segments); });
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
        constexpr size_t kWord = sizeof(capnp::word);
        auto memory = kj::heapArray<capnp::word>((head_[0] + kWord - 1) / kWord);
        auto all = read(memory.asBytes().slice(0, head_[0]));
        return all.then([this, memory = kj::mv(memory), options]() mutable -> Read {
          return capnp::MessageReaderAndFds{read_frame(kj::mv(memory), head_, options), nullptr};
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
  Frame frame = frame_of(segments);
  const auto bytes = frame->getArray();
  return stream_.write(bytes.begin(), bytes.size()).attach(kj::mv(frame));
}

kj::Promise<void> FramedStream::writeMessages(
    kj::ArrayPtr<kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>>> messages) {
  if (messages.size() == 0) return kj::READY_NOW;
  kj::Vector<kj::byte> frames;
  for (const auto& segments : messages) frames.addAll(frame_of(segments)->getArray());
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
