// SPDX-License-Identifier: Apache-2.0

// djinn-loader reads one model into extents that djinnd made. Only djinnd starts it.
//
//   djinn-loader --build IDENTITY --channel-fd N
//
// It confines itself, says that it is ready, does one load, and exits.

#include <signal.h>

#include <CLI/CLI.hpp>

#include "daemon/child/channel.h"
#include "daemon/child/confinement.h"
#include "daemon/child/memory_bound.h"
#include "daemon/loader/one_load.h"
#include "ipc/build_identity.h"
#include "ipc/codec/control_codec.h"
#include "kernel/load/hash.h"
#include "kernel/pal/huge_pages.h"

namespace djinn::loader {
namespace {

// Headers, plans and buffers at their limits take half of this. The bound keeps a file from making
// the loader take more of the host's memory.
constexpr uint64_t kPrivateBytes = uint64_t{4} << 30;

// OpenSSL reads its configuration when it is first used, which the confinement would not allow
// later.
Status warm_up() {
  DJINN_TRY(load::Sha256 hash, load::Sha256::make());
  DJINN_TRY([[maybe_unused]] const load::Digest digest, hash.finish());
  return {};
}

Status serve(int channel_fd) {
  DJINN_CHECK(child::become_child());
  ::signal(SIGPIPE, SIG_IGN);
  child::Channel channel{Fd(channel_fd)};
  DJINN_CHECK(warm_up());
  DJINN_CHECK(child::bound_private_memory(kPrivateBytes));
  const pal::OwnMappings mappings = pal::OwnMappings::open();
  DJINN_TRY(const child::Confinement confined, child::confine(child::Role::kLoader));
  const ipc::LoaderReady ready{confined.landlock_abi, confined.seccomp};
  DJINN_CHECK(channel.send(ipc::encode(ipc::LoaderEvent{ready})));
  const SystemClock clock;
  return OneLoad(channel, clock, mappings, ready).run();
}

}  // namespace
}  // namespace djinn::loader

int main(int argc, char** argv) {
  if (djinn::ipc::started_by_other_build(argc, argv)) return djinn::ipc::kOtherBuildStatus;
  std::string build;
  int channel_fd = -1;
  CLI::App app("djinn-loader: reads one model; djinnd starts it");
  app.add_option(djinn::ipc::kBuildOption, build, "build of djinnd")->required();
  app.add_option("--channel-fd", channel_fd, "socket to djinnd")->required();
  CLI11_PARSE(app, argc, argv);
  // Whatever went wrong, djinnd has been told of it, or is gone.
  return djinn::loader::serve(channel_fd) ? 0 : 1;
}
