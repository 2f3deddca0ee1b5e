// SPDX-License-Identifier: Apache-2.0

// cuda-vmm measures what the driver's virtual memory calls cost, by size: medians of kRounds, in
// microseconds of this thread's clock. Then it does what djinnd would do with them: a resident
// model that another process made is taken over, a window grows by an extent (exported and zeroed,
// as ours are), many small extents are made, a context is made and released.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <vector>

#include "bench/cuda/facts.h"
#include "bench/cuda/gpu.h"
#include "bench/cuda/gpu_process.h"

namespace djinn::bench::cuda {
namespace {

constexpr uint64_t kMiB = 1u << 20;
constexpr uint64_t kGiB = 1u << 30;
constexpr int kRounds = 15;
constexpr uint64_t kModelBytes = 16 * kGiB;  // of 8 billion weights in bfloat16
constexpr uint64_t kShareOfFree = 32;        // of a device's free memory: what one extent may take

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Measures one call over the rounds, and says the median and the worst time.
class Times {
 public:
  explicit Times(std::string name) : name_(std::move(name)) {}
  void take(const std::function<void()>& work) { values_.push_back(timed_us(work)); }
  void say_median() const {
    say(name_, median(values_), "us",
        fmt::format("worst {:.1f}", *std::max_element(values_.begin(), values_.end())));
  }

 private:
  std::string name_;
  std::vector<double> values_;
};

// Measures each call of the driver in the life of one extent of a size.
void life_of_an_extent(const Gpu& gpu, uint64_t bytes) {
  const driver::DriverApi& api = gpu.api();
  const driver::AllocationProperties properties = gpu.properties();
  const auto name = [&](const char* call) { return fmt::format("{} {} MiB", call, bytes / kMiB); };
  Times reserve(name("reserve"));
  Times create(name("create"));
  Times map(name("map"));
  Times set_access(name("set access"));
  Times zero(name("zero"));
  Times export_it(name("export"));
  Times export_again(name("export again, while the first descriptor is open"));
  Times import_it(name("import"));
  Times unmap(name("unmap"));
  Times release(name("release an import"));
  Times close_it(name("close the last descriptor"));
  for (int round = 0; round < kRounds; ++round) {
    driver::DevicePtr address = 0;
    driver::Allocation made = 0;
    driver::Allocation imported = 0;
    int fd = -1;
    const driver::AccessDescription access{properties.location, driver::AccessFlags::kReadWrite};
    reserve.take([&] {
      gpu.must("cuMemAddressReserve", api.mem_address_reserve(&address, bytes, 0, 0, 0));
    });
    create.take([&] { gpu.must("cuMemCreate", api.mem_create(&made, bytes, &properties, 0)); });
    map.take([&] { gpu.must("cuMemMap", api.mem_map(address, bytes, 0, made, 0)); });
    set_access.take(
        [&] { gpu.must("cuMemSetAccess", api.mem_set_access(address, bytes, &access, 1)); });
    zero.take([&] {
      gpu.must("cuMemsetD8", api.memset_d8(address, 0, bytes));
      gpu.must("cuCtxSynchronize", api.ctx_synchronize());
    });
    export_it.take([&] {
      gpu.must("cuMemExportToShareableHandle",
               api.mem_export(&fd, made, driver::HandleType::kPosixFileDescriptor, 0));
    });
    int second = -1;
    export_again.take([&] {
      gpu.must("cuMemExportToShareableHandle",
               api.mem_export(&second, made, driver::HandleType::kPosixFileDescriptor, 0));
    });
    ::close(second);
    void* const handle = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
    import_it.take([&] {
      gpu.must("cuMemImportFromShareableHandle",
               api.mem_import(&imported, handle, driver::HandleType::kPosixFileDescriptor));
    });
    unmap.take([&] { gpu.must("cuMemUnmap", api.mem_unmap(address, bytes)); });
    release.take([&] { gpu.must("cuMemRelease", api.mem_release(imported)); });
    gpu.must("cuMemRelease", api.mem_release(made));
    close_it.take([&] { ::close(fd); });
    gpu.must("cuMemAddressFree", api.mem_address_free(address, bytes));
  }
  for (const Times* times : {&create, &map, &set_access, &zero, &export_it, &export_again,
                             &import_it, &unmap, &release, &close_it, &reserve})
    times->say_median();
}

// Takes over what another process made and holds by its descriptors alone, as djinnd does. As a
// worker does with a resident model, this imports it and maps it for reading.
void take_over(Gpu& gpu, uint64_t total, uint64_t piece) {
  std::vector<Fd> descriptors;
  {
    GpuProcess maker;
    maker.must({{"do", "init"}});
    maker.must({{"do", "context"}});
    for (uint64_t at = 0; at < total; at += piece)
      descriptors.push_back(maker.must({{"do", "create"}, {"bytes", piece}}).fd);
  }
  std::vector<size_t> taken;
  const double us = timed_us([&] {
    for (const Fd& fd : descriptors) {
      taken.push_back(gpu.import(fd.get(), piece));
      gpu.map(taken.back(), driver::AccessFlags::kRead);
    }
  });
  say(fmt::format("take over {} GiB in extents of {} MiB", total / kGiB, piece / kMiB), us, "us");
  for (const size_t index : taken) gpu.drop(index);
}

// Maps one more chunk after the other into one reservation: a window that grows.
void grow_a_window(const Gpu& gpu) {
  const driver::DriverApi& api = gpu.api();
  const driver::AllocationProperties properties = gpu.properties();
  const driver::AccessDescription access{properties.location, driver::AccessFlags::kReadWrite};
  driver::DevicePtr address = 0;
  gpu.must("cuMemAddressReserve", api.mem_address_reserve(&address, 4 * kGiB, 0, 0, 0));
  Times grow("create, export, map, open and zero one more chunk of 64 MiB in a window");
  std::vector<Fd> descriptors;
  for (uint64_t at = 0; at < kGiB; at += 64 * kMiB) {
    driver::Allocation chunk = 0;
    int fd = -1;
    grow.take([&] {
      gpu.must("cuMemCreate", api.mem_create(&chunk, 64 * kMiB, &properties, 0));
      gpu.must("cuMemMap", api.mem_map(address + at, 64 * kMiB, 0, chunk, 0));
      gpu.must("cuMemSetAccess", api.mem_set_access(address + at, 64 * kMiB, &access, 1));
      gpu.must("cuMemExportToShareableHandle",
               api.mem_export(&fd, chunk, driver::HandleType::kPosixFileDescriptor, 0));
      gpu.must("cuMemsetD8", api.memset_d8(address + at, 0, 64 * kMiB));
      gpu.must("cuCtxSynchronize", api.ctx_synchronize());
    });
    descriptors.emplace_back(fd);
    gpu.must("cuMemRelease", api.mem_release(chunk));
  }
  grow.say_median();
  const driver::Code whole = api.memset_d8(address, 1, kGiB);
  say("one memset over sixteen chunks", driver::describe(api, whole));
  gpu.must("cuCtxSynchronize", api.ctx_synchronize());
  const driver::Code unmapped = api.mem_unmap(address, kGiB);
  say("one unmap of sixteen chunks", driver::describe(api, unmapped));
}

void many_extents(Gpu& gpu) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  const size_t count = std::min<size_t>(2'000, gpu.free_bytes() / 4 / (2 * kMiB));
  std::vector<size_t> made;
  std::vector<Fd> descriptors;
  const double us = timed_us([&] {
    for (size_t i = 0; i < count; ++i) {
      made.push_back(gpu.create(2 * kMiB));
      descriptors.push_back(gpu.export_allocation(made.back()));
    }
  });
  say(fmt::format("create and export one of {} extents of 2 MiB", count),
      us / static_cast<double>(count), "us");
  for (const size_t index : made) gpu.drop(index);
}

void contexts(Gpu& gpu) {
  const driver::DriverApi& api = gpu.api();
  const auto stat_mib = [&] { return static_cast<double>(gpu.free_bytes()) / kMiB; };
  const double before = stat_mib();
  gpu.load_kernels();
  say("free memory that a module's loading takes", before - stat_mib(), "MiB");
  void* pinned = nullptr;
  const double alloc_us = timed_us([&] {
    gpu.must("cuMemHostAlloc", api.mem_host_alloc(&pinned, 64 * kMiB, driver::kHostAllocPortable));
  });
  say("make 64 MiB of pinned host memory", alloc_us, "us");
  const double free_us = timed_us([&] { gpu.must("cuMemFreeHost", api.mem_free_host(pinned)); });
  say("free 64 MiB of pinned host memory", free_us, "us");
  say("release a context", timed_us([&] { gpu.release_context(); }), "us");
}

int measure() {
  std::unique_ptr<Gpu> gpu;
  try {
    const double init_us = timed_us([&] { gpu = std::make_unique<Gpu>(); });
    say("device", gpu->name());
    say("load and initialise the driver", init_us, "us");
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return kNotHere;
  }
  say("make a context", timed_us([&] { gpu->make_context(); }), "us");
  say("granularity", gpu->granularity(), "bytes");
  const uint64_t free = gpu->free_bytes();
  say("free memory", static_cast<double>(free) / kMiB, "MiB");
  for (const uint64_t mib : {2, 16, 64, 256, 1024})
    if (mib * kMiB <= free / kShareOfFree)
      attempt("an extent's life", [&] { life_of_an_extent(*gpu, mib * kMiB); });
  attempt("a window", [&] { grow_a_window(*gpu); });
  const uint64_t total = std::min(kModelBytes, std::bit_floor(free / 4));
  for (const uint64_t piece : {16 * kGiB, 4 * kGiB, kGiB, 256 * kMiB, 64 * kMiB})
    if (piece <= total) attempt("taking over", [&] { take_over(*gpu, total, piece); });
  attempt("many extents", [&] { many_extents(*gpu); });
  attempt("contexts", [&] { contexts(*gpu); });
  return 0;
}

}  // namespace
}  // namespace djinn::bench::cuda

int main(int count, char** arguments) {
  namespace cuda = djinn::bench::cuda;
  return cuda::run_with_gpu_processes(count, arguments, &cuda::measure);
}
