// djinnctl load PATH: brings a model into memory, where it stays until it is unloaded.
#include "djinnctl/command_line.h"
#include "djinnctl/json.h"
#include "djinnctl/output.h"
#include "djinnctl/text.h"
#include "libdjinn-client/models/directory.h"

namespace djinn::ctl {
namespace {

struct LoadOptions {
  std::string path;
  bool pin = true;
};

Status load(const Invocation& invocation, const LoadOptions& options) {
  DJINN_TRY(const auto directory, client::open_model_directory(options.path));
  DJINN_TRY(const auto client, observe(invocation));
  std::vector<int> files;
  for (const Fd& file : directory.files) files.push_back(file.get());
  DJINN_TRY(const auto opened, client->open_model(directory.label, files, nullptr, options.pin));
  if (!invocation.wants_json()) return write_out(id_text(opened.id) + '\n');
  const Json item{{"id", id_text(opened.id)},
                  {"name", directory.label},
                  {"bytes", opened.bytes},
                  {"was_resident", opened.was_resident},
                  {"pinned", options.pin}};
  return print_json(invocation, "load", {item});
}

}  // namespace

void add_load(CommandLine& line) {
  auto* const verb = line.app.add_subcommand("load", "bring a model into memory, print its id");
  auto options = std::make_shared<LoadOptions>();
  verb->add_option("PATH", options->path, "directory of a Hugging Face model")->required();
  verb->add_flag("--pin,!--no-pin", options->pin,
                 "stay in memory until unloaded [the default], or only while there is room");
  verb->callback([&line, options] {
    line.action = [options](const Invocation& invocation) { return load(invocation, *options); };
  });
}

}  // namespace djinn::ctl
