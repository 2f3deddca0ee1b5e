// SPDX-License-Identifier: Apache-2.0

// What djinnd's end-to-end tests share: a djinnd of their own with a worker without kernels, and
// clients that speak the protocol by hand.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "daemon/djinnd/testing/programs.h"
#include "ipc/bell.h"
#include "ipc/binding.h"
#include "ipc/codec/control_codec.h"
#include "ipc/codec/srg_codec.h"
#include "ipc/ring.h"
#include "ipc/socket.h"
#include "kernel/base/bytes.h"
#include "kernel/pal/memfd.h"
#include "kernel/srg/builder.h"
#include "kernel/srg/limits.h"

extern char** environ;

namespace djinn::daemon::testing {

inline constexpr uint64_t kMiB = 1 << 20;

inline constexpr std::chrono::seconds kDeadline{60};

// Polls a condition that another process brings about.
inline bool eventually(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + kDeadline;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    ::poll(nullptr, 0, 2);
  }
  return true;
}

// What a djinnd of a test starts.
struct ChildPrograms {
  std::string worker = fake_worker_program();
  std::string loader = loader_program();
  std::string mover = mover_program();
  std::string cuda_worker = "/nonexistent/djinn-cuda-worker";
};

// A graph that does what one operator of the worker's executor does
// (kernel/executor/fake_executor_for_tests.h).
inline srg::Graph graph_of(std::string_view op, std::vector<srg::Arg> arguments = {}) {
  srg::GraphBuilder g("test");
  g.op_n(0, op, std::move(arguments));
  return *std::move(g).finish();
}

// A graph of at least so many bytes that computes nothing. name: of its own.
inline srg::Graph large_graph(std::string name, uint64_t bytes) {
  constexpr uint64_t kTextBytes = srg::limits::kTextArgumentBytes;
  srg::GraphBuilder g(std::move(name));
  for (uint64_t i = 0; i * kTextBytes < bytes; ++i) {
    g.op_n(0, "fake::nothing", {std::string(kTextBytes, 'a')});
  }
  return *std::move(g).finish();
}

class TestDaemon {
 public:
  // mode: --user, or what makes it a service.
  explicit TestDaemon(std::vector<std::string> more = {},
                      std::vector<std::string> mode = {"--user"},
                      const ChildPrograms& children = {}) {
    char directory[] = "/tmp/djinnd-test-XXXXXX";
    directory_ = ::mkdtemp(directory);
    std::vector<std::string> arguments{djinnd_program(), "--runtime-dir",     directory_ + "/run",
                                       "--worker",       children.worker,     "--loader",
                                       children.loader,  "--mover",           children.mover,
                                       "--cuda-worker",  children.cuda_worker};
    arguments.insert(arguments.end(), mode.begin(), mode.end());
    arguments.insert(arguments.end(), more.begin(), more.end());
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    ::setenv("XDG_CACHE_HOME", (directory_ + "/cache").c_str(), 1);
    ::setenv("XDG_STATE_HOME", (directory_ + "/state").c_str(), 1);
    EXPECT_EQ(::posix_spawn(&pid_, pointers[0], nullptr, nullptr, pointers.data(), environ), 0);
    EXPECT_TRUE(eventually([&] { return serves(); }));
  }
  ~TestDaemon() {
    if (pid_ > 0) stop();
    std::filesystem::remove_all(directory_);
  }

  // Asks it to stop; gives its exit code.
  int stop() {
    ::kill(pid_, SIGTERM);
    ::kill(pid_, SIGCONT);  // where a test that failed left it stopped
    int status = 0;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

  // A worker, a spare worker and a spare loader, and nobody else: no load is under way, no spare
  // missing.
  [[nodiscard]] bool children_are_settled() const {
    std::error_code ended;  // of a thread that did meanwhile
    ptrdiff_t children = 0;
    const std::string tasks = "/proc/" + std::to_string(pid_) + "/task";
    for (const auto& task : std::filesystem::directory_iterator(tasks, ended)) {
      const Fd list(::open((task.path() / "children").c_str(), O_RDONLY | O_CLOEXEC));
      char text[4096];
      const ssize_t length = ::read(list.get(), text, sizeof text);
      if (length > 0) children += std::count(text, text + length, ' ');
    }
    return children == 3;
  }

  [[nodiscard]] std::string socket_path() const { return directory_ + "/run/djinnd.sock"; }
  [[nodiscard]] std::string gate_socket_path() const { return directory_ + "/run/gate.sock"; }
  [[nodiscard]] std::string directory() const { return directory_; }
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  // Waits until djinnd too has ended the connection, or a test would count its descriptor.
  [[nodiscard]] bool serves() const {
    const auto socket = ipc::connect_unix(socket_path());
    if (!socket.ok()) return false;
    ::shutdown(socket.value().get(), SHUT_WR);
    pollfd ended{socket.value().get(), POLLIN, 0};
    return ::poll(&ended, 1, static_cast<int>(std::chrono::milliseconds(kDeadline).count())) == 1;
  }

  std::string directory_;
  pid_t pid_ = 0;
};

// One connection.
class TestClient {
 public:
  // principal: whom this names, as djinn-gate does, by the socket that is for it (--gate-socket);
  // empty: it is a program's.
  explicit TestClient(const TestDaemon& daemon, std::string principal = {})
      : principal_(std::move(principal)) {
    auto socket =
        ipc::connect_unix(principal_.empty() ? daemon.socket_path() : daemon.gate_socket_path());
    EXPECT_TRUE(socket.ok());
    if (socket.ok()) socket_ = *std::move(socket);
  }

  [[nodiscard]] int socket() const { return socket_.get(); }

  void send(const ipc::ClientRequest& request, const std::vector<int>& fds = {}) {
    EXPECT_TRUE(try_send(request, fds).ok());
  }
  // To a djinnd that may have turned this away already.
  Status try_send(const ipc::ClientRequest& request, const std::vector<int>& fds = {}) {
    return ipc::send_datagram(socket_.get(), ipc::encode(request), fds);
  }
  void send_bytes(std::string_view text) {
    EXPECT_TRUE(ipc::send_datagram(socket_.get(), std::as_bytes(std::span(text))).ok());
  }

  // The next reply; fds() has its descriptors. Nothing at the end of the connection.
  std::optional<ipc::DaemonReply> receive() {
    pollfd waiting{socket_.get(), POLLIN, 0};
    const int ready =
        ::poll(&waiting, 1, static_cast<int>(std::chrono::milliseconds(kDeadline).count()));
    if (ready != 1) ADD_FAILURE() << "no reply came in time";
    auto message = ipc::receive_datagram(socket_.get());
    if (!message.ok() || !message.value()) return std::nullopt;
    fds_ = std::move(message.value()->fds);
    auto reply = ipc::decode_daemon_reply(message.value()->bytes);
    EXPECT_TRUE(reply.ok());
    return *std::move(reply);
  }

  // Whether one lies there already.
  [[nodiscard]] bool has_reply() const {
    pollfd waiting{socket_.get(), POLLIN, 0};
    return ::poll(&waiting, 1, 0) == 1;
  }

  // Asks and gives the body of the answer, which must be an Answer.
  template <typename Answer, typename Body>
  Answer ask(Body body, const std::vector<int>& fds = {}) {
    const uint32_t number = ++last_number_;
    send({number, std::move(body)}, fds);
    const auto reply = receive();
    EXPECT_TRUE(reply.has_value()) << "the connection ended";
    if (!reply) return {};
    EXPECT_EQ(reply->number, number);
    if (const auto* failed = std::get_if<ipc::Failed>(&reply->body);
        failed != nullptr && !std::is_same_v<Answer, ipc::Failed>) {
      ADD_FAILURE() << "refused: " << failed->message;
    }
    const auto* answer = std::get_if<Answer>(&reply->body);
    EXPECT_NE(answer, nullptr) << "another kind of answer";
    return answer != nullptr ? *answer : Answer{};
  }

  // device: "fake:0"; djinnd's first if it is empty.
  ipc::Welcome greet(bool observer = false, uint64_t staging_bytes = 1 << 16,
                     const std::string& device = {}) {
    const auto welcome =
        ask<ipc::Welcome>(ipc::Hello{ipc::kProtocolVersion, "test", staging_bytes, observer, device,
                                     ServiceClass::kNormal, principal_});
    if (!observer && fds_.size() == 3) {
      memory_ = std::move(fds_[0]);
      submission_bell_ = std::move(fds_[1]);
      mapped_ = *pal::map_shared(memory_, ipc::SessionLayout::bytes(welcome.staging_bytes),
                                 pal::Access::kReadWrite);
      ring_.emplace(*ipc::SessionView::over(mapped_.bytes()));
    }
    return welcome;
  }

  // Each submits one run more, and rings; the answer comes with completion(). What the worker reads
  // of one in staging the next one overwrites.
  void submit_nothing() {
    submit_silently();
    ipc::ring_submission_bell(submission_bell_);
  }
  void submit_graph(const srg::Graph& graph) {
    ipc::Submission submission;
    const std::vector<std::byte> bytes = ipc::encode(graph);
    submission.graph_offset = kGraphAt;
    submission.graph_bytes = bytes.size();
    copy_bytes(bytes, staging().subspan(kGraphAt));
    submit(ipc::Operation::kRunOnce, ipc::RunBlock{}, submission);
  }
  // A new ref of so many bytes, of which only the first come with this.
  void submit_write(uint64_t bytes) {
    const RefHandle ref{++refs_, 1};
    submit(ipc::Operation::kWriteRef,
           ipc::WriteBlock{ref, {kBlockAt, std::min<uint64_t>(bytes, 64)}, 0, bytes});
  }
  // A new ref of the text, of at most 64 bytes.
  void submit_write(std::string_view text) {
    copy_bytes(std::as_bytes(std::span(text)), staging().subspan(kTextAt));
    submit(ipc::Operation::kWriteRef,
           ipc::WriteBlock{{++refs_, 1}, {kTextAt, text.size()}, 0, text.size()});
  }
  // The text of the n-th ref that was written, from 1; empty where it cannot be read.
  std::string read_text(uint32_t nth, size_t bytes) {
    submit(ipc::Operation::kReadRef,
           ipc::ReadBlock{{nth, 1}, DType::kUInt8, {bytes}, {1}, 0, {kTextAt, bytes}});
    if (completion() != ErrorCode::kOk) return {};
    const std::span<const std::byte> text = staging().subspan(kTextAt, bytes);
    return {reinterpret_cast<const char*>(text.data()), text.size()};
  }
  // Of the n-th ref that was written, from 1.
  void submit_release(uint32_t nth) {
    submit(ipc::Operation::kReleaseRefs, ipc::ReleaseBlock{{RefHandle{nth, 1}}});
  }
  // The group's rows become what they are: so it is used.
  void submit_reorder(SequenceHandle sequence) {
    submit(ipc::Operation::kReorderSequence, ipc::ReorderBlock{sequence, {0}});
  }
  // A worker that takes the session in dies before it has, so many times (fake_worker.cc).
  void let_workers_die(uint32_t count) { memcpy(staging().data(), &count, sizeof count); }
  // That number as they have left it.
  [[nodiscard]] uint32_t told_to_workers() const {
    const std::span<const std::byte> staged = staging();
    return *reinterpret_cast<const volatile uint32_t*>(staged.data());
  }
  // Without a ring: the worker may find it.
  void submit_silently() {
    ipc::Submission submission;
    submission.run = ++runs_;
    EXPECT_TRUE(ring_->publish(submission).ok());
  }
  // Whoever reads or writes what this client has of the bells sleeps for good.
  void jam_bells() {
    const uint64_t full = UINT64_MAX - 1;
    uint64_t rings = 0;
    [[maybe_unused]] const ssize_t read = ::read(submission_bell_.get(), &rings, sizeof rings);
    EXPECT_EQ(::write(submission_bell_.get(), &full, sizeof full), ssize_t{sizeof full});
    for (const Fd* fd : {&submission_bell_, &fds_[2]}) {
      EXPECT_EQ(::fcntl(fd->get(), F_SETFL, 0), 0);
    }
  }
  ErrorCode completion() {
    std::optional<ipc::Completion> taken;
    EXPECT_TRUE(eventually([&] {
      auto next = ring_->take();
      if (next.ok()) taken = next.value();
      return taken.has_value();
    }));
    return taken ? static_cast<ErrorCode>(taken->error) : ErrorCode::kTimeout;
  }

  [[nodiscard]] std::vector<Fd>& fds() { return fds_; }
  [[nodiscard]] const Fd& memory() const { return memory_; }
  void disconnect() { socket_.reset(); }

 private:
  // In staging, behind let_workers_die()'s number.
  static constexpr uint64_t kBlockAt = 4 << 10;
  static constexpr uint64_t kTextAt = 16 << 10;
  static constexpr uint64_t kGraphAt = 32 << 10;

  [[nodiscard]] std::span<std::byte> staging() const {
    return ipc::SessionView::over(mapped_.bytes())->staging();
  }
  template <typename Block>
  void submit(ipc::Operation operation, const Block& block, ipc::Submission submission = {}) {
    const std::vector<std::byte> bytes = ipc::encode(block);
    copy_bytes(bytes, staging().subspan(kBlockAt));
    submission.operation = static_cast<uint16_t>(operation);
    submission.run = ++runs_;
    submission.binding_offset = kBlockAt;
    submission.binding_bytes = static_cast<uint32_t>(bytes.size());
    EXPECT_TRUE(ring_->publish(submission).ok());
    ipc::ring_submission_bell(submission_bell_);
  }

  std::string principal_;
  Fd socket_;
  uint32_t last_number_ = 0;
  std::vector<Fd> fds_;
  Fd memory_;
  Fd submission_bell_;
  pal::Mapping mapped_;
  std::optional<ipc::ClientRing> ring_;
  uint64_t runs_ = 0;
  uint32_t refs_ = 0;
};

inline Fd sealed(std::string_view text) {
  return *pal::make_sealed_memfd("test", std::as_bytes(std::span(text)));
}
inline Fd sealed(const srg::Graph& graph) {
  return *pal::make_sealed_memfd("test", ipc::encode(graph));
}
// A program with one output of that name.
inline Fd program(std::string name) {
  srg::GraphBuilder g("test");
  const srg::Tensor y = g.op("fake::add_one", {g.input("x", DType::kFloat32, {4})});
  g.claim(y, DType::kFloat32, {4});
  g.output(std::move(name), y);
  return sealed(*std::move(g).finish());
}

// A safetensors file of so many float32 tensors ("w0" and so on) of so many elements each, with the
// given byte everywhere.
inline Fd model_file(const std::string& directory, uint64_t elements, char fill,
                     uint64_t tensors = 1) {
  const std::string bytes(tensors * elements * 4, fill);
  std::string header;
  for (uint64_t i = 0; i < tensors; ++i) {
    header +=
        fmt::format(R"({}"w{}":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}})",
                    i == 0 ? '{' : ',', i, elements, i * elements * 4, (i + 1) * elements * 4);
  }
  header += '}';
  std::string content;
  for (int shift = 0; shift < 64; shift += 8) {
    content.push_back(static_cast<char>(header.size() >> shift));
  }
  content += header + bytes;
  std::string path = directory + "/model-XXXXXX";
  const Fd written(::mkstemp(path.data()));
  EXPECT_EQ(::write(written.get(), content.data(), content.size()),
            static_cast<ssize_t>(content.size()));
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  ::unlink(path.c_str());
  return file;
}

// The configuration that a djinnd with --root reads.
inline void write_config(const std::string& root, std::string_view text) {
  std::filesystem::create_directories(root + "/etc/djinn");
  const Fd file(::open((root + "/etc/djinn/djinnd.conf").c_str(),
                       O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  EXPECT_EQ(::write(file.get(), text.data(), text.size()), std::ssize(text));
}

inline ipc::ModelOpened open_model(TestClient& client, const Fd& file, ipc::OpenModel how = {}) {
  client.ask<ipc::Done>(ipc::AddFiles{1}, {file.get()});
  return client.ask<ipc::ModelOpened>(std::move(how));
}

}  // namespace djinn::daemon::testing
