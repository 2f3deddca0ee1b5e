// SPDX-License-Identifier: Apache-2.0

// One call of the driver fails at a time, over a whole life of a CudaPal: what comes out is typed,
// and descriptors, mappings and the context are as before.

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernel/pal/cuda/cuda_pal.h"
#include "kernel/pal/cuda/nodes_for_tests.h"
#include "kernel/pal/pal_values_for_tests.h"
#include "kernel/pal/process_state.h"
#include "tests/fake_cuda/fake_for_tests.h"

namespace djinn::pal::cuda {
namespace {

using fake_cuda::run_on_fake;

constexpr uint64_t kExtentBytes = uint64_t{2} << 20;

// --- a table that notes the calls through it
// -----------------------------------------------------

#define DJINN_ENTRY(name, symbol, arguments) name,
enum class Entry : uint8_t { DJINN_CUDA_FUNCTIONS(DJINN_ENTRY) };
#undef DJINN_ENTRY

constexpr std::string_view kSymbols[] = {
#define DJINN_SYMBOL(name, symbol, arguments) #symbol,
    DJINN_CUDA_FUNCTIONS(DJINN_SYMBOL)
#undef DJINN_SYMBOL
};

struct Calls {
  std::array<Entry, 256> entries{};
  size_t count = 0;
};

// Of the child process that runs; a table of functions has nowhere else to put them.
DriverApi the_driver;
Calls* the_calls = nullptr;

template <auto kMember, Entry kEntry, typename... Arguments>
Code noted(Arguments... values) {
  if (the_calls->count < the_calls->entries.size()) the_calls->entries[the_calls->count] = kEntry;
  the_calls->count += 1;
  return (the_driver.*kMember)(values...);
}

DriverApi note_calls(const DriverApi& driver) {
  the_driver = driver;
  DriverApi table;
#define DJINN_NOTE(name, symbol, arguments) table.name = noted<&DriverApi::name, Entry::name>;
  DJINN_CUDA_FUNCTIONS(DJINN_NOTE)
#undef DJINN_NOTE
  // Naming an error is no call: the fake does not count it either.
  table.get_error_name = driver.get_error_name;
  table.get_error_string = driver.get_error_string;
  return table;
}

// --- a whole life
// --------------------------------------------------------------------------------

// Every call of the seam that a GPU has, as a mover and then a worker make them.
Status use(CudaPal& pal) {
  DJINN_TRY(Reservation range, pal.reserve(8 * kExtentBytes));
  DJINN_TRY(const Extent extent, pal.create("djinn-test", 2 * kExtentBytes));
  DJINN_CHECK(pal.commit(extent, 0, kExtentBytes));
  DJINN_CHECK(pal.map(range, 0, extent, 0, 2 * kExtentBytes, Access::kReadWrite));
  DJINN_CHECK(pal.populate(range, 0, kExtentBytes));
  DJINN_CHECK(pal.copy_in(range, 0, pattern(1000)));
  DJINN_CHECK(pal.copy(range, 0, kExtentBytes, 1000));
  DJINN_CHECK(pal.zero(range, 0, 10));
  DJINN_CHECK(pal.protect(range, 0, 2 * kExtentBytes, Access::kRead));
  DJINN_CHECK(pal.unmap(range, 0, 2 * kExtentBytes));
  DJINN_TRY(Fd fd, pal.export_extent(extent));
  DJINN_TRY(const Extent imported,
            pal.import_extent(std::move(fd), 2 * kExtentBytes, Seals::kNone));
  DJINN_CHECK(pal.map(range, 4 * kExtentBytes, imported, 0, 2 * kExtentBytes, Access::kRead));
  std::vector<std::byte> out(1000);
  DJINN_CHECK(pal.copy_out(range, 5 * kExtentBytes, out));
  EXPECT_EQ(out, pattern(1000));
  return {};  // what is still mapped goes with the reservation
}

// nodes: with nothing wrong, so that what is told is what the driver answered.
ErrorCode live_once(const DriverApi& driver, const Nodes& nodes) {
  const auto pal = CudaPal::make(driver, 0, nodes.directory());
  if (!pal) return pal.error().code;
  const ErrorCode used = code_of(use(**pal));
  // Asks the driver nothing, and answers what the last releases met.
  const ErrorCode after = code_of((*pal)->commit(Extent{Fd(), kExtentBytes}, 0, kExtentBytes));
  return used == ErrorCode::kOk ? after : used;
}

struct Life {
  ErrorCode code = ErrorCode::kOk;
  ErrorCode code_again = ErrorCode::kOk;  // of another life of the same process
  ProcessState before, after;
  bool kept_context = false;
  Calls calls;
};

void live(const DriverApi& driver, const Nodes& nodes, Life& life) {
  ::mallopt(M_ARENA_MAX, 1);  // a heap of a thread's own would be counted as reserved
  the_calls = &life.calls;
  life.before = read_process_state();
  life.code = live_once(note_calls(driver), nodes);
  life.after = read_process_state();
  life.kept_context = driver.primary_ctx_release(0) == Code::kSuccess;
  life.code_again = live_once(driver, nodes);
}

// Two lives in a child process, which come back through memory shared with it.
Life live_with(const std::string& options) {
  void* const at =
      ::mmap(nullptr, sizeof(Life), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Life* const life = new (at) Life;
  const Nodes nodes{"nvidiactl", "nvidia0", "nvidia-uvm"};
  EXPECT_EQ(run_on_fake(options, [&](const DriverApi& driver) { live(driver, nodes, *life); }), 0)
      << options;
  const Life copy = *life;
  ::munmap(at, sizeof(Life));
  return copy;
}

void expect_nothing_left(const Life& life) {
  EXPECT_EQ(life.after.descriptors, life.before.descriptors);
  EXPECT_EQ(life.after.memfd_mappings, life.before.memfd_mappings);
  EXPECT_EQ(life.after.memfd_mapped_bytes, life.before.memfd_mapped_bytes);
  // The stack of the stream's thread stays with libc, and its guard page is inaccessible.
  EXPECT_LT(life.after.reserved_bytes, life.before.reserved_bytes + kExtentBytes);
  EXPECT_FALSE(life.kept_context);
}

// --- what each call's failure has to come to
// -----------------------------------------------------

struct Call {
  Entry entry;
  int number;  // among those of the same entry, from 1
  friend bool operator==(const Call&, const Call&) = default;
};

Call call_at(const Calls& calls, size_t index) {
  const auto* const first = calls.entries.data();
  const Entry entry = first[index];
  return {entry, static_cast<int>(std::count(first, first + index + 1, entry))};
}

// Calls of use() that are told apart below.
constexpr Call kUnmapAsAsked{Entry::mem_unmap, 2};
constexpr Call kMapAsImported{Entry::mem_map, 3};
constexpr Call kMapAsLarger{Entry::mem_map, 4};  // which has to fail

// What it would have given back is lost, and so is the device; but the pal's own end tells nobody.
bool gives_back(const Call& call) {
  const std::set<Entry> all{Entry::mem_release, Entry::mem_address_free, Entry::mem_unmap};
  return all.contains(call.entry) && call != kUnmapAsAsked;
}

bool ends_the_pal(const Call& call) {
  return call.entry == Entry::stream_destroy || call.entry == Entry::primary_ctx_release;
}

ErrorCode expected(const Call& call, Code planted) {
  if (ends_the_pal(call)) return ErrorCode::kOk;
  if (planted == Code::kIllegalAddress || gives_back(call)) return ErrorCode::kDeviceLost;
  if (planted == Code::kOutOfMemory) return ErrorCode::kOutOfMemory;
  if (planted == Code::kOperatingSystem) return ErrorCode::kSystem;
  if (planted == Code::kUnknown)
    return call.entry == Entry::mem_import ? ErrorCode::kInvalidArgument : ErrorCode::kSystem;
  if (call == kMapAsImported) return ErrorCode::kOutOfRange;
  return call == kMapAsLarger ? ErrorCode::kOk : ErrorCode::kInvalidArgument;
}

class cuda_faults : public testing::TestWithParam<std::pair<Code, const char*>> {};

TEST_P(cuda_faults, every_single_one_comes_out_typed_and_leaves_nothing_behind) {
  const auto [planted, name] = GetParam();
  const Life whole = live_with("");
  ASSERT_EQ(whole.code, ErrorCode::kOk);
  ASSERT_LT(whole.calls.count, whole.calls.entries.size());
  expect_nothing_left(whole);
  for (size_t i = 0; i < whole.calls.count; ++i) {
    const Call call = call_at(whole.calls, i);
    SCOPED_TRACE(std::string(kSymbols[static_cast<size_t>(call.entry)]) + " number " +
                 std::to_string(call.number));
    const Life life = live_with("*@" + std::to_string(i + 1) + "=" + name);
    EXPECT_EQ(life.code, expected(call, planted));
    const bool is_sticky = planted == Code::kIllegalAddress;
    if (!gives_back(call) && !ends_the_pal(call)) {
      expect_nothing_left(life);
      EXPECT_EQ(life.code_again, is_sticky ? ErrorCode::kDeviceLost : ErrorCode::kOk);
    }
  }
}

TEST(cuda_life, it_makes_every_call_of_the_seam_to_the_driver) {
  const Life whole = live_with("");
  const std::set<Entry> called(whole.calls.entries.begin(),
                               whole.calls.entries.begin() + whole.calls.count);
  for (const Entry entry :
       {Entry::mem_create, Entry::mem_export, Entry::mem_import, Entry::mem_map,
        Entry::mem_set_access, Entry::mem_unmap, Entry::mem_release, Entry::mem_address_reserve,
        Entry::mem_address_free, Entry::memcpy_htod_async, Entry::memcpy_dtoh_async,
        Entry::memcpy_dtod_async, Entry::memset_d8_async, Entry::stream_synchronize,
        Entry::stream_destroy, Entry::primary_ctx_release})
    EXPECT_TRUE(called.contains(entry)) << kSymbols[static_cast<size_t>(entry)];
}

INSTANTIATE_TEST_SUITE_P(codes, cuda_faults,
                         testing::Values(std::pair{Code::kOutOfMemory, "OUT_OF_MEMORY"},
                                         std::pair{Code::kInvalidValue, "INVALID_VALUE"},
                                         std::pair{Code::kOperatingSystem, "OPERATING_SYSTEM"},
                                         std::pair{Code::kUnknown, "UNKNOWN"},
                                         std::pair{Code::kIllegalAddress, "ILLEGAL_ADDRESS"}),
                         [](const auto& each) { return std::string(each.param.second); });

}  // namespace
}  // namespace djinn::pal::cuda
