// SPDX-License-Identifier: Apache-2.0

#include "python/device/session_life.h"

#include <fmt/format.h>

#include <utility>

#include "libdjinn-client/host.h"
#include "python/device/errors.h"
#include "python/device/interruption.h"

namespace djinn::device {

SessionLife::SessionLife(std::function<void()> on_end)
    : on_end_(std::move(on_end)), connection_(Link::connect_options()) {}

Link& SessionLife::link() {
  TORCH_CHECK(
      !is_orphan_,
      "This process was forked from one that uses djinnd, and has no session of its own. "
      "Start it with the method 'spawn', or fork before the first tensor is used. A dataset "
      "that DataLoader's workers read should give tensors of the CPU, which are moved where "
      "they are used; or use num_workers=0.");
  if (link_ == nullptr) {
    Interruption interruption(Interruption::Place::kWithLock);
    const auto client = connection_.open(std::ref(interruption));
    interruption.raise_again();
    link_ = std::make_unique<Link>(*take(client));
    link_->stats() = ended_stats_;
    state();
  }
  return *link_;
}

Link& SessionLife::link_at_once() {
  const bool had_one = link_ == nullptr && !why_ended_.empty();
  if (had_one && !may_be_served()) raise({ErrorCode::kDisconnected, why_ended_});
  return link();
}

// What another machine has can be known by trying alone.
bool SessionLife::may_be_served() {
  const client::ConnectOptions options = Link::connect_options();
  const auto host = client::resolve_host(options.host);
  if (!host || !host->is_far()) return client::Client::is_served(options);
  Interruption interruption(Interruption::Place::kWithLock);
  const Status made = connection_.reconnect(0, std::ref(interruption));
  interruption.raise_again();
  return static_cast<bool>(made);
}

Link& SessionLife::link_of(uint64_t session) {
  refuse_ended(session);
  return link();
}

void SessionLife::notice_end() {
  if (live() == nullptr) return;
  const Status alive = connection_.check();
  if (alive) return;
  why_ended_ = alive.error().message;
  ended_stats_ = link_->stats();
  link_ = nullptr;
  on_end_();
}

void SessionLife::refuse_ended(uint64_t session) const {
  if (session != storages().session()) raise({ErrorCode::kDisconnected, why_ended_});
}

void SessionLife::refuse_lost(const Storage& storage) const {
  if (storage.location != Location::kLost) return;
  if (storage.failure) raise(*storage.failure);
  raise({ErrorCode::kDisconnected, "The value of this tensor is gone. " + why_ended_});
}

void SessionLife::refuse_lost(const Entry& entry) const {
  for (const Operand& operand : entry.operands) refuse_lost(*operand.storage);
}

void SessionLife::set_service_class(const std::string& name) {
  if (name == service_class_) return;
  notice_end();
  if (live() != nullptr) {
    raise_as_ours({ErrorCode::kUnsupported,
                   fmt::format("This process's session with djinnd has begun as \"{}\", and its "
                               "class stays. Set djinn.config.service_class before a model is "
                               "loaded or a tensor made there.",
                               service_class_)});
  }
  service_class_ = name;
  connection_.set_service_class(name);
}

void SessionLife::state_call(size_t tier) {
  ++stated_.calls.at(tier);
  state();
}

void SessionLife::state_local_model() {
  ++stated_.local_models;
  state();
}

void SessionLife::state() {
  if (Link* const link = live()) link->client().state(stated_);
}

std::optional<ipc::SessionReport> SessionLife::report() const {
  Link* const link = live();
  if (link == nullptr) return std::nullopt;
  const SessionId own = link->client().welcome().session;
  for (ipc::SessionReport& one : take(link->client().sessions())) {
    if (one.session == own) return std::move(one);
  }
  return std::nullopt;
}

}  // namespace djinn::device
