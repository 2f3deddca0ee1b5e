// SPDX-License-Identifier: Apache-2.0

// FdStore: has systemd keep the descriptors of resident models, so that the next djinnd has them
// without reading a byte (ARCHITECTURE section 8). Each model has
//
//   record     a sealed memfd that says what it is; newer ones have larger numbers
//   the rest   its extents and manifest, and its files as far as they lie on block devices: systemd
//              must never hold a descriptor of a file system that can hang
//
// invariant: a record is given after everything that it names and taken back before, so whatever
// moment djinnd dies at, a model with a record is complete.
// invariant: systemd never refuses one of these: they are counted, and a model for which there is
// no room, or whose descriptors cannot be given, is not kept at all. It is tried again with the
// next change of any model; so is a record that is out of date.
//
// A copy of a model in a GPU's memory has no record: it is compared with its model before it counts
// (models/copies.h), so what is missing or another's costs an upload. One for which there is no
// room is not kept. With a GPU's first copy goes its anchor, a descriptor of the GPU's node: as
// long as somebody has that open, the driver keeps the device, and with it what was exported,
// although no process of ours runs.
//
// Nobody waits for systemd to hear that it is to let go of a model's extents: until then, which is
// soon unless it hangs, memory is in use that is granted to nobody.
//
// Where systemd does not listen nothing is kept, and nothing is lost but time.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/host/notifier.h"
#include "daemon/djinnd/memory/devices.h"
#include "daemon/djinnd/models/copies.h"
#include "daemon/djinnd/models/model.h"

namespace djinn::daemon {

struct KeptCopy {
  ModelId model;
  DeviceId device;
  std::vector<Fd> extents;
};

class FdStore {
 public:
  // devices: that models may be on. events: hear of a resident model that is not kept, once until
  // it is kept or gone. descriptors_max: that systemd holds for us.
  FdStore(Notifier& notifier, const Devices& devices, Events& events, size_t descriptors_max)
      : notifier_(notifier),
        devices_(devices),
        events_(events),
        descriptors_max_(descriptors_max) {}

  // What the predecessor left, by name: complete models, resident. The rest is taken out of the
  // store, with a line in the log.
  std::vector<Model> take_back(std::map<std::string, Fd> kept);

  // Sees that systemd holds the resident ones of these as they are now, and no other but those that
  // are returning: taken back, and not in the table yet.
  void keep(const std::map<ModelId, Model>& models, const std::set<ModelId>& returning = {});

  // A predecessor's copies, of devices and models that need not be there any more; they are taken
  // out of what it left. Before take_back().
  std::vector<KeptCopy> take_copies(std::map<std::string, Fd>& kept);
  // The anchor of a GPU, that a predecessor left; none where it left none. Likewise.
  [[nodiscard]] Fd take_anchor(std::map<std::string, Fd>& kept, DeviceId gpu);
  // Sees that systemd holds these, and no other.
  void keep_copies(const std::vector<Copies::Kept>& copies);
  // Where it was kept.
  void forget_anchor(DeviceId gpu);
  // From now on copies of that GPU can be kept.
  void keep_anchor(DeviceId gpu, const Fd& node);

  // That systemd was given and not asked back.
  [[nodiscard]] size_t descriptors() const { return held_; }
  [[nodiscard]] size_t descriptors_max() const { return descriptors_max_; }
  // Resident ones that would not outlive a restart.
  [[nodiscard]] size_t models_not_kept() const { return not_kept_.size(); }

 private:
  friend struct DaemonForTests;

  struct Record {
    uint64_t number = 0;
    std::vector<std::byte> bytes;
    std::vector<std::string> names;  // of the rest
  };
  struct Part {
    std::string name;
    const Fd* fd;
  };
  static std::vector<Part> parts_of(const Model& model);

  void keep_one(const Model& model);
  void keep_record(ModelId id, Record& record, std::vector<std::byte> bytes);
  Status give_all(const Model& model, const std::vector<Part>& parts, std::vector<std::byte> bytes);
  void forget_unsent();
  void leave_out(const Model& model, const std::string& why);
  Status give_record(ModelId id, Record& record, std::vector<std::byte> bytes);
  void forget(std::map<ModelId, Record>::iterator kept);

  Notifier& notifier_;
  const Devices& devices_;
  Events& events_;
  size_t descriptors_max_;
  using CopyKey = std::pair<ModelId, DeviceId>;
  void forget(std::map<CopyKey, size_t>::iterator copy);
  void keep_copy(const Copies::Kept& copy);

  std::map<ModelId, Record> records_;
  std::map<CopyKey, size_t> copies_;  // how many extents
  std::set<DeviceId> anchors_;
  size_t held_ = 0;
  std::set<ModelId> not_kept_;
};

// Whether a descriptor of such a name is the store's, among those that systemd passes.
[[nodiscard]] bool is_kept(std::string_view name);

// How many descriptors systemd holds for us: $FDSTORE, which it says from version 254 on; before,
// what the installed unit has. 0 where it does not listen.
[[nodiscard]] size_t store_size();

}  // namespace djinn::daemon
