// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/dbus/manager.h"

#include <array>
#include <charconv>
#include <cstring>
#include <utility>

#include "daemon/djinnd/dbus/bus_reports.h"
#include "daemon/djinnd/loop/log.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

constexpr const char* kPath = "/org/djinn/Manager1";
// Changes within this time are told by one signal.
constexpr uint64_t kTellAfterMs = 100;

// packaging/dbus/org.djinn.policy defines these actions.
constexpr const char* kInspect = "org.djinn.inspect";
constexpr const char* kSteer = "org.djinn.steer";
constexpr const char* kManage = "org.djinn.manage";

// Reads 12 hex digits, as text_of() writes them.
std::optional<uint64_t> id_in(const char* text) {
  const char* const end = text + ::strlen(text);
  uint64_t value = 0;
  const auto [stop, failed] = std::from_chars(text, end, value, 16);
  if (end - text != 12 || failed != std::errc() || stop != end || value == 0) return std::nullopt;
  return value;
}

std::optional<ipc::Tier> tier_in(std::string_view text) {
  if (text == "host") return ipc::Tier::kHost;
  if (text == "disk") return ipc::Tier::kDisk;
  return std::nullopt;
}

// Tells whether an administrator could get more than this answer.
bool may_be_better(const ipc::DaemonReply& reply) {
  if (const auto* failed = std::get_if<ipc::Failed>(&reply.body)) {
    return failed->code == ErrorCode::kNotFound || failed->code == ErrorCode::kPermissionDenied;
  }
  return !std::holds_alternative<ipc::Done>(reply.body);
}

std::string sender_of(sd_bus_message* message) {
  const char* const sender = ::sd_bus_message_get_sender(message);
  return sender != nullptr ? sender : "";
}

// polkit may ask a user for a password when a request was refused, but not when a list could be
// longer.
Prompt prompt_for(sd_bus_message* message, const ipc::DaemonReply& reply) {
  const bool refused = std::holds_alternative<ipc::Failed>(reply.body);
  const bool allowed = ::sd_bus_message_get_allow_interactive_authorization(message) > 0;
  return refused && allowed ? Prompt::kAllowed : Prompt::kNever;
}

int send_answer(sd_bus_message* message, const ipc::DaemonReply& reply) {
  sd_bus_message* made = nullptr;
  int failed = ::sd_bus_message_new_method_return(message, &made);
  const Message answer(made);
  if (failed < 0) return failed;
  if (const auto* list = std::get_if<ipc::SessionList>(&reply.body)) {
    failed = append_reports(made, list->sessions);
  } else if (const auto* models = std::get_if<ipc::ModelList>(&reply.body)) {
    failed = append_reports(made, models->models);
  } else if (const auto* devices = std::get_if<ipc::DeviceList>(&reply.body)) {
    failed = append_reports(made, devices->devices);
  } else if (const auto* uses = std::get_if<ipc::UseList>(&reply.body)) {
    failed = append_reports(made, uses->uses);
  }
  return failed < 0 ? failed : ::sd_bus_message_send(made);
}

}  // namespace

// A call counts among its user's calls as soon as that user is known.
struct Manager::Call {
  Call(sd_bus_message* raw, const char* asked, Perform what)
      : message(::sd_bus_message_ref(raw)), action(asked), perform(std::move(what)) {}
  ~Call() {
    if (!counted) return;
    DJINN_ASSERT((*counted)[user] > 0);
    if (--(*counted)[user] == 0) counted->erase(user);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  Message message;
  const char* action;
  Perform perform;
  Owner user;
  std::shared_ptr<std::map<Owner, uint32_t>> counted;
};

Manager::Manager(Loop& loop, const Clock& clock, Turns& turns, const Authority& authority,
                 Inquiries& inquiries, const Devices& devices, Sessions& sessions, Models& models,
                 Programs& programs, Reports& reports, Reload& reload, Drain& drain, BusKind kind,
                 std::optional<Owner> only_user)
    : loop_(loop),
      clock_(clock),
      turns_(turns),
      authority_(authority),
      inquiries_(inquiries),
      devices_(devices),
      sessions_(sessions),
      models_(models),
      programs_(programs),
      reports_(reports),
      reload_(reload),
      drain_(drain),
      only_user_(only_user),
      has_polkit_(kind == BusKind::kSystem),
      bus_(loop_, clock_, kind, kInterface,
           {[this](sd_bus* bus) {
              return ::sd_bus_add_object_vtable(bus, nullptr, kPath, kInterface, vtable(), this);
            },
            [this] {
              callers_.forget();
              subscribers_.forget();
            }}),
      callers_(bus_, authority_),
      subscribers_(bus_),
      in_progress_(std::make_shared<std::map<Owner, uint32_t>>()),
      counts_timer_(loop_, [this] { tell_counts(); }) {}

void Manager::stop() {
  counts_timer_.stop();
  callers_.forget();
  bus_.stop();
}

void Manager::when_named(const Caller& caller, std::function<void()> then) {
  reports_.when_named(
      [this, user = caller.user, then = std::move(then)] { turns_.owe(user, then); });
}

// --- methods

void Manager::list_sessions(sd_bus_message* message) {
  begin(message, kInspect, [this](const Waiter& waiter, const Caller& caller) {
    when_named(caller, [this, waiter, caller] {
      ipc::SessionList list{0, reports_.sessions_seen_by(caller)};
      inquiries_.answer(waiter.number, {waiter.number, std::move(list)});
    });
  });
}

void Manager::list_models(sd_bus_message* message) {
  begin(message, kInspect, [this](const Waiter& waiter, const Caller& caller) {
    when_named(caller, [this, waiter, caller] {
      ipc::ModelList list{0, reports_.models_seen_by(caller)};
      inquiries_.answer(waiter.number, {waiter.number, std::move(list)});
    });
  });
}

void Manager::list_devices(sd_bus_message* message) {
  begin(message, kInspect, [this](const Waiter& waiter, const Caller&) {
    inquiries_.answer(waiter.number, {waiter.number, ipc::DeviceList{reports_.all_devices()}});
  });
}

void Manager::subscribe(sd_bus_message* message) {
  const std::string sender = sender_of(message);
  begin(message, kInspect, [this, sender](const Waiter& waiter, const Caller& caller) {
    const Status added = subscribers_.add(sender, caller);
    if (!added) return sessions_.refuse(waiter, added.error());
    sessions_.done(waiter);
  });
}

void Manager::unsubscribe(sd_bus_message* message) {
  const std::string sender = sender_of(message);
  begin(message, kInspect, [this, sender](const Waiter& waiter, const Caller&) {
    subscribers_.remove(sender);
    sessions_.done(waiter);
  });
}

template <typename Tag>
std::optional<Id<Tag>> Manager::read_id(sd_bus_message* message) {
  const char* text = "";
  const bool read = ::sd_bus_message_read(message, "s", &text) > 0;
  const auto id = read ? id_in(text) : std::nullopt;
  if (id) return Id<Tag>{*id};
  refuse(message, {ErrorCode::kInvalidArgument,
                   "An id is 12 hexadecimal digits. ListSessions and ListModels give them."});
  return std::nullopt;
}

void Manager::list_uses(sd_bus_message* message) {
  const auto id = read_id<ModelTag>(message);
  if (!id) return;
  begin(message, kInspect, [this, id = *id](const Waiter& waiter, const Caller& caller) {
    when_named(caller, [this, waiter, caller, id] {
      const auto& models = models_.table().all();
      const auto model = models.find(id);
      if (model == models.end() || !seen_by(model->second, caller)) {
        return sessions_.refuse(waiter, {ErrorCode::kNotFound, "There is no such model."});
      }
      ipc::UseList list{0, reports_.uses_seen_by(caller, id)};
      inquiries_.answer(waiter.number, {waiter.number, std::move(list)});
    });
  });
}

void Manager::cancel(sd_bus_message* message) {
  const auto id = read_id<SessionTag>(message);
  if (!id) return;
  begin(message, kSteer, [this, id = *id](const Waiter& waiter, const Caller& caller) {
    sessions_.cancel_run(waiter, caller, id);
  });
}

void Manager::terminate(sd_bus_message* message) {
  const auto id = read_id<SessionTag>(message);
  if (!id) return;
  begin(message, kSteer, [this, id = *id](const Waiter& waiter, const Caller& caller) {
    sessions_.terminate(waiter, caller, id);
  });
}

void Manager::pin(sd_bus_message* message) {
  set_pinned(message, true);
}

void Manager::unpin(sd_bus_message* message) {
  set_pinned(message, false);
}

void Manager::set_pinned(sd_bus_message* message, bool pinned) {
  const auto id = read_id<ModelTag>(message);
  if (!id) return;
  begin(message, kSteer,
        [this, pin = ipc::PinModel{*id, pinned}](const Waiter& waiter, const Caller& caller) {
          models_.pin(waiter, caller, pin);
        });
}

void Manager::evict(sd_bus_message* message) {
  const auto id = read_id<ModelTag>(message);
  if (!id) return;
  const char* to = "";
  int force = 0;
  const bool read = ::sd_bus_message_read(message, "sb", &to, &force) > 0;
  const auto tier = read ? tier_in(to) : std::nullopt;
  if (!tier) {
    return refuse(message, {ErrorCode::kInvalidArgument, "A model is evicted to disk or host."});
  }
  begin(message, kSteer,
        [this, evict = ipc::EvictModel{*id, *tier, force != 0}](
            const Waiter& waiter, const Caller& caller) { models_.evict(waiter, caller, evict); });
}

void Manager::reload(sd_bus_message* message) {
  begin_managing(message, [this](const Caller&) { return reload_.begin(); });
}

void Manager::drain(sd_bus_message* message) {
  set_draining(message, true);
}

void Manager::resume(sd_bus_message* message) {
  set_draining(message, false);
}

void Manager::set_draining(sd_bus_message* message, bool draining) {
  begin_managing(message, [this, draining](const Caller& caller) -> Status {
    drain_.set(draining, caller.user);
    return {};
  });
}

void Manager::begin_managing(sd_bus_message* message,
                             std::function<Status(const Caller&)> perform) {
  begin(message, kManage,
        [this, perform = std::move(perform)](const Waiter& waiter, const Caller& caller) {
          if (!caller.admin) {
            return sessions_.refuse(waiter, only_administrators_may());
          }
          const Status performed = perform(caller);
          if (!performed) return sessions_.refuse(waiter, performed.error());
          sessions_.done(waiter);
        });
}

// --- calls

void Manager::begin(sd_bus_message* message, const char* action, Perform perform) {
  DJINN_ASSERT(perform != nullptr);
  const auto call = std::make_shared<Call>(message, action, std::move(perform));
  callers_.identify(sender_of(message), [this, call](const Result<Caller>& caller) {
    if (!caller) return refuse(call->message.get(), caller.error());
    admit(call, *caller);
  });
}

void Manager::admit(const std::shared_ptr<Call>& call, const Caller& caller) {
  if (only_user_ && caller.user != *only_user_) {
    return refuse(call->message.get(), {ErrorCode::kPermissionDenied,
                                        "This djinnd serves another user. Start your own."});
  }
  if ((*in_progress_)[caller.user] >= kCallsPerUser) {
    return refuse(call->message.get(),
                  {ErrorCode::kQueueFull, "Too many calls wait for an answer. Repeat later."});
  }
  DJINN_ASSERT(call->counted == nullptr);
  call->user = caller.user;
  call->counted = in_progress_;
  ++(*in_progress_)[caller.user];
  attempt(call, caller);
}

void Manager::attempt(const std::shared_ptr<Call>& call, const Caller& caller) {
  turns_.owe(caller.user, [this, call, caller] {
    const Waiter waiter = inquiries_.ask(
        [this, call, caller](const ipc::DaemonReply& reply) { attempted(call, caller, reply); });
    call->perform(waiter, caller);
  });
}

void Manager::attempted(const std::shared_ptr<Call>& call, const Caller& caller,
                        const ipc::DaemonReply& reply) {
  sd_bus_message* const message = call->message.get();
  if (caller.admin || !has_polkit_ || !may_be_better(reply)) return answer(message, reply);
  callers_.ask_polkit(::sd_bus_message_get_sender(message), call->action,
                      prompt_for(message, reply), [this, call, caller, reply](bool allowed) {
                        if (allowed) return attempt(call, {caller.user, true});
                        answer(call->message.get(), reply);
                      });
}

void Manager::answer(sd_bus_message* message, const ipc::DaemonReply& reply) {
  if (const auto* failed = std::get_if<ipc::Failed>(&reply.body)) {
    return refuse(message, {failed->code, failed->message});
  }
  bus_.use([&](sd_bus* bus) {
    const bool is_of_old = ::sd_bus_message_get_bus(message) != bus;
    return is_of_old ? 0 : send_answer(message, reply);
  });
}

void Manager::refuse(sd_bus_message* message, const Error& error) {
  bus_.use([&](sd_bus* bus) {
    const bool is_of_old = ::sd_bus_message_get_bus(message) != bus;
    return is_of_old ? 0
                     : ::sd_bus_reply_method_errorf(message, bus_error_of(error.code).c_str(), "%s",
                                                    error.message.c_str());
  });
}

// --- signals

void Manager::on_event(const Event& event) {
  if (!bus_.serving()) return;
  if (!counts_timer_.active()) counts_timer_.start_once(kTellAfterMs);
  const auto of = [&](const char* signal, const std::string& id) {
    subscribers_.tell(event, kPath, kInterface, signal, [&](sd_bus_message* message) {
      return ::sd_bus_message_append(message, "st", id.c_str(), event.bytes.value_or(0));
    });
  };
  const auto about = [&](const char* signal, const std::string& subject) {
    subscribers_.tell(event, kPath, kInterface, signal, [&](sd_bus_message* message) {
      return ::sd_bus_message_append(message, "s", subject.c_str());
    });
  };
  const auto of_device = [&](const char* signal) {
    DJINN_ASSERT(event.device.has_value());
    about(signal, text_of(*event.device));
  };
  switch (event.kind) {
    case EventKind::kDraining:
    case EventKind::kResumed:
      return tell_changed(std::array<const char*, 2>{"Draining"}.data());
    case EventKind::kSessionNew:
      return about("SessionNew", text_of(event.session));
    case EventKind::kSessionRemoved:
      return of("SessionRemoved", text_of(event.session));
    case EventKind::kModelLoaded:
      return of("ModelLoaded", text_of(event.model));
    case EventKind::kModelEvicted:
      return of("ModelEvicted", text_of(event.model));
    case EventKind::kModelUnloaded:
      return of("ModelRemoved", text_of(event.model));
    case EventKind::kWorkerLost:
      return of_device("WorkerLost");
    case EventKind::kDeviceLost:
      return of_device("DeviceLost");
    case EventKind::kDeviceBack:
      return of_device("DeviceBack");
    default:
      return;
  }
}

void Manager::tell_counts() {
  const Counts now{session_count(), model_count(), program_count()};
  if (now == told_ || !bus_.serving()) return;
  std::array<const char*, 4> names{};
  size_t next = 0;
  if (now.sessions != told_.sessions) names[next++] = "SessionCount";
  if (now.models != told_.models) names[next++] = "ModelCount";
  if (now.programs != told_.programs) names[next++] = "ProgramCount";
  DJINN_ASSERT(next > 0 && next < names.size());  // the last is the null that ends them
  told_ = now;
  tell_changed(names.data());
}

void Manager::tell_changed(const char* const* names) {
  bus_.use([&](sd_bus* bus) {
    // sd-bus changes neither the names nor the array, although it takes a pointer that is not
    // const.
    return ::sd_bus_emit_properties_changed_strv(bus, kPath, kInterface, const_cast<char**>(names));
  });
}

}  // namespace djinn::daemon
