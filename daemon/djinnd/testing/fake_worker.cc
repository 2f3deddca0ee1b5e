// SPDX-License-Identifier: Apache-2.0

// A worker that speaks djinnd's protocol and computes nothing, for tests of djinnd. What a program
// or a submission asks of it stands in its bytes:
//
//   program "refuse"     is refused; "die" kills the worker; any other is admitted, with one output
//                        that is named by the program's text
//   submission run 13    kills the worker in mid-step, unless the run is to be refused
//   submission run 14    stops the worker in mid-step, as a hang would
//   submission run 16    computes for ever
//   submission run 17    is done, and from then on the lane does not answer djinnd
//   submission run 18    kills the worker in mid-step, and the next two before they have taken the
//                        session in; then it is done
//   submission run 19    asks for a slab of graph_bytes and completes with the answer's code
//   model filled with "r"  is refused, one with "d" kills the worker
//   kWriteRef            asks for graph_bytes more bytes of refs, completes with the answer's code
//   any other            one step, committed
//   group of 7 heads     asks for as many pages as its capacity; to be spilled, one of 13 kills the
//                        worker, one of 14 is never answered, one of 15 fails
//   kReorderSequence     brings the session's spilled group back, completes with the grant's code
//
// --sends memory, file   a descriptor of such a kind comes with its first word

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "daemon/child/channel.h"
#include "daemon/child/confinement.h"
#include "ipc/bell.h"
#include "ipc/build_identity.h"
#include "ipc/codec/control_codec.h"
#include "ipc/ring.h"
#include "kernel/gc/session_state.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {
namespace {

constexpr gc::StateGeometry kGeometry{limits::kRefs, limits::kSequences};
constexpr uint64_t kDie = 13;
constexpr uint64_t kHang = 14;
constexpr uint64_t kCompute = 16;
constexpr uint64_t kGoDeaf = 17;
constexpr uint64_t kDieThrice = 18;
constexpr uint64_t kAskForSlab = 19;
constexpr uint32_t kGrowingHeads = 7;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kSpillDies = 13;
constexpr uint64_t kSpillHangs = 14;
constexpr uint64_t kSpillFails = 15;

struct FakeSession {
  std::vector<Fd> fds;
  pal::Mapping memory;
  pal::Mapping state_memory;
  std::optional<gc::SessionState> state;
  std::optional<ipc::WorkerRing> ring;
  ErrorCode refusal = ErrorCode::kOk;
  std::optional<ipc::AddSequence> group;  // the latest of 7 heads
  bool restores = false;
  bool waits = false;  // for the answer to a grant that finishes its submission

  // Of run 18, in the client's staging.
  [[nodiscard]] uint32_t& deaths() const {
    return *reinterpret_cast<uint32_t*>(ipc::SessionView::over(memory.bytes())->staging().data());
  }
};

class FakeWorker {
 public:
  // sends: "memory" or "file": a descriptor that comes with its first word.
  FakeWorker(Fd channel, std::string_view sends) : channel_(std::move(channel)) {
    if (sends == "memory") sent_ = *pal::make_memfd("sent", 1);
    if (sends == "file") sent_ = Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  }

  int run() {
    const int fds[] = {sent_.get()};
    const std::span<const int> sent(fds, sent_.valid() ? 1 : 0);
    ended_ = !channel_.send(ipc::encode(ready()), sent);
    for (;;) {
      wait();
      while (obey_one()) {
      }
      if (ended_) return 0;
      for (auto& [id, session] : sessions_) serve(id, session);
    }
  }

 private:
  static ipc::WorkerEvent ready() { return {ipc::WorkerReady{2, child::landlock_abi(), false}}; }
  void send(const ipc::WorkerEvent& event) {
    if (!channel_.send(ipc::encode(event))) ended_ = true;
  }

  void wait() {
    pollfd polled[] = {{channel_.socket().get(), POLLIN, 0}, {bells_.get(), POLLIN, 0}};
    ::poll(polled, 2, -1);
    epoll_event rung;
    while (::epoll_wait(bells_.get(), &rung, 1, 0) == 1) {
    }
  }

  bool obey_one() {
    auto message = ipc::receive_datagram(channel_.socket().get());
    if (!message.ok()) ended_ = true;
    if (!message.ok() || !message.value()) return false;
    const auto command = ipc::decode_worker_command(message.value()->bytes);
    if (!command.ok()) ::_exit(3);
    std::visit([&](const auto& body) { obey(body, std::move(message.value()->fds)); },
               command.value().body);
    return true;
  }

  void obey(const ipc::AttachSession& c, std::vector<Fd> fds) {
    FakeSession& session = sessions_[c.session];
    session.fds = std::move(fds);
    if (!ipc::watch_submission_bell(bells_, session.fds[3], c.session.value)) ::_exit(9);
    session.refusal = c.refusal;
    session.memory = *pal::map_shared(session.fds[0], ipc::SessionLayout::bytes(c.staging_bytes),
                                      pal::Access::kReadWrite);
    if (session.deaths() == 1 || session.deaths() == 2) {
      ++session.deaths();
      ::_exit(10);
    }
    session.state_memory =
        *pal::map_shared(session.fds[1], gc::state_bytes(kGeometry), pal::Access::kReadWrite);
    session.state.emplace(
        *gc::SessionState::open(session.state_memory.bytes(), kGeometry, faults_));
    if (!session.state->recover({})) ::_exit(4);
    session.ring.emplace(*ipc::SessionView::over(session.memory.bytes()),
                         session.state->record().completed, session.state->completions_published());
    send({ipc::Attached{c.session}});
  }
  void obey(const ipc::DetachSession& c, std::vector<Fd>) {
    sessions_.erase(c.session);
    send({ipc::Detached{c.session}});
  }
  void obey(const ipc::AddModel& c, std::vector<Fd> fds) {
    const bool sealed = fds.size() >= 2 && *pal::has_seals(fds[1], pal::Seals::kWrite);
    const bool right = c.parked ? fds.size() == 1 : sealed;
    const char fill = sealed ? static_cast<char>((*pal::read_memfd(fds[1], 1)).front()) : '\0';
    if (fill == 'd') ::_exit(11);
    if (fill == 'r') {
      return send({ipc::ModelAdded{c.model, ErrorCode::kMalformed, "The worker\x1b cannot."}});
    }
    send({ipc::ModelAdded{c.model, right ? ErrorCode::kOk : ErrorCode::kMalformed, ""}});
  }
  void obey(const ipc::DropModel& c, std::vector<Fd>) { send({ipc::ModelDropped{c.model}}); }
  void obey(const ipc::ParkModel& c, std::vector<Fd>) { send({ipc::ModelParked{c.model}}); }
  void obey(const ipc::ModelLost&, std::vector<Fd>) {}
  void obey(const ipc::AddProgram& c, std::vector<Fd> fds) {
    struct stat info {};
    ::fstat(fds[0].get(), &info);
    const auto bytes = *pal::read_memfd(fds[0], static_cast<uint64_t>(info.st_size));
    const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (text == "die") ::_exit(5);
    if (text == "refuse") {
      return send({ipc::ProgramRefused{c.program, ErrorCode::kUnsupported, "It says so."}});
    }
    send({ipc::ProgramAdded{c.program, {{text.substr(0, 64), DType::kFloat32, true, {}}}, 0}});
  }
  void obey(const ipc::DropProgram&, std::vector<Fd>) {}
  void obey(const ipc::AddSequence& c, std::vector<Fd>) {
    send({ipc::SequenceAdded{c.session, c.sequence, ErrorCode::kOk, ""}});
    if (c.geometry.kv_heads != kGrowingHeads) return;
    sessions_[c.session].group = c;
    if (c.bytes_granted == 0) ask_for_group(c.session);
  }
  // Answered under a number that is no session's.
  void ask_for_group(SessionId id) {
    const ipc::AddSequence& group = *sessions_[id].group;
    send({ipc::GrantRequest{~id.value, ipc::GrantKind::kSequence, id, group.sequence,
                            group.geometry.capacity * kPage}});
  }
  void obey(const ipc::SpillSequence& c, std::vector<Fd>) {
    ipc::AddSequence& group = *sessions_[c.session].group;
    const uint64_t capacity = group.geometry.capacity;
    if (capacity == kSpillDies) ::_exit(8);
    if (capacity == kSpillHangs) return;
    const ErrorCode code = capacity == kSpillFails ? ErrorCode::kIo : ErrorCode::kOk;
    group.spilled = code == ErrorCode::kOk;
    send({ipc::SequenceSpilled{c.session, c.sequence, capacity * kPage, code, ""}});
  }
  void obey(const ipc::ReleaseSequence& c, std::vector<Fd>) {
    send({ipc::SequenceDropped{c.session, c.sequence}});
  }
  void obey(const ipc::GrantAnswer& c, std::vector<Fd>) {
    const SessionId id{c.request};
    const auto session = sessions_.find(id);
    if (session != sessions_.end()) {
      session->second.waits = false;
      return finish(session->second, c.code);
    }
    const auto grown = sessions_.find(SessionId{~c.request});
    if (grown == sessions_.end() || !std::exchange(grown->second.restores, false)) return;
    if (c.code == ErrorCode::kOk) {
      grown->second.group->spilled = false;
      send({ipc::SequenceRestored{grown->first, grown->second.group->sequence}});
    }
    grown->second.waits = false;
    finish(grown->second, c.code);
  }
  void obey(const ipc::GiveSlab& c, std::vector<Fd>) {
    obey(ipc::GrantAnswer{c.request, ErrorCode::kOk, {}}, {});
  }
  void obey(const ipc::GetWorkerStats&, std::vector<Fd>) { send({ipc::WorkerStats{}}); }
  void obey(const ipc::WakeLane&, std::vector<Fd>) {
    if (!deaf_) send({ipc::LaneAwake{}});
  }

  void serve(SessionId id, FakeSession& session) {
    while (!session.waits && !session.ring->prepare_to_sleep()) {
      session.ring->finish_sleep();
      const auto found = session.ring->has_submission();
      if (!found || !*found) ::_exit(12);
      const ipc::Submission submission = session.ring->copy_submission();
      session.state->begin();
      const ErrorCode refusal = std::exchange(session.refusal, ErrorCode::kOk);
      if (refusal != ErrorCode::kOk) {
        finish(session, refusal);
        continue;
      }
      session.state->beat("fake::operator");
      if (submission.run == kDie) ::_exit(6);
      if (submission.run == kDieThrice && session.deaths() == 0) {
        ++session.deaths();
        ::_exit(6);
      }
      if (submission.run == kHang) ::raise(SIGSTOP);
      while (submission.run == kCompute) ::getppid();
      deaf_ |= submission.run == kGoDeaf;
      const bool asks_for_slab = submission.run == kAskForSlab;
      const bool writes = submission.operation == static_cast<uint16_t>(ipc::Operation::kWriteRef);
      if (asks_for_slab || writes) {
        // The request's number is the session's, so that the answer finds it.
        const auto kind = asks_for_slab ? ipc::GrantKind::kSlab : ipc::GrantKind::kRefs;
        send({ipc::GrantRequest{id.value, kind, id, {}, submission.graph_bytes}});
        session.waits = true;
        return;  // the answer finishes it
      }
      if (submission.operation == static_cast<uint16_t>(ipc::Operation::kReorderSequence) &&
          session.group && session.group->spilled) {
        session.restores = session.waits = true;
        return ask_for_group(id);
      }
      finish(session, ErrorCode::kOk);
    }
  }

  void finish(FakeSession& session, ErrorCode code) {
    gc::StepRecord record;
    record.kind = gc::StepKind::kDone;
    record.completed = session.ring->completed() + 1;
    session.state->stage_record(record);
    session.state->commit();
    ipc::Completion completion;
    completion.kind = static_cast<uint16_t>(ipc::CompletionKind::kDone);
    completion.error = static_cast<uint16_t>(code);
    session.ring->push(completion);
    session.ring->complete_one();
    const bool wake = session.ring->publish();
    session.state->set_completions_published(session.ring->pushed());
    if (wake) ipc::ring_completion_bell(session.fds[4]);
  }

  child::Channel channel_;
  Fd sent_;
  Fd bells_{::epoll_create1(EPOLL_CLOEXEC)};
  gc::FaultPoints faults_;
  std::map<SessionId, FakeSession> sessions_;
  bool ended_ = false;
  bool deaf_ = false;
};

}  // namespace
}  // namespace djinn::daemon

int main(int argc, char** argv) {
  if (djinn::ipc::started_by_other_build(argc, argv)) return djinn::ipc::kOtherBuildStatus;
  int channel = -1;
  std::string_view sends;
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::string_view(argv[i]) == "--channel-fd") channel = argv[i + 1][0] - '0';
    if (std::string_view(argv[i]) == "--sends") sends = argv[i + 1];
  }
  if (!djinn::child::become_child()) return 1;
  return djinn::daemon::FakeWorker(djinn::Fd(channel), sends).run();
}
