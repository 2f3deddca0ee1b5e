// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/workers/spare_pool.h"

#include <fmt/format.h>

#include <utility>

#include "daemon/djinnd/loop/log.h"
#include "kernel/base/assert.h"
#include "kernel/base/clock.h"

namespace djinn::daemon {

SparePool::SparePool(const ChildHost& host, Kind kind)
    : host_(host),
      loop_(host.loop),
      kind_(std::move(kind)),
      start_timer_(loop_, [this] { start_child(); }),
      ready_timer_(loop_, [this] { look_at_start(); }) {}

void SparePool::start() {
  if (!kind_.is_on_demand) start_child();
}

void SparePool::take(std::weak_ptr<const bool> wanted, Taker taker) {
  DJINN_ASSERT(taker != nullptr && !wanted.expired());
  waiting_.push_back({std::move(wanted), std::move(taker)});
  loop_.defer([this] { serve(); });
  // Somebody waits for a child now, so the start is not put off any longer.
  const bool is_due = failures_ == 0 || (kind_.is_on_demand && !start_timer_.active());
  if (child_ == nullptr && is_due) start_timer_.start_once(0);
}

void SparePool::start_next(uint64_t after_ms) {
  std::erase_if(waiting_, &wants_none);
  if (!kind_.is_on_demand || !waiting_.empty()) start_timer_.start_once(after_ms);
}

void SparePool::start_child() {
  if (child_ != nullptr) return;
  ready_.reset();
  auto started = ChildProcess::start(host_, kind_.program(), kind_.traffic);
  if (!started) {
    log("{}: {}", kind_.name, started.error().message);
    return child_failed();
  }
  adopt(*std::move(started));
}

void SparePool::adopt(std::unique_ptr<ChildProcess> child) {
  DJINN_ASSERT(child_ == nullptr && child != nullptr && !child->dead());
  child_ = std::move(child);
  child_->listen(
      {[this](const ipc::Datagram& message) { heard(message); }, [this] { child_failed(); }});
  start_time_ = {};
  start_looks_ = 0;
  start_time_.look(0, child_->cpu_ns(), 0);
  ready_timer_.start_once(kReadyLookMs);
}

// A look that is late counts as if it had come when it was due.
void SparePool::look_at_start() {
  constexpr uint64_t kDueNs = kReadyLookMs * kNsPerMs;
  const uint64_t took_ns = start_time_.look(++start_looks_ * kDueNs, child_->cpu_ns(), kDueNs);
  if (took_ns >= kReadyTimeoutMs * kNsPerMs) return child_->kill();
  ready_timer_.start_once(kReadyLookMs);
}

void SparePool::give_back(std::unique_ptr<ChildProcess> child) {
  if (child_ != nullptr || child->dead()) return loop_.dispose(std::move(child));  // one is enough
  start_timer_.stop();
  adopt(std::move(child));
}

void SparePool::heard(const ipc::Datagram& message) {
  DJINN_ASSERT(child_ != nullptr);
  ready_ = kind_.read_ready(message);
  if (!ready_) return child_->kill();
  ready_timer_.stop();
  last_ready_ = ready_;
  count(0, false);
  back_off_.after_death(true);
  loop_.defer([this] { serve(); });
}

void SparePool::child_failed() {
  ready_timer_.stop();
  const bool refused = child_ != nullptr && child_->refused_our_build();
  const uint32_t failures = failures_ + 1;
  other_device_ = child_ != nullptr && child_->found_other_device();
  if (!refused) {
    log("a {} ended before it was needed ({} in a row{})", kind_.name, failures,
        other_device_ ? "; it did not find its device" : "");
  }
  loop_.dispose(std::move(child_));
  ready_.reset();
  start_next(back_off_.after_death(false));
  count(failures, other_build_ || refused);
}

void SparePool::count(uint32_t failures, bool other_build) {
  const auto state = [this] { return std::pair(fails(), other_build_); };
  const auto before = state();
  failures_ = failures;
  other_build_ = other_build;
  if (state() != before && changed_) changed_();
}

Error SparePool::failure() const {
  DJINN_ASSERT(fails());
  if (other_build_) {
    return {kind_.lost,
            fmt::format("djinnd was upgraded and has not been restarted, so it has no {}. Restart "
                        "djinnd, as an administrator of its machine may, then repeat.",
                        kind_.name)};
  }
  if (other_device_) {
    return {
        kind_.lost,
        fmt::format("No {} could be started: none finds the device that djinnd has, by its "
                    "UUID. Restart djinnd, as an administrator of its machine may, then repeat.",
                    kind_.name)};
  }
  return {kind_.lost,
          fmt::format("No {} could be started. djinnd's log says more; it tries on.", kind_.name)};
}

void SparePool::end_spare() {
  child_->listen({});
  ready_.reset();
  loop_.dispose(std::move(child_));
}

void SparePool::serve() {
  std::erase_if(waiting_, &wants_none);
  if (!ready_) return;
  DJINN_ASSERT(child_ != nullptr);
  if (waiting_.empty()) {
    if (kind_.is_on_demand) end_spare();
    return;
  }
  const Taker taker = std::move(waiting_.front().taker);
  waiting_.pop_front();
  child_->listen({});
  ReadyChild given{std::move(child_), *std::exchange(ready_, std::nullopt)};
  start_next(waiting_.empty() ? kind_.next_after_ms : 0);
  taker(std::move(given));
}

}  // namespace djinn::daemon
