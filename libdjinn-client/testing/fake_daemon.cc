// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/testing/fake_daemon.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <filesystem>
#include <mutex>
#include <thread>
#include <utility>

#include "ipc/bell.h"
#include "ipc/binding.h"
#include "ipc/codec/control_codec.h"
#include "ipc/codec/srg_codec.h"
#include "ipc/ring.h"
#include "ipc/socket.h"
#include "kernel/pal/memfd.h"

namespace djinn::client::testing {

bool eventually(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    ::poll(nullptr, 0, 1);
  }
  return true;
}

class FakeDaemon::Server {
 public:
  Server() {
    char directory[] = "/tmp/djinn-client-test-XXXXXX";
    directory_ = ::mkdtemp(directory);
    start();
  }
  ~Server() {
    if (thread_.joinable()) stop();
    std::filesystem::remove_all(directory_);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  [[nodiscard]] const std::string& directory() const { return directory_; }
  [[nodiscard]] std::string path() const { return directory_ + "/djinnd.sock"; }

  void start() {
    listening_ = Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::ranges::copy(path(), address.sun_path);
    const auto* const raw = reinterpret_cast<const sockaddr*>(&address);
    EXPECT_EQ(::bind(listening_.get(), raw, sizeof address), 0);
    EXPECT_EQ(::listen(listening_.get(), 16), 0);
    wake_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    going_ = false;
    thread_ = std::thread([this] { serve(); });
  }
  // Stops as if it were killed: every connection closes, and nobody listens any more.
  void stop() {
    tell([this] { going_ = true; });
    thread_.join();
    sessions_.clear();
    open_ = 0;
    listening_.reset();
    ::unlink(path().c_str());
  }
  uint32_t stop_after_a_token() {
    says_tokens_ = true;
    stop();
    return std::exchange(tokens_said_, 0);
  }
  // Changes what the thread looks at, and wakes the thread.
  void tell(const std::function<void()>& change) {
    {
      const std::lock_guard lock(mutex_);
      change();
    }
    const uint64_t one = 1;
    EXPECT_EQ(::write(wake_.get(), &one, sizeof one), ssize_t{sizeof one});
  }

  template <typename T>
  T look(const std::function<T()>& at) const {
    const std::lock_guard lock(mutex_);
    return at();
  }

  // tell() changes these, and look() reads them.
  std::atomic<bool> paused_ = false;
  bool silent_ = false;
  bool endless_ = false;
  std::atomic<bool> stuck_ = false;
  std::atomic<int64_t> output_elements_ = 1;
  std::optional<uint16_t> failure_;
  bool holds_opens_ = false;
  size_t opens_held_ = 0;
  std::optional<Error> refusal_;
  std::optional<Error> last_word_;
  size_t open_ = 0;
  uint64_t made_ = 0;
  std::vector<Opened> opens_;
  size_t defines_ = 0;
  std::vector<uint64_t> dropped_;
  size_t closes_ = 0;
  size_t sequences_ = 0;
  size_t files_added_ = 0;
  size_t runs_ = 0;
  bool run_waits_ = false;
  std::atomic<bool> says_tokens_ = false;  // when it goes
  uint32_t tokens_said_ = 0;
  std::vector<std::byte> manifest_ = ipc::encode(srg::ModelManifest{});
  uint64_t manifest_bytes_ = manifest_.size();  // as it is told

 private:
  struct Session {
    Fd socket;
    pal::Mapping memory;
    Fd submission_bell;
    ipc::CompletionBell completion_bell;
    std::optional<ipc::WorkerRing> ring;
    std::vector<ipc::ClientRequest> held;
    std::deque<std::vector<std::byte>> unsent;
    bool over = false;
  };

  void serve() {
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        if (going_ && says_tokens_.exchange(false)) say_tokens(*sessions_.front());
        if (going_) return;
        if (!paused_) serve_all();
        if (std::exchange(last_word_, std::nullopt)) sessions_.clear();
        std::erase_if(sessions_, [](const auto& session) { return session->over; });
        open_ = sessions_.size();
        opens_held_ = 0;
        for (const auto& session : sessions_) opens_held_ += session->held.size();
      }
      sleep();
    }
  }

  void serve_all() {
    while (accept_one()) continue;
    for (const auto& session : sessions_) serve(*session);
  }

  bool accept_one() {
    Fd socket(::accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) return false;
    sessions_.push_back(std::make_unique<Session>());
    sessions_.back()->socket = std::move(socket);
    return true;
  }

  void serve(Session& session) {
    send_more(session);
    for (;;) {
      auto message = ipc::receive_datagram(session.socket.get());
      if (!message) session.over = true;
      if (!message || !*message) break;
      auto request = ipc::decode_client_request((*message)->bytes);
      EXPECT_TRUE(request);
      if (request && !silent_) answer(session, *request);
    }
    if (!holds_opens_) {
      for (const ipc::ClientRequest& one : std::exchange(session.held, {})) answer(session, one);
    }
    if (last_word_) send(session, 0, ipc::Failed{last_word_->code, last_word_->message});
    if (!session.ring) return;
    complete_runs(session);
    const auto waits = session.ring->has_submission();
    run_waits_ = run_waits_ || (waits && *waits);
  }

  // Pushes the completion as soon as the client has made room for it.
  static void push(Session& session, const ipc::Completion& completion) {
    ASSERT_TRUE(eventually([&] {
      const auto free = session.ring->free_completions();
      if (free && *free > 0) return true;
      publish(session);
      return false;
    }));
    session.ring->push(completion);
  }

  static void publish(Session& session) {
    if (session.ring->publish()) ipc::ring_completion_bell(session.completion_bell.bell);
  }

  // Sends tokens until the client sleeps.
  void say_tokens(Session& session) {
    ipc::Completion token;
    token.kind = static_cast<uint16_t>(ipc::CompletionKind::kToken);
    token.run = session.ring->copy_submission().run;
    token.row_count = 1;
    EXPECT_TRUE(eventually([&] {
      token.index = tokens_said_;
      token.tokens[0] = static_cast<int32_t>(tokens_said_++);
      push(session, token);
      return session.ring->publish();
    }));
  }

  void complete_runs(Session& session) {
    for (;;) {
      const auto more = session.ring->has_submission();
      if (!more || !*more) break;
      ipc::Completion completion;
      completion.kind = static_cast<uint16_t>(ipc::CompletionKind::kDone);
      const ipc::Submission submission = session.ring->copy_submission();
      const bool given_up = session.ring->cancelled_through() >= submission.run;
      if (stuck_ && !given_up) break;
      completion.error = failure_.value_or(0);
      if (given_up) completion.error = static_cast<uint16_t>(ErrorCode::kCancelled);
      describe_outputs(session, submission);
      completion.run = submission.run;
      push(session, completion);
      session.ring->complete_one();
      ++runs_;
    }
    publish(session);
  }

  void describe_outputs(Session& session, const ipc::Submission& submission) const {
    if (submission.operation != static_cast<uint16_t>(ipc::Operation::kRun)) return;
    const auto staging = session.memory.bytes().subspan(ipc::SessionLayout::kStagingOffset);
    const auto block =
        ipc::decode_run(staging.subspan(submission.binding_offset, submission.binding_bytes));
    ASSERT_TRUE(block.ok());
    ipc::OutputDescription output;
    output.dtype = static_cast<uint32_t>(DType::kFloat32);
    output.rank = 1;
    output.sizes[0] = output_elements_;
    output.strides[0] = 1;
    for (size_t i = 0; i < block->outputs.size(); ++i) {
      std::memcpy(staging.data() + block->result.offset + i * sizeof output, &output,
                  sizeof output);
    }
  }

  // Sleeps until a socket or a bell is ready.
  void sleep() {
    std::vector<pollfd> entries{{wake_.get(), POLLIN, 0}, {listening_.get(), POLLIN, 0}};
    if (paused_) entries.resize(1);
    bool idle = true;
    for (const auto& session : sessions_) {
      if (paused_) break;
      const int wanted = session->unsent.empty() ? POLLIN : POLLIN | POLLOUT;
      entries.push_back({session->socket.get(), static_cast<short>(wanted), 0});
      entries.push_back({session->submission_bell.get(), POLLIN, 0});
      if (session->ring && !session->ring->prepare_to_sleep() && !stuck_) idle = false;
    }
    ::poll(entries.data(), entries.size(), idle ? -1 : 0);
    for (const auto& session : sessions_) {
      if (paused_) break;
      if (session->ring) session->ring->finish_sleep();
      drain(session->submission_bell);
    }
    drain(wake_);
  }
  static void drain(const Fd& bell) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got =
        bell.valid() ? ::read(bell.get(), &count, sizeof count) : ssize_t{0};
  }

  // Answers that the client has no room for wait until it has.
  template <typename Body>
  void send(Session& session, uint32_t number, Body body, const std::vector<int>& fds = {}) {
    const auto bytes = ipc::encode(ipc::DaemonReply{number, std::move(body)});
    if (!session.unsent.empty() || !ipc::send_datagram(session.socket.get(), bytes, fds)) {
      session.unsent.push_back(bytes);
    }
  }
  static void send_more(Session& session) {
    while (!session.unsent.empty() &&
           ipc::send_datagram(session.socket.get(), session.unsent.front(), {})) {
      session.unsent.pop_front();
    }
  }

  // Answers a list with a page after which more seems to come. Gives false if the request is not
  // for a list.
  bool go_on_for_ever(Session& session, const ipc::ClientRequest& request) {
    const auto list = [&](auto one, auto reports) {
      one.total = UINT32_MAX;
      (one.*reports).resize(1);
      send(session, request.number, std::move(one));
      return true;
    };
    if (std::holds_alternative<ipc::GetStatus>(request.body)) {
      ipc::StatusReport report;
      report.workers_total = report.users_total = UINT32_MAX;
      report.users.resize(1);
      send(session, request.number, std::move(report));
      return true;
    }
    if (std::holds_alternative<ipc::ListSessions>(request.body)) {
      return list(ipc::SessionList{}, &ipc::SessionList::sessions);
    }
    if (std::holds_alternative<ipc::ListModels>(request.body)) {
      return list(ipc::ModelList{}, &ipc::ModelList::models);
    }
    if (std::holds_alternative<ipc::ListUses>(request.body)) {
      return list(ipc::UseList{}, &ipc::UseList::uses);
    }
    if (std::holds_alternative<ipc::FollowEvents>(request.body)) {
      ipc::EventList events;
      events.last = 5;
      events.events.resize(1);
      send(session, request.number, std::move(events));
      return true;
    }
    if (std::holds_alternative<ipc::ReadManifest>(request.body)) {
      send(session, request.number, ipc::ManifestPart{std::vector<std::byte>(1)});
      return true;
    }
    return false;
  }

  void answer(Session& session, const ipc::ClientRequest& request) {
    const uint32_t number = request.number;
    if (const auto* hello = std::get_if<ipc::Hello>(&request.body)) {
      if (refusal_) return send(session, number, ipc::Failed{refusal_->code, refusal_->message});
      return welcome(session, number, *hello);
    }
    if (endless_ && go_on_for_ever(session, request)) return;
    if (std::holds_alternative<ipc::GetStatus>(request.body)) {
      ipc::StatusReport report;
      report.sessions = static_cast<uint32_t>(made_);
      return send(session, number, report);
    }
    if (std::holds_alternative<ipc::MakeSequence>(request.body)) {
      ++sequences_;
      return send(session, number, ipc::SequenceMade{{1, static_cast<uint32_t>(sequences_)}});
    }
    if (std::holds_alternative<ipc::DropSequence>(request.body)) --sequences_;
    if (const auto* const add = std::get_if<ipc::AddFiles>(&request.body)) {
      files_added_ = add->count == 0 ? 0 : files_added_ + add->count;
    }
    const auto* const open = std::get_if<ipc::OpenModel>(&request.body);
    if (open != nullptr) files_added_ = 0;
    if (open != nullptr && holds_opens_) return session.held.push_back(request);
    if (open != nullptr) {
      opens_.push_back({open->pin, open->keep_alive_ms});
      return send(
          session, number,
          ipc::ModelOpened{ModelId{kModel}, 1, false, manifest_bytes_, part_of_manifest(0)});
    }
    if (const auto* read = std::get_if<ipc::ReadManifest>(&request.body)) {
      return send(session, number, ipc::ManifestPart{part_of_manifest(read->offset)});
    }
    if (std::holds_alternative<ipc::DefineProgram>(request.body)) {
      ++defines_;
      return send(session, number, ipc::ProgramDefined{ProgramId{defines_}, false, {}});
    }
    if (const auto* drop = std::get_if<ipc::DropPrograms>(&request.body)) {
      for (const ProgramId program : drop->programs) dropped_.push_back(program.value);
    }
    if (std::holds_alternative<ipc::CloseModel>(request.body)) ++closes_;
    send(session, number, ipc::Done{});
  }

  [[nodiscard]] std::vector<std::byte> part_of_manifest(uint64_t offset) const {
    const auto left = std::span(manifest_).subspan(std::min<uint64_t>(offset, manifest_.size()));
    const auto part = left.first(std::min<size_t>(left.size(), limits::kManifestPartBytes));
    return {part.begin(), part.end()};
  }

  void welcome(Session& session, uint32_t number, const ipc::Hello& hello) {
    const uint64_t bytes = ipc::SessionLayout::bytes(hello.staging_bytes);
    const Fd memory = *pal::make_memfd("test", bytes, pal::Seals::kShared);
    session.memory = *pal::map_shared(memory, bytes, pal::Access::kReadWrite);
    session.submission_bell = *ipc::make_submission_bell();
    session.completion_bell = *ipc::make_completion_bell();
    session.ring.emplace(*ipc::SessionView::over(session.memory.bytes()), 0, 0);
    const ipc::Welcome answer{SessionId{++made_}, hello.staging_bytes, 1, FakeDaemon::kQuotaBytes};
    if (hello.observer) return send(session, number, answer);
    send(session, number, answer,
         {memory.get(), session.submission_bell.get(), session.completion_bell.listener.get()});
  }

  std::string directory_;
  Fd listening_;
  Fd wake_;
  std::thread thread_;
  std::vector<std::unique_ptr<Session>> sessions_;  // of the thread
  mutable std::mutex mutex_;                        // guards what is not of the thread alone
  bool going_ = false;
};

FakeDaemon::FakeDaemon() : server_(std::make_unique<Server>()) {}
FakeDaemon::~FakeDaemon() = default;

std::string FakeDaemon::directory() const {
  return server_->directory();
}
std::string FakeDaemon::host() const {
  return "unix:" + server_->path();
}
void FakeDaemon::start() {
  server_->start();
}
void FakeDaemon::stop() {
  server_->stop();
}
uint32_t FakeDaemon::stop_after_a_token() {
  return server_->stop_after_a_token();
}
void FakeDaemon::set_endless(bool endless) {
  server_->tell([&] { server_->endless_ = endless; });
}

size_t FakeDaemon::sequences() const {
  return server_->look<size_t>([&] { return server_->sequences_; });
}
size_t FakeDaemon::files_added() const {
  return server_->look<size_t>([&] { return server_->files_added_; });
}

void FakeDaemon::set_paused(bool paused) {
  server_->tell([&] { server_->paused_ = paused; });
}
void FakeDaemon::set_silent(bool silent) {
  server_->tell([&] { server_->silent_ = silent; });
}
void FakeDaemon::set_stuck(bool stuck) {
  server_->tell([&] { server_->stuck_ = stuck; });
}
void FakeDaemon::say_of_outputs(int64_t elements) {
  server_->tell([&] { server_->output_elements_ = elements; });
}
void FakeDaemon::fail_runs(std::optional<uint16_t> code) {
  server_->tell([&] { server_->failure_ = code; });
}
void FakeDaemon::hold_opens(bool hold) {
  server_->tell([&] { server_->holds_opens_ = hold; });
}
void FakeDaemon::refuse(std::optional<uint16_t> code) {
  server_->tell([&] {
    server_->refusal_.reset();
    if (code) server_->refusal_ = Error{static_cast<ErrorCode>(*code), "It is refused."};
  });
}
void FakeDaemon::set_manifest(std::vector<std::byte> manifest, uint64_t bytes) {
  server_->tell([&] {
    server_->manifest_ = std::move(manifest);
    server_->manifest_bytes_ = bytes;
  });
}
void FakeDaemon::end_sessions(uint16_t code, const std::string& text) {
  server_->tell([&] { server_->last_word_ = Error{static_cast<ErrorCode>(code), text}; });
  EXPECT_TRUE(eventually([&] { return sessions_open() == 0; }));
}
uint64_t FakeDaemon::sessions_made() const {
  return server_->look<uint64_t>([&] { return server_->made_; });
}
std::vector<FakeDaemon::Opened> FakeDaemon::opens() const {
  return server_->look<std::vector<Opened>>([&] { return server_->opens_; });
}
size_t FakeDaemon::defines() const {
  return server_->look<size_t>([&] { return server_->defines_; });
}

std::vector<uint64_t> FakeDaemon::dropped() const {
  return server_->look<std::vector<uint64_t>>([&] { return server_->dropped_; });
}

size_t FakeDaemon::closes() const {
  return server_->look<size_t>([&] { return server_->closes_; });
}
size_t FakeDaemon::runs() const {
  return server_->look<size_t>([&] { return server_->runs_; });
}
bool FakeDaemon::run_waits() const {
  return server_->look<bool>([&] { return server_->run_waits_; });
}
size_t FakeDaemon::opens_held() const {
  return server_->look<size_t>([&] { return server_->opens_held_; });
}
size_t FakeDaemon::sessions_open() const {
  return server_->look<size_t>([&] { return server_->open_; });
}

}  // namespace djinn::client::testing
