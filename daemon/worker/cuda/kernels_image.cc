// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/cuda/kernels_image.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "kernel/base/fd.h"

namespace djinn::worker {
namespace {

constexpr const char* kName = "kernels.fatbin";
// It has a few MiB.
constexpr uint64_t kBytesMax = uint64_t{256} << 20;

Error unreadable(const std::string& path, int error) {
  return {ErrorCode::kUnsupported,
          fmt::format("The image of djinn's kernels, {}, cannot be read: {}.", path,
                      std::generic_category().message(error))};
}

}  // namespace

Result<std::vector<std::byte>> read_kernels_image() {
  std::error_code failed;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", failed);
  if (failed) return unreadable(kName, failed.value());
  const std::string path = program.parent_path() / kName;
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid() && errno == ENOENT) return std::vector<std::byte>();
  if (!file.valid()) return unreadable(path, errno);
  struct stat of_file {};
  if (::fstat(file.get(), &of_file) != 0) return unreadable(path, errno);
  const auto bytes = static_cast<uint64_t>(of_file.st_size);
  if (bytes > kBytesMax) return unreadable(path, EFBIG);
  std::vector<std::byte> image(bytes);
  size_t done = 0;
  while (done < image.size()) {
    const ssize_t got = ::read(file.get(), image.data() + done, image.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return unreadable(path, got < 0 ? errno : EIO);
    done += static_cast<size_t>(got);
  }
  return image;
}

}  // namespace djinn::worker
