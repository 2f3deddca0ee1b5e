#include "ipc/codec/kept_codec.h"

#include "ipc/codec/control_wire.h"

namespace djinn::ipc::control {
namespace {

constexpr uint32_t kFormat = 2;

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
  model.pinned = in.getPinned();
  if (in.hasSha256()) model.sha256 = read_sha256(in.getSha256());
  model.loaded_wall_ns = in.getLoadedWallNs();
  model.has_plan = in.getHasPlan();
  if (in.getHasKeepAlive()) model.keep_alive_ms = in.getKeepAliveMs();
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
  out.setPinned(model.pinned);
  if (model.sha256) out.setSha256(data(*model.sha256));
  out.setLoadedWallNs(model.loaded_wall_ns);
  out.setHasPlan(model.has_plan);
  out.setHasKeepAlive(model.keep_alive_ms.has_value());
  out.setKeepAliveMs(model.keep_alive_ms.value_or(0));
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
