// SPDX-License-Identifier: Apache-2.0

// djinnctl import DIR --name NAME puts a model into djinnd's store, where it has a name.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "djinnctl/command_line.h"
#include "djinnctl/json.h"
#include "djinnctl/output.h"
#include "djinnctl/text.h"
#include "kernel/base/file.h"
#include "libdjinn-client/models/bundle.h"
#include "libdjinn-client/models/directory.h"

namespace djinn::ctl {
namespace {

struct ImportOptions {
  std::string path;
  std::string name;
};

// What stands beside weights: configuration, tokenizer, index of the shards. djinnd takes no more.
constexpr std::array<std::string_view, 4> kBeside = {".json", ".txt", ".model", ".jinja"};

bool is_beside(const std::filesystem::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  std::error_code ignored;
  return !name.starts_with('.') && entry.is_regular_file(ignored) &&
         std::ranges::any_of(kBeside, [&](std::string_view end) { return name.ends_with(end); });
}

Result<std::vector<std::string>> files_beside(const std::string& directory) {
  std::vector<std::string> paths;
  std::error_code error;
  std::filesystem::directory_iterator at(directory, error);
  while (!error && at != std::filesystem::directory_iterator()) {
    if (is_beside(*at)) paths.push_back(at->path().string());
    at.increment(error);
  }
  if (error) return system_error("read the directory " + directory, error.value());
  std::ranges::sort(paths);
  return paths;
}

// The weights, as a load of the directory would choose them, and what stands beside.
Result<client::WeightFiles> files_of(const std::string& directory) {
  if (client::is_bundle(directory)) {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("'{}' is what 'python3 -m djinn export' wrote, which djinnd's store "
                             "has no place for. Import the directory of its weights.",
                             directory)};
  }
  DJINN_TRY(auto model, client::open_model_directory(directory));
  client::WeightFiles found;
  found.label = std::move(model.label);
  found.paths = std::move(model.paths);
  found.files = std::move(model.files);
  DJINN_TRY(const std::vector<std::string> beside, files_beside(directory));
  for (const std::string& path : beside) {
    DJINN_TRY(Fd file, open_regular_file(path));
    found.files.push_back(std::move(file));
    found.paths.push_back(path);
  }
  return found;
}

Status import(const Invocation& invocation, const ImportOptions& options) {
  DJINN_TRY(const client::WeightFiles files, files_of(options.path));
  DJINN_TRY(const auto client, observe(invocation));
  DJINN_TRY(const auto imported,
            client->import_model({files.label, files.numbers(), files.paths}, options.name));
  if (!invocation.wants_json()) return write_out(imported.name + '\n');
  return print_json(invocation, "import",
                    {{{"name", imported.name},
                      {"files", files.paths.size()},
                      {"bytes", imported.bytes},
                      {"contents", hash_text(imported.contents)}}});
}

}  // namespace

void add_import(CommandLine& line) {
  const Verb verb = line.verb("import", "put a model into djinnd's store, print its name");
  auto options = std::make_shared<ImportOptions>();
  verb.option("PATH", options->path, "directory of a Hugging Face model").required();
  verb.option("--name", options->name, "NAME[:TAG] for administrators, or ~USER/NAME[:TAG]")
      .called("NAME")
      .required();
  verb.does(options, import);
}

}  // namespace djinn::ctl
