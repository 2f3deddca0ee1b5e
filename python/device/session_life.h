// SPDX-License-Identifier: Apache-2.0

// SessionLife: the device's session with djinnd, from the first use on.
//
//   none     nobody has used the device, or the last session has ended: link() connects
//   live     djinnd has the session
//   orphan   it is the session of this process's parent, which forked it: link() refuses for good
//
// A session that ends takes along all that it held; Storages numbers them. All is called under the
// device's lock.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "libdjinn-client/connection.h"
#include "python/device/link.h"
#include "python/device/log.h"

namespace djinn::device {

class SessionLife {
 public:
  // on_end: called when a session was seen to have ended and its link is gone.
  explicit SessionLife(std::function<void()> on_end);

  // The link to the session, which is made where there is none. Waits for djinnd then, and asks for
  // signals, with the GIL. Throws for an orphan, and what a handler raised.
  Link& link();
  // The same for what that session (Storages::session()) has made. Throws if it has ended.
  Link& link_of(uint64_t session);
  // The same, at once: where there was a session, and no djinnd listens for another, it throws why
  // that one has ended.
  Link& link_at_once();
  // The link to a live session, else null. Nothing is looked at: notice_end() does that.
  [[nodiscard]] Link* live() const { return is_orphan_ ? nullptr : link_.get(); }
  // Whether there is a session, or a parent's: then client() is its client.
  [[nodiscard]] bool has_link() const { return link_ != nullptr; }
  [[nodiscard]] client::Client& client() const { return link_->client(); }
  [[nodiscard]] bool is_orphan() const { return is_orphan_; }

  // Lets go of a session that has ended; whoever uses the device next connects anew, as
  // client::Connection does that. A system call that does not wait.
  void notice_end();
  // This process is the child of a fork.
  void become_orphan() { is_orphan_ = is_orphan_ || link_ != nullptr; }

  // Throws if that session has ended.
  void refuse_ended(uint64_t session) const;
  // Throws if the session that held the value has ended, or what was to make it failed.
  void refuse_lost(const Storage& storage) const;
  void refuse_lost(const Entry& entry) const;

  // What the session gets beside the user's others: a name of kernel/base/schedule.h. Throws where
  // a session lives that began as another, which stays for its life.
  void set_service_class(const std::string& name);

  // djinnd shows both as what this process says: calls of a tier (0 to 2), and models that were
  // loaded into this process in djinnd's place.
  void state_call(size_t tier);
  void state_local_model();
  // What djinnd reports of a live session, else nothing. Waits.
  [[nodiscard]] std::optional<ipc::SessionReport> report() const;
  // The counts of all sessions that there were.
  [[nodiscard]] const LinkStats& stats() const { return link_ ? link_->stats() : ended_stats_; }

 private:
  void state();
  // Whether a session could be made now; to know it of another machine makes one.
  bool may_be_served();

  const std::function<void()> on_end_;
  client::Connection connection_;
  std::string service_class_ = "normal";  // of the link's session, or of the next
  std::unique_ptr<Link> link_;            // to the session that connection_ has
  ipc::ClientStatement stated_;
  LinkStats ended_stats_;  // of the sessions that have ended
  std::string why_ended_;  // the last of them
  bool is_orphan_ = false;
};

}  // namespace djinn::device
