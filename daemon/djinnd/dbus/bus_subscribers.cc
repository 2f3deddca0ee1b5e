// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/dbus/bus_subscribers.h"

#include <algorithm>
#include <utility>

#include "daemon/djinnd/loop/log.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {

Status BusSubscribers::add(const std::string& sender, const Caller& caller) {
  const auto known = subscribers_.find(sender);
  if (known != subscribers_.end()) {
    known->second->caller = caller;
    return {};
  }
  const auto of_user = std::ranges::count_if(
      subscribers_, [&](const auto& entry) { return entry.second->caller.user == caller.user; });
  if (subscribers_.size() >= kSubscribersMax || static_cast<size_t>(of_user) >= kPerUserMax) {
    return Error{ErrorCode::kLimitExceeded,
                 "Too many connections hear djinnd's signals. Unsubscribe or close one first."};
  }
  auto fresh = std::make_unique<Subscriber>(Subscriber{this, sender, caller});
  Subscriber* const place = fresh.get();
  subscribers_[sender] = std::move(fresh);
  static_assert(kPerUserMax <= kSubscribersMax);
  DJINN_ASSERT(subscribers_.size() <= kSubscribersMax);
  bus_.use([place](sd_bus* bus) {
    return ::sd_bus_add_match_async(bus, &place->slot, Bus::rule_for_leaving(place->name).c_str(),
                                    &BusSubscribers::left, &BusSubscribers::installed, place);
  });
  bus_.ask_whether_gone(sender, [this, sender] { subscribers_.erase(sender); });
  return {};
}

int BusSubscribers::left(sd_bus_message*, void* subscriber, sd_bus_error*) {
  auto* const gone = static_cast<Subscriber*>(subscriber);
  DJINN_ASSERT(gone->owner->subscribers_.contains(gone->name));
  gone->owner->subscribers_.extract(gone->name);
  return 0;
}

// If the bus takes no rule for this subscriber, it hears no signals, and the others still do.
int BusSubscribers::installed(sd_bus_message* answer, void* subscriber, sd_bus_error*) {
  if (::sd_bus_message_is_method_error(answer, nullptr) <= 0) return 1;
  auto* const refused = static_cast<Subscriber*>(subscriber);
  log("{} hears no signals: the bus takes no rule for it: {}", refused->name,
      ::sd_bus_message_get_error(answer)->name);
  DJINN_ASSERT(refused->owner->subscribers_.contains(refused->name));
  refused->owner->subscribers_.extract(refused->name);
  return 1;
}

void BusSubscribers::tell(const Event& event, const char* path, const char* interface,
                          const char* member, const std::function<int(sd_bus_message*)>& append) {
  std::vector<std::string> names;
  for (const auto& [name, subscriber] : subscribers_) {
    if (seen_by(event, subscriber->caller)) names.push_back(name);
  }
  // Sending may end the connection, and with it all subscriptions, so the names are copies.
  for (const std::string& name : names) {
    bus_.use([&](sd_bus* bus) {
      sd_bus_message* made = nullptr;
      int failed = ::sd_bus_message_new_signal(bus, &made, path, interface, member);
      const Message signal(made);
      if (failed >= 0) failed = append(made);
      return failed < 0 ? failed : ::sd_bus_send_to(bus, made, name.c_str(), nullptr);
    });
  }
}

}  // namespace djinn::daemon
