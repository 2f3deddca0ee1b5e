// SPDX-License-Identifier: Apache-2.0

// Duplex: one stream of two that go in one direction each, standard input and output for instance.
#pragma once

#include <kj/async-io.h>

namespace djinn::rpc {

class Duplex final : public kj::AsyncIoStream {
 public:
  Duplex(kj::Own<kj::AsyncInputStream> in, kj::Own<kj::AsyncOutputStream> out)
      : in_(kj::mv(in)), out_(kj::mv(out)) {}

  kj::Promise<size_t> tryRead(void* buffer, size_t min_bytes, size_t max_bytes) override {
    return in_->tryRead(buffer, min_bytes, max_bytes);
  }
  kj::Promise<void> write(const void* buffer, size_t bytes) override {
    return out_->write(buffer, bytes);
  }
  kj::Promise<void> write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override {
    return out_->write(pieces);
  }
  kj::Promise<void> whenWriteDisconnected() override { return out_->whenWriteDisconnected(); }
  void shutdownWrite() override { out_ = nullptr; }

 private:
  kj::Own<kj::AsyncInputStream> in_;
  kj::Own<kj::AsyncOutputStream> out_;
};

}  // namespace djinn::rpc
