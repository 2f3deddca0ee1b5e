// SPDX-License-Identifier: Apache-2.0
#include "kernel/pal/cuda/cuda_pal.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "kernel/base/assert.h"
#include "kernel/base/checked.h"
#include "kernel/pal/cuda/node_faults.h"

namespace djinn::pal::cuda {
namespace {

AccessFlags flags_of(Access access) {
  switch (access) {
    case Access::kNone:
      return AccessFlags::kNone;
    case Access::kRead:
      return AccessFlags::kRead;
    case Access::kReadWrite:
      return AccessFlags::kReadWrite;
  }
  return AccessFlags::kNone;
}

DevicePtr address_of(const Reservation& reservation, uint64_t offset) {
  return reinterpret_cast<DevicePtr>(reservation.data()) + offset;
}

std::byte* as_data(DevicePtr address) {
  return reinterpret_cast<std::byte*>(address);
}

// For a descriptor that is not theirs drivers have several codes. The driver of an H200 says
// UNKNOWN.
bool means_no_export(Code code) {
  switch (code) {
    case Code::kInvalidValue:
    case Code::kInvalidHandle:
    case Code::kInvalidDevice:
    case Code::kNotSupported:
    case Code::kUnknown:
      return true;
    default:
      return false;
  }
}

std::string text_of(const Uuid& uuid) {
  std::string text = "GPU";
  for (size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

Error size_error(uint64_t bytes) {
  return {ErrorCode::kOutOfRange,
          fmt::format("the descriptor is not one of an extent of {} bytes", bytes)};
}

}  // namespace

class CudaPal::Handle {
 public:
  Handle(CudaPal& pal, Allocation allocation) noexcept : pal_(&pal), allocation_(allocation) {}
  ~Handle() {
    if (pal_ != nullptr) (void)pal_->judge_release(pal_->api_.mem_release(allocation_));
  }
  Handle(Handle&& other) noexcept
      : pal_(std::exchange(other.pal_, nullptr)), allocation_(other.allocation_) {}
  Handle& operator=(Handle&&) = delete;

  [[nodiscard]] Allocation get() const noexcept { return allocation_; }

 private:
  CudaPal* pal_;
  Allocation allocation_;
};

// --- the device
// ----------------------------------------------------------------------------------

CudaPal::CudaPal(const DriverApi& api, int ordinal)
    : api_(api), properties_{.name = fmt::format("cuda:{}", ordinal)} {}

Result<std::unique_ptr<CudaPal>> CudaPal::make(const DriverApi& api, int ordinal,
                                               const std::string& nodes) {
  std::unique_ptr<CudaPal> pal(new CudaPal(api, ordinal));
  DJINN_CHECK(pal->open(ordinal, nodes));
  return pal;
}

// The driver has one code for most of what its nodes lack.
Status CudaPal::start_driver(const std::string& nodes) {
  const Code code = api_.init(0);
  if (code == Code::kSuccess) return {};
  Error error = driver_error(api_, "start the driver", code);
  if (code == Code::kSystemDriverMismatch) {
    error.message = fmt::format(
        "the driver's library and its module are of two versions, as after an upgrade: restart "
        "the machine. {}",
        error.message);
  } else if (const auto fault = fault_of_nodes(nodes); fault && !is_sticky(code)) {
    error = {fault->code, fmt::format("{}. {}", fault->message, error.message)};
  }
  return error;
}

// CUDA shows one part of a GPU that is divided, and says so in its name alone.
Status CudaPal::check_whole() {
  std::array<char, 256> name{};
  DJINN_CHECK(judge("ask for the name", api_.device_get_name(name.data(), name.size(), device_)));
  if (std::string_view(name.data()).find(" MIG ") == std::string_view::npos) return {};
  return Error{ErrorCode::kUnsupported,
               fmt::format("{} is a part of a GPU (MIG: {}), which djinnd does not use: make it "
                           "whole ('nvidia-smi -mig 0', as root, and a reset of the GPU)",
                           properties_.name, name.data())};
}

Status CudaPal::check_sharing() {
  int shared = 0;
  DJINN_CHECK(
      judge("ask for MPS", api_.device_get_attribute(&shared, Attribute::kMpsEnabled, device_)));
  if (shared == 0) return {};
  return Error{
      ErrorCode::kUnsupported,
      fmt::format("{} is shared by NVIDIA's MPS, where a fault of one process ends all others', "
                  "and djinnd does not use it: end MPS ('echo quit | nvidia-cuda-mps-control', as "
                  "root)",
                  properties_.name)};
}

// A worker for each user and the mover have a context each.
Status CudaPal::check_compute_mode() {
  int number = 0;
  DJINN_CHECK(judge("ask for the compute mode",
                    api_.device_get_attribute(&number, Attribute::kComputeMode, device_)));
  const auto mode = static_cast<ComputeMode>(number);
  if (mode != ComputeMode::kExclusiveProcess && mode != ComputeMode::kProhibited) return {};
  return Error{
      ErrorCode::kBusy,
      fmt::format("{} is in {} compute mode, and more than one process has to use it: "
                  "'nvidia-smi -c DEFAULT', as root, lets them",
                  properties_.name, mode == ComputeMode::kProhibited ? "prohibited" : "exclusive")};
}

Status CudaPal::open(int ordinal, const std::string& nodes) {
  DJINN_CHECK(start_driver(nodes));
  int version = 0, has_memory_management = 0, has_descriptors = 0;
  DJINN_CHECK(judge("ask the driver's version", api_.driver_get_version(&version)));
  if (version < kDriverVersionMin)
    return Error{ErrorCode::kUnsupported,
                 fmt::format("the NVIDIA driver is for CUDA {}.{}, and {}.{} is needed: install "
                             "version 580 or newer",
                             version / 1000, version % 1000 / 10, kDriverVersionMin / 1000,
                             kDriverVersionMin % 1000 / 10)};
  DJINN_CHECK(judge("find the device", api_.device_get(&device_, ordinal)));
  DJINN_CHECK(check_whole());
  DJINN_CHECK(check_sharing());
  DJINN_CHECK(judge("ask for memory management",
                    api_.device_get_attribute(&has_memory_management,
                                              Attribute::kVirtualMemoryManagement, device_)));
  DJINN_CHECK(judge(
      "ask for descriptors",
      api_.device_get_attribute(&has_descriptors, Attribute::kPosixFileDescriptors, device_)));
  if (has_memory_management == 0 || has_descriptors == 0)
    return Error{ErrorCode::kUnsupported,
                 fmt::format("{} cannot give memory to other processes (virtual memory management "
                             "or descriptors are missing)",
                             properties_.name)};
  DJINN_CHECK(check_compute_mode());
  const AllocationProperties wanted = allocation_properties();
  size_t granularity = 0;
  DJINN_CHECK(judge("ask for the granularity", api_.mem_get_allocation_granularity(
                                                   &granularity, &wanted, Granularity::kMinimum)));
  properties_.granularity_bytes = granularity;
  Context context = nullptr;
  DJINN_CHECK(judge("take the context", api_.primary_ctx_retain(&context, device_)));
  context_ = context;
  DJINN_CHECK(enter());
  return judge("make a stream", api_.stream_create(&stream_, kStreamNonBlocking));
}

// If the driver refuses, nobody can be told: the process does without the device from now on.
CudaPal::~CudaPal() {
  if (context_ == nullptr) return;
  if (stream_ != nullptr) (void)api_.stream_destroy(stream_);
  (void)api_.primary_ctx_release(device_);
}

Result<DeviceNames> CudaPal::names() {
  DJINN_CHECK(enter());
  DeviceNames names;
  std::array<char, 256> name{};
  Uuid uuid{};
  DJINN_CHECK(judge("ask for the name", api_.device_get_name(name.data(), name.size(), device_)));
  DJINN_CHECK(judge("ask for the UUID", api_.device_get_uuid(&uuid, device_)));
  DJINN_CHECK(judge("ask the driver's version", api_.driver_get_version(&names.cuda_version)));
  names.name = name.data();
  names.uuid = text_of(uuid);
  return names;
}

Result<DeviceMemory> CudaPal::memory() {
  DJINN_CHECK(enter());
  size_t free = 0, total = 0;
  DJINN_CHECK(judge("ask for free memory", api_.mem_get_info(&free, &total)));
  return DeviceMemory{free, total};
}

AllocationProperties CudaPal::allocation_properties() const {
  AllocationProperties properties;
  properties.location.id = device_;
  return properties;
}

Status CudaPal::check_alive() const {
  const Code lost = lost_;
  if (lost == Code::kSuccess) return {};
  return Error{ErrorCode::kDeviceLost,
               fmt::format("{} is lost to this process, which has to end: {}", properties_.name,
                           describe(api_, lost))};
}

Status CudaPal::enter() {
  DJINN_CHECK(check_alive());
  return judge("enter the context", api_.ctx_set_current(context_));
}

Status CudaPal::judge(std::string_view what, Code code) {
  if (code == Code::kSuccess) return {};
  if (is_sticky(code)) lost_ = code;
  return driver_error(api_, fmt::format("{} on {}", what, properties_.name), code);
}

Status CudaPal::judge_release(Code code) noexcept {
  if (code != Code::kSuccess) lost_ = code;
  return check_alive();
}

// --- extents
// -------------------------------------------------------------------------------------

Result<Extent> CudaPal::create(std::string_view, uint64_t bytes) {
  DJINN_CHECK(check_aligned(properties_, 0, bytes));
  DJINN_CHECK(enter());
  const AllocationProperties wanted = allocation_properties();
  Extent extent{Fd(), bytes};
  {
    Allocation allocation = 0;
    DJINN_CHECK(judge("create an extent", api_.mem_create(&allocation, bytes, &wanted, 0)));
    const Handle handle(*this, allocation);
    DJINN_TRY(extent.fd, export_handle(handle));
    if (::fcntl(extent.fd.get(), F_SETFD, FD_CLOEXEC) != 0)
      return system_error("keep an extent", errno);
    // The memory may still hold what an earlier owner left.
    DJINN_TRY(Reservation scratch, reserve(bytes));
    DJINN_CHECK(map_handle(scratch, 0, handle, bytes, Access::kReadWrite));
    DJINN_CHECK(zero(scratch, 0, bytes));
  }
  DJINN_CHECK(check_alive());  // the scratch addresses and the handle went back
  return extent;
}

Status CudaPal::commit(const Extent& extent, uint64_t offset, uint64_t bytes) {
  DJINN_CHECK(check_aligned(properties_, offset, bytes));
  DJINN_CHECK(check_in_extent(extent, offset, bytes));
  return check_alive();
}

Status CudaPal::decommit(const Extent&, uint64_t, uint64_t) {
  return no_parts_error();
}

Status CudaPal::seal(const Extent&, Seals) {
  return Error{ErrorCode::kUnsupported,
               "memory of a GPU cannot be sealed: map it for reading only"};
}

Result<Fd> CudaPal::export_extent(const Extent& extent) {
  return extent.fd.duplicate();
}

// The driver has no code that says that descriptors have run out, so the kernel is asked.
Result<Fd> CudaPal::export_handle(const Handle& handle) {
  int fd = -1;
  const Code code = api_.mem_export(&fd, handle.get(), HandleType::kPosixFileDescriptor, 0);
  if (code == Code::kSuccess) return Fd(fd);
  const Error error = judge("export an extent", code).error();
  DJINN_CHECK(check_alive());
  const Fd one_more(::eventfd(0, EFD_CLOEXEC));
  const bool has_none = !one_more.valid() && (errno == EMFILE || errno == ENFILE);
  return has_none ? system_error(error.message, errno) : error;
}

Result<CudaPal::Handle> CudaPal::import_handle(const Fd& fd) {
  Allocation allocation = 0;
  void* const number = reinterpret_cast<void*>(static_cast<intptr_t>(fd.get()));
  const Code code = api_.mem_import(&allocation, number, HandleType::kPosixFileDescriptor);
  if (Status imported = judge("import an extent", code); !imported) {
    Error error = std::move(imported).error();
    if (means_no_export(code)) error.code = ErrorCode::kInvalidArgument;
    return error;
  }
  return Handle(*this, allocation);
}

Result<bool> CudaPal::maps_as(const Reservation& scratch, const Handle& handle, uint64_t bytes) {
  const DevicePtr address = address_of(scratch, 0);
  const Code mapped = api_.mem_map(address, bytes, 0, handle.get(), 0);
  if (mapped != Code::kSuccess) {
    const bool is_about_size = mapped == Code::kNotSupported || mapped == Code::kInvalidValue;
    if (is_about_size) return false;
    return judge("map an extent once", mapped).error();
  }
  DJINN_CHECK(judge_release(api_.mem_unmap(address, bytes)));
  return true;
}

Status CudaPal::check_size(const Handle& handle, uint64_t bytes) {
  const auto larger = checked_add(bytes, properties_.granularity_bytes);
  if (!larger) return size_error(bytes);
  DJINN_TRY(const Reservation scratch, reserve(*larger));
  DJINN_TRY(const bool is_as_large, maps_as(scratch, handle, bytes));
  if (!is_as_large) return size_error(bytes);
  // A driver may map the beginning of an extent, so a larger size is tried as well.
  DJINN_TRY(const bool is_larger, maps_as(scratch, handle, *larger));
  if (is_larger) return size_error(bytes);
  return {};
}

Result<Extent> CudaPal::import_extent(Fd fd, uint64_t bytes, Seals) {
  DJINN_CHECK(check_aligned(properties_, 0, bytes));
  DJINN_CHECK(enter());
  if (!fd.valid()) return Error{ErrorCode::kInvalidArgument, "there is no descriptor to import"};
  {
    DJINN_TRY(const Handle handle, import_handle(fd));
    DJINN_CHECK(check_size(handle, bytes));
  }
  DJINN_CHECK(check_alive());
  return Extent{std::move(fd), bytes};
}

// --- reservations
// --------------------------------------------------------------------------------

Result<Reservation> CudaPal::reserve(uint64_t bytes) {
  DJINN_CHECK(check_aligned(properties_, 0, bytes));
  DJINN_CHECK(enter());
  DevicePtr address = 0;
  DJINN_CHECK(
      judge("reserve addresses",
            api_.mem_address_reserve(&address, bytes, properties_.granularity_bytes, 0, 0)));
  return Reservation(*this, as_data(address), bytes);
}

void CudaPal::release(std::byte* data, uint64_t bytes,
                      const Reservation::Mappings& mapped) noexcept {
  const auto address = reinterpret_cast<DevicePtr>(data);
  for (const auto& [offset, mapping] : mapped)
    (void)judge_release(api_.mem_unmap(address + offset, mapping.bytes));
  (void)judge_release(api_.mem_address_free(address, bytes));
}

Status CudaPal::set_access(DevicePtr address, uint64_t bytes, Access access) {
  const AccessDescription description{{LocationType::kDevice, device_}, flags_of(access)};
  return judge("change the access to an extent",
               api_.mem_set_access(address, bytes, &description, 1));
}

Status CudaPal::map_handle(Reservation& reservation, uint64_t offset, const Handle& handle,
                           uint64_t bytes, Access access) {
  const DevicePtr address = address_of(reservation, offset);
  DJINN_CHECK(judge("map an extent", api_.mem_map(address, bytes, 0, handle.get(), 0)));
  if (access != Access::kNone) {
    if (Status set = set_access(address, bytes, access); !set) {
      DJINN_CHECK(judge_release(api_.mem_unmap(address, bytes)));
      return set;
    }
  }
  reservation.note_mapped(offset, {bytes, access, false});
  return {};
}

Status CudaPal::map(Reservation& reservation, uint64_t offset, const Extent& extent,
                    uint64_t extent_offset, uint64_t bytes, Access access) {
  DJINN_CHECK(check_mapping(properties_, reservation, offset, extent, extent_offset, bytes));
  DJINN_CHECK(enter());
  {
    DJINN_TRY(const Handle handle, import_handle(extent.fd));
    DJINN_CHECK(map_handle(reservation, offset, handle, bytes, access));
  }
  return check_alive();
}

Status CudaPal::protect(Reservation& reservation, uint64_t offset, uint64_t bytes, Access access) {
  DJINN_TRY(Reservation::Mapped * mapped, reservation.exactly(offset, bytes));
  DJINN_CHECK(enter());
  DJINN_CHECK(set_access(address_of(reservation, offset), bytes, access));
  mapped->access = access;
  return {};
}

Status CudaPal::unmap(Reservation& reservation, uint64_t offset, uint64_t bytes) {
  DJINN_TRY([[maybe_unused]] const auto* mapped, reservation.exactly(offset, bytes));
  DJINN_CHECK(enter());
  DJINN_CHECK(judge("unmap an extent", api_.mem_unmap(address_of(reservation, offset), bytes)));
  reservation.note_unmapped(offset);
  return {};
}

Status CudaPal::populate(Reservation& reservation, uint64_t offset, uint64_t bytes) {
  DJINN_CHECK(check_aligned(properties_, offset, bytes));
  DJINN_CHECK(reservation.check_access(offset, bytes, Access::kReadWrite));
  return check_alive();
}

// --- copies
// --------------------------------------------------------------------------------------

Status CudaPal::finish(std::string_view what, Code submitted) {
  const Code code = submitted == Code::kSuccess ? api_.stream_synchronize(stream_) : submitted;
  if (code == Code::kSuccess) return {};
  // The caller takes its bytes back now, so no copy may still be under way, even after an error.
  if (!is_sticky(code)) DJINN_CHECK(judge_release(api_.ctx_synchronize()));
  return judge(what, code);
}

Status CudaPal::copy_in(Reservation& reservation, uint64_t offset,
                        std::span<const std::byte> from) {
  DJINN_CHECK(reservation.check_access(offset, from.size(), Access::kReadWrite));
  DJINN_CHECK(enter());
  return finish("copy to an extent", api_.memcpy_htod_async(address_of(reservation, offset),
                                                            from.data(), from.size(), stream_));
}

Status CudaPal::copy_out(const Reservation& reservation, uint64_t offset, std::span<std::byte> to) {
  DJINN_CHECK(reservation.check_access(offset, to.size(), Access::kRead));
  DJINN_CHECK(enter());
  return finish(
      "copy from an extent",
      api_.memcpy_dtoh_async(to.data(), address_of(reservation, offset), to.size(), stream_));
}

Status CudaPal::zero(Reservation& reservation, uint64_t offset, uint64_t bytes) {
  DJINN_CHECK(reservation.check_access(offset, bytes, Access::kReadWrite));
  DJINN_CHECK(enter());
  return finish("zero an extent",
                api_.memset_d8_async(address_of(reservation, offset), 0, bytes, stream_));
}

Status CudaPal::copy(Reservation& reservation, uint64_t from, uint64_t to, uint64_t bytes) {
  DJINN_ASSERT(from + bytes <= to || to + bytes <= from);
  DJINN_CHECK(reservation.check_access(from, bytes, Access::kRead));
  DJINN_CHECK(reservation.check_access(to, bytes, Access::kReadWrite));
  DJINN_CHECK(enter());
  return finish("copy inside extents",
                api_.memcpy_dtod_async(address_of(reservation, to), address_of(reservation, from),
                                       bytes, stream_));
}

}  // namespace djinn::pal::cuda
