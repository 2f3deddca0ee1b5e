// SPDX-License-Identifier: Apache-2.0

// Manager: org.djinn.Manager1, djinnd as D-Bus sees it: another way to what djinnctl does on the
// socket, done by those who do it there.
//
//   call      a method call, from its message to its answer
//   action    what polkit is asked for where the caller's own rights do not suffice
//
// A call is made with the caller's own rights first. Where these refuse it, or show a part only,
// polkit is asked whether it may be made as an administrator. So nobody learns more of what is
// others' than on the socket.
//
// What a call makes djinnd do, its answer included, is done in its caller's turns (turns.h).
//
// Signals are for subscribers (bus_subscribers.h), of what they may see; changes of properties,
// which are sums over all users, for everybody whom the bus's policy lets listen.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "daemon/djinnd/access/inquiries.h"
#include "daemon/djinnd/dbus/bus.h"
#include "daemon/djinnd/dbus/bus_callers.h"
#include "daemon/djinnd/dbus/bus_subscribers.h"
#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/front/drain.h"
#include "daemon/djinnd/front/reload.h"
#include "daemon/djinnd/front/reports.h"
#include "daemon/djinnd/loop/turns.h"
#include "daemon/djinnd/memory/devices.h"
#include "daemon/djinnd/models/models.h"
#include "daemon/djinnd/programs/programs.h"
#include "daemon/djinnd/sessions/sessions.h"
#include "kernel/base/owner.h"

namespace djinn::daemon {

class Manager {
 public:
  // Calls of one user that wait, for polkit or for what they ask.
  static constexpr uint32_t kCallsPerUser = 32;

  // only_user: all others are refused, and their polkit is not asked.
  Manager(Loop& loop, const Clock& clock, Turns& turns, const Authority& authority,
          Inquiries& inquiries, const Devices& devices, Sessions& sessions, Models& models,
          Programs& programs, Reports& reports, Reload& reload, Drain& drain, BusKind kind,
          std::optional<Owner> only_user);

  void start() { bus_.start(); }
  void stop();
  // Tells those who listen on the bus.
  void on_event(const Event& event);

 private:
  struct Call;
  using Perform = std::function<void(const Waiter&, const Caller&)>;
  struct Counts {
    uint32_t sessions = 0;
    uint32_t models = 0;
    uint32_t programs = 0;
    friend bool operator==(const Counts&, const Counts&) = default;
  };

  static constexpr const char* kInterface = "org.djinn.Manager1";  // and the name on the bus

  static const sd_bus_vtable* vtable();
  template <void (Manager::*method)(sd_bus_message*)>
  static int handle(sd_bus_message* message, void* self, sd_bus_error* error);
  template <auto value>
  static int property(sd_bus* bus, const char* path, const char* interface, const char* name,
                      sd_bus_message* reply, void* self, sd_bus_error* error);

  [[nodiscard]] const char* version() const;
  [[nodiscard]] bool draining() const;
  [[nodiscard]] uint64_t total_bytes() const;
  [[nodiscard]] uint64_t granted_bytes() const;
  [[nodiscard]] uint32_t session_count() const;
  [[nodiscard]] uint32_t model_count() const;
  [[nodiscard]] uint32_t program_count() const;

  void list_sessions(sd_bus_message* message);
  void list_models(sd_bus_message* message);
  void list_devices(sd_bus_message* message);
  void list_uses(sd_bus_message* message);
  void subscribe(sd_bus_message* message);
  void unsubscribe(sd_bus_message* message);
  void cancel(sd_bus_message* message);
  void terminate(sd_bus_message* message);
  void pin(sd_bus_message* message);
  void unpin(sd_bus_message* message);
  void evict(sd_bus_message* message);
  void reload(sd_bus_message* message);
  void drain(sd_bus_message* message);
  void resume(sd_bus_message* message);
  void set_pinned(sd_bus_message* message, bool pinned);
  void set_draining(sd_bus_message* message, bool draining);
  // The message's next argument; one that is no id is refused.
  template <typename Tag>
  std::optional<Id<Tag>> read_id(sd_bus_message* message);

  // Calls then in a turn of the caller's, when users' names are known.
  void when_named(const Caller& caller, std::function<void()> then);
  void begin(sd_bus_message* message, const char* action, Perform perform);
  // A method that is for administrators only.
  void begin_managing(sd_bus_message* message, std::function<Status(const Caller&)> perform);
  void admit(const std::shared_ptr<Call>& call, const Caller& caller);
  // In a turn of the caller's user.
  void attempt(const std::shared_ptr<Call>& call, const Caller& caller);
  void attempted(const std::shared_ptr<Call>& call, const Caller& caller,
                 const ipc::DaemonReply& reply);
  void answer(sd_bus_message* message, const ipc::DaemonReply& reply);
  void refuse(sd_bus_message* message, const Error& error);

  void tell_counts();
  // names: of properties, ended by a null.
  void tell_changed(const char* const* names);

  Loop& loop_;
  const Clock& clock_;
  Turns& turns_;
  const Authority& authority_;
  Inquiries& inquiries_;
  const Devices& devices_;
  Sessions& sessions_;
  Models& models_;
  Programs& programs_;
  Reports& reports_;
  Reload& reload_;
  Drain& drain_;
  std::optional<Owner> only_user_;
  bool has_polkit_;
  Bus bus_;
  BusCallers callers_;
  BusSubscribers subscribers_;
  std::shared_ptr<std::map<Owner, uint32_t>> in_progress_;
  Counts told_;
  Timer counts_timer_;
};

}  // namespace djinn::daemon
