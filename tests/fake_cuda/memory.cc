// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_cuda/memory.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <iterator>
#include <mutex>
#include <utility>

namespace djinn::fake_cuda {
namespace {

using pal::cuda::HandleType;
using pal::cuda::LocationType;

constexpr uint64_t kHeaderBytes = 4096;  // behind the memory
constexpr uint64_t kMagic = 0x4b46'4144'5543'4a44;
constexpr int kReservedFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
constexpr int kExportSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Tells an exported descriptor from other memfds.
struct Header {
  uint64_t magic = kMagic;
  uint64_t bytes = 0;
  Uuid device{};
  AllocationProperties properties;
};

bool is_granular(uint64_t number) {
  return number % kGranuleBytes == 0;
}

void* at_address(DevicePtr address) {
  return reinterpret_cast<void*>(address);
}

bool poison(int memfd, uint64_t bytes) {
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
  if (at == MAP_FAILED) return false;
  ::memset(at, kPoison, bytes);
  return ::munmap(at, bytes) == 0;
}

Fd make_memory(const Header& header) {
  Fd memfd(::memfd_create("fake-cuda", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const auto end = static_cast<off_t>(header.bytes);
  if (!memfd.valid() || ::ftruncate(memfd.get(), end + off_t{kHeaderBytes}) != 0) return {};
  if (::pwrite(memfd.get(), &header, sizeof header, end) != sizeof header) return {};
  if (!poison(memfd.get(), header.bytes)) return {};
  if (::fcntl(memfd.get(), F_ADD_SEALS, kExportSeals) != 0) return {};
  return memfd;
}

// A descriptor that is no memfd is asked nothing, because its file system may not answer.
bool read_header(int fd, Header& header, ino_t& inode) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kExportSeals) != kExportSeals) return false;
  struct stat info {};
  if (::fstat(fd, &info) != 0 || info.st_size < off_t{kHeaderBytes}) return false;
  const off_t end = info.st_size - off_t{kHeaderBytes};
  inode = info.st_ino;
  return ::pread(fd, &header, sizeof header, end) == sizeof header && header.magic == kMagic &&
         header.bytes == static_cast<uint64_t>(end);
}

bool reserve_again(DevicePtr address, uint64_t bytes) {
  return ::mmap(at_address(address), bytes, PROT_NONE, kReservedFlags | MAP_FIXED, -1, 0) !=
         MAP_FAILED;
}

int protection_bits(AccessFlags access) {
  switch (access) {
    case AccessFlags::kNone:
      return PROT_NONE;
    case AccessFlags::kRead:
      return PROT_READ;
    case AccessFlags::kReadWrite:
      return PROT_READ | PROT_WRITE;
  }
  return -1;
}

}  // namespace

Allocation Memory::add_handle(Shared physical) {
  physical->handles += 1;
  handles_.emplace(++last_handle_, std::move(physical));
  return last_handle_;
}

uint64_t Memory::used_locked() const {
  uint64_t used = 0;
  for (const auto& [inode, weak] : physical_) {
    if (const Shared physical = weak.lock()) used += physical->bytes;
  }
  return used;
}

uint64_t Memory::free_bytes() const {
  const std::shared_lock lock(mutex_);
  const uint64_t used = used_locked();
  return used < total_bytes_ ? total_bytes_ - used : 0;
}

Code Memory::create(Allocation* out, uint64_t bytes, const AllocationProperties& properties) {
  if (bytes == 0 || !is_granular(bytes)) return Code::kInvalidValue;
  if (properties.type != pal::cuda::AllocationType::kPinned) return Code::kInvalidValue;
  if (properties.location.type != LocationType::kDevice) return Code::kNotSupported;
  if (properties.location.id != 0) return Code::kInvalidDevice;
  const HandleType type = properties.requested_handle_types;
  if (type != HandleType::kNone && type != HandleType::kPosixFileDescriptor)
    return Code::kNotSupported;
  const std::unique_lock lock(mutex_);
  if (bytes > total_bytes_ || used_locked() > total_bytes_ - bytes) return Code::kOutOfMemory;
  Fd memfd = make_memory({.bytes = bytes, .device = device_, .properties = properties});
  struct stat info {};
  if (!memfd.valid() || ::fstat(memfd.get(), &info) != 0) return Code::kOutOfMemory;
  auto physical = std::make_shared<Physical>(Physical{std::move(memfd), bytes, properties, 0});
  physical_[info.st_ino] = physical;
  *out = add_handle(std::move(physical));
  return Code::kSuccess;
}

Code Memory::release(Allocation handle) {
  const std::unique_lock lock(mutex_);
  const auto found = handles_.find(handle);
  if (found == handles_.end()) return Code::kInvalidValue;
  const Shared physical = std::move(found->second);
  handles_.erase(found);
  imports_.erase(handle);
  if (--physical->handles == 0) physical->memfd.reset();
  return Code::kSuccess;
}

Code Memory::export_handle(int* fd, Allocation handle) {
  const std::shared_lock lock(mutex_);
  const auto found = handles_.find(handle);
  if (found == handles_.end()) return Code::kInvalidValue;
  const Physical& physical = *found->second;
  if (imports_.contains(handle) ||
      physical.properties.requested_handle_types != HandleType::kPosixFileDescriptor)
    return Code::kInvalidValue;
  const int copy = ::dup(physical.memfd.get());  // nobody promises that it is close-on-exec
  if (copy < 0) return Code::kOperatingSystem;
  *fd = copy;
  return Code::kSuccess;
}

Code Memory::import_handle(Allocation* out, int fd) {
  Header header;
  ino_t inode = 0;
  if (!read_header(fd, header, inode)) return Code::kUnknown;
  if (header.device != device_) return Code::kInvalidDevice;
  const std::unique_lock lock(mutex_);
  Shared physical = physical_[inode].lock();
  if (physical == nullptr) {
    physical = std::make_shared<Physical>(Physical{Fd(), header.bytes, header.properties, 0});
    physical_[inode] = physical;
  }
  if (!physical->memfd.valid()) physical->memfd = Fd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!physical->memfd.valid()) return Code::kOperatingSystem;
  *out = add_handle(std::move(physical));
  imports_.insert(*out);
  return Code::kSuccess;
}

Code Memory::reserve(DevicePtr* out, uint64_t bytes, uint64_t alignment) {
  if (bytes == 0 || !is_granular(bytes) || (alignment & (alignment - 1)) != 0)
    return Code::kInvalidValue;
  const uint64_t step = std::max(alignment, kGranuleBytes);
  if (bytes > UINT64_MAX - step) return Code::kOutOfMemory;
  void* const got = ::mmap(nullptr, bytes + step, PROT_NONE, kReservedFlags, -1, 0);
  if (got == MAP_FAILED) return Code::kOutOfMemory;
  const auto begin = reinterpret_cast<DevicePtr>(got);
  const DevicePtr address = (begin + step - 1) / step * step;
  if (address != begin) ::munmap(got, address - begin);
  ::munmap(at_address(address + bytes), begin + step - address);
  const std::unique_lock lock(mutex_);
  reservations_.emplace(address, Reserved{bytes, ++reservations_made_});
  *out = address;
  return Code::kSuccess;
}

Code Memory::free_addresses(DevicePtr address, uint64_t bytes) {
  const std::unique_lock lock(mutex_);
  const auto found = reservations_.find(address);
  if (found == reservations_.end() || found->second.bytes != bytes || meets_mapping(address, bytes))
    return Code::kInvalidValue;
  ::munmap(at_address(address), bytes);
  reservations_.erase(found);
  return Code::kSuccess;
}

bool Memory::is_reserved(DevicePtr address, uint64_t bytes) const {
  const auto next = reservations_.upper_bound(address);
  if (next == reservations_.begin()) return false;
  const auto& [begin, reserved] = *std::prev(next);
  return bytes <= reserved.bytes && address - begin <= reserved.bytes - bytes;
}

std::optional<Place> Memory::find(DevicePtr address) const {
  const std::shared_lock lock(mutex_);
  if (!meets_mapping(address, 1)) return std::nullopt;
  const auto& [begin, reserved] = *std::prev(reservations_.upper_bound(address));
  return Place{reserved.number, address - begin};
}

bool Memory::meets_mapping(DevicePtr address, uint64_t bytes) const {
  const auto next = mappings_.lower_bound(address);
  if (next != mappings_.end() && next->first - address < bytes) return true;
  return next != mappings_.begin() &&
         address - std::prev(next)->first < std::prev(next)->second.bytes;
}

bool Memory::is_whole(DevicePtr address, uint64_t bytes) const {
  if (bytes == 0) return false;
  while (bytes > 0) {
    const auto found = mappings_.find(address);
    if (found == mappings_.end() || found->second.bytes > bytes) return false;
    address += found->second.bytes;
    bytes -= found->second.bytes;
  }
  return true;
}

bool Memory::permits_locked(DevicePtr address, uint64_t bytes, AccessFlags access) const {
  while (bytes > 0) {
    const auto next = mappings_.upper_bound(address);
    if (next == mappings_.begin()) return false;
    const auto& [begin, mapping] = *std::prev(next);
    if (address - begin >= mapping.bytes || mapping.access < access) return false;
    const uint64_t here = std::min<uint64_t>(bytes, mapping.bytes - (address - begin));
    address += here;
    bytes -= here;
  }
  return true;
}

bool Memory::permits(DevicePtr address, uint64_t bytes, AccessFlags access) const {
  const std::shared_lock lock(mutex_);
  return permits_locked(address, bytes, access);
}

Code Memory::map(DevicePtr address, uint64_t bytes, uint64_t offset, Allocation handle) {
  const std::unique_lock lock(mutex_);
  const auto found = handles_.find(handle);
  if (found == handles_.end()) return Code::kInvalidValue;
  const Shared& physical = found->second;
  if (!is_granular(address) || !is_granular(bytes)) return Code::kInvalidValue;
  if (offset != 0) return Code::kNotSupported;
  if (maps_partly_ ? bytes > physical->bytes : bytes != physical->bytes) return Code::kNotSupported;
  if (!is_reserved(address, bytes) || meets_mapping(address, bytes)) return Code::kInvalidValue;
  if (::mmap(at_address(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->memfd.get(),
             0) == MAP_FAILED)
    return Code::kOutOfMemory;
  mappings_.emplace(address, Mapping{bytes, AccessFlags::kNone, physical});
  return Code::kSuccess;
}

Code Memory::unmap(DevicePtr address, uint64_t bytes) {
  const std::unique_lock lock(mutex_);
  if (!is_whole(address, bytes)) return Code::kInvalidValue;
  if (!reserve_again(address, bytes)) return Code::kOutOfMemory;
  mappings_.erase(mappings_.find(address), mappings_.lower_bound(address + bytes));
  return Code::kSuccess;
}

Code Memory::set_access(DevicePtr address, uint64_t bytes, const AccessDescription& description) {
  const int protection = protection_bits(description.flags);
  if (protection < 0 || description.location.type != LocationType::kDevice)
    return Code::kInvalidValue;
  if (description.location.id != 0) return Code::kInvalidDevice;
  const std::unique_lock lock(mutex_);
  if (!is_whole(address, bytes)) return Code::kInvalidValue;
  if (::mprotect(at_address(address), bytes, protection) != 0) return Code::kOutOfMemory;
  const auto end = mappings_.lower_bound(address + bytes);
  for (auto each = mappings_.find(address); each != end; ++each)
    each->second.access = description.flags;
  return Code::kSuccess;
}

}  // namespace djinn::fake_cuda
