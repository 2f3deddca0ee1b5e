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
#include <optional>
#include <string_view>
#include <tuple>
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

// --- behind the key's lines

constexpr std::string_view kWorkers = "workers ";

std::string lines_of(IsaLevel level, const KernelTable& table) {
  return fmt::format("{}{}\n{}\n", kWorkers, name_of(level), text_of(table));
}

std::optional<std::pair<IsaLevel, KernelTable>> table_of(std::string_view lines) {
  const size_t end = lines.find('\n');
  const bool are_lines = lines.starts_with(kWorkers) && lines.ends_with('\n');
  if (!are_lines || end + 1 == lines.size()) return std::nullopt;
  const auto level = isa_level_of(lines.substr(kWorkers.size(), end - kWorkers.size()));
  if (!level) return std::nullopt;
  const std::string_view text = lines.substr(end + 1, lines.size() - end - 2);
  const auto table = kernel_table_of(text);
  if (!table) return std::nullopt;
  return std::pair(*level, *table);
}

}  // namespace

KernelStore::Key KernelStore::key_of(const Options& options) {
  return {name_of_cpu(), usable_isa_level(options.isa), options.threads,
          std::string(ipc::build_identity())};
}

KernelStore::KernelStore(WorkQueue& work, const std::string& directory, Key key)
    : work_(work), directory_(directory), key_(std::move(key)), level_(key_.level) {}

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
    return log("what its kernels give is measured anew: {}", content.error().message);
  }
  if (!*content) return;
  std::string_view text = **content;
  const std::string key = key_text();
  if (!text.starts_with(key)) {
    return log("what its kernels give is measured anew: {} is of another processor or build", path);
  }
  text.remove_prefix(key.size());
  const auto kept = table_of(text);
  if (!kept) return log("what its kernels give is measured anew: {} is damaged", path);
  std::tie(level_, table_) = *kept;
}

void KernelStore::take(IsaLevel level, const KernelTable& table) {
  if (std::exchange(is_told_, true)) return;
  if (level == level_ && table_) return;
  const std::string told = lines_of(level, table);
  if (table_)
    log("workers have {}: what was measured for {} is not theirs", name_of(level), name_of(level_));
  level_ = level;
  table_ = table;
  if (directory_.empty()) return;
  const std::string content = key_text() + told;
  work_.run([path = path(), content] { return write_file(path, content); },
            [](const Status& written) {
              if (written) return;
              log("the next djinnd measures anew what products give: {}", written.error().message);
            });
}

}  // namespace djinn::daemon
