// SPDX-License-Identifier: Apache-2.0

// djinnctl diag writes down what a bug report needs, as files in a directory, so that everybody can
// read them before they are sent; with --tar it makes one file in the directory's place.
//
// djinnd is asked by the verbs that people use, each a process of its own with a time limit: a
// daemon that hangs is what such a report is often about.
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "djinnctl/command_line.h"
#include "djinnctl/subprocess.h"
#include "djinnctl/text.h"

namespace djinn::ctl {
namespace {

constexpr const char* kUnit = "djinnd.service";
constexpr const char* kSocketUnit = "djinnd.socket";
// A longer file of /proc or /sys is cut.
constexpr size_t kFileBytesMax = 256 * 1024;
constexpr std::array kVerbs{"status", "sessions", "ps", "devices", "mem", "programs"};
constexpr std::array kKernelFiles{"/proc/version",
                                  "/etc/os-release",
                                  "/proc/meminfo",
                                  "/proc/pressure/memory",
                                  "/proc/sys/vm/overcommit_memory",
                                  "/proc/sys/vm/max_map_count",
                                  "/sys/kernel/mm/transparent_hugepage/enabled",
                                  "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
                                  "/sys/kernel/security/lsm"};
constexpr std::array kCgroupFiles{"memory.max",      "memory.high",   "memory.current",
                                  "memory.swap.max", "memory.events", "memory.pressure",
                                  "pids.max",        "pids.current",  "cpu.max"};
constexpr const char* kReadme =
    "What djinnctl diag found, for a bug report. Read it before you send it: it names the users,\n"
    "programs and models that whoever ran it may see. There are no prompts, no results and no\n"
    "tensors in it.\n";

constexpr std::array kPackages{"djinn*", "libdjinn*", "python3-djinn*"};

struct DiagOptions {
  std::string directory;
  bool tar = false;
};

struct Missing {
  std::string what;
  std::string why;
};

// Holds the files as they are written, and notes what could not be had.
class Bundle {
 public:
  static Result<Bundle> make(const std::string& path) {
    if (::mkdir(path.c_str(), 0700) != 0) {
      return Error{errno == EACCES ? ErrorCode::kPermissionDenied : ErrorCode::kIo,
                   system_error(fmt::format("No directory {} can be made", path), errno).message +
                       ". Name another with --output."};
    }
    return Bundle(path);
  }

  Status add(const std::string& name, std::string_view text) {
    const std::string path = path_ + '/' + name;
    const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!file.valid()) return system_error("make a file of the report", errno);
    while (!text.empty()) {
      const ssize_t written = ::write(file.get(), text.data(), text.size());
      if (written < 0) return system_error("write a file of the report", errno);
      text.remove_prefix(static_cast<size_t>(written));
      bytes_ += static_cast<uint64_t>(written);
    }
    files_.push_back(name);
    return {};
  }
  void miss(const std::string& what, const std::string& why) { missing_.push_back({what, why}); }

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  [[nodiscard]] const std::vector<std::string>& files() const { return files_; }
  [[nodiscard]] const std::vector<Missing>& missing() const { return missing_; }

 private:
  explicit Bundle(std::string path) : path_(std::move(path)) {}

  std::string path_;
  uint64_t bytes_ = 0;  // of the files
  std::vector<std::string> files_;
  std::vector<Missing> missing_;
};

std::string first_line(const std::string& text) {
  constexpr std::string_view kOurName = "djinnctl: ";
  const std::string line = text.substr(0, text.find('\n'));
  return line.starts_with(kOurName) ? line.substr(kOurName.size()) : line;
}

// Adds a program's output as a file. One exit code beside 0 may count as an answer, too.
Status add_output(Bundle& bundle, const std::string& name, const std::vector<std::string>& command,
                  int also_ok = 0) {
  const auto said = run_program(command, ErrorsTo::kOutput);
  if (!said) {
    bundle.miss(name, said.error().message);
  } else if (said->exit_code != 0 && said->exit_code != also_ok) {
    bundle.miss(name, first_line(said->out));
  } else if (said->out.empty()) {
    bundle.miss(name, "There is nothing, or nothing that this user may read.");
  } else {
    return bundle.add(name, said->out);
  }
  return {};
}

// If the daemon does not answer, it is not asked for the other lists: each would take its whole
// time limit.
Status miss_all(Bundle& bundle, const Error& why) {
  const std::string reason = why.message.substr(0, why.message.find('\n'));
  for (const char* verb : kVerbs) bundle.miss(fmt::format("{}.json", verb), reason);
  bundle.miss("events.txt", reason);
  return {};
}

Status add_verbs(Bundle& bundle, const Invocation& invocation) {
  std::vector<std::string> ourselves{"/proc/self/exe"};
  if (!invocation.host.empty()) ourselves.insert(ourselves.end(), {"--host", invocation.host});
  std::vector<std::string> config = ourselves;
  config.insert(config.end(), {"--json=pretty", "config", "show"});
  DJINN_CHECK(add_output(bundle, "config.json", config));
  std::vector<std::string> version = ourselves;
  version.insert(version.end(), {"--json=pretty", "version"});
  DJINN_CHECK(add_output(bundle, "version.json", version));
  const auto answers = status_in_time(invocation);
  if (!answers) return miss_all(bundle, answers.error());
  ourselves.insert(ourselves.end(), {"--timeout", "3"});
  for (const char* verb : kVerbs) {
    std::vector<std::string> command = ourselves;
    command.insert(command.end(), {"--json=pretty", verb});
    DJINN_CHECK(add_output(bundle, fmt::format("{}.json", verb), command));
  }
  ourselves.push_back("events");
  return add_output(bundle, "events.txt", ourselves);
}

// Gives "== PATH" and what the file holds; nothing if there is no such file.
std::string section_of(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return "";
  std::string text(kFileBytesMax, '\0');
  const ssize_t length = ::read(file.get(), text.data(), text.size());
  text.resize(length > 0 ? static_cast<size_t>(length) : 0);
  return fmt::format("== {}\n{}\n", path, text);
}

Status add_kernel(Bundle& bundle) {
  std::string text;
  for (const char* path : kKernelFiles) text += section_of(path);
  return bundle.add("kernel.txt", text);
}

// Gives the service's process, or else one of the workers in the status, which share its control
// group.
std::string pid_of_daemon(const Bundle& bundle) {
  const auto said =
      run_program({"systemctl", "show", "--property=MainPID", "--value", kUnit}, ErrorsTo::kOutput);
  const std::string pid = said && said->exit_code == 0 ? first_line(said->out) : "0";
  const bool is_number =
      !pid.empty() && std::ranges::all_of(pid, [](char c) { return c >= '0' && c <= '9'; });
  if (is_number && pid != "0") return pid;
  const std::string status = section_of(bundle.path() + "/status.json");
  const size_t at = status.find("\"pid\": ");
  if (at == std::string::npos) return "";
  const size_t begin = at + std::string_view("\"pid\": ").size();
  return status.substr(begin, status.find_first_not_of("0123456789", begin) - begin);
}

// Adds the limits of each control group from the process's own up to the root.
Status add_limits(Bundle& bundle) {
  const std::string pid = pid_of_daemon(bundle);
  if (pid.empty()) {
    bundle.miss("limits.txt", "Neither systemd nor djinnd tells a process.");
    return {};
  }
  const std::string of_process = "/proc/" + pid;
  std::string text = section_of(of_process + "/limits");
  const std::string group = section_of(of_process + "/cgroup");
  text += group;
  const size_t unified = group.find("\n0::/");
  if (unified == std::string::npos) {
    bundle.miss("limits of control groups", "There is no unified hierarchy, or it is not shown.");
    return bundle.add("limits.txt", text);
  }
  const size_t begin = unified + std::string_view("\n0::").size();
  std::filesystem::path path = group.substr(begin, group.find('\n', begin) - begin);
  for (;; path = path.parent_path()) {
    for (const char* file : kCgroupFiles) {
      text += section_of(fmt::format("/sys/fs/cgroup{}/{}", path.string(), file));
    }
    if (path == path.root_path()) break;
  }
  return bundle.add("limits.txt", text);
}

Status add_service(Bundle& bundle) {
  constexpr int kInactive = 3;  // "not running", an answer like others
  DJINN_CHECK(add_output(bundle, "systemctl.txt",
                         {"systemctl", "status", "--no-pager", "--full", kUnit, kSocketUnit},
                         kInactive));
  return add_output(bundle, "journal.txt",
                    {"journalctl", "--no-pager", "--quiet", "--lines=1000",
                     "--output=short-iso-precise", "--unit", kUnit});
}

// Adds the packages as dpkg has them installed, on systems with dpkg.
Status add_packages(Bundle& bundle) {
  constexpr int kSomeUnknown = 1;
  std::vector<std::string> command{"dpkg-query", "--show", "--showformat",
                                   "${Package} ${Version} ${Architecture} ${db:Status-Status}\\n"};
  command.insert(command.end(), kPackages.begin(), kPackages.end());
  return add_output(bundle, "packages.txt", command, kSomeUnknown);
}

Status fill(Bundle& bundle, const Invocation& invocation) {
  DJINN_CHECK(bundle.add("README", kReadme));
  DJINN_CHECK(add_verbs(bundle, invocation));
  DJINN_CHECK(add_packages(bundle));
  DJINN_CHECK(add_kernel(bundle));
  DJINN_CHECK(add_limits(bundle));
  return add_service(bundle);
}

std::string standard_directory() {
  std::string name = "djinn-diag-";
  // This makes "20260301T120000Z" of "2026-03-01T12:00:00.123456789Z".
  for (const char byte : time_text(SystemClock().wall_ns()).substr(0, 19)) {
    if (byte != '-' && byte != ':') name += byte;
  }
  return name + 'Z';
}

std::string archive_of(const std::string& directory) {
  return std::filesystem::path(directory + "/").parent_path().string() + ".tar.gz";
}

// Makes the file that the directory is to be packed in: one that is there already stays as it is.
Status reserve_archive(const std::string& directory) {
  const std::string archive = archive_of(directory);
  const Fd file(::open(archive.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (file.valid()) return {};
  return Error{errno == EACCES ? ErrorCode::kPermissionDenied : ErrorCode::kIo,
               system_error(fmt::format("No file {} can be made", archive), errno).message +
                   ". Name another with --output."};
}

// Packs the directory into one file, which takes its place.
Result<std::string> pack(const Bundle& bundle) {
  const auto path = std::filesystem::path(bundle.path() + "/").parent_path();
  const std::string archive = archive_of(bundle.path());
  const std::string place = path.has_parent_path() ? path.parent_path().string() : ".";
  DJINN_TRY(const Said said, run_program({"tar", "--create", "--gzip", "--file", archive,
                                          "--directory", place, "--", path.filename().string()},
                                         ErrorsTo::kOutput));
  if (said.exit_code == 0) {
    std::error_code stays;  // whoever finds it there finds no less
    std::filesystem::remove_all(path, stays);
    return archive;
  }
  ::unlink(archive.c_str());  // it was reserved, and has nothing in it that can be read
  return Error{ErrorCode::kIo, fmt::format("{} cannot be packed: {}. It is there all the same.",
                                           path.string(), first_line(said.out))};
}

Status tell(const Invocation& invocation, const Bundle& bundle, const std::string& archive) {
  if (!invocation.quiet) {
    for (const Missing& one : bundle.missing()) {
      write_error(fmt::format("djinnctl: without {}: {}\n", one.what,
                              sentence_for(terminal_of(STDERR_FILENO), one.why)));
    }
    write_error(
        fmt::format("djinnctl: {} files, {}\n", bundle.files().size(), size_text(bundle.bytes())));
  }
  if (!invocation.wants_json()) {
    return write_out((archive.empty() ? bundle.path() : archive) + '\n');
  }
  Json missing = Json::array();
  for (const Missing& one : bundle.missing()) {
    missing.push_back({{"what", one.what}, {"why", one.why}});
  }
  return print_json(invocation, "diag",
                    {{{"path", archive.empty() ? Json(bundle.path()) : Json()},
                      {"files", bundle.files()},
                      {"missing", std::move(missing)},
                      {"bytes", bundle.bytes()},
                      {"archive", archive.empty() ? Json() : Json(archive)}}});
}

Status diag(const Invocation& invocation, const DiagOptions& options) {
  const std::string path = options.directory.empty() ? standard_directory() : options.directory;
  DJINN_TRY(Bundle bundle, Bundle::make(path));
  if (options.tar) {
    const Status reserved = reserve_archive(path);
    if (!reserved) ::rmdir(path.c_str());
    DJINN_CHECK(reserved);
  }
  DJINN_CHECK(fill(bundle, invocation));
  std::string archive;
  if (options.tar) {
    DJINN_TRY(archive, pack(bundle));
  }
  return tell(invocation, bundle, archive);
}

}  // namespace

void add_diag(CommandLine& line) {
  const Verb verb = line.verb("diag", "files for a bug report");
  auto options = std::make_shared<DiagOptions>();
  verb.option("--output", options->directory, "directory that is made for them [djinn-diag-TIME]")
      .called("DIRECTORY");
  verb.flag("--tar", options->tar, "one file of them in its place, DIRECTORY.tar.gz");
  verb.does(options, diag);
}

}  // namespace djinn::ctl
