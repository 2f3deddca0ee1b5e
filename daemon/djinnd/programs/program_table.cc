// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/programs/program_table.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "ipc/limits.h"
#include "kernel/base/assert.h"
#include "kernel/base/checked.h"

namespace djinn::daemon {

Result<Fingerprint> fingerprint_of(WorkerKey key, ModelId model, const load::Digest& graph) {
  const uint64_t head[] = {key.owner.number(), static_cast<uint64_t>(key.device.kind),
                           key.device.index, model.value};
  DJINN_TRY(load::Sha256 hash, load::Sha256::make());
  DJINN_CHECK(hash.update(std::as_bytes(std::span(head))));
  DJINN_CHECK(hash.update(graph));
  return hash.finish();
}

bool may_follow(ProgramPhase from, ProgramPhase to) {
  return from == ProgramPhase::kAdmitting && to == ProgramPhase::kAdmitted;
}

Program& ProgramTable::add(Program program) {
  const ProgramId id = program.id;
  DJINN_ASSERT(id.valid() && !by_fingerprint_.contains(program.fingerprint));
  by_fingerprint_[program.fingerprint] = id;
  const auto [at, fresh] = programs_.emplace(id, std::move(program));
  DJINN_ASSERT(fresh);
  touch(at->second);
  return at->second;
}

Program* ProgramTable::find(ProgramId id) {
  const auto found = programs_.find(id);
  return found == programs_.end() ? nullptr : &found->second;
}

Program* ProgramTable::find(const Fingerprint& fingerprint) {
  const auto found = by_fingerprint_.find(fingerprint);
  return found == by_fingerprint_.end() ? nullptr : find(found->second);
}

void ProgramTable::erase(ProgramId id) {
  const auto found = programs_.find(id);
  if (found == programs_.end()) return;
  by_fingerprint_.erase(found->second.fingerprint);
  programs_.erase(found);
  DJINN_ASSERT(programs_.size() == by_fingerprint_.size());
}

bool ProgramTable::has_room(WorkerKey key, uint64_t bytes) const {
  uint32_t count = 0;
  uint64_t kept = 0;
  for (const auto& [id, program] : programs_) {
    if (program.worker != key) continue;
    ++count;
    kept += program.graph_bytes;
  }
  return count < limits::kProgramsPerUser && kept <= kBytesPerDomain &&
         bytes <= kBytesPerDomain - kept;
}

Program* ProgramTable::oldest_unused(WorkerKey key) {
  Program* oldest = nullptr;
  for (auto& [id, program] : programs_) {
    const bool unused =
        program.worker == key && program.users.empty() && program.phase == ProgramPhase::kAdmitted;
    if (unused && (oldest == nullptr || program.last_used < oldest->last_used)) oldest = &program;
  }
  return oldest;
}

std::vector<ProgramId> ProgramTable::left_over(WorkerKey key) const {
  std::vector<const Program*> unused;
  for (const auto& [id, program] : programs_) {
    if (program.worker != key) continue;
    if (!program.users.empty() || !program.waiters.empty()) return {};
    if (program.phase == ProgramPhase::kAdmitted) unused.push_back(&program);
  }
  std::ranges::sort(unused, std::greater(), &Program::last_used);
  std::vector<ProgramId> beyond;
  uint64_t kept = 0;
  for (const Program* program : unused) {
    const bool fits = range_fits(kept, program->graph_bytes, kBytesUnused);
    if (fits) kept += program->graph_bytes;
    if (!fits) beyond.push_back(program->id);
  }
  return beyond;
}

}  // namespace djinn::daemon
