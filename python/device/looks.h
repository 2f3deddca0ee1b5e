// SPDX-License-Identifier: Apache-2.0

// Looks: what a capture's code saw of the values that it was given, and how that came about. A
// program of the capture holds for other values of which the code would see the same: a mask with
// zeros elsewhere, if it asked only whether all are ones.
//
//   Slot   a run of bytes: those of a given tensor, known from elsewhere, or computed
//   Step   an operator on the CPU, from slots to slots
//   Look   elements of a slot, as the code saw them
#pragma once

#include <map>
#include <optional>
#include <variant>
#include <vector>

#include "python/device/log.h"

namespace djinn::device {

class Looks {
 public:
  // An operator is about to be computed on shadows, of which one depends on what was given. stack:
  // as called. Called under the device's lock, as look().
  void compute(const c10::OperatorHandle& op, const Stack& stack, const Entry& entry);
  // The code sees the elements of this view, which depend on what was given. They are contiguous.
  void look(const Operand& view, const at::Tensor& elements);
  // Forgets what led to no look, and the capture's storages.
  void finish();
  // Whether code that is given these would see the same. given: by number, on the CPU; undefined
  // ones were not looked at. Precondition: finish().
  [[nodiscard]] bool are_same_for(const std::vector<at::Tensor>& given) const;

 private:
  using SlotNumber = size_t;
  struct Slot {
    std::optional<uint32_t> given;
    c10::Storage known;  // null: computed
  };
  struct View {
    SlotNumber slot = 0;
    Operand shape;  // without its storage
  };
  struct Made {
    SlotNumber slot = 0;
    Product product;
    uint64_t bytes = 0;
  };
  struct Step {
    c10::OperatorHandle op;
    Stack stack;  // a meta tensor in the place of each of the views
    std::vector<View> views;
    std::vector<uint32_t> written;  // numbers of views
    std::vector<Made> made;
  };
  struct Look {
    View view;
    at::Tensor elements;
  };
  using Act = std::variant<Step, Look>;
  class Again;

  View view_of(const Operand& operand, bool is_written);
  SlotNumber slot_of(const StoragePtr& storage, bool is_written);
  static bool leads_to(const Step& step, const std::vector<bool>& needed);

  std::vector<Slot> slots_;
  std::vector<Act> acts_;
  std::map<StoragePtr, SlotNumber> numbers_;  // of what was given, or depends on it
};

}  // namespace djinn::device
