#include "daemon/djinnd/spare_pool.h"

#include <utility>

#include "daemon/djinnd/log.h"

namespace djinn::daemon {

SparePool::SparePool(Loop& loop, Kind kind)
    : loop_(loop),
      kind_(std::move(kind)),
      start_timer_(loop, [this] { start_child(); }),
      ready_timer_(loop, [this] { child_->kill(); }) {}

void SparePool::start() {
  start_child();
}

void SparePool::take(Taker taker) {
  takers_.push_back(std::move(taker));
  loop_.defer([this] { serve(); });
  // Somebody waits now, so nothing is gained by waiting longer.
  if (child_ == nullptr && failures_ == 0) start_timer_.start_once(0);
}

void SparePool::start_child() {
  if (child_ != nullptr) return;
  ready_.reset();
  auto started = ChildProcess::start(loop_, kind_.program(), kind_.traffic);
  if (!started) {
    log("{}: {}", kind_.name, started.error().message);
    return child_failed();
  }
  adopt(*std::move(started));
}

void SparePool::adopt(std::unique_ptr<ChildProcess> child) {
  child_ = std::move(child);
  child_->listen({[this](ipc::Datagram message) { heard(message); }, [this] { child_failed(); }});
  ready_timer_.start_once(kReadyTimeoutMs);
}

void SparePool::give_back(std::unique_ptr<ChildProcess> child) {
  if (child_ != nullptr || child->dead()) return loop_.dispose(std::move(child));  // one is enough
  start_timer_.stop();
  adopt(std::move(child));
}

void SparePool::heard(const ipc::Datagram& message) {
  ready_ = kind_.read_ready(message);
  if (!ready_) return child_->kill();
  ready_timer_.stop();
  has_worked_ = true;
  const bool failed = fails();
  failures_ = 0;
  if (failed && changed_) changed_();
  back_off_.after_death(true);
  loop_.defer([this] { serve(); });
}

void SparePool::child_failed() {
  ready_timer_.stop();
  ++failures_;
  log("{} ended before it was needed ({} in a row)", kind_.name, failures_);
  loop_.dispose(std::move(child_));
  ready_.reset();
  start_timer_.start_once(back_off_.after_death(false));
  if (failures_ == kFailuresMax && changed_) changed_();
}

void SparePool::serve() {
  if (takers_.empty() || !ready_) return;
  Taker taker = std::move(takers_.front());
  takers_.pop_front();
  child_->listen({});
  ReadyChild given{std::move(child_), *std::exchange(ready_, std::nullopt)};
  start_timer_.start_once(takers_.empty() ? kind_.next_after_ms : 0);
  taker(std::move(given));
}

}  // namespace djinn::daemon
