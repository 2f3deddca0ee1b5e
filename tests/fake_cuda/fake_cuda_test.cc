// SPDX-License-Identifier: Apache-2.0

// The rules of the fake driver. Each test runs in a child process of its own, for the fake reads
// DJINN_FAKE_CUDA once, and a sticky code stays as long as its process.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "kernel/base/fd.h"
#include "kernel/pal/cuda/driver_api.h"
#include "kernel/pal/process_state.h"
#include "tests/fake_cuda/fake_for_tests.h"

namespace djinn::fake_cuda {
namespace {

using pal::cuda::AccessDescription;
using pal::cuda::AccessFlags;
using pal::cuda::Allocation;
using pal::cuda::AllocationProperties;
using pal::cuda::Attribute;
using pal::cuda::Code;
using pal::cuda::Context;
using pal::cuda::DevicePtr;
using pal::cuda::DriverApi;
using pal::cuda::Event;
using pal::cuda::Function;
using pal::cuda::HandleType;
using pal::cuda::Module;
using pal::cuda::Stream;

constexpr uint64_t kGranule = uint64_t{2} << 20;

// The device with a context, as a program makes it.
void begin(const DriverApi& cuda) {
  Context context = nullptr;
  ASSERT_EQ(cuda.init(0), Code::kSuccess);
  ASSERT_EQ(cuda.primary_ctx_retain(&context, 0), Code::kSuccess);
  ASSERT_EQ(cuda.ctx_set_current(context), Code::kSuccess);
}

void expect_on_device(const std::string& options,
                      const std::function<void(const DriverApi&)>& work) {
  EXPECT_EQ(run_on_fake(options,
                        [&](const DriverApi& cuda) {
                          begin(cuda);
                          work(cuda);
                        }),
            0);
}

Allocation create(const DriverApi& cuda, uint64_t bytes = kGranule) {
  const AllocationProperties properties;
  Allocation handle = 0;
  EXPECT_EQ(cuda.mem_create(&handle, bytes, &properties, 0), Code::kSuccess);
  return handle;
}

DevicePtr reserve(const DriverApi& cuda, uint64_t bytes = kGranule) {
  DevicePtr address = 0;
  EXPECT_EQ(cuda.mem_address_reserve(&address, bytes, 0, 0, 0), Code::kSuccess);
  return address;
}

Code set_access(const DriverApi& cuda, DevicePtr address, uint64_t bytes, AccessFlags flags) {
  const AccessDescription description{{}, flags};
  return cuda.mem_set_access(address, bytes, &description, 1);
}

DevicePtr map(const DriverApi& cuda, Allocation handle, AccessFlags flags,
              uint64_t bytes = kGranule) {
  const DevicePtr address = reserve(cuda, bytes);
  EXPECT_EQ(cuda.mem_map(address, bytes, 0, handle, 0), Code::kSuccess);
  EXPECT_EQ(set_access(cuda, address, bytes, flags), Code::kSuccess);
  return address;
}

DevicePtr map_new(const DriverApi& cuda, AccessFlags flags = AccessFlags::kReadWrite) {
  return map(cuda, create(cuda), flags);
}

Fd exported(const DriverApi& cuda, Allocation handle) {
  int fd = -1;
  EXPECT_EQ(cuda.mem_export(&fd, handle, HandleType::kPosixFileDescriptor, 0), Code::kSuccess);
  return Fd(fd);
}

Code import(const DriverApi& cuda, const Fd& fd, Allocation* handle) {
  return cuda.mem_import(handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd.get())),
                         HandleType::kPosixFileDescriptor);
}

Stream make_stream(const DriverApi& cuda) {
  Stream stream = nullptr;
  EXPECT_EQ(cuda.stream_create(&stream, pal::cuda::kStreamNonBlocking), Code::kSuccess);
  return stream;
}

uint32_t word_at(const DriverApi& cuda, DevicePtr address) {
  uint32_t word = 0;
  EXPECT_EQ(cuda.memcpy_dtoh(&word, address, sizeof word), Code::kSuccess);
  return word;
}

Function kernel(const DriverApi& cuda, const char* name) {
  Module module = nullptr;
  Function function = nullptr;
  EXPECT_EQ(cuda.module_load_data(&module, "any image"), Code::kSuccess);
  EXPECT_EQ(cuda.module_get_function(&function, module, name), Code::kSuccess);
  return function;
}

Code scribble(const DriverApi& cuda, Stream stream, uint64_t address, uint64_t words,
              uint64_t rounds) {
  void* arguments[] = {&address, &words, &rounds};
  return cuda.launch_kernel(kernel(cuda, "scribble"), 1, 1, 1, 1, 1, 1, 0, stream, arguments,
                            nullptr);
}

TEST(fake_cuda, nothing_is_answered_before_init_nor_in_a_child_of_who_called_it) {
  EXPECT_EQ(run_on_fake("",
                        [](const DriverApi& cuda) {
                          pal::cuda::Device device = -1;
                          EXPECT_EQ(cuda.device_get(&device, 0), Code::kNotInitialized);
                          ASSERT_EQ(cuda.init(0), Code::kSuccess);
                          EXPECT_EQ(cuda.device_get(&device, 0), Code::kSuccess);
                          EXPECT_EQ(device, 0);
                          const pid_t child = ::fork();
                          if (child == 0)
                            ::_exit(cuda.device_get(&device, 0) == Code::kNotInitialized ? 0 : 1);
                          int status = -1;
                          ASSERT_EQ(::waitpid(child, &status, 0), child);
                          EXPECT_EQ(status, 0);
                        }),
            0);
}

TEST(fake_cuda, the_device_is_what_the_options_say) {
  const std::string options = "name=Test 1;memory=8G;driver_version=12020";
  expect_on_device(options, [](const DriverApi& cuda) {
    std::array<char, 64> name{};
    size_t free = 0, total = 0;
    int version = 0, has_descriptors = 0;
    EXPECT_EQ(cuda.device_get_name(name.data(), name.size(), 0), Code::kSuccess);
    EXPECT_STREQ(name.data(), "Test 1");
    EXPECT_EQ(cuda.mem_get_info(&free, &total), Code::kSuccess);
    EXPECT_EQ(total, uint64_t{8} << 30);
    EXPECT_EQ(cuda.driver_get_version(&version), Code::kSuccess);
    EXPECT_EQ(version, 12020);
    EXPECT_EQ(cuda.device_get_attribute(&has_descriptors, Attribute::kPosixFileDescriptors, 0),
              Code::kSuccess);
    EXPECT_EQ(has_descriptors, 1);
    EXPECT_EQ(cuda.device_get_name(name.data(), name.size(), 1), Code::kInvalidDevice);
  });
}

TEST(fake_cuda, a_machine_may_have_a_driver_and_no_device) {
  EXPECT_EQ(run_on_fake("devices=0",
                        [](const DriverApi& cuda) { EXPECT_EQ(cuda.init(0), Code::kNoDevice); }),
            0);
}

TEST(fake_cuda, an_option_that_means_nothing_ends_the_process) {
  for (const char* const options :
       {"memory=lots", "cuMemCreat@1=OUT_OF_MEMORY", "cuMemCreate@0=OUT_OF_MEMORY",
        "cuMemCreate@1=OUT_OF_LUCK", "devices=2", "colour=red", "uuid=12"}) {
    EXPECT_EQ(run_on_fake(options, [](const DriverApi& cuda) { (void)cuda.init(0); }), -SIGABRT)
        << options;
  }
}

TEST(fake_cuda, the_planned_call_fails_without_effect_and_the_next_works) {
  expect_on_device("cuMemCreate@2=OUT_OF_MEMORY", [](const DriverApi& cuda) {
    const AllocationProperties properties;
    Allocation handle = 0;
    (void)create(cuda);
    const pal::ProcessState before = pal::read_process_state();
    EXPECT_EQ(cuda.mem_create(&handle, kGranule, &properties, 0), Code::kOutOfMemory);
    EXPECT_EQ(pal::read_process_state(), before);
    (void)create(cuda);
  });
}

TEST(fake_cuda, a_planned_failure_may_come_after_the_work) {
  expect_on_device("memory=8M;cuMemCreate@1=done:OPERATING_SYSTEM", [](const DriverApi& cuda) {
    const AllocationProperties properties;
    Allocation handle = 0;
    EXPECT_EQ(cuda.mem_create(&handle, kGranule, &properties, 0), Code::kOperatingSystem);
    EXPECT_EQ(cuda.mem_release(handle), Code::kSuccess);
  });
}

TEST(fake_cuda, any_call_can_be_the_planned_one) {
  EXPECT_EQ(run_on_fake("*@2=SYSTEM_DRIVER_MISMATCH",
                        [](const DriverApi& cuda) {
                          pal::cuda::Device device = -1;
                          EXPECT_EQ(cuda.init(0), Code::kSuccess);
                          EXPECT_EQ(cuda.device_get(&device, 0), Code::kSystemDriverMismatch);
                          EXPECT_EQ(cuda.device_get(&device, 0), Code::kSuccess);
                        }),
            0);
}

TEST(fake_cuda, a_sticky_code_stays_and_what_gives_back_is_done_all_the_same) {
  expect_on_device("cuStreamCreate@1=ILLEGAL_ADDRESS", [](const DriverApi& cuda) {
    const pal::ProcessState before = pal::read_process_state();
    const DevicePtr address = map_new(cuda);
    Stream stream = nullptr;
    size_t free = 0, total = 0;
    EXPECT_EQ(cuda.stream_create(&stream, 0), Code::kIllegalAddress);
    EXPECT_EQ(cuda.mem_get_info(&free, &total), Code::kIllegalAddress);
    EXPECT_EQ(cuda.mem_unmap(address, kGranule), Code::kIllegalAddress);
    EXPECT_EQ(cuda.mem_address_free(address, kGranule), Code::kIllegalAddress);
    EXPECT_EQ(cuda.mem_release(0x1001), Code::kIllegalAddress);
    EXPECT_EQ(pal::read_process_state(), before);
  });
}

TEST(fake_cuda, memory_comes_in_whole_granules_and_maps_as_a_whole) {
  expect_on_device("", [](const DriverApi& cuda) {
    const AllocationProperties properties;
    Allocation handle = 0;
    EXPECT_EQ(cuda.mem_create(&handle, kGranule / 2, &properties, 0), Code::kInvalidValue);
    handle = create(cuda, 2 * kGranule);
    const DevicePtr address = reserve(cuda, 4 * kGranule);
    EXPECT_EQ(address % kGranule, 0u);
    EXPECT_EQ(cuda.mem_map(address, kGranule, 0, handle, 0), Code::kNotSupported);
    EXPECT_EQ(cuda.mem_map(address, kGranule, kGranule, handle, 0), Code::kNotSupported);
    EXPECT_EQ(cuda.mem_map(address, 3 * kGranule, 0, handle, 0), Code::kNotSupported);
    EXPECT_EQ(cuda.mem_map(address + 3 * kGranule, 2 * kGranule, 0, handle, 0),
              Code::kInvalidValue);
    EXPECT_EQ(cuda.mem_map(address, 2 * kGranule, 0, handle, 0), Code::kSuccess);
    EXPECT_EQ(cuda.mem_map(address + kGranule, 2 * kGranule, 0, handle, 0), Code::kInvalidValue);
    EXPECT_EQ(cuda.mem_unmap(address, kGranule), Code::kInvalidValue);
    EXPECT_EQ(cuda.mem_address_free(address, 4 * kGranule), Code::kInvalidValue);
    EXPECT_EQ(cuda.mem_unmap(address, 2 * kGranule), Code::kSuccess);
    EXPECT_EQ(cuda.mem_address_free(address, 4 * kGranule), Code::kSuccess);
  });
}

TEST(fake_cuda, access_is_none_until_it_is_set_and_read_only_is_enforced) {
  expect_on_device("", [](const DriverApi& cuda) {
    const DevicePtr address = reserve(cuda);
    ASSERT_EQ(cuda.mem_map(address, kGranule, 0, create(cuda), 0), Code::kSuccess);
    uint32_t word = 0;
    EXPECT_EQ(cuda.memcpy_dtoh(&word, address, sizeof word), Code::kInvalidValue);
    ASSERT_EQ(set_access(cuda, address, kGranule, AccessFlags::kRead), Code::kSuccess);
    EXPECT_EQ(cuda.memcpy_dtoh(&word, address, sizeof word), Code::kSuccess);
    EXPECT_EQ(cuda.memcpy_htod(address, &word, sizeof word), Code::kInvalidValue);
    EXPECT_EQ(cuda.memset_d8(address, 0, 1), Code::kInvalidValue);
    ASSERT_EQ(set_access(cuda, address, kGranule, AccessFlags::kReadWrite), Code::kSuccess);
    EXPECT_EQ(cuda.memcpy_htod(address, &word, sizeof word), Code::kSuccess);
    EXPECT_EQ(cuda.memcpy_htod(address + kGranule - 1, &word, sizeof word), Code::kInvalidValue);
  });
}

TEST(fake_cuda, fresh_memory_is_poisoned) {
  expect_on_device("", [](const DriverApi& cuda) {
    const DevicePtr address = map_new(cuda, AccessFlags::kRead);
    EXPECT_EQ(word_at(cuda, address), 0xA5A5A5A5u);
    EXPECT_EQ(word_at(cuda, address + kGranule - 4), 0xA5A5A5A5u);
  });
}

TEST(fake_cuda, memory_is_bounded_and_counted_while_it_is_mapped) {
  expect_on_device("memory=8M", [](const DriverApi& cuda) {
    const AllocationProperties properties;
    Allocation more = 0;
    size_t free = 0, total = 0;
    const Allocation handle = create(cuda, 3 * kGranule);
    EXPECT_EQ(cuda.mem_create(&more, 2 * kGranule, &properties, 0), Code::kOutOfMemory);
    const DevicePtr address = map(cuda, handle, AccessFlags::kRead, 3 * kGranule);
    ASSERT_EQ(cuda.mem_release(handle), Code::kSuccess);
    EXPECT_EQ(cuda.mem_get_info(&free, &total), Code::kSuccess);
    EXPECT_EQ(free, kGranule);
    EXPECT_EQ(total, 4 * kGranule);
    ASSERT_EQ(cuda.mem_unmap(address, 3 * kGranule), Code::kSuccess);
    EXPECT_EQ(cuda.mem_create(&more, 4 * kGranule, &properties, 0), Code::kSuccess);
  });
}

TEST(fake_cuda, an_exported_descriptor_outlives_its_creator_and_is_the_same_memory) {
  Carrier carrier;
  expect_on_device("", [&](const DriverApi& cuda) {
    const Allocation handle = create(cuda);
    const DevicePtr address = map(cuda, handle, AccessFlags::kReadWrite);
    const uint32_t word = 4711;
    ASSERT_EQ(cuda.memcpy_htod(address, &word, sizeof word), Code::kSuccess);
    carrier.send(exported(cuda, handle));
  });
  expect_on_device("", [&](const DriverApi& cuda) {
    Allocation first = 0, second = 0;
    {
      const Fd received = carrier.receive();
      ASSERT_EQ(import(cuda, received, &first), Code::kSuccess);
      ASSERT_EQ(import(cuda, received, &second), Code::kSuccess);
    }
    int fd = -1;
    EXPECT_EQ(cuda.mem_export(&fd, first, HandleType::kPosixFileDescriptor, 0), Code::kInvalidValue)
        << "only its creator exports it";
    EXPECT_EQ(word_at(cuda, map(cuda, first, AccessFlags::kRead)), 4711u);
    EXPECT_EQ(word_at(cuda, map(cuda, second, AccessFlags::kRead)), 4711u);
    size_t free = 0, total = 0;
    EXPECT_EQ(cuda.mem_get_info(&free, &total), Code::kSuccess);
    EXPECT_EQ(total - free, kGranule) << "one memory, however often it is imported";
  });
}

TEST(fake_cuda, an_import_refuses_what_is_no_export) {
  expect_on_device("", [](const DriverApi& cuda) {
    Allocation handle = 0;
    const Fd memfd(::memfd_create("other", MFD_CLOEXEC));
    const Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
    EXPECT_EQ(import(cuda, memfd, &handle), Code::kUnknown);
    EXPECT_EQ(import(cuda, null, &handle), Code::kUnknown);
    EXPECT_EQ(import(cuda, Fd(), &handle), Code::kUnknown);
  });
}

TEST(fake_cuda, memory_of_another_device_is_not_imported) {
  Carrier carrier;
  expect_on_device("", [&](const DriverApi& cuda) { carrier.send(exported(cuda, create(cuda))); });
  expect_on_device("uuid=00112233-4455-6677-8899-aabbccddeeff", [&](const DriverApi& cuda) {
    Allocation handle = 0;
    EXPECT_EQ(import(cuda, carrier.receive(), &handle), Code::kInvalidDevice);
  });
}

TEST(fake_cuda, what_was_not_made_for_it_is_not_exported) {
  expect_on_device("", [](const DriverApi& cuda) {
    AllocationProperties properties;
    properties.requested_handle_types = HandleType::kNone;
    Allocation handle = 0;
    ASSERT_EQ(cuda.mem_create(&handle, kGranule, &properties, 0), Code::kSuccess);
    int fd = -1;
    EXPECT_EQ(cuda.mem_export(&fd, handle, HandleType::kPosixFileDescriptor, 0),
              Code::kInvalidValue);
  });
}

TEST(fake_cuda, a_copy_has_not_happened_before_it_is_waited_for) {
  expect_on_device(kSlow, [](const DriverApi& cuda) {
    const DevicePtr address = map_new(cuda);
    const Stream stream = make_stream(cuda);
    uint32_t out = 0;
    ASSERT_EQ(cuda.memcpy_dtoh_async(&out, address, sizeof out, stream), Code::kSuccess);
    EXPECT_EQ(cuda.stream_query(stream), Code::kNotReady);
    EXPECT_EQ(cuda.stream_synchronize(stream), Code::kSuccess);
    EXPECT_EQ(out, 0xA5A5A5A5u);
    EXPECT_EQ(cuda.stream_query(stream), Code::kSuccess);
    EXPECT_EQ(cuda.stream_destroy(stream), Code::kSuccess);
    EXPECT_EQ(cuda.stream_destroy(stream), Code::kInvalidHandle);
  });
}

TEST(fake_cuda, an_event_comes_after_the_work_before_it) {
  expect_on_device(kSlow, [](const DriverApi& cuda) {
    const DevicePtr address = map_new(cuda);
    const Stream stream = make_stream(cuda);
    Event event = nullptr;
    ASSERT_EQ(cuda.event_create(&event, 0), Code::kSuccess);
    EXPECT_EQ(cuda.event_synchronize(event), Code::kSuccess) << "never recorded";
    uint32_t out = 0;
    ASSERT_EQ(cuda.memcpy_dtoh_async(&out, address, sizeof out, stream), Code::kSuccess);
    ASSERT_EQ(cuda.event_record(event, stream), Code::kSuccess);
    EXPECT_EQ(cuda.event_synchronize(event), Code::kSuccess);
    EXPECT_EQ(out, 0xA5A5A5A5u);
    EXPECT_EQ(cuda.event_destroy(event), Code::kSuccess);
  });
}

TEST(fake_cuda, memory_that_goes_before_its_copy_ends_the_context) {
  expect_on_device(kSlow, [](const DriverApi& cuda) {
    const DevicePtr address = map_new(cuda);
    const Stream stream = make_stream(cuda);
    uint32_t out = 0;
    ASSERT_EQ(cuda.memcpy_dtoh_async(&out, address, sizeof out, stream), Code::kSuccess);
    ASSERT_EQ(cuda.mem_unmap(address, kGranule), Code::kSuccess);
    EXPECT_EQ(cuda.stream_synchronize(stream), Code::kIllegalAddress);
    EXPECT_EQ(cuda.ctx_synchronize(), Code::kIllegalAddress);
  });
}

TEST(fake_cuda, a_kernel_writes_every_word_in_each_round) {
  expect_on_device("", [](const DriverApi& cuda) {
    const DevicePtr address = map_new(cuda);
    const Stream stream = make_stream(cuda);
    ASSERT_EQ(scribble(cuda, stream, address, kGranule / 4 - 1, 3), Code::kSuccess);
    ASSERT_EQ(cuda.ctx_synchronize(), Code::kSuccess);
    EXPECT_EQ(word_at(cuda, address), 3u);
    EXPECT_EQ(word_at(cuda, address + kGranule - 8), 3u);
    EXPECT_EQ(word_at(cuda, address + kGranule - 4), 0xA5A5A5A5u);
  });
}

TEST(fake_cuda, a_kernel_that_writes_what_it_may_only_read_ends_the_context) {
  expect_on_device("", [](const DriverApi& cuda) {
    const DevicePtr address = map_new(cuda, AccessFlags::kRead);
    const Stream stream = make_stream(cuda);
    ASSERT_EQ(scribble(cuda, stream, address, 16, 1), Code::kSuccess);
    EXPECT_EQ(cuda.stream_synchronize(stream), Code::kIllegalAddress);
    uint32_t word = 0;
    EXPECT_EQ(cuda.memcpy_dtoh(&word, address, sizeof word), Code::kIllegalAddress);
  });
}

TEST(fake_cuda, kernels_without_end_keep_their_stream_busy_and_no_process_alive) {
  expect_on_device("", [](const DriverApi& cuda) {
    const DevicePtr address = map_new(cuda);
    const Stream writer = make_stream(cuda), idler = make_stream(cuda);
    ASSERT_EQ(scribble(cuda, writer, address, kGranule / 4, 0), Code::kSuccess);
    ASSERT_EQ(
        cuda.launch_kernel(kernel(cuda, "endless"), 1, 1, 1, 1, 1, 1, 0, idler, nullptr, nullptr),
        Code::kSuccess);
    const uint32_t before = word_at(cuda, address);
    while (word_at(cuda, address) == before) {
    }
    EXPECT_EQ(cuda.stream_query(writer), Code::kNotReady);
    EXPECT_EQ(cuda.stream_query(idler), Code::kNotReady);
    EXPECT_EQ(cuda.stream_destroy(idler), Code::kSuccess);
  });
}

TEST(fake_cuda, an_unknown_kernel_is_not_found) {
  expect_on_device("", [](const DriverApi& cuda) {
    Module module = nullptr;
    Function function = nullptr;
    ASSERT_EQ(cuda.module_load_data(&module, "any image"), Code::kSuccess);
    EXPECT_EQ(cuda.module_get_function(&function, module, "nobody"), Code::kNotFound);
    EXPECT_EQ(cuda.module_get_function(&function, nullptr, "scribble"), Code::kInvalidHandle);
  });
}

TEST(fake_cuda, pinned_memory_of_the_host_is_made_and_registered_once) {
  expect_on_device("", [](const DriverApi& cuda) {
    void* at = nullptr;
    ASSERT_EQ(cuda.mem_host_alloc(&at, 100, pal::cuda::kHostAllocPortable), Code::kSuccess);
    ::memset(at, 1, 100);
    EXPECT_EQ(cuda.mem_free_host(at), Code::kSuccess);
    EXPECT_EQ(cuda.mem_free_host(at), Code::kInvalidValue);
    std::vector<char> ours(4096);
    EXPECT_EQ(cuda.mem_host_register(ours.data(), ours.size(), 0), Code::kSuccess);
    EXPECT_NE(cuda.mem_host_register(ours.data(), ours.size(), 0), Code::kSuccess);
    EXPECT_EQ(cuda.mem_host_unregister(ours.data()), Code::kSuccess);
    EXPECT_NE(cuda.mem_host_unregister(ours.data()), Code::kSuccess);
  });
}

TEST(fake_cuda, what_needs_a_context_says_so) {
  EXPECT_EQ(run_on_fake("",
                        [](const DriverApi& cuda) {
                          Stream stream = nullptr;
                          ASSERT_EQ(cuda.init(0), Code::kSuccess);
                          EXPECT_EQ(cuda.stream_create(&stream, 0), Code::kInvalidContext);
                          begin(cuda);
                          EXPECT_EQ(cuda.stream_create(&stream, 0), Code::kSuccess);
                          EXPECT_EQ(cuda.primary_ctx_release(0), Code::kSuccess);
                          EXPECT_EQ(cuda.stream_create(&stream, 0), Code::kInvalidContext);
                          EXPECT_EQ(cuda.primary_ctx_release(0), Code::kInvalidContext);
                        }),
            0);
}

}  // namespace
}  // namespace djinn::fake_cuda
