// SPDX-License-Identifier: Apache-2.0

// Options: the command line of djinnd, with everything that was left out filled in.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/djinnd/access/authority.h"
#include "daemon/djinnd/host/bus_kind.h"
#include "daemon/djinnd/memory/quantity.h"
#include "daemon/djinnd/memory/quotas.h"
#include "daemon/djinnd/memory/thresholds.h"
#include "ipc/messages.h"
#include "kernel/base/device_id.h"
#include "kernel/base/isa_level.h"
#include "kernel/base/result.h"
#include "kernel/base/schedule.h"

namespace djinn::daemon {

// That of --test-device-bytes.
inline constexpr DeviceId kTestDevice{DeviceKind::kFake, 0};

// Administrators are its members, unless --admin-group names another.
inline constexpr const char* kAdminGroup = "djinn-admin";

struct Options {
  bool check_config = false;  // says what is wrong with the files, and ends
  bool show_config = false;   // says what they amount to, and ends
  std::string root;           // of the configuration's paths
  bool user_mode = false;     // serves its own user only, without configuration
  std::string runtime_dir;    // holds the socket
  std::string socket_group;   // service mode: who may connect
  bool gate_socket = false;   // makes one for djinn-gate, too
  BusKind bus = BusKind::kNone;
  std::string admin_group;  // service mode: who sees and steers what is others'
  uint32_t threads = 0;     // of a lane
  SchedulePolicy policy = SchedulePolicy::kFair;   // likewise
  IsaLevel isa = kHighestIsa;                      // of our own kernels, at most
  bool measures_kernels = true;                    // what products give, for people
  srg::Numerics numerics = srg::Numerics::kExact;  // where a program's are not chosen
  uint64_t memory_bytes = 0;                       // of the host, to grant
  std::map<DeviceId, Amount> device_limits;        // of other devices, where one is written
  std::vector<DeviceId> gpus;                      // that djinnd looks after beside the host
  uint64_t session_quota_bytes = 0;
  Amount pin_quota{50, true};
  std::vector<NamedQuota> quotas;  // of users and groups
  PrincipalQuota principal_quota;  // of each one who comes from another machine
  PrincipalMap principal_map;      // those whom the configuration makes users
  // Settings that were written, by their keys, and what was written last: on the command line, too.
  std::map<std::string, std::string, std::less<>> written;
  // Of those, what the command line calls them: "--memory".
  std::map<std::string, std::string, std::less<>> on_command_line;
  std::vector<std::string> config_warnings;  // what of the files counts for nothing, and why
  // What is taken as it is and will hardly do what was meant: what happens now, and what to do.
  std::vector<std::string> setting_warnings;
  std::string cache_directory;  // empty: there is none
  std::string store_directory;  // of published models; empty: there is none
  Amount keep_free{10, true};   // of that disk, by whose imports are no administrator's
  std::string worker;           // paths of the programs
  std::string loader;
  std::string mover;
  std::string cuda_worker;  // of GPUs
  uint64_t hang_timeout_ms = 10'000;
  uint64_t keep_alive_ms = 300'000;  // of models whose openers do not say
  Thresholds thresholds;             // of memory pressure
  // Where idle sequence groups go; empty: nowhere. Nothing: the cache directory.
  std::optional<std::string> spill_directory;
  uint64_t spill_idle_ms = 60'000;
  std::optional<uint64_t> spill_limit_bytes;  // nothing: as much as may be granted
  // How long runs in flight may go on when djinnd is told to stop; nothing: none as --user.
  std::optional<uint64_t> drain_timeout_ms;
  uint64_t test_fault_at = 0;         // the first worker dies there
  bool test_fault_every = false;      // every worker does
  uint64_t test_pal_fault_at = 0;     // of the first worker's pal, this call fails
  uint64_t test_extent_fault_at = 0;  // of the extents that djinnd makes, this one fails
  uint64_t test_device_bytes = 0;     // of another device, kTestDevice; 0: there is none
  std::string test_device_worker;     // the program of its workers
  std::string test_nodes = "/dev";    // where GPUs' nodes are
};

// Nothing: the process is to exit with exit_code (after --help, --version or a mistake, which was
// told).
// What the command line leaves out stays as it is in options.
std::optional<Options> parse_options(int argc, char** argv, int& exit_code, Options options = {});

// Bytes of memory that the machine has.
[[nodiscard]] uint64_t physical_bytes();

// How much of a device beside the host may be granted, which has so many bytes: all, unless less is
// written. Errors: kInvalidArgument where more is.
[[nodiscard]] Result<uint64_t> limit_of(const Options& options, DeviceId device,
                                        uint64_t device_bytes);

// What is wrong with granting so many bytes of a machine that has that many; empty: nothing. value:
// of memory.limit, as written.
[[nodiscard]] std::string fault_of_limit(std::string_view value, uint64_t bytes,
                                         uint64_t machine_bytes);
// Likewise, with kernels of that level on a machine that has this one at most.
[[nodiscard]] std::string fault_of_isa(std::string_view value, IsaLevel level,
                                       IsaLevel machine_level);

// Fills in what is left out: runtime directory, threads and memory from the machine. Errors:
// kInvalidArgument when there is no runtime directory to guess, and those of limit_of().
Status fill_in(Options& options);
// The programs that djinnd starts, where they are left out. Errors: kNotFound when one is none;
// that there is none for GPUs is told of each GPU.
Status find_programs(Options& options);

// The options with bytes in place of shares of the memory that may be granted, where no bytes were
// given. memory_bytes: the limit in effect, which need not be the one that is written.
[[nodiscard]] Options with_shares(Options options, uint64_t memory_bytes);

}  // namespace djinn::daemon
