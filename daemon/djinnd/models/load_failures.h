// SPDX-License-Identifier: Apache-2.0

// LoadFailures: who wanted a model and does not get it is told why, and so is the log.
//
// Of files a failure names numbers: their names are their user's, who alone reads the sentence with
// them (LoadFailure in model.h).
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/djinnd/access/replies.h"
#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/models/model.h"
#include "daemon/djinnd/models/open_request.h"
#include "kernel/base/owner.h"

namespace djinn::daemon {

// One that is not about files: what the user calls the model.
[[nodiscard]] LoadFailure failure_of(const Model& model, Owner user, const Error& error);
// Of the source that was read.
[[nodiscard]] LoadFailure failure_of(const Model& model, const Source& source, const Error& error);

class LoadFailures {
 public:
  LoadFailures(Events& events, Replies& replies) : events_(events), replies_(replies) {}

  // --- to who waits, and the log
  // At once: the request did not come to a load.
  void refuse(const OpenRequest& request, const Error& error);
  // In their turn: the load that was to tell what the files are has failed. kCancelled, of a
  // session that is gone, is not for the log.
  void refuse_opening(const OpenRequest& request, const Error& error);
  // At once; others may still get the model.
  void refuse_opener(const Opener& opener, const LoadFailure& failure);
  // In their turn; the log was told.
  void refuse_each(const std::vector<Opener>& openers, const Error& error);

  // --- to the log
  // Of a model for somebody.
  void emit(const Model& model, const LoadFailure& failure);
  // Of a load of a model, which may be that nobody wants it any more (kCancelled).
  void emit_end(const Model& model, const LoadFailure& failure);

  // That were told of, but for loads that nobody wanted any more.
  [[nodiscard]] uint64_t count() const { return count_; }

 private:
  void emit(const Opener& opener, const LoadFailure& failure);
  void emit(Event event, const LoadFailure& failure);

  Events& events_;
  Replies& replies_;
  uint64_t count_ = 0;
};

}  // namespace djinn::daemon
