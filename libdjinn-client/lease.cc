// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/lease.h"

namespace djinn::client {

// --- Lender

Result<ipc::StagingRange> Lender::allocate(uint64_t bytes) {
  if (mark_->is_in_child()) return forked();
  const std::lock_guard lock(mutex_);
  return staging_.allocate(bytes);
}

void Lender::free(const ipc::StagingRange& range) {
  if (!takes_back()) return;
  const std::lock_guard lock(mutex_);
  staging_.free(range);
}

std::span<std::byte> Lender::bytes(const ipc::StagingRange& range) const {
  DJINN_ASSERT(!ended_);
  return staging_.bytes(range);
}

uint64_t Lender::free_bytes() const {
  const std::lock_guard lock(mutex_);
  return staging_.free_bytes();
}

Result<RefHandle> Lender::allocate_ref() {
  if (mark_->is_in_child()) return forked();
  const std::lock_guard lock(mutex_);
  return refs_.allocate();
}

void Lender::free(RefHandle ref) {
  if (!takes_back()) return;
  const std::lock_guard lock(mutex_);
  refs_.free(ref);
}

void Lender::drop(RefHandle ref) {
  if (!takes_back()) return;
  const std::lock_guard lock(mutex_);
  dropped_.push_back(ref);
}

std::optional<RefHandle> Lender::take_dropped() {
  const std::lock_guard lock(mutex_);
  if (dropped_.empty()) return std::nullopt;
  const RefHandle ref = dropped_.back();
  dropped_.pop_back();
  return ref;
}

size_t Lender::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_.size();
}

void Lender::lease(ProgramId program) {
  DJINN_ASSERT(program.valid());
  if (!takes_back()) return;
  const std::lock_guard lock(mutex_);
  ++programs_[program];
}

void Lender::end_lease(ProgramId program) {
  if (!takes_back()) return;
  const std::lock_guard lock(mutex_);
  const auto found = programs_.find(program);
  DJINN_ASSERT(found != programs_.end());
  if (--found->second > 0) return;
  programs_.erase(found);
  unleased_.push_back(program);
  has_unleased_.store(true, std::memory_order_release);
}

bool Lender::is_leased(ProgramId program) const {
  const std::lock_guard lock(mutex_);
  return programs_.contains(program);
}

std::vector<ProgramId> Lender::take_unleased() {
  if (!has_unleased_.load(std::memory_order_acquire)) return {};
  const std::lock_guard lock(mutex_);
  has_unleased_.store(false, std::memory_order_relaxed);
  return std::exchange(unleased_, {});
}

// --- StagingLease

StagingLease::~StagingLease() {
  if (lender_ != nullptr) lender_->free(range_);
}

StagingLease& StagingLease::operator=(StagingLease&& other) noexcept {
  StagingLease taken(std::move(other));
  std::swap(lender_, taken.lender_);
  std::swap(range_, taken.range_);
  return *this;
}

std::span<std::byte> StagingLease::bytes() const {
  DJINN_ASSERT(lender_ != nullptr);
  return lender_->bytes(range_);
}

// --- RefLease

RefLease::~RefLease() {
  if (lender_ == nullptr) return;
  if (lender_->submissions() == submissions_) {
    lender_->free(ref_);
  } else {
    lender_->drop(ref_);
  }
}

RefLease& RefLease::operator=(RefLease&& other) noexcept {
  RefLease taken(std::move(other));
  std::swap(lender_, taken.lender_);
  std::swap(ref_, taken.ref_);
  std::swap(submissions_, taken.submissions_);
  return *this;
}

RefHandle RefLease::detach() && {
  lender_.reset();
  return ref_;
}

// --- ProgramLease

ProgramLease::~ProgramLease() {
  if (lender_ != nullptr) lender_->end_lease(program_);
}

ProgramLease& ProgramLease::operator=(ProgramLease&& other) noexcept {
  ProgramLease taken(std::move(other));
  std::swap(lender_, taken.lender_);
  std::swap(program_, taken.program_);
  return *this;
}

}  // namespace djinn::client
