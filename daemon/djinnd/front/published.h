// SPDX-License-Identifier: Apache-2.0

// Published: the names of the store of models, and who may do what with them.
//
//   NAME          administrators give it and take it back; every user of this machine reads it
//   ~USER/NAME    that user does, who alone reads it, beside administrators
//
// What somebody may not read is for them as if it were not there.
//
// invariant: of each user one import is under way, and at most kImportsPerUser have a loader: files
// may be of a file system that never answers.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/djinnd/access/authority.h"
#include "daemon/djinnd/access/replies.h"
#include "daemon/djinnd/front/reports.h"
#include "daemon/djinnd/loop/deferred_close.h"
#include "daemon/djinnd/loop/loop.h"
#include "daemon/djinnd/memory/quantity.h"
#include "daemon/djinnd/models/import.h"
#include "daemon/djinnd/models/store_queue.h"
#include "daemon/djinnd/workers/spare_pool.h"
#include "daemon/store/reader.h"
#include "daemon/store/record.h"
#include "ipc/messages.h"
#include "kernel/base/clock.h"
#include "kernel/base/owner.h"

namespace djinn::daemon {

// The weights of a published model, open.
struct PublishedFiles {
  std::vector<SharedFd> files;
  std::vector<std::string> names;
};

class Published {
 public:
  static constexpr size_t kImportsPerUser = 4;

  // place: as StoreQueue's. keep_free: what imports of who is no administrator leave of its disk.
  Published(Loop& loop, const Clock& clock, SparePool& loaders, Replies& replies, Reports& reports,
            std::string place, Amount keep_free)
      : loop_(loop),
        clock_(clock),
        loaders_(loaders),
        replies_(replies),
        reports_(reports),
        store_(loop, std::move(place)),
        keep_free_(keep_free) {}

  void set_keep_free(Amount keep_free) { keep_free_ = keep_free; }

  // files, names: of a model, as the session has added them.
  void import(const Waiter& waiter, const Caller& caller, const ipc::ImportModel& request,
              std::vector<SharedFd> files, std::vector<std::string> names);
  void list(const Waiter& waiter, const Caller& caller, const ipc::ListPublished& request);
  void remove(const Waiter& waiter, const Caller& caller, const ipc::RemovePublished& request);
  // For an open. closer: of the user's files. Errors: kInvalidArgument, those of Store::find() and
  // Store::open_file().
  using Opened = std::function<void(Result<PublishedFiles>)>;
  void open(const Caller& caller, const std::string& name, std::shared_ptr<Closer> closer,
            Opened opened);

  void session_left(SessionId session);
  // No loader can be started: nobody is kept waiting for one.
  void refuse_waiting();
  void collect() { store_.collect(); }

 private:
  struct Running {
    Owner user;
    Waiter waiter;
    std::unique_ptr<Import> import;
  };
  // What all need to know of a record, without its files.
  struct Listed {
    store::Record record;
    ipc::PublishedReport report;
  };
  using List = std::shared_ptr<const std::vector<Listed>>;

  static Result<List> read_list(const store::Store& store);
  [[nodiscard]] store::Asker asker_of(const Caller& caller) const;
  // Whether the caller, whose name is known, may give that name.
  [[nodiscard]] Status check_gives(const Caller& caller, const store::Name& name) const;
  // Whether the user may begin one more. Errors: kBusy.
  [[nodiscard]] Status check_imports(Owner user) const;
  void begin(uint64_t number, const Caller& caller, const store::Name& name);
  void imported(uint64_t number, Result<store::Record> published);
  void answer(const Waiter& waiter, const Caller& caller, uint32_t first, const List& list);

  Loop& loop_;
  const Clock& clock_;
  SparePool& loaders_;
  Replies& replies_;
  Reports& reports_;
  StoreQueue store_;
  Amount keep_free_;
  std::map<uint64_t, Running> imports_;  // by numbers of their own; of some the loader is left
  uint64_t imports_begun_ = 0;
  List list_;  // as it is in the store; null: not read since it changed
};

}  // namespace djinn::daemon
