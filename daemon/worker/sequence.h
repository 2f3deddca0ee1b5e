// Sequence: one sequence group of a session in this process: its memfd mapped, and how many token
// slots of it are committed.
// Bank: one copy of all rows. A group of two banks can be reordered: the rows are copied to the
// bank that is not in use, and the step that commits says that it is the one in use now. Grower:
// commits slots ahead of need on a thread of its own, so that a decode step never does.
//
// invariant: slots [0, committed) are backed by pages; committed only grows.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>

#include "daemon/worker/grants.h"
#include "ipc/messages.h"
#include "kernel/gc/sequence_layout.h"
#include "kernel/pal/device_pal.h"

namespace djinn::worker {

class Sequence {
 public:
  // memfd: sparse, of the layout's file size. granted: bytes that a former worker was granted; what
  // they bought is committed already.
  static Result<std::shared_ptr<Sequence>> map(SessionId session, SequenceHandle handle,
                                               const ipc::SequenceGeometry& geometry, Fd memfd,
                                               uint64_t granted, pal::DevicePal& pal);

  [[nodiscard]] SequenceHandle handle() const { return handle_; }
  [[nodiscard]] SessionId session() const { return session_; }
  [[nodiscard]] const ipc::SequenceGeometry& geometry() const { return geometry_; }
  [[nodiscard]] const gc::SequenceLayout& layout() const { return layout_; }
  [[nodiscard]] uint64_t committed() const { return committed_.load(std::memory_order_acquire); }

  // Token slots of a row; only committed ones may be touched.
  [[nodiscard]] int32_t* tokens(uint32_t bank, uint32_t row) const;
  // One K or V: geometry dtype [rows, kv_heads, capacity, head_dim], in bank_bytes().
  [[nodiscard]] std::byte* key(uint32_t bank, uint32_t layer) const;
  [[nodiscard]] std::byte* value(uint32_t bank, uint32_t layer) const;
  [[nodiscard]] uint64_t bank_bytes() const;
  // Row r of bank `to` becomes row rows[r] of bank `from`, in its first `tokens` slots.
  void copy_rows(uint32_t from, uint32_t to, std::span<const uint32_t> rows, uint64_t tokens) const;

 private:
  friend class Grower;
  Sequence(SessionId session, SequenceHandle handle, const ipc::SequenceGeometry& geometry,
           gc::SequenceLayout layout, pal::DevicePal& pal, pal::Extent extent,
           pal::Reservation memory, uint64_t granted);
  Status commit(uint64_t tokens, Grants& grants);  // grower's thread
  [[nodiscard]] uint64_t head_bytes() const;       // of one row and head of a K or V
  void copy_heads(const std::byte* from, uint32_t from_row, std::byte* to, uint32_t to_row,
                  uint64_t tokens) const;

  SessionId session_;
  SequenceHandle handle_;
  ipc::SequenceGeometry geometry_;
  gc::SequenceLayout layout_;
  pal::DevicePal& pal_;
  pal::Extent extent_;
  pal::Reservation memory_;
  uint64_t granted_bytes_;              // grower's thread
  std::atomic<uint64_t> committed_{0};  // token slots
  std::atomic<uint64_t> wanted_{0};     // what the grower was asked for
  std::mutex failure_mutex_;
  std::optional<Error> failure_;
};

class Grower {
 public:
  // wake: called on the grower's thread after each growth or failure.
  Grower(Grants& grants, std::function<void()> wake);
  ~Grower();

  enum class Readiness { kReady, kGrowing };
  // Ready when `tokens` slots are committed; asks for more ahead of need on the way. After a failed
  // growth, its error, once; asking again tries again. Lane's thread.
  Result<Readiness> ensure(const std::shared_ptr<Sequence>& sequence, uint64_t tokens);

 private:
  void ask(const std::shared_ptr<Sequence>& sequence, uint64_t tokens);
  void work();

  Grants& grants_;
  std::function<void()> wake_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::shared_ptr<Sequence>> queue_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace djinn::worker
