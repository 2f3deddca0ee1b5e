// SPDX-License-Identifier: Apache-2.0

// djinnctl host add FILE [--name NAME] keeps a gate's profile, so that djinn://NAME leads there.
#include <fmt/format.h>

#include "djinnctl/command_line.h"
#include "djinnctl/host_profile.h"
#include "djinnctl/output.h"
#include "kernel/base/file.h"
#include "libdjinn-client/host.h"

namespace djinn::ctl {
namespace {

struct HostOptions {
  std::string file;
  std::string name;
};

Status add(const Invocation& invocation, const HostOptions& options) {
  DJINN_TRY(const std::string text, read_secret_file(options.file, kProfileBytesMax));
  DJINN_TRY(const HostProfile profile, parse_host_profile(text, options.file));
  const std::string name = options.name.empty() ? name_from(profile) : options.name;
  DJINN_CHECK(check_host_name(name));
  DJINN_TRY(const std::string folder, client::profiles_folder());
  DJINN_CHECK(install_host_profile(folder, name, text, profile));
  const std::string host = "djinn://" + name;
  if (!invocation.wants_json()) return write_out(fmt::format("export DJINN_HOST={}\n", host));
  const Json item{{"name", name},
                  {"host", host},
                  {"address", profile.address},
                  {"gate", profile.gate},
                  {"file", fmt::format("{}/{}.pem", folder, name)}};
  return print_json(invocation, "host-add", {item});
}

}  // namespace

void add_host(CommandLine& line) {
  const Verb verb = line.verb("host", "hosts that djinn:// leads to")
                        .verb("add", "keep a profile that you were given");
  auto options = std::make_shared<HostOptions>();
  verb.option("FILE", options->file, "the profile").required();
  verb.option("--name", options->name, "what comes after djinn:// [the host of its address]")
      .called("NAME");
  verb.does(options, add);
}

}  // namespace djinn::ctl
