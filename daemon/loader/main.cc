// djinn-loader: reads one model into extents, hashes it, exits. Started by djinnd only, ahead of
// need.
//
//   djinn-loader --channel-fd N

#include <fmt/format.h>
#include <stdio.h>

#include <CLI/CLI.hpp>

#include "daemon/child/confinement.h"
#include "daemon/loader/loader.h"
#include "ipc/codec/control_codec.h"
#include "kernel/pal/host_pal.h"

namespace djinn::loader {
namespace {

Status serve(int channel_fd) {
  DJINN_CHECK(child::become_child());
  child::Channel channel{Fd(channel_fd)};
  DJINN_TRY(const auto pal, pal::HostPal::make());  // opens what a confined process could not
  DJINN_TRY(const child::Confinement confinement, child::confine(child::Role::kLoader));
  const SystemClock clock;
  DJINN_CHECK(channel.send(ipc::encode(
      ipc::LoaderEvent{ipc::LoaderReady{confinement.landlock_abi, confinement.seccomp}})));
  return Loader(channel, *pal, clock).run();
}

}  // namespace
}  // namespace djinn::loader

int main(int argc, char** argv) {
  int channel_fd = -1;
  CLI::App app("djinn-loader: reads one model; djinnd starts it");
  app.add_option("--channel-fd", channel_fd, "socket to djinnd")->required();
  CLI11_PARSE(app, argc, argv);

  const djinn::Status ended = djinn::loader::serve(channel_fd);
  // djinnd closing the channel before a load is the ordinary end of a spare.
  if (ended || ended.error().code == djinn::ErrorCode::kDisconnected) return 0;
  fmt::print(stderr, "djinn-loader: {}\n", ended.error().message);
  return 1;
}
