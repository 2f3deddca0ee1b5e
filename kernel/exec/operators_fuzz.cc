// SPDX-License-Identifier: Apache-2.0

// exec-fuzz calls every allowed operator with hostile arguments, through the admission and the
// interpreter that the worker uses, and looks for what a guard (guards.h) should have refused.
//
//   exec-fuzz SECONDS [--seed N] [--only OPERATOR [--call SEED,SEED,...]]
//
// Each call runs on two threads, as users' do, and some calls are large enough that kernels share
// the work: twice on memory with guard pages (guarded_memory_fuzz.h), poisoned with another byte
// each time, and once as planned on a slab. A finding is a call
//
//   * that ends the process: it reads or writes what is not its own, or fails an assertion
//   * whose two runs differ: it reads memory that nobody wrote, or its threads race
//   * that writes outside of its blocks, or changes an input that its schema does not name
//   * that hangs without computing
//
// Calls run in a child, which the next replaces when it dies, so one finding does not hide others.
// A call that computes for too long is counted and is no finding: djinnd watches for those itself.
// Calls that were carried out are changed further. Exit code 1: something was found. 2: what is
// known to be wrong was not found.

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <malloc.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>

#include "kernel/base/alignment.h"
#include "kernel/base/assert.h"
#include "kernel/base/checked.h"
#include "kernel/base/clock.h"
#include "kernel/base/random.h"
#include "kernel/exec/allow_list.h"
#include "kernel/exec/cpu_executor.h"
#include "kernel/exec/graph_builder_for_tests.h"
#include "kernel/exec/guarded_memory_fuzz.h"
#include "kernel/exec/guards.h"
#include "kernel/exec/hostile_call_fuzz.h"
#include "kernel/exec/program.h"
#include "kernel/executor/output.h"
#include "kernel/srg/text.h"
#include "kernel/srg/verify.h"

namespace djinn::exec {
namespace {

constexpr int kThreads = 2;
constexpr uint32_t kAgainMax = 16;                      // runs of a call whose threads may race
constexpr uint64_t kMemoryBytes = uint64_t{160} << 20;  // of a run, guard pages included
constexpr uint64_t kActivationBytesMax = uint64_t{32} << 20;
constexpr uint64_t kOutsideBytesMax = uint64_t{2} << 30;  // what a call may take past the allocator
constexpr uint64_t kResultBytesMax = uint64_t{4} << 20;   // of a result that is compared
constexpr time_t kComputingMax_s = 4;
constexpr unsigned kHangingMax_s = 120;
constexpr uint32_t kFindingsMax = 3;  // of an operator, which is left out from then on
constexpr size_t kOperatorsMax = 1200;
constexpr std::array<std::byte, 2> kPoisons{std::byte{0x00}, std::byte{0xc3}};

// --- what parent and children share ---

// This is a lineage in shared memory.
struct Kept {
  uint32_t count = 0;
  std::array<uint64_t, 12> seeds{};

  [[nodiscard]] Lineage lineage() const { return {seeds.begin(), seeds.begin() + count}; }
  void keep(const Lineage& lineage) {
    count = static_cast<uint32_t>(lineage.size());
    std::copy(lineage.begin(), lineage.end(), seeds.begin());
  }
};

struct Tally {
  uint64_t calls = 0;
  uint64_t carried_out = 0;
  uint32_t slow = 0;
  uint32_t findings = 0;
  std::array<Kept, 6> kept;  // lineages of calls that were carried out
};

struct Shared {
  uint64_t next = 0;  // the number of the next call
  size_t op = 0;      // of the call in progress
  Kept lineage;       // likewise
  std::array<Tally, kOperatorsMax> tallies;
};

Shared& map_shared() {
  void* const memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  DJINN_ASSERT(memory != MAP_FAILED);
  return *new (memory) Shared;  // as long as the process
}

void report(std::string_view op, const Lineage& lineage, std::string_view what) {
  fmt::print("FOUND {}: {}\n  again: exec-fuzz 0 --only {} --call {}\n", op, what, op,
             fmt::join(lineage, ","));
  const std::string text = srg::print_text(make_call(op, **resolve_operator(op), lineage).graph);
  fmt::print("{}", text);
  ::fflush(stdout);
}

// --- one call ---

// This is what one run of a call gave.
struct Seen {
  Outcome<void> ended;
  std::vector<std::string> results;  // dtype, sizes, bytes
  bool is_intact = true;
  bool left_inputs_alone = true;
};

std::string result_of(const OutputView& view) {
  std::string text = fmt::format("{} {} ", name_of(view.dtype), view.sizes);
  uint64_t bytes = size_of(view.dtype);
  for (const int64_t size : view.sizes) {
    if (bytes * static_cast<uint64_t>(size) > kResultBytesMax) return text;
    bytes *= static_cast<uint64_t>(size);
  }
  std::vector<std::byte> elements(bytes);
  const Status copied = copy_elements(view, elements);
  text += copied ? "" : copied.error().message;
  return text.append(reinterpret_cast<const char*>(elements.data()), elements.size());
}

class Examiner {
 public:
  Examiner() : slab_(work_.reserved()) {
    LaneOptions options;
    options.planned = false;
    options.threads = kThreads;
    lane_ = *executor_.make_lane(options);
  }

  enum class Verdict { kRefused, kCarriedOut, kFound };

  // If it is a finding, `why` says why.
  Verdict examine(const Call& call, std::string& why) {
    if (!srg::verify(call.graph)) return Verdict::kRefused;
    auto program = executor_.admit(call.graph, weights_, {kActivationBytesMax});
    if (!program) return Verdict::kRefused;
    return examine(call, **program, why);
  }

  Verdict examine(const Call& call, Program& program, std::string& why) {
    const Seen first = run_guarded(call, program, kPoisons[0]);
    const Seen second = run_guarded(call, program, kPoisons[1]);
    run_planned(call, program);
    why = fault_of(first, second);
    if (!why.empty() && races(call, program, first)) {
      // Which of several threads fails first, and says why, may differ: that is no finding.
      why = first.ended ? "its threads race: it gives other bits each time" : "";
    }
    if (!why.empty()) return Verdict::kFound;
    return first.ended ? Verdict::kCarriedOut : Verdict::kRefused;
  }

 private:
  // Tells whether the way in which the call ends depends on something other than the poison.
  bool races(const Call& call, Program& program, const Seen& first) {
    for (uint32_t i = 0; i < kAgainMax; ++i) {
      const bool same_poison = i % 2 == 0;
      const Seen again = run_guarded(call, program, kPoisons[same_poison ? 0 : 1]);
      if (fault_of(first, again).empty() != same_poison) return true;
    }
    return false;
  }

  static std::string fault_of(const Seen& a, const Seen& b) {
    if (!a.is_intact || !b.is_intact) return "it writes beyond its memory";
    if (!a.left_inputs_alone || !b.left_inputs_alone) return "it changes an input unsaid";
    if (a.ended.ok() != b.ended.ok()) return "it reads memory that nobody wrote: one run fails";
    if (!a.ended.ok()) {
      const bool same = a.ended.error().message == b.ended.error().message;
      return same ? "" : "it reads memory that nobody wrote: its error tells";
    }
    for (size_t i = 0; i < a.results.size(); ++i) {
      if (a.results[i] != b.results[i]) {
        return fmt::format("it reads memory that nobody wrote: result {} tells", i);
      }
    }
    return "";
  }

  std::vector<StorageBinding> bind(const Call& call, std::byte poison) {
    inputs_.reset(poison);
    std::vector<StorageBinding> bindings;
    for (const std::vector<std::byte>& bytes : call.inputs) {
      StorageBinding& binding = bindings.emplace_back();
      if (bytes.empty()) continue;
      const std::span<std::byte> block = inputs_.place(bytes.size(), alignment_of(bytes.size()));
      DJINN_ASSERT(!block.empty());
      std::copy(bytes.begin(), bytes.end(), block.begin());
      binding = {block.data(), block.size(), true};
    }
    return bindings;
  }

  // Gives the largest that leaves nothing behind the block, so that each byte beyond shows; but 16
  // where doubles may be taken for complex numbers.
  static uint64_t alignment_of(uint64_t bytes) {
    const uint64_t least = bytes % sizeof(double) == 0 ? 16 : 1;
    return std::clamp<uint64_t>(bytes & -bytes, least, 64);
  }

  Seen run_guarded(const Call& call, Program& program, std::byte poison) {
    ::mallopt(M_PERTURB, ~std::to_integer<int>(poison) & 0xff);
    const std::vector<StorageBinding> bindings = bind(call, poison);
    work_.reset(poison);
    Seen seen;
    {
      GuardedSink sink(work_);
      ScopedSink scope(sink);
      seen.ended = lane_->run(program, {{}, bindings});
      for (const OutputView& view : lane_->outputs()) seen.results.push_back(result_of(view));
      lane_->trim();
    }
    seen.is_intact = work_.is_intact() && inputs_.is_intact();
    seen.left_inputs_alone = are_unchanged(call, program, bindings);
    return seen;
  }

  static bool are_unchanged(const Call& call, const Program& program,
                            std::span<const StorageBinding> bindings) {
    const auto written = program.written_ranges({});
    if (!written) return true;  // no run comes that far
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      std::vector<std::byte> before = call.inputs[i];
      for (const WrittenRange& range : *written) {
        if (range.storage != i || range.offset >= before.size()) continue;
        const uint64_t bytes = std::min(range.bytes, before.size() - range.offset);
        std::copy_n(bindings[i].data.on_host() + range.offset, bytes, before.data() + range.offset);
      }
      if (!std::equal(before.begin(), before.end(), bindings[i].data.on_host())) return false;
    }
    return true;
  }

  // The call is recorded in a slab, as the worker does with the first run of a program without
  // symbols.
  void run_planned(const Call& call, Program& program) {
    const std::vector<StorageBinding> bindings = bind(call, kPoisons[1]);
    work_.reset(kPoisons[1]);
    LaneOptions options;
    options.threads = kThreads;
    options.grow_slab = [this](uint64_t bytes, const OnProgress&) -> Outcome<std::span<std::byte>> {
      const std::span<std::byte> slab =
          work_.place(align_up(bytes, kTensorAlignment).value(), kTensorAlignment);
      if (slab.empty()) return Error{ErrorCode::kOutOfMemory, "The slab is too large."};
      return slab;
    };
    const auto lane = *executor_.make_lane(std::move(options));
    if (lane->run(program, {{}, bindings})) {
      for (const OutputView& view : lane->outputs()) result_of(view);
    }
  }

  GuardedMemory inputs_{kMemoryBytes};
  GuardedMemory work_{kMemoryBytes};
  RegisteredSlab slab_;  // so that nobody frees what the sink gave
  WeightTable weights_{{}};
  CpuExecutor executor_;
  std::unique_ptr<Lane> lane_;
};

// --- the child ---

struct Options {
  uint64_t seconds = 0;
  uint64_t seed = 0;
  std::string only;
  Lineage call;
};

class Child {
 public:
  Child(const Options& options, std::span<const std::string_view> ops, uint64_t deadline_ns,
        Shared& shared)
      : options_(options), ops_(ops), deadline_ns_(deadline_ns), shared_(shared) {}

  void run() {
    do {
      const uint64_t number = shared_.next++;
      shared_.op = number % ops_.size();
      Tally& tally = shared_.tallies[shared_.op];
      if (tally.findings >= kFindingsMax) continue;
      const Lineage lineage = options_.call.empty() ? next_lineage(tally, number) : options_.call;
      shared_.lineage.keep(lineage);
      examine(tally, lineage);
    } while (clock_.monotonic_ns() < deadline_ns_);
  }

 private:
  // Gives the call that fits, a new one, or one that was carried out and is changed further.
  Lineage next_lineage(const Tally& tally, uint64_t number) const {
    if (tally.calls == 0) return {0};
    Random random(options_.seed ^ (number * 0x9e3779b97f4a7c15u));
    const Kept& kept = tally.kept[random.below(tally.kept.size())];
    if (kept.count == 0 || kept.count == kept.seeds.size() || random.below(4) == 0) {
      return random.below(2) == 0 ? Lineage{random.next()} : Lineage{0, random.next()};
    }
    Lineage lineage = kept.lineage();
    lineage.push_back(random.next());
    return lineage;
  }

  void examine(Tally& tally, const Lineage& lineage) {
    const std::string_view op = ops_[shared_.op];
    ++tally.calls;
    limit_time();
    std::string why;
    switch (examiner_.examine(make_call(op, **resolve_operator(op), lineage), why)) {
      case Examiner::Verdict::kRefused:
        return;
      case Examiner::Verdict::kCarriedOut:
        tally.kept[tally.carried_out++ % tally.kept.size()].keep(lineage);
        return;
      case Examiner::Verdict::kFound:
        ++tally.findings;
        report(op, lineage, why);
    }
  }

  static void limit_time() {
    const itimerval computing{{0, 0}, {kComputingMax_s, 0}};
    ::setitimer(ITIMER_PROF, &computing, nullptr);
    ::alarm(kHangingMax_s);
  }

  const Options& options_;
  std::span<const std::string_view> ops_;
  uint64_t deadline_ns_;
  Shared& shared_;
  SystemClock clock_;
  Examiner examiner_;
};

// Runs `work` in a child to its end, and gives how that ended. This process runs no kernels, for
// its children would wait for the threads that those leave behind.
int run_forked(const std::function<int()>& work) {
  ::fflush(stdout);
  const pid_t child = ::fork();
  DJINN_ASSERT(child >= 0);
  if (child == 0) {
    const int status = work();
    ::fflush(stdout);
    ::_exit(status);
  }
  int ended = 0;
  DJINN_ASSERT(::waitpid(child, &ended, 0) == child);
  return ended;
}

// --- the canary ---

// Examines a call of one float input, in which `instead` takes the place of the admitted operator.
Examiner::Verdict verdict_of(Examiner& examiner, const char* admitted, const Operator& instead) {
  GraphBuilder b;
  const srg::ValueRef input = b.input("x", DType::kFloat32, {5});
  b.output(b.call(admitted, {arg(input)}));
  const Call call{b.graph, {std::vector<std::byte>(5 * sizeof(float))}};
  auto program = CpuExecutor().admit(call.graph, WeightTable({}), {kActivationBytesMax});
  DJINN_ASSERT(program);
  const AdmittedGraph& inside = static_cast<const CpuProgram&>(**program).admitted();
  const_cast<AdmittedGraph&>(inside).steps[0].op = &instead;
  std::string why;
  return examiner.examine(call, **program, why);
}

Operator operator_of(const char* name) {
  return Operator(c10::Dispatcher::singleton().findSchemaOrThrow(name, ""));
}

// Tells whether an operator that gives memory nobody wrote is found, and the same without the fault
// is not.
bool finds_what_is_wrong() {
  return run_forked([] {
           Examiner examiner;
           const bool finds =
               verdict_of(examiner, "aten::zeros_like", operator_of("aten::empty_like")) ==
                   Examiner::Verdict::kFound &&
               verdict_of(examiner, "aten::zeros_like", operator_of("aten::zeros_like")) ==
                   Examiner::Verdict::kCarriedOut;
           return finds ? 0 : 1;
         }) == 0;
}

// --- the parent ---

void limit_memory() {
  rlimit limit{};
  ::setrlimit(RLIMIT_CORE, &limit);
  std::array<char, 64> text{};
  const int fd = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  const ssize_t bytes = ::read(fd, text.data(), text.size() - 1);
  ::close(fd);
  DJINN_ASSERT(bytes > 0);
  const uint64_t pages = std::stoull(text.data());
  limit.rlim_cur = limit.rlim_max = pages * 4096 + kOutsideBytesMax;
  ::setrlimit(RLIMIT_AS, &limit);
}

// A child's death is a finding of the call that it was in.
void run_child(const Options& options, std::span<const std::string_view> ops, uint64_t deadline_ns,
               Shared& shared) {
  const int ended = run_forked([&] {
    limit_memory();
    Child(options, ops, deadline_ns, shared).run();
    return 0;
  });
  if (WIFEXITED(ended) && WEXITSTATUS(ended) == 0) return;
  Tally& tally = shared.tallies[shared.op];
  const int signal = WIFSIGNALED(ended) ? WTERMSIG(ended) : 0;
  if (signal == SIGPROF) {
    ++tally.slow;
    return;
  }
  ++tally.findings;
  report(ops[shared.op], shared.lineage.lineage(),
         signal == SIGALRM
             ? "it hangs"
             : fmt::format("it ends the process ({})", signal == 0 ? "exit" : ::strsignal(signal)));
}

int summarise(std::span<const std::string_view> ops, const Shared& shared) {
  uint64_t calls = 0, carried_out = 0, found = 0, slow = 0;
  const std::vector<std::string_view> guarded = guarded_operators();
  std::vector<std::string_view> never, untried;
  for (size_t i = 0; i < ops.size(); ++i) {
    const Tally& tally = shared.tallies[i];
    calls += tally.calls;
    carried_out += tally.carried_out;
    slow += tally.slow;
    found += tally.findings;
    if (tally.carried_out > 0) continue;
    never.push_back(ops[i]);
    if (tally.findings == 0 && std::ranges::find(guarded, ops[i]) != guarded.end()) {
      untried.push_back(ops[i]);
    }
  }
  fmt::print("{} operators, {} calls, {} carried out, {} too slow, {} found\n", ops.size(), calls,
             carried_out, slow, found);
  if (!never.empty()) fmt::print("never carried out: {}\n", fmt::join(never, " "));
  // An operator that refused each call has shown nothing of its guard.
  const bool tried = untried.empty() || calls < ops.size();
  if (!tried) fmt::print("FOUND no call that a guard lets through: {}\n", fmt::join(untried, " "));
  return found == 0 && tried ? 0 : 1;
}

// This silences LibTorch, which would warn thousands of times.
class Silence final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

int fuzz(const Options& options) {
  initialise(1);
  Silence silence;
  c10::WarningUtils::set_warning_handler(&silence);
  std::vector<std::string_view> ops;
  for (const std::string_view op : allowed_operators()) {
    if (options.only.empty() || op == options.only) ops.push_back(op);
  }
  DJINN_ASSERT(ops.size() <= kOperatorsMax);
  if (ops.empty()) {
    fmt::print(stderr, "exec-fuzz: {} is not on the allow-list\n", options.only);
    return 2;
  }
  if (!finds_what_is_wrong()) {
    fmt::print(stderr, "exec-fuzz: memory that nobody wrote is read, and it was not found\n");
    return 2;
  }
  fmt::print("seed {}\n", options.seed);
  Shared& shared = map_shared();
  const SystemClock clock;
  const uint64_t deadline_ns = clock.monotonic_ns() + options.seconds * 1'000'000'000;
  do {
    run_child(options, ops, deadline_ns, shared);
  } while (clock.monotonic_ns() < deadline_ns);
  return summarise(ops, shared);
}

}  // namespace
}  // namespace djinn::exec

int main(int argc, char** argv) {
  djinn::exec::Options options;
  options.seed = djinn::SystemClock().wall_ns();
  CLI::App app("Calls operators with hostile arguments.");
  app.add_option("seconds", options.seconds, "0: one call")->required();
  app.add_option("--seed", options.seed, "of all calls; the clock's if it is left out");
  auto* const only = app.add_option("--only", options.only, "this operator alone");
  app.add_option("--call", options.call, "this call of it alone")->delimiter(',')->needs(only);
  CLI11_PARSE(app, argc, argv);
  return djinn::exec::fuzz(options);
}
