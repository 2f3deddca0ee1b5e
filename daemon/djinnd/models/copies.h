// SPDX-License-Identifier: Apache-2.0

// Copies: models in the memory of GPUs. The host's extents are the tier below: a copy is made from
// them, is dropped without copying anything back, and is made anew without reading a file.
//
//   copy      of one model on one GPU: an extent for each of the host's, of whole granules
//   sums      of what the copy's extents must hold. They are computed from the host's extents for
//             each comparison, with a key that no mover knew before; only the GPU's bytes are a
//             mover's word
//
//   granting -> making -> filling -> comparing -> there
//   comparing -> filling          its bytes are others, and no worker maps it: it is zeroed and
//                                 filled again, once
//   comparing -> leaving          its bytes are others, and a worker maps it: it is made anew when
//                                 all have let go
//   granting -> comparing         a predecessor made it, and systemd kept its descriptors
//   there -> comparing            it is placed again: whoever has its descriptors might have
//                                 written to it
//   there -> comparing            a worker has died that had it
//   any -> leaving -> gone        its memory is wanted, the model leaves the host, or it has failed
//
// A mover's death is none of these: what was not answered is ordered of the next (gpu.h).
//
// invariant: a copy's model is resident, or waits until the copy is gone: what reads the host's
// extents, a mover or a thread, has let go of them.
// invariant: the bytes were granted by the GPU's books before, and stay granted until they are
// free: no worker maps them any more.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/djinnd/access/replies.h"
#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/loop/loop.h"
#include "daemon/djinnd/loop/work_queue.h"
#include "daemon/djinnd/memory/devices.h"
#include "daemon/djinnd/models/model.h"
#include "daemon/djinnd/models/weights.h"
#include "daemon/djinnd/workers/gpu.h"
#include "kernel/base/device_id.h"
#include "kernel/base/keyed_checksum.h"
#include "kernel/base/owned_state.h"

namespace djinn::daemon {

enum class CopyPhase : uint8_t { kGranting, kMaking, kFilling, kComparing, kThere, kLeaving };
// Pure: the drawing above as a table.
[[nodiscard]] bool may_follow(CopyPhase from, CopyPhase to);

class Copies final : public Weights {
 public:
  // Who hears of them.
  class Listener {
   public:
    // The last copy of a model is gone.
    virtual void copies_gone(ModelId model) = 0;
    // Others than before would outlive djinnd.
    virtual void copies_changed() = 0;
    // Of a resident model. It is there, and was compared; or is about to leave; or cannot be there.
    virtual void copy_came(ModelId model, DeviceId device) = 0;
    virtual void copy_leaves(ModelId model, DeviceId device) = 0;
    virtual void copy_failed(ModelId model, DeviceId device, const Error& why) = 0;
    // Whether no worker maps it: its memory can be freed. If not, let_go() is called later.
    [[nodiscard]] virtual bool is_let_go(ModelId model, DeviceId device) const = 0;
    // Whether a session there holds the model; whether one that does may run with it now; whether
    // a worker that maps it is in a step that goes on for long.
    [[nodiscard]] virtual bool is_held(ModelId model, DeviceId device) const = 0;
    [[nodiscard]] virtual bool is_run(ModelId model, DeviceId device) const = 0;
    [[nodiscard]] virtual bool is_held_up(ModelId model, DeviceId device) const = 0;

   protected:
    ~Listener() = default;
  };
  // Of one copy, what systemd may keep.
  struct Kept {
    ModelId model;
    DeviceId device;
    const std::vector<Fd>* extents;
  };

  Copies(Loop& loop, const Devices& devices, const Gpus& gpus, Replies& replies, Events& events,
         ModelTable& table, Listener& listener);
  ~Copies();

  // Puts a copy of the model there, or compares the one that is there. The waiter is answered.
  void place(const Waiter& waiter, const Model& model, DeviceId device);
  // A session there is to have the resident model: sees that there is a copy. The listener hears of
  // what comes of it, later.
  void want(const Model& model, DeviceId device);
  // A session there has opened the model, and has its copy. Nothing on the host.
  void touch(ModelId model, DeviceId device);
  // Null unless there is one that was compared.
  [[nodiscard]] const std::vector<Fd>* extents_of(ModelId model, DeviceId device) const;
  // A worker of the device has died that could have written to it: compares it, if it is there,
  // and once more, if it is being compared.
  void check(const Model& model, DeviceId device);
  // A worker of some GPU that had it does so no more.
  void let_go(ModelId model);
  // Drops all copies of the model; the waiter is answered when their memory is free.
  void drop(const Waiter& waiter, const Model& model);
  // The model leaves the host.
  void drop(ModelId model);

  // --- of a predecessor
  // Its memory is granted, and it is compared, once the GPU is ready. One whose model or GPU is not
  // there then is freed.
  void take_back(ModelId model, DeviceId device, std::vector<Fd> extents);
  // It is known how many bytes the GPU has.
  void gpu_ready(DeviceId device);
  // Nothing that is there can be reached any more.
  void gpu_lost(DeviceId device);
  // Complete ones, and those that were taken back.
  [[nodiscard]] std::vector<Kept> kept() const;

  // Of the model, whatever becomes of them.
  [[nodiscard]] bool has(ModelId model) const;
  // Bit n: cuda:n has one that was compared.
  [[nodiscard]] uint32_t places_of(ModelId model) const;

  // --- memory of a GPU is short
  // Copies go of models that nobody has pinned and that no opener waits for.
  [[nodiscard]] uint64_t leaving_bytes(DeviceId device) const override;
  [[nodiscard]] uint64_t held_up_bytes(DeviceId device) const override;
  [[nodiscard]] uint64_t pinned_bytes(DeviceId device) const override;

 private:
  using Key = std::pair<ModelId, DeviceId>;
  struct Sums {
    ChecksumKey key{};
    std::vector<Checksum> of_extents{};
  };
  struct Copy {
    explicit Copy(Key of) : key(of) {}

    Key key;
    OwnedState<CopyPhase, Copies> phase;
    std::vector<uint64_t> sizes;  // of the extents
    std::vector<Fd> extents;
    uint64_t bytes = 0;
    uint64_t granted_bytes = 0;
    uint64_t last_used = 0;       // placed, or opened: a counter
    uint64_t uploaded_bytes = 0;  // since it was placed last
    size_t extent = 0;            // that is filled, or compared
    uint64_t offset = 0;          // up to where it is filled
    bool is_refilled = false;
    bool is_told = false;          // that it is there
    bool is_kept = false;          // systemd has it
    bool is_wanted_again = false;  // since it leaves
    bool is_suspect = false;       // since its comparison began
    bool is_freeing = false;
    std::optional<Sums> sums{};
    bool is_busy = false;  // an order, its sums or its extents are on their way
    Gpu::OrderId order = 0;
    std::shared_ptr<std::atomic<bool>> stop = std::make_shared<std::atomic<bool>>(false);
    std::vector<Waiter> waiters{};       // for it to be there
    std::vector<Waiter> drop_waiters{};  // for it to be gone
  };

  // --- a copy comes
  Copy& add(Key key, const Model& model);
  void request(Copy& copy);
  void granted(Key key, const Status& status);
  void made(Key key, Result<std::vector<Fd>> extents);
  void fill(Copy& copy);
  void fill_on(Copy& copy);
  void compare(Copy& copy);
  // Of the host's extents, and then the copy's against it.
  void add_up(Copy& copy);
  [[nodiscard]] static Result<Sums> sums_of(const std::vector<int>& extents,
                                            const std::vector<uint64_t>& bytes,
                                            const std::vector<uint64_t>& sizes,
                                            const std::atomic<bool>& stop);
  void has_sums(Key key, Result<Sums> sums);
  void compare_on(Copy& copy);
  void differs(Copy& copy);
  void zero_on(Copy& copy);
  void arrived(Copy& copy);

  // --- it leaves
  // why: for who waits for it to be there.
  void fail(Copy& copy, const Error& why);
  void leave(Copy& copy);
  void tell_failure(Key key, Error why);
  void leave_each(const std::function<bool(const Key&)>& whose);
  void free_if_let_go(Copy& copy);
  void free(Copy& copy);
  void gone(Key key);

  // Gives an order about one of its extents; then: unless it has failed or leaves meanwhile.
  void order(Copy& copy, MoverLink::Body body, std::vector<int> fds,
             std::function<void(Copy&, const MoverAnswer&)> then);
  // What was on its way is back. Whether the copy goes on.
  bool is_back(Copy& copy);
  [[nodiscard]] const Model& model_of(const Copy& copy) const;
  [[nodiscard]] Gpu& gpu_of(const Copy& copy) const;
  // Those that were placed or opened least recently first.
  [[nodiscard]] std::vector<Candidate> evictable(DeviceId device, bool in_use) const override;
  [[nodiscard]] bool is_run(ModelId model, DeviceId device) const override {
    return listener_.is_run(model, device);
  }
  void send_away(ModelId model, DeviceId device) override { leave(*all_.at(Key{model, device})); }

  Loop& loop_;
  const Devices& devices_;
  const Gpus& gpus_;
  Replies& replies_;
  Events& events_;
  ModelTable& table_;
  Listener& listener_;
  std::map<Key, std::unique_ptr<Copy>> all_;
  std::map<Key, std::vector<Fd>> returned_;  // a predecessor's, whose GPU is not ready yet
  uint64_t uses_ = 0;
  // Read the host's extents for copies on a GPU; made with its first one.
  std::map<DeviceId, std::unique_ptr<WorkQueue>> sums_work_;
};

}  // namespace djinn::daemon
