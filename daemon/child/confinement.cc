// SPDX-License-Identifier: Apache-2.0

#include "daemon/child/confinement.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <linux/sched.h>
#include <seccomp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <memory>
#include <string>

#include "kernel/base/assert.h"
#include "kernel/base/fd.h"

namespace djinn::child {
namespace {

// --- Landlock. The kernel's interface as of its version 6; older kernels take the head of the
// struct, and Debian 12's headers know only that.
struct RulesetAttributes {
  uint64_t handled_access_fs = 0;
  uint64_t handled_access_net = 0;  // from version 4
  uint64_t scoped = 0;              // from version 6
};
constexpr uint32_t kVersionQuery = 1;
constexpr uint64_t kNetAll = 0x3;     // bind and connect, TCP
constexpr uint64_t kScopedAll = 0x3;  // abstract Unix sockets, signals

// Gives all rights to files that a version knows: 13, then refer, truncate, and ioctl of devices.
uint64_t file_rights(uint32_t abi) {
  const uint32_t count = abi >= 5 ? 16 : abi >= 3 ? 15 : abi >= 2 ? 14 : 13;
  return (uint64_t{1} << count) - 1;
}

size_t attribute_bytes(uint32_t abi) {
  return abi >= 6 ? 24 : abi >= 4 ? 16 : 8;
}

// The kernel's rule for one file: what may be done with it (landlock_path_beneath_attr).
struct [[gnu::packed]] PathRule {
  uint64_t allowed_access = 0;
  int32_t parent_fd = -1;
};
constexpr int kPathRule = 1;
constexpr uint64_t kWriteFile = 1 << 1;
constexpr uint64_t kReadFile = 1 << 2;
constexpr uint64_t kDeviceIoctl = 1 << 15;  // from version 5; before it is not asked

Status allow_node(const Fd& ruleset, const std::string& node, uint32_t abi) {
  const Fd place(::open(node.c_str(), O_PATH | O_CLOEXEC));
  const PathRule rule{(kReadFile | kWriteFile | kDeviceIoctl) & file_rights(abi), place.get()};
  if (place.valid() && ::syscall(SYS_landlock_add_rule, ruleset.get(), kPathRule, &rule, 0) == 0) {
    return {};
  }
  return Error{ErrorCode::kNotConfined, system_error("Landlock: " + node, errno).message};
}

// Applies a ruleset that handles every right and allows none but those to the nodes.
Status restrict_files(uint32_t abi, std::span<const std::string> nodes) {
  RulesetAttributes attributes;
  attributes.handled_access_fs = file_rights(abi);
  if (abi >= 4) attributes.handled_access_net = kNetAll;
  if (abi >= 6) attributes.scoped = kScopedAll;
  const Fd ruleset(static_cast<int>(
      ::syscall(SYS_landlock_create_ruleset, &attributes, attribute_bytes(abi), 0)));
  if (ruleset.valid()) {
    for (const std::string& node : nodes) DJINN_CHECK(allow_node(ruleset, node, abi));
    if (::syscall(SYS_landlock_restrict_self, ruleset.get(), 0) == 0) return {};
  }
  return Error{ErrorCode::kNotConfined, system_error("Landlock", errno).message};
}

// --- seccomp
struct FilterReleaser {
  void operator()(void* filter) const noexcept { seccomp_release(filter); }
};
using Filter = std::unique_ptr<void, FilterReleaser>;

// These are allowed with any arguments: they work on descriptors, memory and threads that we have
// already.
constexpr int kAllowed[] = {
    // descriptors
    SCMP_SYS(read), SCMP_SYS(readv), SCMP_SYS(pread64), SCMP_SYS(preadv), SCMP_SYS(preadv2),
    SCMP_SYS(write), SCMP_SYS(writev), SCMP_SYS(pwrite64), SCMP_SYS(lseek), SCMP_SYS(close),
    SCMP_SYS(fstat), SCMP_SYS(fstatfs), SCMP_SYS(dup), SCMP_SYS(readahead), SCMP_SYS(fadvise64),
    SCMP_SYS(memfd_create), SCMP_SYS(ftruncate), SCMP_SYS(fallocate), SCMP_SYS(fchmod),
    SCMP_SYS(fdatasync),
    // the control channel and waiting
    SCMP_SYS(recvmsg), SCMP_SYS(sendmsg), SCMP_SYS(poll), SCMP_SYS(ppoll), SCMP_SYS(eventfd2),
    SCMP_SYS(epoll_create1), SCMP_SYS(epoll_ctl), SCMP_SYS(epoll_wait), SCMP_SYS(epoll_pwait),
    SCMP_SYS(timerfd_create), SCMP_SYS(timerfd_settime), SCMP_SYS(timerfd_gettime),
    // memory
    SCMP_SYS(brk), SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(madvise), SCMP_SYS(mincore),
    SCMP_SYS(membarrier),
    // threads and time
    SCMP_SYS(futex), SCMP_SYS(futex_waitv), SCMP_SYS(set_robust_list), SCMP_SYS(rseq),
    SCMP_SYS(gettid), SCMP_SYS(getpid), SCMP_SYS(getppid), SCMP_SYS(sched_yield),
    SCMP_SYS(sched_getaffinity), SCMP_SYS(sched_getscheduler), SCMP_SYS(sched_getparam),
    SCMP_SYS(set_tid_address), SCMP_SYS(clock_gettime), SCMP_SYS(clock_getres),
    SCMP_SYS(clock_nanosleep), SCMP_SYS(nanosleep), SCMP_SYS(gettimeofday), SCMP_SYS(getcpu),
    SCMP_SYS(exit), SCMP_SYS(exit_group), SCMP_SYS(restart_syscall),
    // signals to ourselves
    SCMP_SYS(rt_sigaction), SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigreturn), SCMP_SYS(sigaltstack),
    // facts about the machine and ourselves
    SCMP_SYS(getrandom), SCMP_SYS(getrusage), SCMP_SYS(sysinfo), SCMP_SYS(uname), SCMP_SYS(getuid),
    SCMP_SYS(geteuid), SCMP_SYS(getgid), SCMP_SYS(getegid)};

// The commands that choose the process to which the kernel sends a descriptor's signals are left
// out.
constexpr int kDescriptorCommands[] = {F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD,     F_SETFD,   F_GETFL,
                                       F_SETFL, F_GET_SEALS,     F_ADD_SEALS, F_GETLEASE};

// A worker makes these requests of NVIDIA's driver once its context is there (traced on an H200,
// driver 580.159, by bench/cuda/confinement). The filter sees a request, and not its device. None
// of these makes a descriptor; request 217, the export to a DMA-BUF, would.
constexpr scmp_datum_t kDriverLetter = 'F' << 8;
constexpr scmp_datum_t kDriverRequests[] = {
    0x27,  // map memory
    0x29,  // free an object
    0x2a,  // control an object
    0x2b,  // make an object
};
// The requests of the driver's unified memory have neither a letter nor a size.
constexpr scmp_datum_t kUnifiedMemoryRequests[] = {
    0x17, 0x18,  // a stream
    0x21, 0x22,  // map and unmap
    0x49,        // map, too
};

// The first mask compares letter and number alone, because the size in the upper bits may differ
// between drivers. The second one compares all 32 bits, which is all that the kernel looks at
// (asm-generic/ioctl.h).
constexpr scmp_datum_t kLetterAndNumber = 0xffff;
constexpr scmp_datum_t kWholeRequest = 0xffffffff;
constexpr scmp_datum_t kLetterAlone = 0xff00;

// Adds rules to a filter, and keeps the first failure, so that each call need not be checked.
class Rules {
 public:
  explicit Rules(scmp_filter_ctx filter) : filter_(filter) {}

  void allow(int call) { note(seccomp_rule_add(filter_, SCMP_ACT_ALLOW, call, 0)); }
  void allow_if(int call, scmp_arg_cmp condition) {
    note(seccomp_rule_add(filter_, SCMP_ACT_ALLOW, call, 1, condition));
  }
  void allow_if(int call, scmp_arg_cmp a, scmp_arg_cmp b) {
    note(seccomp_rule_add(filter_, SCMP_ACT_ALLOW, call, 2, a, b));
  }
  void answer(int call, int error_number) {
    note(seccomp_rule_add(filter_, SCMP_ACT_ERRNO(static_cast<uint16_t>(error_number)), call, 0));
  }
  [[nodiscard]] int failure() const { return failure_; }

 private:
  void note(int result) {
    if (result != 0 && failure_ == 0) failure_ = -result;
  }
  scmp_filter_ctx filter_;
  int failure_ = 0;
};

constexpr scmp_datum_t datum(int64_t value) {
  return static_cast<scmp_datum_t>(value);
}

void allow_unified_memory(Rules& rules) {
  for (const scmp_datum_t request : kUnifiedMemoryRequests)
    rules.allow_if(SCMP_SYS(ioctl), SCMP_A1(SCMP_CMP_MASKED_EQ, kWholeRequest, request));
}

// Of roles into which a shared library is not loaded any more.
bool makes_no_code(Role role) {
  return role == Role::kLoader || role == Role::kMover;
}

void add_rules(Rules& rules, Role role) {
  for (const int call : kAllowed) rules.allow(call);
  // These two ask about a descriptor, as glibc's fstat and the loader's statx do. With a path and
  // this flag stat still answers for a file, but it opens nothing.
  rules.allow_if(SCMP_SYS(newfstatat), SCMP_A3(SCMP_CMP_MASKED_EQ, AT_EMPTY_PATH, AT_EMPTY_PATH));
  rules.allow_if(SCMP_SYS(statx), SCMP_A2(SCMP_CMP_MASKED_EQ, AT_EMPTY_PATH, AT_EMPTY_PATH));
  // Threads are allowed, and processes are not. clone3 hides its flags behind a pointer; since it
  // is refused, glibc falls back to clone.
  rules.allow_if(SCMP_SYS(clone), SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, CLONE_THREAD));
  rules.answer(SCMP_SYS(clone3), ENOSYS);
  rules.allow_if(SCMP_SYS(tgkill), SCMP_A0(SCMP_CMP_EQ, datum(::getpid())));
  for (const int command : kDescriptorCommands) {
    rules.allow_if(SCMP_SYS(fcntl), SCMP_A1(SCMP_CMP_EQ, datum(command)));
  }
  // A thread may only change its own affinity: workers of other users run as the same user of the
  // host.
  rules.allow_if(SCMP_SYS(sched_setaffinity), SCMP_A0(SCMP_CMP_EQ, 0));
  rules.allow_if(SCMP_SYS(sched_setscheduler), SCMP_A0(SCMP_CMP_EQ, 0));
  rules.allow_if(SCMP_SYS(prctl), SCMP_A0(SCMP_CMP_EQ, PR_SET_NAME));
  rules.allow_if(SCMP_SYS(prlimit64), SCMP_A0(SCMP_CMP_EQ, 0), SCMP_A2(SCMP_CMP_EQ, 0));
  if (role == Role::kCudaWorker) {
    for (const scmp_datum_t number : kDriverRequests) {
      rules.allow_if(SCMP_SYS(ioctl),
                     SCMP_A1(SCMP_CMP_MASKED_EQ, kLetterAndNumber, kDriverLetter | number));
    }
    allow_unified_memory(rules);
  }
  if (role == Role::kMover) {
    // Export opens a node. Which paths lead there says Landlock.
    rules.allow(SCMP_SYS(openat));
    rules.allow_if(SCMP_SYS(ioctl), SCMP_A1(SCMP_CMP_MASKED_EQ, kLetterAlone, kDriverLetter));
    allow_unified_memory(rules);
  }
  if (role == Role::kLoader) {
    // What a file of the store is made with: it is copied, gets its time, and is on the disk.
    rules.allow_if(SCMP_SYS(ioctl), SCMP_A1(SCMP_CMP_MASKED_EQ, kWholeRequest, FICLONE));
    rules.allow(SCMP_SYS(copy_file_range));
    rules.allow(SCMP_SYS(fsync));
    rules.allow_if(SCMP_SYS(utimensat), SCMP_A1(SCMP_CMP_EQ, 0));  // of a descriptor
    rules.allow_if(SCMP_SYS(fcntl), SCMP_A1(SCMP_CMP_EQ, F_SETLEASE));
    rules.allow_if(SCMP_SYS(fcntl), SCMP_A1(SCMP_CMP_EQ, F_SETSIG), SCMP_A2(SCMP_CMP_EQ, SIGURG));
    rules.allow_if(SCMP_SYS(fcntl), SCMP_A1(SCMP_CMP_EQ, F_SETOWN), SCMP_A2(SCMP_CMP_EQ, 0));
  }
  if (!makes_no_code(role)) {
    rules.allow(SCMP_SYS(mmap));
    rules.allow(SCMP_SYS(mprotect));
  } else {
    rules.allow_if(SCMP_SYS(mmap), SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
    rules.allow_if(SCMP_SYS(mprotect), SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
  }
}

Status restrict_calls(Role role) {
  const Filter filter(seccomp_init(SCMP_ACT_ERRNO(EPERM)));
  if (!filter) return Error{ErrorCode::kNotConfined, "seccomp: no filter could be made"};
  Rules rules(filter.get());
  add_rules(rules, role);
  int failure = rules.failure();
  // The filter binds all threads, also those that the warm-up has started.
  if (failure == 0) failure = -seccomp_attr_set(filter.get(), SCMP_FLTATR_CTL_TSYNC, 1);
  if (failure == 0) failure = -seccomp_load(filter.get());
  if (failure == 0) return {};
  return Error{ErrorCode::kNotConfined, system_error("seccomp", failure).message};
}

// A process that was started with a higher score keeps it, because lowering takes a privilege.
Status offer_to_die_first() {
  const Fd file(::open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC));
  if (!file.valid()) return system_error("open the OOM score's adjustment", errno);
  std::array<char, 16> text{};
  const ssize_t length = ::read(file.get(), text.data(), text.size());
  if (length < 0) return system_error("read the OOM score's adjustment", errno);
  int present = 0;
  std::from_chars(text.data(), text.data() + length, present);
  if (present >= kOomScore) return {};
  const std::string score = std::to_string(kOomScore);
  if (::pwrite(file.get(), score.data(), score.size(), 0) < 0) {
    return system_error("raise the OOM score", errno);
  }
  return {};
}

}  // namespace

uint32_t landlock_abi() {
  const long version = ::syscall(SYS_landlock_create_ruleset, nullptr, 0, kVersionQuery);
  return version > 0 ? static_cast<uint32_t>(version) : 0;
}

Status become_child() {
  // The score is written first, because only root may write that of a process that is not dumpable.
  if (const Status offered = offer_to_die_first(); !offered) {
    fmt::print(stderr, "djinnd's child may outlive others where memory runs out: {}\n",
               offered.error().message);
  }
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return system_error("follow djinnd", errno);
  if (::prctl(PR_SET_DUMPABLE, 0) != 0) return system_error("become undumpable", errno);
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return system_error("no new privs", errno);
  return {};
}

Result<uint32_t> confine_paths(std::span<const std::string> nodes) {
  const uint32_t abi = landlock_abi();
  if (abi > 0) DJINN_CHECK(restrict_files(abi, nodes));
  return abi;
}

Result<Confinement> confine(Role role, std::span<const std::string> nodes) {
  DJINN_ASSERT(nodes.empty() || role == Role::kMover);
  Confinement done;
  DJINN_TRY(done.landlock_abi, confine_paths(nodes));
  DJINN_CHECK(restrict_calls(role));
  done.seccomp = true;
  return done;
}

}  // namespace djinn::child
