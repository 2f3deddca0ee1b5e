// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/simulation/systemd.h"

#include <errno.h>
#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/djinnd/loop/log.h"
#include "daemon/djinnd/loop/sealed.h"
#include "daemon/djinnd/simulation/machine.h"
#include "ipc/codec/kept_codec.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"

namespace djinn::daemon::simulation {
namespace {

constexpr std::string_view kRecord = ".record.";

// Gives what stands behind the field's name, to the end of the line; empty if there is no such
// field.
std::string value_of(const std::string& message, std::string_view field) {
  const size_t at = message.find(field);
  if (at == std::string::npos) return {};
  const size_t begin = at + field.size();
  return message.substr(begin, message.find('\n', begin) - begin);
}

uint64_t number_behind(const std::string& name, size_t at) {
  uint64_t number = 0;
  std::from_chars(name.data() + at, name.data() + name.size(), number);
  return number;
}

std::string beginning_of(ModelId id) {
  return fmt::format("model.{}.", text_of(id));
}

}  // namespace

Systemd::~Systemd() {
  ::unsetenv("NOTIFY_SOCKET");
  ::unsetenv("FDSTORE");
}

void Systemd::listen(uint64_t descriptors_max) {
  descriptors_max_ = descriptors_max;
  ::setenv("NOTIFY_SOCKET", "simulated", 1);
  ::setenv("FDSTORE", std::to_string(descriptors_max).c_str(), 1);
}

int Systemd::hear(const std::string& message, int fd) {
  if (deaf_) return 0;
  const std::string name = value_of(message, "FDNAME=");
  changed_ = true;
  if (fd < 0) {
    if (message.find("FDSTOREREMOVE=1") != std::string::npos) take_out(name);
    return 1;
  }
  if (machine_.fault(60)) {
    refused_.insert(name);
    return -ENOBUFS;
  }
  if (kept_.size() >= descriptors_max_) {
    failure_ = fmt::format("systemd keeps {} descriptors, and is given one more", kept_.size());
  }
  Fd sent(fd);
  auto copy = sent.duplicate();
  const int borrowed = sent.release();
  DJINN_ASSERT(copy.ok() && borrowed == fd);
  kept_.emplace(name, *std::move(copy));
  return 1;
}

void Systemd::take_out(const std::string& name) {
  refused_.erase(name);
  if (machine_.mistake() == Mistake::kStoreForgetsNothing && machine_.one_in(8)) return;
  kept_.erase(name);
}

std::map<std::string, Fd> Systemd::pass() const {
  std::map<std::string, Fd> passed;
  for (const auto& [name, fd] : kept_) {
    auto copy = fd.duplicate();
    DJINN_ASSERT(copy.ok());
    passed[name] = *std::move(copy);
  }
  return passed;
}

size_t Systemd::descriptors() const {
  return kept_.size();
}

std::map<ModelId, ipc::KeptModel> Systemd::records() const {
  std::map<ModelId, std::pair<uint64_t, const Fd*>> newest;
  std::map<ModelId, ipc::KeptModel> records;
  for (const auto& [name, fd] : kept_) {
    const size_t at = name.find(kRecord);
    if (at == std::string::npos) continue;
    const auto bytes = read_sealed(fd, limits::kControlMessageBytes, "record of a model");
    DJINN_ASSERT(bytes.ok());
    auto record = ipc::decode_kept_model(bytes.value());
    DJINN_ASSERT(record.ok());
    const ModelId id = record.value().id;
    const uint64_t number = number_behind(name, at + kRecord.size());
    const auto [known, is_first] = newest.try_emplace(id, number, &fd);
    if (!is_first && known->second.first >= number) continue;
    known->second = {number, &fd};
    records[id] = *std::move(record);
  }
  return records;
}

bool Systemd::is_complete(const ipc::KeptModel& model) const {
  const std::string beginning = beginning_of(model.id);
  std::vector<std::string> parts{"manifest.0"};
  for (size_t i = 0; i < model.extent_bytes.size(); ++i)
    parts.push_back(fmt::format("extent.{}", i));
  for (size_t i = 0; i < model.files.size(); ++i) {
    if (model.files[i].on_block_device) parts.push_back(fmt::format("file.{}", i));
  }
  if (model.has_plan) parts.emplace_back("plan.0");
  return std::ranges::all_of(
      parts, [&](const std::string& part) { return kept_.contains(beginning + part); });
}

std::map<ModelId, ipc::KeptModel> Systemd::models() const {
  std::map<ModelId, ipc::KeptModel> models = records();
  std::erase_if(models, [this](const auto& entry) { return !is_complete(entry.second); });
  return models;
}

std::map<ModelId, std::vector<Fd>> Systemd::extents() const {
  std::map<ModelId, std::vector<Fd>> extents;
  for (const auto& [id, record] : models()) {
    for (size_t i = 0; i < record.extent_bytes.size(); ++i) {
      auto copy = kept_.find(beginning_of(id) + fmt::format("extent.{}", i))->second.duplicate();
      DJINN_ASSERT(copy.ok());
      extents[id].push_back(*std::move(copy));
    }
  }
  return extents;
}

bool Systemd::has_refused(ModelId id) const {
  const std::string beginning = beginning_of(id);
  return std::ranges::any_of(refused_,
                             [&](const std::string& name) { return name.starts_with(beginning); });
}

std::optional<std::string> Systemd::check() {
  if (!std::exchange(changed_, false)) return failure_;
  for (const auto& [id, record] : records()) {
    if (is_complete(record) || has_refused(id) || failure_) continue;
    failure_ =
        fmt::format("systemd has a record of model {}, and not all that it names", text_of(id));
  }
  for (const auto& [name, fd] : kept_) {
    if (kept_.count(name) > 1)
      failure_ = fmt::format("systemd has two descriptors called {}", name);
  }
  return failure_;
}

}  // namespace djinn::daemon::simulation
