// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/host/kernel_store.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <utility>

#include "daemon/djinnd/loop/log.h"
#include "daemon/djinnd/loop/proc_files.h"
#include "ipc/build_identity.h"
#include "kernel/base/assert.h"
#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::daemon {
namespace {

namespace fs = std::filesystem;

constexpr size_t kFileBytesMax = 4096;

// Gives the file's bytes, kFileBytesMax at most; nothing where there is none. Errors: kIo and its
// kin; kPermissionDenied of a file that somebody else made.
Result<std::optional<std::string>> content_of(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.valid()) {
    if (errno == ENOENT) return std::optional<std::string>();
    return system_error("open " + path, errno);
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return system_error("look at " + path, errno);
  if (status.st_uid != ::geteuid()) {
    return Error{ErrorCode::kPermissionDenied, path + " belongs to another user."};
  }
  std::array<char, kFileBytesMax> bytes{};
  const ssize_t length = ::read(file.get(), bytes.data(), bytes.size());
  if (length < 0) return system_error("read " + path, errno);
  return std::optional(std::string(bytes.data(), static_cast<size_t>(length)));
}

// Makes the file whole or not at all, whoever else writes it.
Status write_file(const std::string& path, const std::string& content) {
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);  // opening says what is wrong
  std::string made = path + ".XXXXXX";
  const Fd file(::mkostemp(made.data(), O_CLOEXEC));
  if (!file.valid()) return system_error("make " + made, errno);
  const ssize_t written = ::write(file.get(), content.data(), content.size());
  Status done;
  if (written != static_cast<ssize_t>(content.size())) {
    done = system_error("write " + made, written < 0 ? errno : ENOSPC);
  } else if (::rename(made.c_str(), path.c_str()) != 0) {
    done = system_error("rename " + made, errno);
  }
  if (!done) ::unlink(made.c_str());
  return done;
}

}  // namespace

KernelStore::Key KernelStore::key_of(const Options& options) {
  return {name_of_cpu(), usable_isa_level(options.isa), options.threads,
          std::string(ipc::build_identity())};
}

KernelStore::KernelStore(WorkQueue& work, const std::string& directory, Key key)
    : work_(work), directory_(directory), key_(std::move(key)) {}

std::string KernelStore::path() const {
  if (directory_.empty()) return {};
  return fmt::format("{}/kernels-{}-{}", directory_, name_of(key_.level), key_.threads);
}

std::string KernelStore::key_text() const {
  return fmt::format("djinn's table of kernels\ncpu {}\nlevel {}\nthreads {}\nbuild {}\n", key_.cpu,
                     name_of(key_.level), key_.threads, key_.build);
}

void KernelStore::read() {
  DJINN_ASSERT(!table_);
  const std::string path = this->path();
  if (path.empty()) return;
  const auto content = content_of(path);
  if (!content) {
    return log("who computes which products is measured anew: {}", content.error().message);
  }
  if (!*content) return;
  std::string_view text = **content;
  const std::string key = key_text();
  if (!text.starts_with(key)) {
    return log("who computes which products is measured anew: {} is of another processor or build",
               path);
  }
  text.remove_prefix(key.size());
  const bool is_line = text.ends_with('\n');
  if (is_line) text.remove_suffix(1);
  const auto table = kernel_table_of(text, standard_kernels(key_.level, is_amd()));
  if (!is_line || !table) {
    return log("who computes which products is measured anew: {} is damaged", path);
  }
  table_ = *table;
}

void KernelStore::take(IsaLevel level, const KernelTable& table) {
  if (std::exchange(is_told_, true)) return;
  if (level == key_.level && table_) return;
  key_.level = level;
  table_ = table;
  if (directory_.empty()) return;
  const std::string content = key_text() + text_of(table) + '\n';
  work_.run([path = path(), content] { return write_file(path, content); },
            [](const Status& written) {
              if (written) return;
              log("the next djinnd measures anew who computes which products: {}",
                  written.error().message);
            });
}

}  // namespace djinn::daemon
