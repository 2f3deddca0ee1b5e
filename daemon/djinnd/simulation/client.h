// SPDX-License-Identifier: Apache-2.0

// Client: a simulated program of a user. It connects, asks for whatever may be asked, in any order,
// hangs up in the middle, is slow to read, lies now and then.
//
//   pending   a request without an answer
//   calm      it begins nothing new, and reads all that it is told
//   gone      it has hung up, and comes back no more
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/djinnd/loop/loop.h"
#include "daemon/djinnd/simulation/files.h"
#include "ipc/messages.h"
#include "kernel/base/fd.h"
#include "kernel/base/ids.h"

namespace djinn::daemon::simulation {

class Machine;

// What all clients have heard of.
struct Known {
  std::set<ModelId> models;
  std::set<SessionId> sessions;
};

class Client {
 public:
  Client(Machine& machine, Loop& loop, Files& files, Known& known, uid_t user, std::string name);

  void begin();
  void be_calm();
  void go();
  // Connects, as an observer, and stays.
  void observe();
  void ask(ipc::ClientRequest request, const std::vector<int>& fds = {});
  template <typename Body>
  void ask_for(Body body, const std::vector<int>& fds = {}) {
    ask({next_number(), std::move(body)}, fds);
  }

  // djinnd ends, and has a session of it: it is to be told before it is hung up on.
  void expect_end() { expects_end_ = true; }
  // What did not hold, if anything did not.
  [[nodiscard]] const std::optional<std::string>& wrong() const { return wrong_; }
  // Requests that wait for an answer that must come.
  [[nodiscard]] std::vector<std::string> waits_for() const;
  [[nodiscard]] bool is_connected() const { return socket_.valid(); }
  [[nodiscard]] const std::string& name() const { return name_; }
  // Its session, and the device that it asked for; a session that is not valid until it is welcome.
  [[nodiscard]] SessionId session() const { return session_; }
  [[nodiscard]] const std::string& device() const { return device_; }

 private:
  enum class Greeting : uint8_t { kNone, kAsked, kDone };

  void act();
  void act_later();
  void connect();
  void hang_up();
  void greet();
  void do_something();
  void open_a_model();
  void lie();
  void submit();
  void administrate();
  void read_one();
  void heard(const ipc::DaemonReply& reply, std::vector<Fd> fds);
  uint32_t next_number() { return ++last_number_; }
  [[nodiscard]] bool is_admin() const { return user_ == 0; }
  [[nodiscard]] ModelId some_model();

  Machine& machine_;
  Loop& loop_;
  Files& files_;
  Known& known_;
  const uid_t user_;
  const std::string name_;
  bool calm_ = false;
  bool stays_ = false;
  bool observer_ = false;
  bool expects_end_ = false;
  std::optional<std::string> wrong_;
  Fd socket_;
  Fd memory_;
  uint64_t submitted_ = 0;
  Greeting greeting_ = Greeting::kNone;
  uint32_t last_number_ = 0;
  std::map<uint32_t, std::string> pending_;
  std::set<uint32_t> may_wait_;  // of these, those whose answer need not come
  std::set<ModelId> open_;
  std::set<SequenceHandle> groups_;
  SessionId session_;
  std::string device_;  // empty: djinnd's first
  std::unique_ptr<Poll> poll_;
  Timer act_;
};

}  // namespace djinn::daemon::simulation
