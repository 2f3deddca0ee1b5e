// Loader: one load, as djinnd drives it over the channel: files, plan, extents, hash.
//
//   TakeFiles...  -> Identified   what the files are, before a byte of them is read
//   PlanLoad      -> Planned      headers parsed, the plan resolved: how large the extents must be
//   ReadInto      -> Progress..., Loaded   the bytes are there, and every writable view is unmapped
//                 -> Hashed       read once more at idle priority; then the process ends
//
// Any error is one LoadFailed, and the end. djinnd may kill this process at any moment: nothing is
// visible to anybody before djinnd has sealed it.
#pragma once

#include <vector>

#include "daemon/child/channel.h"
#include "ipc/messages.h"
#include "kernel/base/clock.h"
#include "kernel/load/execute.h"
#include "kernel/load/identity.h"
#include "kernel/load/plan.h"
#include "kernel/pal/device_pal.h"

namespace djinn::loader {

class Loader {
 public:
  Loader(child::Channel& channel, pal::DevicePal& pal, const Clock& clock)
      : channel_(channel), pal_(pal), clock_(clock) {}

  // Obeys until the load is hashed. Errors: what ended it; djinnd has been told.
  Status run();

 private:
  template <typename Command>
  Result<Command> expect(std::vector<Fd>* fds);
  void send(const ipc::LoaderEvent& event, std::span<const int> fds = {});

  Status take_files();
  Status plan();
  Status read();
  Status fill(const load::ReadPlan& plan, const std::vector<pal::Extent>& extents);
  Status hash(const std::vector<pal::Extent>& extents);

  child::Channel& channel_;
  pal::DevicePal& pal_;
  const Clock& clock_;
  std::vector<Fd> files_;
  std::vector<load::SourceFile> sources_;
  load::ReadPlan plan_;
};

}  // namespace djinn::loader
