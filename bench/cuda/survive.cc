// SPDX-License-Identifier: Apache-2.0

// cuda-survive shows what becomes of device memory whose makers die. One process that has no driver
// holds descriptors, as djinnd does; processes that have it are started and killed.
//
// It answers: does memory outlive the process that made it, held by a descriptor alone, with nobody
// else using the device, and with /dev/nvidiaN held open; may another user import it; is read-only
// access enforced; does a killed process's kernel write on after its end; is fresh memory zero;
// what a fault in one process, or a kernel that never ends, does to another.
//
//   cuda-survive [--held-s SECONDS]    how long memory is held by its descriptor alone: 10

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <string>

#include "bench/cuda/facts.h"
#include "bench/cuda/gpu_process.h"

namespace djinn::bench::cuda {
namespace {

using nlohmann::json;

constexpr uint64_t kMiB = 1u << 20;
constexpr uint64_t kBytes = 64 * kMiB;
constexpr uint64_t kWords = kBytes / sizeof(uint32_t);
constexpr uid_t kNobody = 65'534;
constexpr const char* kAnchor = "/dev/nvidia0";  // of the first device, where it has the first node

void pause_for(double seconds) {
  ::poll(nullptr, 0, static_cast<int>(seconds * 1000));
}

// This is a process with a context.
struct Ready : GpuProcess {
  Ready() {
    must({{"do", "init"}});
    must({{"do", "context"}});
  }
};

// This is a mapped allocation full of words that follow from the seed.
struct Filled {
  size_t index = 0;
  Fd fd;
};
Filled make_filled(GpuProcess& process, uint32_t seed, uint64_t bytes = kBytes) {
  Answer made = process.must({{"do", "create"}, {"bytes", bytes}});
  const size_t index = made.value;
  process.must({{"do", "map"}, {"index", index}, {"write", true}});
  process.must({{"do", "fill"}, {"index", index}, {"seed", seed}});
  return {index, std::move(made.fd)};
}

size_t import_mapped(GpuProcess& process, const Fd& fd, bool write, uint64_t bytes = kBytes) {
  const size_t index = process.must({{"do", "import"}, {"bytes", bytes}}, fd.get()).value;
  process.must({{"do", "map"}, {"index", index}, {"write", write}});
  return index;
}

// Gives how many words of the memory behind a descriptor differ from the seed's, as a new process
// sees it.
json unlike(const Fd& fd, uint32_t seed) {
  try {
    Ready reader;
    const size_t index = import_mapped(reader, fd, false);
    return reader.must({{"do", "unlike"}, {"index", index}, {"seed", seed}}).value;
  } catch (const std::exception& error) {
    return error.what();
  }
}

void describe_descriptor(const Fd& fd) {
  struct stat info {};
  ::fstat(fd.get(), &info);
  say("an extent's descriptor is a character device", S_ISCHR(info.st_mode));
  say("an extent's descriptor has the device number",
      fmt::format("{}:{}", major(info.st_rdev), minor(info.st_rdev)));
  std::array<char, 200> target{};
  const std::string link = fmt::format("/proc/self/fd/{}", fd.get());
  if (::readlink(link.c_str(), target.data(), target.size() - 1) > 0)
    say("an extent's descriptor is a link to", target.data());
  say("an extent's descriptor tells the size", info.st_size);
  pollfd asked{.fd = fd.get(), .events = POLLIN | POLLOUT, .revents = 0};
  const int ready = ::poll(&asked, 1, 0);
  say("poll of an extent's descriptor", fmt::format("{}, events {:#x}", ready, asked.revents));
  say("an extent's descriptor can be duplicated", fd.duplicate().ok());
}

// --- the experiments, each by itself
// ---------------------------------------------------------------

void creator_is_killed(double held_s, bool anchored) {
  Fd anchor;
  if (anchored) {
    anchor = Fd(::open(kAnchor, O_RDWR | O_CLOEXEC));
    if (!anchor.valid()) throw std::runtime_error(fmt::format("{} does not open", kAnchor));
  }
  Fd fd;
  {
    Ready creator;
    fd = make_filled(creator, 7).fd;
    if (!anchored && held_s < 1) describe_descriptor(fd);
  }
  pause_for(held_s);
  say(fmt::format("words lost {} s after the only process of the device was killed, {}", held_s,
                  anchored ? "with the device's node held open" : "by its descriptor alone"),
      unlike(fd, 7));
}

void memory_comes_back() {
  const auto free_now = [] { return Ready().must({{"do", "free"}}).value.get<uint64_t>(); };
  const uint64_t before = free_now();
  Fd fd;
  {
    Ready creator;
    fd = make_filled(creator, 3, 1024 * kMiB).fd;
  }
  const uint64_t held = free_now();
  fd.reset();
  const uint64_t after = free_now();
  say("free memory that a killed process's extent of 1 GiB takes, held by its descriptor",
      (static_cast<double>(before) - static_cast<double>(held)) / kMiB, "MiB");
  say("free memory that it takes once the descriptor is closed",
      (static_cast<double>(before) - static_cast<double>(after)) / kMiB, "MiB");
}

void another_user_imports() {
  Ready creator;
  const Filled filled = make_filled(creator, 11);
  GpuProcess other;
  other.must({{"do", "become"}, {"uid", kNobody}});
  other.must({{"do", "init"}});
  other.must({{"do", "context"}});
  const Answer imported = other.ask({{"do", "import"}, {"bytes", kBytes}}, filled.fd.get());
  if (!imported.ok()) return say("another user imports an extent", imported.said());
  other.must({{"do", "map"}, {"index", imported.value}, {"write", false}});
  say("words that differ for another user who imports an extent",
      other.ask({{"do", "unlike"}, {"index", imported.value}, {"seed", 11}}).said());
}

void read_only_is_enforced() {
  Ready creator;
  const Filled filled = make_filled(creator, 13);
  {
    Ready reader;
    const size_t index = import_mapped(reader, filled.fd, false);
    say("a copy into memory that is mapped for reading",
        reader.ask({{"do", "fill"}, {"index", index}, {"seed", 1}}).said());
  }
  {
    Ready reader;
    const size_t index = import_mapped(reader, filled.fd, false);
    reader.must({{"do", "scribble"}, {"index", index}, {"words", kWords}, {"rounds", 1}});
    say("a kernel that writes memory that is mapped for reading",
        reader.ask({{"do", "wait"}}).said());
    say("the next call of that process", reader.ask({{"do", "free"}}).said());
  }
  say("words changed by both",
      creator.ask({{"do", "unlike"}, {"index", filled.index}, {"seed", 13}}).said());
  Ready writer;
  const size_t index = import_mapped(writer, filled.fd, true);
  say("an importer may map it for writing",
      writer.ask({{"do", "fill"}, {"index", index}, {"seed", 1}}).said());
}

void killed_while_its_kernel_writes() {
  Ready reader;
  Fd fd;
  size_t index = 0;
  {
    Ready writer;
    Filled filled = make_filled(writer, 17);
    fd = std::move(filled.fd);
    index = import_mapped(reader, fd, false);
    writer.must({{"do", "kernels"}});
    writer.must({{"do", "scribble"}, {"index", filled.index}, {"words", kWords}, {"rounds", 0}});
    pause_for(0.3);
    const json first = reader.must({{"do", "sample"}, {"index", index}}, -1, 30).value;
    pause_for(0.1);
    const json second = reader.must({{"do", "sample"}, {"index", index}}, -1, 30).value;
    say("another process sees an endless kernel's writes", first != second, "",
        fmt::format("{} then {}", first.dump(), second.dump()));
    const double wait_us = timed_us([&] {
      reader.must({{"do", "sample"}, {"index", index}}, -1, 30);
    });
    say("a copy of four bytes beside another process's endless kernel", wait_us / 1e3, "ms");
    const Filled own = make_filled(reader, 31, 2 * kMiB);
    reader.must({{"do", "kernels"}});
    const double kernel_us = timed_us([&] {
      reader.must({{"do", "scribble"}, {"index", own.index}, {"words", 1024}, {"rounds", 1}});
      reader.must({{"do", "wait"}}, -1, 30);
    });
    say("a small kernel beside another process's endless kernel", kernel_us / 1e3, "ms");
    const auto gone = writer.kill();
    say("seconds from SIGKILL to the end of a process whose kernel never ends",
        gone ? json(*gone) : json("not gone in 20 s"), "s");
  }
  const json at_once = reader.must({{"do", "sample"}, {"index", index}}).value;
  pause_for(0.5);
  const json later = reader.must({{"do", "sample"}, {"index", index}}).value;
  say("memory still changes after the writer's end", at_once != later, "",
      fmt::format("{} then {}", at_once.dump(), later.dump()));
}

// Writes nine tenths of the device and gives them back, so that memory asked for next is among
// them.
void fresh_memory() {
  json gib;
  {
    Ready process;
    gib = process.must({{"do", "write_all"}, {"keep", false}}).value;
    say(fmt::format("words that are not zero in new memory, {} GiB, which the same process wrote",
                    gib.dump()),
        process.ask({{"do", "not_zero_all"}, {"gib", gib}}).said());
    process.must({{"do", "write_all"}, {"keep", true}});
  }
  Ready next;
  say(fmt::format("words that are not zero in new memory, {} GiB, of a process that was killed",
                  gib.dump()),
      next.ask({{"do", "not_zero_all"}, {"gib", gib}}).said());
}

void faults_stay_with_their_process() {
  Ready other;
  const Filled filled = make_filled(other, 29);
  Ready faulty;
  faulty.must({{"do", "kernels"}});
  faulty.must({{"do", "wild"}});
  say("a kernel that writes where nothing is mapped", faulty.ask({{"do", "wait"}}).said());
  say("its process's next call", faulty.ask({{"do", "free"}}).said());
  say("words lost by another process then",
      other.ask({{"do", "unlike"}, {"index", filled.index}, {"seed", 29}}).said());
}

void what_the_driver_refuses() {
  for (const char* rule :
       {"map the second half of an allocation", "map the first half of an allocation",
        "map more than an allocation has", "import a memfd", "import a pipe",
        "export after the allocation was imported", "import one descriptor twice in one process",
        "create less than the granularity", "seal a memfd while it is registered for copies"}) {
    Ready process;
    say(rule, process.ask({{"do", "rule"}, {"name", rule}}).said());
  }
}

int survive(double held_s) {
  {
    GpuProcess process;
    if (!start_driver(process)) return kNotHere;
  }
  attempt("creator killed", [] { creator_is_killed(0.5, false); });
  attempt("creator killed, anchored", [&] { creator_is_killed(held_s, true); });
  attempt("creator killed, held longer", [&] { creator_is_killed(held_s, false); });
  attempt("another user", another_user_imports);
  attempt("fresh memory", fresh_memory);
  attempt("memory comes back", memory_comes_back);
  attempt("read-only", read_only_is_enforced);
  attempt("rules", what_the_driver_refuses);
  attempt("a fault", faults_stay_with_their_process);
  attempt("killed in a kernel", killed_while_its_kernel_writes);
  return 0;
}

}  // namespace
}  // namespace djinn::bench::cuda

int main(int count, char** arguments) {
  namespace cuda = djinn::bench::cuda;
  const bool told = count == 3 && std::string(arguments[1]) == "--held-s";
  const double held_s = told ? std::strtod(arguments[2], nullptr) : 10;
  return cuda::run_with_gpu_processes(count, arguments, [&] { return cuda::survive(held_s); });
}
