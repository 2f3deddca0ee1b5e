// SPDX-License-Identifier: Apache-2.0

#include "ipc/codec/kept_codec.h"

#include "ipc/codec/control_wire.h"

namespace djinn::ipc::control {
namespace {

// Since format 4 tensors lie at multiples of 512 bytes. A model of an older format that is read
// again would have its tensors in other places than its manifest says.
constexpr uint32_t kFormat = 4;

// The names that users give a model must leave room for the rest of its record.
static_assert(limits::kModelNamesKept * 2 * limits::kNameBytes <= limits::kControlMessageBytes / 8);

KeptKeepAlive read_keep_alive(wire::KeptKeepAlive::Reader in) {
  KeptKeepAlive one{in.getUser()};
  if (in.getGiven()) one.ms = in.getMs();
  return one;
}

void write_keep_alive(wire::KeptKeepAlive::Builder out, const KeptKeepAlive& one) {
  out.setUser(one.user);
  out.setGiven(one.ms.has_value());
  out.setMs(one.ms.value_or(0));
}

KeptNumerics read_kept_numerics(wire::KeptNumerics::Reader in) {
  return {in.getUser(), read_numerics(in.getNumerics())};
}

void write_kept_numerics(wire::KeptNumerics::Builder out, const KeptNumerics& one) {
  out.setUser(one.user);
  out.setNumerics(static_cast<uint8_t>(one.numerics));
}

KeptName read_kept_name(wire::KeptName::Reader in) {
  return {in.getUser(), read_name(in.getLabel()), read_name(in.getPath())};
}

void write_kept_name(wire::KeptName::Builder out, const KeptName& name) {
  out.setUser(name.user);
  out.setLabel(text(name.label));
  out.setPath(text(name.path));
}

KeptModel read(wire::KeptModel::Reader in) {
  if (in.getFormat() != kFormat) {
    refuse(ErrorCode::kUnsupported, "The record of a model is of another version of djinnd.");
  }
  KeptModel model;
  model.boot = read_name(in.getBoot());
  model.id = {in.getId()};
  model.domain = in.getDomain();
  model.label = read_name(in.getLabel());
  model.plan_hash = read_sha256(in.getPlanHash());
  model.files = read_list(in.getFiles(), limits::kModelFiles, read_identity);
  model.read_at_ns = in.getReadAtNs();
  model.extent_bytes =
      read_list(in.getExtentBytes(), limits::kModelExtents, [](uint64_t bytes) { return bytes; });
  model.pinned_by =
      read_list(in.getPinnedBy(), limits::kModelUsers, [](uint64_t user) { return user; });
  if (in.hasSha256()) model.sha256 = read_sha256(in.getSha256());
  model.loaded_wall_ns = in.getLoadedWallNs();
  model.has_plan = in.getHasPlan();
  model.keep_alives = read_list(in.getKeepAlives(), limits::kModelUsers, read_keep_alive);
  model.path = read_name(in.getPath());
  model.names = read_list(in.getNames(), limits::kModelNamesKept, read_kept_name);
  model.device = read_name(in.getDevice());
  model.huge_bytes = in.getHugeBytes();
  model.numerics = read_list(in.getNumerics(), limits::kModelUsers, read_kept_numerics);
  return model;
}

void write(wire::KeptModel::Builder out, const KeptModel& model) {
  out.setFormat(kFormat);
  out.setBoot(text(model.boot));
  out.setId(model.id.value);
  out.setDomain(model.domain);
  out.setLabel(text(model.label));
  out.setPlanHash(data(model.plan_hash));
  write_list(model.files, out.initFiles(count_of(model.files)), write_identity);
  out.setReadAtNs(model.read_at_ns);
  auto bytes = out.initExtentBytes(count_of(model.extent_bytes));
  for (unsigned i = 0; i < bytes.size(); ++i) bytes.set(i, model.extent_bytes[i]);
  auto users = out.initPinnedBy(count_of(model.pinned_by));
  for (unsigned i = 0; i < users.size(); ++i) users.set(i, model.pinned_by[i]);
  if (model.sha256) out.setSha256(data(*model.sha256));
  out.setLoadedWallNs(model.loaded_wall_ns);
  out.setHasPlan(model.has_plan);
  write_list(model.keep_alives, out.initKeepAlives(count_of(model.keep_alives)), write_keep_alive);
  out.setPath(text(model.path));
  write_list(model.names, out.initNames(count_of(model.names)), write_kept_name);
  out.setDevice(text(model.device));
  out.setHugeBytes(model.huge_bytes);
  write_list(model.numerics, out.initNumerics(count_of(model.numerics)), write_kept_numerics);
}

}  // namespace
}  // namespace djinn::ipc::control

namespace djinn::ipc {

std::vector<std::byte> encode(const KeptModel& model) {
  capnp::MallocMessageBuilder message;
  control::write(message.initRoot<wire::KeptModel>(), model);
  return control::flatten(message);
}

Result<KeptModel> decode_kept_model(std::span<const std::byte> bytes) {
  return control::decode_message<wire::KeptModel>(bytes, control::read);
}

}  // namespace djinn::ipc
