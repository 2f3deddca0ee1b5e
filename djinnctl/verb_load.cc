// SPDX-License-Identifier: Apache-2.0

// djinnctl load PATH, or djinn:NAME of a model in djinnd's store, brings a model into memory, where
// it stays until it is unloaded.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "djinnctl/command_line.h"
#include "djinnctl/json.h"
#include "djinnctl/output.h"
#include "djinnctl/progress_watch.h"
#include "djinnctl/text.h"
#include "kernel/base/device_id.h"
#include "kernel/srg/names.h"
#include "libdjinn-client/models/bundle.h"
#include "libdjinn-client/models/generator.h"

namespace djinn::ctl {
namespace {

struct LoadOptions {
  std::string path;
  bool pin = false;
  bool no_pin = false;
  std::string keep_alive;
  std::string device;
  std::string weights;
  std::string numerics;

  // A pinned model stays anyway, so it has no time to stay.
  [[nodiscard]] client::Retention retention() const {
    const auto keep_alive_ms = stay_ms_of(keep_alive);
    const bool goes = no_pin || keep_alive_ms.has_value();  // and so ends what an earlier load said
    return {pin || !goes, keep_alive_ms, goes};
  }
};

Result<client::ModelOptions> model_options_of(const LoadOptions& options) {
  client::ModelOptions how;
  if (!options.numerics.empty()) {
    DJINN_TRY(how.numerics, client::numerics_named(options.numerics));
  }
  if (!options.weights.empty()) {
    DJINN_TRY(how.matrices, client::weights_named(options.weights));
  }
  DJINN_CHECK(client::check_options(how));
  return how;
}

// Gives how far the load of that name is; nothing if no load has the name, or several have it.
std::optional<ProgressLook> look_at(client::Client& client, const std::string& label) {
  const auto models = client.models();
  if (!models) return std::nullopt;
  std::optional<ProgressLook> found;
  for (const ipc::ModelReport& model : *models) {
    if (model.label != label || model.state != ipc::ModelState::kLoading) continue;
    if (found) return std::nullopt;
    found = ProgressLook{model.bytes_loaded, model.bytes, SystemClock().monotonic_ns()};
  }
  return found;
}

// The name behind djinn:, or nothing.
std::string published_in(const std::string& path) {
  return path.starts_with(client::kPublished) ? path.substr(client::kPublished.size()) : "";
}

bool is_gpu(const std::string& device) {
  const auto named = device_from(device);
  return named && named->kind == DeviceKind::kCuda;
}

// Before a model is read that could go nowhere.
Status check_device(client::Client& client, const std::string& device) {
  DJINN_TRY(const auto devices, client.devices());
  if (std::ranges::find(devices, device, &ipc::DeviceReport::device) != devices.end()) return {};
  return Error{ErrorCode::kNotFound,
               fmt::format("djinnd has no device '{}'. See 'djinnctl devices'.", device)};
}

Result<client::OpenedModel> open(const Invocation& invocation, client::Client& client,
                                 const client::WeightFiles& directory, const LoadOptions& options,
                                 const client::ModelOptions& how) {
  const ProgressWatch watch(invocation, directory.label, [&](client::Client& watcher) {
    return look_at(watcher, directory.label);
  });
  const auto plan = client::plan_of(directory.plan_or_null(), how.matrices);
  client::Retention retention = options.retention();
  retention.numerics = how.numerics;
  return client.open_model(
      {directory.label, directory.numbers(), directory.paths, published_in(options.path)},
      plan ? &*plan : nullptr, retention);
}

// Of a published model djinnd has the files, and this only the name.
Result<client::WeightFiles> files_of(const std::string& path) {
  if (published_in(path).empty()) return client::open_weight_files(path);
  client::WeightFiles none;
  none.label = published_in(path);
  return none;
}

Status load(const Invocation& invocation, const LoadOptions& options) {
  DJINN_TRY(const client::ModelOptions how, model_options_of(options));
  DJINN_TRY(const auto directory, files_of(options.path));
  // Sessions are on no GPU: a model goes there by the host's memory.
  const bool to_gpu = is_gpu(options.device);
  DJINN_TRY(const auto client, observe(invocation, nullptr, to_gpu ? "" : options.device));
  if (to_gpu) DJINN_CHECK(check_device(*client, options.device));
  DJINN_TRY(const auto opened, open(invocation, *client, directory, options, how));
  std::optional<ipc::ModelPlaced> placed;
  if (to_gpu) {
    DJINN_TRY(placed, client->place_model(opened.id, options.device));
  }
  // The model is closed before the answer is written, so that the next command finds it unused.
  DJINN_CHECK(client->close_model(opened.id));
  if (!invocation.wants_json()) return write_out(id_text(opened.id) + '\n');
  Json item{{"id", id_text(opened.id)},
            {"name", directory.label},
            {"bytes", opened.bytes},
            {"was_resident", opened.was_resident},
            {"pinned", options.retention().pinned},
            {"numerics", opened.numerics ? Json(name_of(*opened.numerics)) : Json()}};
  if (placed) {
    item["device"] = options.device;
    item["device_bytes"] = placed->bytes;
    item["uploaded_bytes"] = placed->uploaded_bytes;
  }
  return print_json(invocation, "load", {item});
}

}  // namespace

void add_load(CommandLine& line) {
  const Verb verb = line.verb("load", "bring a model into memory, print its id");
  auto options = std::make_shared<LoadOptions>();
  verb.option("PATH", options->path, "directory of a Hugging Face model, or djinn:NAME").required();
  const Option pin =
      verb.flag("--pin", options->pin, "stay in memory until unloaded [the default]");
  const Option no_pin = verb.flag("--no-pin", options->no_pin,
                                  "stay for the keep-alive time that is configured; ends your pin")
                            .excludes(pin);
  verb.option("--keep-alive", options->keep_alive,
              "ends your pin: stay so long after the last use, like 10m, 0, forever")
      .called("TIME")
      .checked([](const std::string& text) {
        return stay_ms_of(text) ? std::string()
                                : fmt::format(
                                      "'{}' is no time with its unit, like 30s, 10m or 2h, "
                                      "nor 0, nor forever.",
                                      text);
      })
      .excludes(pin)
      .excludes(no_pin);
  verb.option("--weights", options->weights,
              "form of matrices: int8, 32 of a row and a scale [as the files have them]")
      .called("FORM")
      .one_of({"int8"});
  verb.option("--numerics", options->numerics,
              "how your programs of it compute where nobody else says [as said before]")
      .called("NAME")
      .one_of({"exact", "fast", "fast-only"});
  verb.option("--device", options->device,
              "whose memory, as 'djinnctl devices' says; a GPU's: for administrators [the first]")
      .called("NAME");
  verb.does(options, load);
}

}  // namespace djinn::ctl
