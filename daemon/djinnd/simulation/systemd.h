// SPDX-License-Identifier: Apache-2.0

// Systemd: what a simulated machine's systemd keeps for the next djinnd: descriptors under names.
//
//   refused   a name whose descriptor was sent and did not arrive; djinnd was told
//   record    of a model: it names what else is kept of it, and without it that is of no use
//
// invariant: a model of which there is a record, and nothing was refused, is complete.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ipc/kept_model.h"
#include "kernel/base/fd.h"
#include "kernel/base/ids.h"

namespace djinn::daemon::simulation {

class Machine;

class Systemd {
 public:
  explicit Systemd(Machine& machine) : machine_(machine) {}
  ~Systemd();
  Systemd(const Systemd&) = delete;
  Systemd& operator=(const Systemd&) = delete;

  // Is there from now on, and keeps so many descriptors; those that it has it keeps.
  void listen(uint64_t descriptors_max);
  // Whoever speaks is not heard: its process is dead.
  void set_deaf(bool deaf) { deaf_ = deaf; }

  // As sd_notify(3) does. fd: -1 for none.
  int hear(const std::string& message, int fd);
  // What it passes to the next djinnd, and keeps.
  [[nodiscard]] std::map<std::string, Fd> pass() const;

  [[nodiscard]] size_t descriptors() const;
  // What the newest records say, of models that are complete.
  [[nodiscard]] std::map<ModelId, ipc::KeptModel> models() const;
  // Of those models.
  [[nodiscard]] std::map<ModelId, std::vector<Fd>> extents() const;
  // Whether something of the model was refused, and not taken out since.
  [[nodiscard]] bool has_refused(ModelId id) const;
  // What does not hold, if anything does not.
  [[nodiscard]] std::optional<std::string> check();

 private:
  void take_out(const std::string& name);
  [[nodiscard]] std::map<ModelId, ipc::KeptModel> records() const;
  [[nodiscard]] bool is_complete(const ipc::KeptModel& model) const;

  Machine& machine_;
  bool deaf_ = false;
  uint64_t descriptors_max_ = 0;
  std::multimap<std::string, Fd> kept_;
  std::set<std::string> refused_;
  bool changed_ = false;  // since it was checked
  std::optional<std::string> failure_;
};

}  // namespace djinn::daemon::simulation
