// SPDX-License-Identifier: Apache-2.0

// The functions stand in the order in which a check calls them.
#include "daemon/djinnd/workers/device_check.h"

#include <errno.h>
#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "kernel/base/assert.h"
#include "kernel/base/random.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {

namespace {

constexpr uint64_t kThreadMs = 60'000;

}  // namespace

DeviceCheck::DeviceCheck(Loop& loop, MoverLink& link, WorkQueue& work)
    : link_(link), work_(work), stuck_(loop, [this] {
        end(Error{ErrorCode::kTimeout,
                  fmt::format("The driver did not free what its mover had for {} s. Look for Xids "
                              "in the kernel's log.",
                              kThreadMs / 1000)});
      }) {}

void DeviceCheck::begin(uint64_t granule_bytes, Done done) {
  DJINN_ASSERT(done_ == nullptr && link_.is_idle());
  bytes_ = granule_bytes;
  done_ = std::move(done);
  work_.run([granule_bytes] { return make_sample(granule_bytes); },
            [this, nth = ++nth_](Result<Sample> sample) {
              if (nth == nth_ && done_ != nullptr) return has_sample(std::move(sample));
              if (sample) work_.close(std::move(sample->memfd));
            });
  stuck_.start_once(kThreadMs);
}

void DeviceCheck::has_sample(Result<Sample> sample) {
  stuck_.stop();
  if (!sample) return end(sample.error());
  sample_ = *std::move(sample);
  create();
}

Result<DeviceCheck::Sample> DeviceCheck::make_sample(uint64_t bytes) {
  std::array<uint64_t, 3> secret{};
  if (::getrandom(secret.data(), sizeof secret, 0) != sizeof secret) {
    return system_error("draw the key of a checksum", errno);
  }
  const ChecksumKey key{secret[0], secret[1]};
  std::vector<std::byte> content(bytes);
  KeyedChecksum zero(key), filled(key);
  zero.add(content);
  Random random(secret[2]);
  std::ranges::generate(content, [&] { return static_cast<std::byte>(random.next()); });
  filled.add(content);
  DJINN_TRY(Fd memfd, pal::make_sealed_memfd("djinn-check", content));
  return Sample{std::move(memfd), key, filled.value(), zero.value()};
}

void DeviceCheck::create() {
  order(ipc::CreateExtent{bytes_}, {}, [this](MoverAnswer answer) {
    extent_ = std::move(answer.extent);
    upload();
  });
}

void DeviceCheck::upload() {
  order(ipc::UploadExtent{bytes_, {{0, 0, bytes_}}}, {sample_->memfd.get(), extent_.get()},
        [this](const MoverAnswer&) { check_filled(); });
}

void DeviceCheck::check_filled() {
  order(ipc::ChecksumExtent{bytes_, sample_->key}, {extent_.get()}, [this](const MoverAnswer& a) {
    if (std::get<ipc::Checksummed>(a.body).sum == sample_->filled) return zero();
    end(Error{ErrorCode::kIo,
              "What is copied to its memory comes back as other bytes. Look for "
              "Xids in the kernel's log, and reset the GPU."});
  });
}

void DeviceCheck::zero() {
  order(ipc::ZeroExtent{bytes_}, {extent_.get()}, [this](const MoverAnswer&) { check_zero(); });
}

void DeviceCheck::check_zero() {
  order(ipc::ChecksumExtent{bytes_, sample_->key}, {extent_.get()}, [this](const MoverAnswer& a) {
    if (std::get<ipc::Checksummed>(a.body).sum == sample_->zero) return end({});
    end(Error{ErrorCode::kIo,
              "Its memory is not zero where it was zeroed. Look for Xids in the "
              "kernel's log, and reset the GPU."});
  });
}

void DeviceCheck::order(MoverLink::Body body, const std::vector<int>& fds,
                        std::function<void(MoverAnswer)> then) {
  link_.order(std::move(body), fds, [this, then = std::move(then)](Result<MoverAnswer> answer) {
    if (!answer) return end(answer.error());
    then(*std::move(answer));
  });
}

void DeviceCheck::end(Status status) {
  free_all();
  const Done done = std::exchange(done_, nullptr);
  DJINN_ASSERT(done != nullptr);
  done(std::move(status));
}

void DeviceCheck::drop() {
  done_ = nullptr;
  free_all();
}

void DeviceCheck::free_all() {
  stuck_.stop();
  if (sample_) work_.close(std::move(sample_->memfd));
  sample_.reset();
  work_.close(std::move(extent_));
}

}  // namespace djinn::daemon
