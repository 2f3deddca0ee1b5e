// SPDX-License-Identifier: Apache-2.0

// OneLoad: what a loader does in its life: one model, from files to a hash, at djinnd's word.
//
//   TakeFiles...  -> Identified   what the files are, before a byte is read
//   ReleaseFiles  -> LoaderReady  their model is resident: on to the next files
//   TakeIn        -> TakenIn      one file is copied into the store of models; any number of them
//   PlanLoad      -> Planned      headers and plan understood; how large the extents must be
//   CompareWith   -> Compared     whether the files are those of a resident model; then it ends
//   ReadInto      -> Progress... Loaded   the bytes are there, all writable views are gone
//                 -> Hashed       read once more, when nobody else needs the core
//
// Any error is told as LoadFailed and ends the load.
#pragma once

#include <vector>

#include "daemon/child/channel.h"
#include "ipc/messages.h"
#include "kernel/base/clock.h"
#include "kernel/base/fd.h"
#include "kernel/base/result.h"
#include "kernel/load/execute.h"
#include "kernel/load/plan.h"
#include "kernel/load/source.h"
#include "kernel/pal/huge_pages.h"

namespace djinn::loader {

class OneLoad {
 public:
  // ready: what to say when this loader is a spare again.
  // mappings: of this process; outlive it, as channel and clock do.
  OneLoad(child::Channel& channel, const Clock& clock, const pal::OwnMappings& mappings,
          const ipc::LoaderReady& ready)
      : channel_(channel), clock_(clock), own_mappings_(mappings), ready_(ready) {}

  // Errors: kDisconnected when djinnd wants no more; else what was told as LoadFailed.
  Status run();

 private:
  struct Order {
    ipc::LoaderCommand command;
    std::vector<Fd> fds;
  };
  Result<Order> receive();
  template <typename Command>
  Result<std::pair<Command, std::vector<Fd>>> expect();
  Status send(const ipc::LoaderEvent& event, std::span<const int> fds = {});

  Status work();
  Status take_files();
  Status identify();
  Status plan(const Order& order);
  Status take_in(const Order& order);
  Status copy(const ipc::TakeIn& command, const Fd& to);
  void forget_files();
  Status read_or_compare();
  Status read(const ipc::ReadInto& command, const std::vector<Fd>& extents);
  Status compare(const ipc::CompareWith& command, std::vector<Fd> fds);
  Result<bool> is_model(const ipc::CompareWith& command, const std::vector<Fd>& fds);
  Status execute(const std::vector<Fd>& extents);
  Status hash(const std::vector<Fd>& extents);

  child::Channel& channel_;
  const Clock& clock_;
  const pal::OwnMappings& own_mappings_;
  ipc::LoaderReady ready_;
  std::vector<Fd> files_;
  std::vector<load::SourceFile> sources_;
  load::ReadPlan plan_;
};

}  // namespace djinn::loader
