// Keeper: has systemd keep the descriptors of resident models, so that the next djinnd has them
// without reading a byte (DESIGN section 8). Each model has
//
//   record     a sealed memfd that says what it is; newer ones have larger numbers
//   the rest   its extents and manifest, and its files as far as they lie on block devices: systemd
//              must never hold a descriptor of a file system that can hang
//
// invariant: a record is given after everything that it names and taken back before, so whatever
// moment djinnd dies at, a model with a record is complete.
// Where systemd does not listen nothing is kept, and nothing is lost but time.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "daemon/djinnd/model.h"

namespace djinn::daemon {

class Keeper {
 public:
  // What the predecessor left, by name: complete models, resident. The rest is taken out of the
  // store, with a line in the log.
  std::vector<Model> take_back(std::map<std::string, Fd> kept);

  // Sees that systemd holds the resident ones of these as they are now, and no other.
  void keep(const std::map<ModelId, Model>& models);

  // That systemd was given and not asked back, where it listens.
  [[nodiscard]] size_t descriptors() const;

 private:
  struct Record {
    uint64_t number = 0;
    std::vector<std::byte> bytes;
    std::vector<std::string> names;  // of the rest
  };

  void keep_one(const Model& model);

  std::map<ModelId, Record> records_;
};

// Of the descriptors that systemd passes, those with such a name are the keeper's.
[[nodiscard]] bool is_kept(std::string_view name);

}  // namespace djinn::daemon
