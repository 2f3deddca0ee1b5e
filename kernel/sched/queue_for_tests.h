// SPDX-License-Identifier: Apache-2.0

// Lets tests, and the simulation of djinnd, see what a queue keeps to itself.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel/sched/queue.h"

namespace djinn::sched {

struct QueueForTests {
  static size_t accounts(const Queue& queue) { return queue.accounts_.size(); }
  // Precondition: the session has an account.
  static int64_t virtual_ns(const Queue& queue, SessionId session) {
    return queue.accounts_.at(session).virtual_ns;
  }
  // What it had of others' weights, or, negative, others of its.
  static int64_t borrowed_ns(const Queue& queue, SessionId session) {
    return queue.accounts_.at(session).borrowed_ns;
  }
  // Of the accounts of its kind, idle or not: V.
  static int64_t now_ns(const Queue& queue, SessionId session) {
    const ServiceClass service = queue.accounts_.at(session).service;
    return queue.bands_[Queue::band_number(service)].now_ns();
  }
};

}  // namespace djinn::sched
