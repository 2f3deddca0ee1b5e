// SPDX-License-Identifier: Apache-2.0

// Each test confines a process of its own and looks at what it can still do.
#include "daemon/child/confinement.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "ipc/socket.h"
#include "kernel/base/fd.h"

namespace djinn::child {
namespace {

constexpr int kNotConfined = 100;

// Runs body in a confined child; gives the number that body returned, or 1000 + a signal.
int in_confined_child(Role role, const std::function<int()>& body,
                      const std::vector<std::string>& nodes = {}) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (!become_child() || !confine(role, nodes)) ::_exit(kNotConfined);
    ::_exit(body());
  }
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

// 0 if the call failed with EPERM, EACCES or ENOSYS; which otherwise.
int refused(long result, int which) {
  const bool denied = errno == EPERM || errno == EACCES || errno == ENOSYS;
  return result == -1 && denied ? 0 : which;
}

int first_failure(std::initializer_list<int> results) {
  for (const int result : results) {
    if (result != 0) return result;
  }
  return 0;
}

class Confinement : public testing::TestWithParam<Role> {};

TEST_P(Confinement, files_processes_and_sockets_are_out_of_reach) {
  const int failure = in_confined_child(GetParam(), [] {
    const char* const arguments[] = {"/bin/true", nullptr};
    return first_failure({
        refused(::open("/etc/passwd", O_RDONLY | O_CLOEXEC), 1),
        refused(::openat(AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC), 2),
        refused(::syscall(SYS_openat2, AT_FDCWD, "/", nullptr, 0), 3),
        refused(::unlink("/tmp/nothing"), 4),
        refused(::socket(AF_UNIX, SOCK_STREAM, 0), 5),
        refused(::socket(AF_INET, SOCK_STREAM, 0), 6),
        refused(::execve("/bin/true", const_cast<char* const*>(arguments), nullptr), 7),
        refused(::fork(), 8),
        refused(::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr), 9),
        refused(::kill(::getppid(), 0), 10),
        refused(::syscall(SYS_process_vm_readv, ::getppid(), nullptr, 0, nullptr, 0, 0), 11),
        refused(::syscall(SYS_io_uring_setup, 1, nullptr), 12),
        refused(::syscall(SYS_tgkill, ::getppid(), ::getppid(), 0), 13),
    });
  });
  EXPECT_EQ(failure, 0) << "the call with that number was not refused";
}

// Other users' workers, and djinnd, are the same user's of the host, whom the kernel would let do
// it.
TEST_P(Confinement, no_other_process_gets_a_signal_or_another_place_on_the_cores) {
  auto pair = ipc::make_socket_pair();
  ASSERT_TRUE(pair);
  const int failure = in_confined_child(GetParam(), [&] {
    const int socket = pair->left.get();
    const pid_t other = ::getppid();
    const f_owner_ex owner{F_OWNER_PID, other};
    const sched_param none{};
    cpu_set_t cores;
    if (::sched_getaffinity(0, sizeof cores, &cores) != 0) return 1;
    if (::sched_setaffinity(0, sizeof cores, &cores) != 0) return 2;
    if (::sched_setscheduler(0, SCHED_OTHER, &none) != 0) return 3;
    return first_failure({
        refused(::fcntl(socket, F_SETOWN, other), 4),
        refused(::fcntl(socket, F_SETOWN_EX, &owner), 5),
        refused(::fcntl(socket, F_SETSIG, SIGKILL), 6),
        refused(::sched_setaffinity(other, sizeof cores, &cores), 7),
        refused(::sched_setscheduler(other, SCHED_IDLE, &none), 8),
    });
  });
  EXPECT_EQ(failure, 0) << "the step with that number was not as it should be";
}

TEST_P(Confinement, memory_threads_and_open_descriptors_keep_working) {
  auto pair = ipc::make_socket_pair();
  ASSERT_TRUE(pair);
  const Fd readable(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(readable.valid());
  const int failure = in_confined_child(GetParam(), [&] {
    const Fd memory(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!memory.valid() || ::ftruncate(memory.get(), 1 << 20) != 0) return 1;
    if (::fallocate(memory.get(), 0, 0, 1 << 20) != 0) return 2;
    void* const at = ::mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
    if (at == MAP_FAILED || ::madvise(at, 1 << 20, MADV_POPULATE_WRITE) != 0) return 3;
    if (::munmap(at, 1 << 20) != 0) return 4;
    char byte = 0;
    if (::pread(readable.get(), &byte, 1, 0) != 1) return 5;
    int seen = 0;
    std::thread([&] { seen = 1; }).join();
    if (seen != 1) return 6;
    const std::byte message[1] = {};
    const int sent[1] = {memory.get()};
    if (!ipc::send_datagram(pair->left.get(), message, sent)) return 7;
    const auto received = ipc::receive_datagram(pair->right.get());
    if (!received.ok() || !received.value() || received.value()->fds.size() != 1) return 8;
    return 0;
  });
  EXPECT_EQ(failure, 0) << "the step with that number did not work";
}

TEST_P(Confinement, an_abort_still_ends_the_process) {
  EXPECT_EQ(in_confined_child(GetParam(), []() -> int { ::abort(); }), 1000 + SIGABRT);
}

INSTANTIATE_TEST_SUITE_P(Roles, Confinement,
                         testing::Values(Role::kLoader, Role::kWorker, Role::kCudaWorker,
                                         Role::kMover));

TEST(ConfinementOfRoles, only_a_worker_may_make_pages_executable) {
  const auto make_executable = [] {
    void* const at =
        ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return 2;
    return ::mprotect(at, 4096, PROT_READ | PROT_EXEC) == 0 ? 1 : 0;
  };
  EXPECT_EQ(in_confined_child(Role::kLoader, make_executable), 0);
  EXPECT_EQ(in_confined_child(Role::kMover, make_executable), 0);
  EXPECT_EQ(in_confined_child(Role::kWorker, make_executable), 1);
}

// --- ioctl
// ---------------------------------------------------------------------------------------

// A memfd knows no request of the driver's, and says so with another errno than the filter.
bool is_let_through(uint64_t request) {
  const Fd memory(::memfd_create("test", MFD_CLOEXEC));
  return ::syscall(SYS_ioctl, memory.get(), request, nullptr) == 0 || errno != EPERM;
}

// Looks from inside at what a role lets through.
void expect_of_requests(Role role, const std::function<void()>& look) {
  EXPECT_EQ(in_confined_child(role,
                              [&] {
                                look();
                                ::fflush(stdout);
                                return testing::Test::HasFailure() ? 1 : 0;
                              }),
            0);
}

constexpr uint64_t kLetter = 'F' << 8;
// As a driver's trace has it: sizes and directions in the upper half.
constexpr uint64_t kAsked[] = {0xc0384627, 0xc0104629, 0xc020462a, 0xc030462b, 0x17,
                               0x18,       0x21,       0x22,       0x49};
constexpr uint64_t kExportToDmaBuf = kLetter | 217;  // makes a descriptor of its own

TEST(ConfinementOfRoles, only_a_gpus_worker_makes_the_drivers_requests) {
  for (const Role role : {Role::kLoader, Role::kWorker, Role::kCudaWorker}) {
    expect_of_requests(role, [role] {
      for (const uint64_t request : kAsked)
        EXPECT_EQ(is_let_through(request), role == Role::kCudaWorker) << std::hex << request;
      EXPECT_FALSE(is_let_through(TIOCSTI));
    });
  }
}

TEST(ConfinementOfRoles, a_gpus_worker_makes_no_request_that_it_does_not_need) {
  const std::set<uint64_t> of_the_driver{0x27, 0x29, 0x2a, 0x2b};
  const std::set<uint64_t> of_unified_memory{0x17, 0x18, 0x21, 0x22, 0x49};
  expect_of_requests(Role::kCudaWorker, [&] {
    for (uint64_t number = 0; number < 256; ++number) {
      EXPECT_EQ(is_let_through(kLetter | number), of_the_driver.contains(number)) << number;
      EXPECT_EQ(is_let_through(number), of_unified_memory.contains(number)) << number;
    }
    EXPECT_FALSE(is_let_through(_IOWR('F', 217, int[4])));
    EXPECT_FALSE(is_let_through(FIBMAP));
    EXPECT_FALSE(is_let_through(FIGETBSZ));
  });
}

TEST(ConfinementOfRoles, a_mover_makes_any_request_of_the_driver_and_of_nobody_else) {
  const std::set<uint64_t> of_unified_memory{0x17, 0x18, 0x21, 0x22, 0x49};
  expect_of_requests(Role::kMover, [&] {
    for (uint64_t number = 0; number < 256; ++number) {
      EXPECT_TRUE(is_let_through(kLetter | number)) << number;
      EXPECT_EQ(is_let_through(number), of_unified_memory.contains(number)) << number;
    }
    for (const uint64_t request : kAsked)
      EXPECT_TRUE(is_let_through(request)) << std::hex << request;
    for (const uint64_t request : {uint64_t{TIOCSTI}, uint64_t{FIBMAP}, uint64_t{FIGETBSZ}})
      EXPECT_FALSE(is_let_through(request)) << std::hex << request;
  });
}

// Threads that were there before are not bound: confine() says which are.
TEST(ConfinementOfRoles, the_thread_of_a_mover_that_asks_opens_the_nodes_that_it_was_given_alone) {
  if (landlock_abi() == 0) GTEST_SKIP() << "this kernel has no Landlock";
  const int failure = in_confined_child(
      Role::kMover,
      [] {
        const Fd node(::open("/dev/null", O_RDWR | O_CLOEXEC));
        if (!node.valid()) return 1;
        return first_failure({
            refused(::open("/dev/zero", O_RDONLY | O_CLOEXEC), 2),
            refused(::open("/dev", O_RDONLY | O_CLOEXEC), 3),
            refused(::open("/dev/nothing", O_RDWR | O_CREAT | O_CLOEXEC, 0600), 4),
            refused(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC), 5),
        });
      },
      {"/dev/null"});
  EXPECT_EQ(failure, 0) << "the step with that number was not as it should be";
}

// The kernel takes a request for 32 bits, whatever the register holds.
TEST(ConfinementOfRoles, the_upper_half_of_a_request_changes_nothing) {
  constexpr uint64_t kUpperHalf = 0xdead'beef'0000'0000;
  expect_of_requests(Role::kCudaWorker, [] {
    for (const uint64_t request : kAsked)
      EXPECT_TRUE(is_let_through(kUpperHalf | request)) << std::hex << request;
    EXPECT_FALSE(is_let_through(kUpperHalf | kExportToDmaBuf));
    EXPECT_FALSE(is_let_through(kUpperHalf | FIBMAP));
  });
}

TEST(ConfinementOfRoles, a_child_is_not_dumpable_and_dies_with_its_parent) {
  const int failure = in_confined_child(Role::kLoader, [] { return 0; });
  EXPECT_EQ(failure, 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    int signal = 0;
    const bool ok = become_child().ok() && ::prctl(PR_GET_DUMPABLE) == 0 &&
                    ::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 &&
                    ::prctl(PR_GET_PDEATHSIG, &signal) == 0 && signal == SIGKILL;
    ::_exit(ok ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
}

TEST(ConfinementOfRoles, a_child_is_killed_for_memory_before_others) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    char text[16] = {};
    int score = 0;
    const bool began = become_child().ok();
    const Fd file(::open("/proc/self/oom_score_adj", O_RDONLY | O_CLOEXEC));
    const ssize_t length = ::read(file.get(), text, sizeof text);
    const bool ok =
        began && length > 0 && std::from_chars(text, text + length, score).ec == std::errc();
    ::_exit(ok && score >= kOomScore ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
}

TEST(ConfinementOfRoles, landlock_alone_refuses_paths) {
  if (landlock_abi() == 0) {
    GTEST_SKIP() << "THIS KERNEL HAS NO LANDLOCK: children are confined by seccomp alone";
  }
  const pid_t pid = ::fork();
  if (pid == 0) {
    const bool ok = become_child().ok() && confine_paths().ok() &&
                    ::open("/etc/passwd", O_RDONLY | O_CLOEXEC) < 0 && errno == EACCES;
    ::_exit(ok ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace djinn::child
