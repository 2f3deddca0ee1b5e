// SPDX-License-Identifier: Apache-2.0

// This describes org.djinn.Manager1 to sd-bus: its members, their arguments, and who answers.
// packaging/dbus/org.djinn.Manager1.xml is the XML that sd-bus makes of it.
#include "daemon/djinnd/dbus/manager.h"
#include "daemon/djinnd/host/version.h"

namespace djinn::daemon {
namespace {

int append(sd_bus_message* reply, const char* text) {
  return ::sd_bus_message_append(reply, "s", text);
}
int append(sd_bus_message* reply, bool value) {
  return ::sd_bus_message_append(reply, "b", static_cast<int>(value));
}
int append(sd_bus_message* reply, uint32_t number) {
  return ::sd_bus_message_append(reply, "u", number);
}
int append(sd_bus_message* reply, uint64_t number) {
  return ::sd_bus_message_append(reply, "t", number);
}

// Without this flag sd-bus would decide by itself who may call, and block while it asks.
constexpr uint64_t kOpen = SD_BUS_VTABLE_UNPRIVILEGED;
constexpr uint64_t kTells = SD_BUS_VTABLE_PROPERTY_EMITS_CHANGE;

}  // namespace

template <void (Manager::*method)(sd_bus_message*)>
int Manager::handle(sd_bus_message* message, void* self, sd_bus_error*) {
  (static_cast<Manager*>(self)->*method)(message);
  return 1;
}

template <auto value>
int Manager::property(sd_bus*, const char*, const char*, const char*, sd_bus_message* reply,
                      void* self, sd_bus_error*) {
  return append(reply, (static_cast<const Manager*>(self)->*value)());
}

const char* Manager::version() const {
  return kVersion;
}
bool Manager::draining() const {
  return drain_.draining();
}
uint64_t Manager::total_bytes() const {
  return devices_.total_bytes();
}
uint64_t Manager::granted_bytes() const {
  return devices_.granted_bytes();
}
uint32_t Manager::session_count() const {
  return static_cast<uint32_t>(sessions_.all().size());
}
uint32_t Manager::model_count() const {
  return static_cast<uint32_t>(models_.table().size());
}
uint32_t Manager::program_count() const {
  return static_cast<uint32_t>(programs_.table().size());
}

const sd_bus_vtable* Manager::vtable() {
  static const sd_bus_vtable kTable[] = {
      SD_BUS_VTABLE_START(0),
      SD_BUS_METHOD_WITH_ARGS("ListSessions", SD_BUS_NO_ARGS, SD_BUS_RESULT("aa{sv}", sessions),
                              &Manager::handle<&Manager::list_sessions>, kOpen),
      SD_BUS_METHOD_WITH_ARGS("ListModels", SD_BUS_NO_ARGS, SD_BUS_RESULT("aa{sv}", models),
                              &Manager::handle<&Manager::list_models>, kOpen),
      SD_BUS_METHOD_WITH_ARGS("ListUses", SD_BUS_ARGS("s", model), SD_BUS_RESULT("aa{sv}", uses),
                              &Manager::handle<&Manager::list_uses>, kOpen),
      SD_BUS_METHOD_WITH_ARGS("ListDevices", SD_BUS_NO_ARGS, SD_BUS_RESULT("aa{sv}", devices),
                              &Manager::handle<&Manager::list_devices>, kOpen),
      SD_BUS_METHOD_WITH_ARGS("Subscribe", SD_BUS_NO_ARGS, SD_BUS_NO_RESULT,
                              &Manager::handle<&Manager::subscribe>, kOpen),
      SD_BUS_METHOD_WITH_ARGS("Unsubscribe", SD_BUS_NO_ARGS, SD_BUS_NO_RESULT,
                              &Manager::handle<&Manager::unsubscribe>, kOpen),
      SD_BUS_METHOD_WITH_ARGS("Evict", SD_BUS_ARGS("s", model, "s", to, "b", force),
                              SD_BUS_NO_RESULT, &Manager::handle<&Manager::evict>, kOpen),
      SD_BUS_METHOD_WITH_ARGS("Cancel", SD_BUS_ARGS("s", session), SD_BUS_NO_RESULT,
                              &Manager::handle<&Manager::cancel>, kOpen),
      SD_BUS_METHOD_WITH_ARGS("Terminate", SD_BUS_ARGS("s", session), SD_BUS_NO_RESULT,
                              &Manager::handle<&Manager::terminate>, kOpen),
      SD_BUS_METHOD_WITH_ARGS("Pin", SD_BUS_ARGS("s", model), SD_BUS_NO_RESULT,
                              &Manager::handle<&Manager::pin>, kOpen),
      SD_BUS_METHOD_WITH_ARGS("Unpin", SD_BUS_ARGS("s", model), SD_BUS_NO_RESULT,
                              &Manager::handle<&Manager::unpin>, kOpen),
      SD_BUS_METHOD_WITH_ARGS("Reload", SD_BUS_NO_ARGS, SD_BUS_NO_RESULT,
                              &Manager::handle<&Manager::reload>, kOpen),
      SD_BUS_METHOD_WITH_ARGS("Drain", SD_BUS_NO_ARGS, SD_BUS_NO_RESULT,
                              &Manager::handle<&Manager::drain>, kOpen),
      SD_BUS_METHOD_WITH_ARGS("Resume", SD_BUS_NO_ARGS, SD_BUS_NO_RESULT,
                              &Manager::handle<&Manager::resume>, kOpen),
      SD_BUS_PROPERTY("Version", "s", &Manager::property<&Manager::version>, 0,
                      SD_BUS_VTABLE_PROPERTY_CONST),
      SD_BUS_PROPERTY("Draining", "b", &Manager::property<&Manager::draining>, 0, kTells),
      SD_BUS_PROPERTY("MemoryTotalBytes", "t", &Manager::property<&Manager::total_bytes>, 0, 0),
      SD_BUS_PROPERTY("MemoryGrantedBytes", "t", &Manager::property<&Manager::granted_bytes>, 0, 0),
      SD_BUS_PROPERTY("SessionCount", "u", &Manager::property<&Manager::session_count>, 0, kTells),
      SD_BUS_PROPERTY("ModelCount", "u", &Manager::property<&Manager::model_count>, 0, kTells),
      SD_BUS_PROPERTY("ProgramCount", "u", &Manager::property<&Manager::program_count>, 0, kTells),
      SD_BUS_SIGNAL_WITH_ARGS("SessionNew", SD_BUS_ARGS("s", session), 0),
      SD_BUS_SIGNAL_WITH_ARGS("SessionRemoved", SD_BUS_ARGS("s", session, "t", bytes), 0),
      SD_BUS_SIGNAL_WITH_ARGS("ModelLoaded", SD_BUS_ARGS("s", model, "t", bytes), 0),
      SD_BUS_SIGNAL_WITH_ARGS("ModelEvicted", SD_BUS_ARGS("s", model, "t", bytes), 0),
      SD_BUS_SIGNAL_WITH_ARGS("ModelRemoved", SD_BUS_ARGS("s", model, "t", bytes), 0),
      SD_BUS_SIGNAL_WITH_ARGS("WorkerLost", SD_BUS_ARGS("s", device), 0),
      SD_BUS_SIGNAL_WITH_ARGS("DeviceLost", SD_BUS_ARGS("s", device), 0),
      SD_BUS_SIGNAL_WITH_ARGS("DeviceBack", SD_BUS_ARGS("s", device), 0),
      SD_BUS_VTABLE_END};
  return kTable;
}

}  // namespace djinn::daemon
