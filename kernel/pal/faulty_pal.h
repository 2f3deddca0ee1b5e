// SPDX-License-Identifier: Apache-2.0

// FaultyPal: wraps another pal and makes one of its calls fail, without having any effect. A test
// of a path first counts its calls, then runs it once for each N with call N failing, and shows
// that nothing is left behind. Calls may come from several threads; fail_call() and disarm() only
// while there are none.
#pragma once

#include <atomic>
#include <optional>
#include <utility>

#include "kernel/pal/device_pal.h"

namespace djinn::pal {

class FaultyPal final : public DevicePal {
 public:
  explicit FaultyPal(DevicePal& inner) noexcept : inner_(inner) {}

  // Makes call number n fail with error, counted from 1 with the next one; the others pass.
  void fail_call(uint64_t n, Error error) {
    calls_ = 0;
    fault_.emplace(n, std::move(error));
  }
  void disarm() noexcept { fault_.reset(); }
  // Calls since construction or the last fail_call(). properties() and destructors do not count.
  [[nodiscard]] uint64_t calls() const noexcept { return calls_; }

  [[nodiscard]] const DeviceProperties& properties() const override { return inner_.properties(); }
  Result<Reservation> reserve(uint64_t bytes) override;
  Result<Extent> create(std::string_view name, uint64_t bytes) override;
  Status commit(const Extent& extent, uint64_t offset, uint64_t bytes) override;
  Status decommit(const Extent& extent, uint64_t offset, uint64_t bytes) override;
  Status map(Reservation& reservation, uint64_t offset, const Extent& extent,
             uint64_t extent_offset, uint64_t bytes, Access access) override;
  Status protect(Reservation& reservation, uint64_t offset, uint64_t bytes, Access access) override;
  Status unmap(Reservation& reservation, uint64_t offset, uint64_t bytes) override;
  Status populate(Reservation& reservation, uint64_t offset, uint64_t bytes) override;
  Status copy_in(Reservation& reservation, uint64_t offset,
                 std::span<const std::byte> from) override;
  Status copy_out(const Reservation& reservation, uint64_t offset,
                  std::span<std::byte> to) override;
  Status zero(Reservation& reservation, uint64_t offset, uint64_t bytes) override;
  Status copy(Reservation& reservation, uint64_t from, uint64_t to, uint64_t bytes) override;
  Status seal(const Extent& extent, Seals seals) override;
  Result<Fd> export_extent(const Extent& extent) override;
  Result<Extent> import_extent(Fd fd, uint64_t bytes, Seals required) override;

 private:
  [[nodiscard]] Status count_call();

  DevicePal& inner_;
  std::atomic<uint64_t> calls_{0};
  std::optional<std::pair<uint64_t, Error>> fault_;  // the call's number, its error
};

}  // namespace djinn::pal
