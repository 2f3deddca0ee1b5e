// SPDX-License-Identifier: Apache-2.0

// FramedStream: messages of Cap'n Proto on a stream of bytes, each behind its lengths, so that one
// that is too large is refused before anything of it is read. Short ones are packed, since most of
// their bytes are zeros; in long ones, which are pieces of tensors and files, that would only cost
// time.
//
//   frame   u32 bytes, u32 words, both little-endian; then so many bytes, which are the words
//           themselves where bytes == 8 * words, and the words packed where there are fewer
#pragma once

#include <capnp/serialize-async.h>
#include <kj/async-io.h>

#include <cstdint>

#include "ipc/rpc/heartbeat.h"

namespace djinn::rpc {

// Of one message: a piece of a staging slab, and what goes with it.
inline constexpr uint32_t kFrameBytesMax = (1u << 20) + (1u << 18);

class FramedStream final : public capnp::MessageStream {
 public:
  // stream, silence: outlive this. Whatever comes ends a silence. Throws kj::Exception for frames
  // that cannot be.
  FramedStream(kj::AsyncIoStream& stream, Silence& silence) : stream_(stream), silence_(silence) {}

  kj::Promise<kj::Maybe<capnp::MessageReaderAndFds>> tryReadMessage(
      kj::ArrayPtr<kj::AutoCloseFd> fds, capnp::ReaderOptions options,
      kj::ArrayPtr<capnp::word> scratch) override;
  kj::Promise<void> writeMessage(
      kj::ArrayPtr<const int> fds,
      kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>> segments) override;
  kj::Promise<void> writeMessages(
      kj::ArrayPtr<kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>>> messages) override;
  // What may be on its way before a stream of calls waits for answers.
  kj::Maybe<int> getSendBufferSize() override;
  kj::Promise<void> end() override;

 private:
  kj::Promise<void> read(kj::ArrayPtr<kj::byte> bytes);

  kj::AsyncIoStream& stream_;
  Silence& silence_;
  uint32_t head_[2] = {};  // of the frame that is being read
};

}  // namespace djinn::rpc
