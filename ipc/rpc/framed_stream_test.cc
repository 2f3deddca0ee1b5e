// SPDX-License-Identifier: Apache-2.0

#include "ipc/rpc/framed_stream.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ipc/rpc/gate.capnp.h"
#include "kernel/base/random.h"

namespace djinn::rpc {
namespace {

struct Pipe {
  kj::AsyncIoContext io = kj::setupAsyncIo();
  kj::TwoWayPipe wire = io.provider->newTwoWayPipe();
  Silence silence{io.provider->getTimer(), kSilentForNear};
  FramedStream one{*wire.ends[0], silence};
  FramedStream other{*wire.ends[1], silence};

  // What the other end reads of bytes that somebody wrote: whether it is a message.
  bool is_message(const std::vector<uint8_t>& bytes) {
    wire.ends[0]->write(bytes.data(), bytes.size()).wait(io.waitScope);
    wire.ends[0]->shutdownWrite();
    try {
      auto read = other.tryReadMessage(nullptr, {}, nullptr).wait(io.waitScope);
      KJ_IF_MAYBE (message, read) {
        message->reader->getRoot<Piece>().getData();
        return true;
      }
    } catch (const kj::Exception&) {
    }
    return false;
  }
};

TEST(FramedStream, what_is_written_is_read_packed_or_not) {
  Pipe pipe;
  Random random(3);
  for (const size_t bytes : {0, 1, 100, 5000, 16'000, 17'000, 1 << 20}) {
    for (const bool zeros : {true, false}) {
      std::vector<kj::byte> data(bytes);
      for (auto& byte : data) byte = zeros ? 0 : static_cast<kj::byte>(random.next());
      capnp::MallocMessageBuilder message;
      auto piece = message.initRoot<Piece>();
      piece.setOffset(random.next());
      piece.setData({data.data(), data.size()});
      auto written = pipe.one.writeMessage(nullptr, message.getSegmentsForOutput());
      auto read = pipe.other.tryReadMessage(nullptr, {}, nullptr).wait(pipe.io.waitScope);
      written.wait(pipe.io.waitScope);
      KJ_IF_MAYBE (got, read) {
        const auto same = got->reader->getRoot<Piece>();
        EXPECT_EQ(same.getOffset(), piece.getOffset());
        EXPECT_TRUE(same.getData() == piece.getData().asReader());
      } else {
        ADD_FAILURE() << bytes;
      }
    }
  }
}

TEST(FramedStream, a_message_that_is_too_long_is_neither_written_nor_read) {
  Pipe pipe;
  capnp::MallocMessageBuilder message;
  message.initRoot<Piece>().initData(kFrameBytesMax);
  EXPECT_ANY_THROW(pipe.one.writeMessage(nullptr, message.getSegmentsForOutput()));
  EXPECT_FALSE(pipe.is_message({16, 0, 0, 0, 255, 255, 255, 255}));
}

TEST(FramedStream, the_end_of_the_stream_is_no_message) {
  EXPECT_FALSE(Pipe().is_message({}));
}

TEST(FramedStream, bytes_that_are_no_message_are_errors_and_nothing_else) {
  Random random(9);
  for (int round = 0; round < 2000; ++round) {
    std::vector<uint8_t> bytes(random.below(64));
    for (auto& byte : bytes) byte = static_cast<uint8_t>(random.below(4) == 0 ? random.next() : 0);
    if (bytes.size() >= 8 && random.below(2) == 0) {  // of the right length, so that it is read
      const auto rest = static_cast<uint8_t>(bytes.size() - 8);
      bytes[0] = rest, bytes[1] = bytes[2] = bytes[3] = 0;
      bytes[4] = static_cast<uint8_t>(rest + random.below(3)), bytes[5] = bytes[6] = bytes[7] = 0;
    }
    (void)Pipe().is_message(bytes);
  }
}

}  // namespace
}  // namespace djinn::rpc
