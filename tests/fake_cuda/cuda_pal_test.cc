// SPDX-License-Identifier: Apache-2.0

// CudaPal on a driver that is told what to do: conformance is tested in kernel/pal/cuda.

#include "kernel/pal/cuda/cuda_pal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernel/pal/cuda/nodes_for_tests.h"
#include "kernel/pal/pal_values_for_tests.h"
#include "kernel/pal/process_state.h"
#include "tests/fake_cuda/fake_for_tests.h"

namespace djinn::pal::cuda {
namespace {

using fake_cuda::Carrier;
using fake_cuda::kSlow;
using fake_cuda::run_on_fake;

constexpr uint64_t kGranule = uint64_t{2} << 20;

// Runs work with a pal of its own; the options are the fake's.
void with_pal(const std::string& options, const std::function<void(CudaPal&)>& work) {
  EXPECT_EQ(run_on_fake(options,
                        [&](const DriverApi& api) {
                          auto pal = CudaPal::make(api, 0);
                          ASSERT_TRUE(pal) << pal.error().message;
                          work(**pal);
                        }),
            0);
}

// words: of its message. nodes: a directory like /dev.
void expect_refusal(const std::string& options, ErrorCode code, std::string_view words,
                    const std::string& nodes) {
  EXPECT_EQ(run_on_fake(options,
                        [&](const DriverApi& api) {
                          const ProcessState before = read_process_state();
                          const auto refused = CudaPal::make(api, 0, nodes);
                          ASSERT_FALSE(refused);
                          EXPECT_EQ(refused.error().code, code);
                          const std::string& message = refused.error().message;
                          EXPECT_NE(message.find(words), std::string::npos) << message;
                          EXPECT_EQ(read_process_state(), before);
                        }),
            0)
      << options;
}

TEST(cuda_pal, a_device_that_cannot_be_had_is_refused_with_the_reason) {
  const Nodes all{"nvidiactl", "nvidia0", "nvidia-uvm"};
  const auto refused = [&](const std::string& options, ErrorCode code, std::string_view words) {
    expect_refusal(options, code, words, all.directory());
  };
  refused("devices=0", ErrorCode::kNotFound, "start the driver: CUDA_ERROR_NO_DEVICE");
  refused("cuInit@1=UNKNOWN", ErrorCode::kSystem, "start the driver: CUDA_ERROR_UNKNOWN");
  refused("cuInit@1=SYSTEM_DRIVER_MISMATCH", ErrorCode::kUnsupported, "restart the machine");
  refused("driver_version=12020", ErrorCode::kUnsupported, "install version 580 or newer");
  refused("cuDevicePrimaryCtxRetain@1=DEVICE_UNAVAILABLE", ErrorCode::kBusy, "take the context");
  refused("compute_mode=2", ErrorCode::kBusy, "prohibited compute mode");
  refused("compute_mode=3", ErrorCode::kBusy, "'nvidia-smi -c DEFAULT'");
  refused("name=NVIDIA A100-SXM4-40GB MIG 1g.5gb", ErrorCode::kUnsupported,
          "is a part of a GPU (MIG: NVIDIA A100-SXM4-40GB MIG 1g.5gb)");
  // Who shares a GPU by MPS gives it the exclusive mode: MPS is what is told.
  refused("mps=1;compute_mode=3", ErrorCode::kUnsupported, "end MPS");
}

TEST(cuda_pal, where_the_driver_does_not_start_its_nodes_tell_why) {
  for (const char* fault : {"devices=0", "cuInit@1=UNKNOWN", "cuInit@1=OPERATING_SYSTEM"}) {
    const Nodes none{}, no_memory{"nvidiactl", "nvidia0"};
    expect_refusal(fault, ErrorCode::kNotFound, "nvidiactl is missing", none.directory());
    expect_refusal(fault, ErrorCode::kNotFound, "nvidia-uvm is missing: load the module nvidia-uvm",
                   no_memory.directory());
  }
}

TEST(cuda_pal, nobody_looks_at_nodes_of_a_driver_that_starts) {
  EXPECT_EQ(
      run_on_fake("",
                  [](const DriverApi& api) { EXPECT_TRUE(CudaPal::make(api, 0, "/nonexistent")); }),
      0);
}

TEST(cuda_pal, an_extent_costs_one_descriptor_and_its_mappings_none) {
  with_pal("", [](CudaPal& pal) {
    Reservation range = pal.reserve(2 * kGranule).value();
    const uint64_t before = read_process_state().descriptors;
    const Extent extent = pal.create("x", kGranule).value();
    ASSERT_TRUE(pal.map(range, 0, extent, 0, kGranule, Access::kRead));
    ASSERT_TRUE(pal.map(range, kGranule, extent, 0, kGranule, Access::kRead));
    EXPECT_EQ(read_process_state().descriptors, before + 1);
  });
}

TEST(cuda_pal, no_descriptor_goes_to_a_program_that_is_started) {
  with_pal("", [](CudaPal& pal) {
    const Extent extent = pal.create("x", kGranule).value();
    EXPECT_EQ(::fcntl(extent.fd.get(), F_GETFD), FD_CLOEXEC);
    EXPECT_EQ(::fcntl(pal.export_extent(extent).value().get(), F_GETFD), FD_CLOEXEC);
  });
}

TEST(cuda_pal, an_export_without_a_descriptor_left_is_over_a_limit_and_the_device_lives_on) {
  with_pal("", [](CudaPal& pal) {
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    const rlimit whole = limit;
    // One is left, and the fake takes it for the memory.
    limit.rlim_cur = static_cast<rlim_t>(Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)).get()) + 1;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    EXPECT_EQ(code_of(pal.create("x", kGranule)), ErrorCode::kLimitExceeded);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &whole), 0);
    EXPECT_TRUE(pal.create("x", kGranule));
  });
}

TEST(cuda_pal, what_is_no_export_is_not_mapped) {
  with_pal("", [](CudaPal& pal) {
    Reservation range = pal.reserve(kGranule).value();
    const Extent extent{Fd(::open("/dev/null", O_RDWR | O_CLOEXEC)), kGranule};
    EXPECT_EQ(code_of(pal.map(range, 0, extent, 0, kGranule, Access::kRead)),
              ErrorCode::kInvalidArgument);
    EXPECT_TRUE(pal.create("x", kGranule));
  });
}

TEST(cuda_pal, memory_that_the_device_lacks_is_refused) {
  with_pal("memory=8M", [](CudaPal& pal) {
    EXPECT_EQ(code_of(pal.create("x", 5 * kGranule)), ErrorCode::kOutOfMemory);
    EXPECT_TRUE(pal.create("x", 4 * kGranule));
  });
}

TEST(cuda_pal, an_extent_lives_on_in_another_process) {
  Carrier carrier;
  const std::vector<std::byte> in = pattern(1000);
  with_pal("", [&](CudaPal& pal) {
    Reservation range = pal.reserve(kGranule).value();
    const Extent extent = pal.create("x", kGranule).value();
    ASSERT_TRUE(pal.map(range, 0, extent, 0, kGranule, Access::kReadWrite));
    ASSERT_TRUE(pal.copy_in(range, 0, in));
    carrier.send(pal.export_extent(extent).value());
  });
  with_pal("", [&](CudaPal& pal) {
    Reservation range = pal.reserve(kGranule).value();
    auto extent = pal.import_extent(carrier.receive(), kGranule, Seals::kNone);
    ASSERT_TRUE(extent) << extent.error().message;
    ASSERT_TRUE(pal.map(range, 0, *extent, 0, kGranule, Access::kRead));
    std::vector<std::byte> out(in.size());
    ASSERT_TRUE(pal.copy_out(range, 0, out));
    EXPECT_EQ(out, in);
  });
}

TEST(cuda_pal, a_larger_extent_is_refused_where_the_driver_maps_beginnings_too) {
  with_pal("partial_maps=1", [](CudaPal& pal) {
    const Extent extent = pal.create("x", 2 * kGranule).value();
    const auto import = [&](uint64_t bytes) {
      return code_of(pal.import_extent(pal.export_extent(extent).value(), bytes, Seals::kNone));
    };
    EXPECT_EQ(import(kGranule), ErrorCode::kOutOfRange);
    EXPECT_EQ(import(3 * kGranule), ErrorCode::kOutOfRange);
    EXPECT_EQ(import(2 * kGranule), ErrorCode::kOk);
  });
}

TEST(cuda_pal, an_extent_of_all_addresses_is_refused) {
  with_pal("", [](CudaPal& pal) {
    Fd fd = pal.create("x", kGranule).value().fd;
    EXPECT_EQ(code_of(pal.import_extent(std::move(fd), UINT64_MAX - kGranule + 1, Seals::kNone)),
              ErrorCode::kOutOfRange);
  });
}

TEST(cuda_pal, memory_of_another_device_is_no_import) {
  Carrier carrier;
  with_pal("", [&](CudaPal& pal) { carrier.send(pal.create("x", kGranule).value().fd); });
  with_pal("uuid=00000000000000000000000000000001", [&](CudaPal& pal) {
    EXPECT_EQ(code_of(pal.import_extent(carrier.receive(), kGranule, Seals::kNone)),
              ErrorCode::kInvalidArgument);
  });
}

TEST(cuda_pal, a_copy_whose_wait_fails_has_ended_all_the_same) {
  // The first wait is that of create(), the second that of the copy.
  with_pal(std::string(kSlow) + ";cuStreamSynchronize@2=INVALID_VALUE", [](CudaPal& pal) {
    Reservation range = pal.reserve(kGranule).value();
    const Extent extent = pal.create("x", kGranule).value();
    ASSERT_TRUE(pal.map(range, 0, extent, 0, kGranule, Access::kRead));
    std::vector<std::byte> out(100, std::byte{1});
    EXPECT_EQ(code_of(pal.copy_out(range, 0, out)), ErrorCode::kInvalidArgument);
    EXPECT_EQ(out, std::vector<std::byte>(100));
    EXPECT_TRUE(pal.copy_out(range, 0, out)) << "the device is not lost";
  });
}

TEST(cuda_pal, a_copy_whose_submission_fails_has_ended_all_the_same) {
  with_pal(std::string(kSlow) + ";cuMemcpyDtoHAsync@1=done:INVALID_VALUE", [](CudaPal& pal) {
    Reservation range = pal.reserve(kGranule).value();
    const Extent extent = pal.create("x", kGranule).value();
    ASSERT_TRUE(pal.map(range, 0, extent, 0, kGranule, Access::kRead));
    std::vector<std::byte> out(100, std::byte{1});
    EXPECT_EQ(code_of(pal.copy_out(range, 0, out)), ErrorCode::kInvalidArgument);
    EXPECT_EQ(out, std::vector<std::byte>(100)) << "nothing writes there once it returned";
    EXPECT_TRUE(pal.copy_out(range, 0, out)) << "the device is not lost";
  });
}

TEST(cuda_pal, a_device_that_does_not_end_its_copies_is_lost) {
  with_pal("cuMemcpyDtoHAsync@1=INVALID_VALUE;cuCtxSynchronize@1=UNKNOWN", [](CudaPal& pal) {
    Reservation range = pal.reserve(kGranule).value();
    const Extent extent = pal.create("x", kGranule).value();
    ASSERT_TRUE(pal.map(range, 0, extent, 0, kGranule, Access::kRead));
    std::vector<std::byte> out(100);
    EXPECT_EQ(code_of(pal.copy_out(range, 0, out)), ErrorCode::kDeviceLost);
    EXPECT_EQ(code_of(pal.copy_out(range, 0, out)), ErrorCode::kDeviceLost);
  });
}

TEST(cuda_pal, a_mapping_that_is_not_taken_back_loses_the_device) {
  // Access is first set by create(), whose scratch it unmaps.
  with_pal("cuMemSetAccess@2=INVALID_VALUE;cuMemUnmap@2=UNKNOWN", [](CudaPal& pal) {
    Reservation range = pal.reserve(kGranule).value();
    const Extent extent = pal.create("x", kGranule).value();
    EXPECT_EQ(code_of(pal.map(range, 0, extent, 0, kGranule, Access::kRead)),
              ErrorCode::kDeviceLost);
  });
}

TEST(cuda_pal, a_device_that_is_lost_stays_lost) {
  with_pal("cuMemsetD8Async@2=ILLEGAL_ADDRESS", [](CudaPal& pal) {
    Reservation range = pal.reserve(kGranule).value();
    const Extent extent = pal.create("x", kGranule).value();
    ASSERT_TRUE(pal.map(range, 0, extent, 0, kGranule, Access::kReadWrite));
    std::vector<std::byte> bytes(100);
    EXPECT_EQ(code_of(pal.zero(range, 0, 100)), ErrorCode::kDeviceLost);
    EXPECT_EQ(code_of(pal.copy_in(range, 0, bytes)), ErrorCode::kDeviceLost);
    EXPECT_EQ(code_of(pal.copy_out(range, 0, bytes)), ErrorCode::kDeviceLost);
    EXPECT_EQ(code_of(pal.create("x", kGranule)), ErrorCode::kDeviceLost);
    EXPECT_EQ(code_of(pal.reserve(kGranule)), ErrorCode::kDeviceLost);
    EXPECT_EQ(code_of(pal.commit(extent, 0, kGranule)), ErrorCode::kDeviceLost);
    EXPECT_EQ(code_of(pal.protect(range, 0, kGranule, Access::kRead)), ErrorCode::kDeviceLost);
    EXPECT_EQ(code_of(pal.unmap(range, 0, kGranule)), ErrorCode::kDeviceLost);
  });
}

TEST(cuda_pal, an_address_that_the_driver_does_not_take_back_loses_the_device) {
  // The first is the scratch of create().
  with_pal("cuMemAddressFree@2=INVALID_VALUE", [](CudaPal& pal) {
    const Extent extent = pal.create("x", kGranule).value();
    { const Reservation range = pal.reserve(kGranule).value(); }
    EXPECT_EQ(code_of(pal.reserve(kGranule)), ErrorCode::kDeviceLost);
  });
}

}  // namespace
}  // namespace djinn::pal::cuda
