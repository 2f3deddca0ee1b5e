// SPDX-License-Identifier: Apache-2.0

// djinn-mover works on the memory of one GPU at djinnd's word. Only djinnd starts it.
//
//   djinn-mover --build IDENTITY --channel-fd N --device ORDINAL
//
// It opens the device, confines itself, and says that it is ready, or why there is no device.

#include <signal.h>

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "daemon/child/channel.h"
#include "daemon/child/confinement.h"
#include "daemon/mover/device.h"
#include "daemon/mover/orders.h"
#include "ipc/build_identity.h"
#include "ipc/codec/mover_codec.h"
#include "ipc/exit_status.h"

namespace djinn::mover {
namespace {

struct Opened {
  Device device;
  ipc::MoverReady ready;
};

Result<Opened> open(int ordinal) {
  DJINN_TRY(Device device, Device::open(ordinal));
  const std::optional<uint32_t> minor =
      device.health == nullptr ? std::nullopt : device.health->minor();
  DJINN_TRY(const child::Confinement confined,
            child::confine(child::Role::kMover, driver_nodes(minor)));
  ipc::MoverReady ready{confined.landlock_abi,
                        confined.seccomp,
                        device.names.name,
                        device.names.uuid,
                        device.driver_version(),
                        device.pal->properties().granularity_bytes,
                        minor};
  return Opened{std::move(device), std::move(ready)};
}

Status serve(int channel_fd, int ordinal) {
  DJINN_CHECK(child::become_child());
  ::signal(SIGPIPE, SIG_IGN);
  child::Channel channel{Fd(channel_fd)};
  Result<Opened> opened = open(ordinal);
  if (!opened) {
    const Error& error = opened.error();
    DJINN_CHECK(
        channel.send(ipc::encode(ipc::MoverEvent{0, ipc::OrderFailed{error.code, error.message}})));
    return error;
  }
  DJINN_CHECK(channel.send(ipc::encode(ipc::MoverEvent{0, opened->ready})));
  return Orders(channel, opened->device).run();
}

int status_of(const Status& served) {
  if (served || served.error().code == ErrorCode::kDisconnected) return 0;
  return served.error().code == ErrorCode::kDeviceLost ? ipc::kDeviceLostStatus : 1;
}

}  // namespace
}  // namespace djinn::mover

int main(int argc, char** argv) {
  if (djinn::ipc::started_by_other_build(argc, argv)) return djinn::ipc::kOtherBuildStatus;
  std::string build;
  int channel_fd = -1;
  int ordinal = -1;
  CLI::App app("djinn-mover: works on the memory of one GPU; djinnd starts it");
  app.add_option(djinn::ipc::kBuildOption, build, "build of djinnd")->required();
  app.add_option("--channel-fd", channel_fd, "socket to djinnd")->required();
  app.add_option("--device", ordinal, "which GPU, in the order of the PCI bus")->required();
  CLI11_PARSE(app, argc, argv);
  return djinn::mover::status_of(djinn::mover::serve(channel_fd, ordinal));
}
