// SPDX-License-Identifier: Apache-2.0

#include "ipc/rpc/tls/tls_stream.h"

#include <kj/debug.h>
#include <openssl/err.h>

#include <algorithm>
#include <utility>

#include "ipc/rpc/fault.h"

namespace djinn::tls {
namespace {

constexpr size_t kReadBytes = 17 * 1024;   // a record
constexpr size_t kWriteBytes = 64 * 1024;  // at once; each of 16 KiB is a record
// Of a peer, before it is known: a chain of certificates of 16 KiB, and what goes with it.
constexpr size_t kHandshakeBytesMax = 64 * 1024;

}  // namespace

kj::Promise<TlsStream::Shaken> TlsStream::shake_hands(kj::Own<kj::AsyncIoStream> below,
                                                      std::shared_ptr<const Context> context) {
  auto stream = kj::heap<TlsStream>(kj::mv(below), std::move(context));
  auto shaken = stream->shake();
  return shaken.then([stream = kj::mv(stream)](std::optional<Failure>&& failure) mutable -> Shaken {
    if (failure) return *std::move(failure);
    return kj::mv(stream);
  });
}

TlsStream::TlsStream(kj::Own<kj::AsyncIoStream> below, std::shared_ptr<const Context> context)
    : below_(kj::mv(below)),
      context_(std::move(context)),
      check_{*context_, {}},
      connection_(context_->connection(check_)),
      in_(BIO_new(BIO_s_mem())),
      out_(BIO_new(BIO_s_mem())),
      buffer_(kj::heapArray<kj::byte>(kReadBytes)) {
  KJ_REQUIRE(connection_ != nullptr && in_ != nullptr && out_ != nullptr,
             "no memory for a connection");
  BIO_set_mem_eof_return(in_, -1);
  SSL_set_bio(connection_.get(), in_, out_);
}

kj::Promise<std::optional<Failure>> TlsStream::shake() {
  using Told = std::optional<Failure>;
  ERR_clear_error();
  const int done = SSL_do_handshake(connection_.get());
  if (done == 1) {
    if (Told refused = take_peer()) return refused;
    return flush().then([]() -> Told { return std::nullopt; });
  }
  const int error = SSL_get_error(connection_.get(), done);
  if (error != SSL_ERROR_WANT_READ) {
    Told failure = failure_of_connection(error);
    if (check_.refused) failure = check_.refused;
    // It is told why by an alert, if it is still there.
    return flush().catch_([](kj::Exception&&) {}).then([failure] { return failure; });
  }
  return flush().then([this] { return fetch(); }).then([this](bool more) -> kj::Promise<Told> {
    if (!more) return Told(Failure{Outcome::kTruncated, "has closed the connection."});
    if (handshake_bytes_ > kHandshakeBytesMax) {
      return Told(Failure{Outcome::kTooLong, "has sent more than a handshake may have."});
    }
    return shake();
  });
}

std::optional<Failure> TlsStream::take_peer() {
  const unsigned char* protocol = nullptr;
  unsigned int bytes = 0;
  SSL_get0_alpn_selected(connection_.get(), &protocol, &bytes);
  if (bytes == 0) {
    return Failure{Outcome::kNothingShared, "does not say that it speaks djinn's protocol."};
  }
  const Certificate certificate(SSL_get1_peer_certificate(connection_.get()));
  auto principal = principal_of(*certificate);
  if (!principal) return Failure{Outcome::kBadName, principal.error().message};
  peer_ = *std::move(principal);
  return std::nullopt;
}

std::optional<Failure> TlsStream::refusal_by(const Context& context) const {
  const Certificate certificate(SSL_get1_peer_certificate(connection_.get()));
  return context.refusal_of(*certificate, SSL_get_peer_cert_chain(connection_.get()));
}

kj::Promise<size_t> TlsStream::tryRead(void* buffer, size_t min_bytes, size_t max_bytes) {
  raise_if_failed();
  return read_on(static_cast<kj::byte*>(buffer), 0, min_bytes, max_bytes);
}

kj::Promise<size_t> TlsStream::read_on(kj::byte* buffer, size_t got, size_t min_bytes,
                                       size_t max_bytes) {
  while (got < max_bytes) {
    ERR_clear_error();
    size_t bytes = 0;
    const int done = SSL_read_ex(connection_.get(), buffer + got, max_bytes - got, &bytes);
    if (done == 1) {
      got += bytes;
      continue;
    }
    const int error = SSL_get_error(connection_.get(), done);
    if (error == SSL_ERROR_ZERO_RETURN) return got;  // it said that this is all
    if (error != SSL_ERROR_WANT_READ) fail(error);
    break;
  }
  if (got >= min_bytes) return got;
  // A change of keys may have to be answered. Who reads does not wait for what is written, or two
  // sides that both write much would wait for each other; only answers that nobody takes end that.
  auto answered = flush();
  if (BIO_ctrl_pending(out_) <= 2 * kWriteBytes) answered = kj::READY_NOW;
  return answered.then([this] { return fetch(); })
      .then([=, this](bool more) -> kj::Promise<size_t> {
        if (!more) fail(SSL_ERROR_SYSCALL);
        return read_on(buffer, got, min_bytes, max_bytes);
      });
}

kj::Promise<bool> TlsStream::fetch() {
  return below_->tryRead(buffer_.begin(), 1, buffer_.size()).then([this](size_t bytes) {
    if (peer_ == std::nullopt) handshake_bytes_ += bytes;
    if (bytes != 0) BIO_write(in_, buffer_.begin(), static_cast<int>(bytes));
    return bytes != 0;
  });
}

kj::Promise<void> TlsStream::flush() {
  if (BIO_ctrl_pending(out_) == 0) return kj::READY_NOW;
  auto sent = sent_
                  .then([this]() -> kj::Promise<void> {
                    const size_t pending = BIO_ctrl_pending(out_);
                    if (pending == 0) return kj::READY_NOW;
                    auto bytes = kj::heapArray<kj::byte>(pending);
                    BIO_read(out_, bytes.begin(), static_cast<int>(pending));
                    auto written = below_->write(bytes.begin(), bytes.size());
                    return written.attach(kj::mv(bytes));
                  })
                  .fork();
  sent_ = sent.addBranch();
  return sent.addBranch();
}

kj::Promise<void> TlsStream::write(const void* buffer, size_t bytes) {
  raise_if_failed();
  const size_t now = std::min(bytes, kWriteBytes);
  ERR_clear_error();
  if (now != 0) {
    const int done = SSL_write(connection_.get(), buffer, static_cast<int>(now));
    if (done != static_cast<int>(now)) fail(SSL_get_error(connection_.get(), done));
  }
  if (now == bytes) return flush();
  const auto* const rest = static_cast<const kj::byte*>(buffer) + now;
  return flush().then([this, rest, bytes, now] { return write(rest, bytes - now); });
}

kj::Promise<void> TlsStream::write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) {
  if (pieces.size() == 0) return kj::READY_NOW;
  const auto rest = pieces.slice(1, pieces.size());
  auto first = write(pieces[0].begin(), pieces[0].size());
  if (rest.size() == 0) return first;
  return first.then([this, rest] { return write(rest); });
}

void TlsStream::shutdownWrite() {
  if (failure_) return;
  auto told = close().then([this] { below_->shutdownWrite(); });
  sent_ = told.eagerlyEvaluate([](kj::Exception&&) {});
}

kj::Promise<void> TlsStream::close() {
  ERR_clear_error();
  SSL_shutdown(connection_.get());
  return flush();
}

void TlsStream::fail(int ssl_error) {
  failure_ = failure_of_connection(ssl_error);
  raise_if_failed();
  KJ_UNREACHABLE;
}

void TlsStream::raise_if_failed() const {
  if (failure_) {
    rpc::raise({ErrorCode::kDisconnected, "The other side " + failure_->message});
  }
}

}  // namespace djinn::tls
