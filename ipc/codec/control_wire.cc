// SPDX-License-Identifier: Apache-2.0

#include "ipc/codec/control_wire.h"

#include <algorithm>

#include "ipc/codec/control_codec.h"
#include "kernel/base/text.h"

namespace djinn::ipc::control {
namespace {

static_assert(limits::kControlMessageBytes % sizeof(capnp::word) == 0);

// Canonical form (graph.h): terms are sorted by symbol, each symbol comes once, no coefficient is
// zero.
void check_canonical(const srg::Expr& expr) {
  for (size_t i = 0; i < expr.terms.size(); ++i) {
    const bool sorted = i == 0 || expr.terms[i - 1].symbol < expr.terms[i].symbol;
    if (!sorted || expr.terms[i].coefficient == 0 || expr.terms[i].symbol >= limits::kSymbols) {
      refuse(ErrorCode::kMalformed, "A size in a control message is not in canonical form.");
    }
  }
}

void write_expr(wire::Expr::Builder out, const srg::Expr& expr) {
  out.setConstant(expr.constant);
  write_list(expr.terms, out.initTerms(count_of(expr.terms)),
             [](wire::Term::Builder term_out, const srg::Term& term) {
               term_out.setSymbol(term.symbol);
               term_out.setCoefficient(term.coefficient);
             });
}

srg::Expr read_expr(wire::Expr::Reader in) {
  srg::Expr expr(in.getConstant());
  expr.terms = read_list(in.getTerms(), limits::kSymbols, [](wire::Term::Reader term) {
    return srg::Term{term.getSymbol(), term.getCoefficient()};
  });
  check_canonical(expr);
  return expr;
}

}  // namespace

void refuse(ErrorCode code, std::string_view what) {
  throw Refused{{code, std::string(what)}};
}

std::string cut_message(const std::string& message) {
  return std::string(whole_characters(message, limits::kMessageTextBytes));
}

namespace {

std::string read_showable(capnp::Text::Reader reader, uint32_t bytes_max) {
  const std::string_view text(reader.begin(), reader.size());
  if (text.size() > bytes_max) {
    refuse(ErrorCode::kLimitExceeded, "A name or sentence of a control message is over its limit.");
  }
  if (!is_showable(text)) {
    refuse(ErrorCode::kMalformed, "A name of a control message is not plain UTF-8.");
  }
  DJINN_ASSERT(text.size() <= bytes_max);
  return std::string(text);
}

}  // namespace

std::string read_name(capnp::Text::Reader reader) {
  return read_showable(reader, limits::kNameBytes);
}

std::string read_word(capnp::Text::Reader reader) {
  return read_showable(reader, limits::kWordBytes);
}

std::string read_sentence(capnp::Text::Reader reader) {
  return read_showable(reader, limits::kMessageTextBytes);
}

void write_failure(wire::Failure::Builder out, ErrorCode code, const std::string& message) {
  out.setCode(static_cast<uint16_t>(code));
  out.setMessage(text(cut_message(message)));
}

Error read_failure(wire::Failure::Reader in, Success success) {
  const auto code = static_cast<ErrorCode>(in.getCode());
  if (code == ErrorCode::kOk && success == Success::kRefused) {
    refuse(ErrorCode::kMalformed, "A failure in a control message has no error code.");
  }
  const capnp::Text::Reader message = in.getMessage();
  if (message.size() > limits::kMessageTextBytes) {
    refuse(ErrorCode::kLimitExceeded, "An error text of a control message is over its limit.");
  }
  return {code, std::string(message.begin(), message.size())};
}

void write_shape(wire::OutputShape::Builder out, const OutputShape& shape) {
  out.setName(text(shape.name));
  out.setDtype(static_cast<uint8_t>(shape.dtype));
  out.setSizesUnknown(!shape.sizes_known);
  write_list(shape.sizes, out.initSizes(count_of(shape.sizes)), write_expr);
}

OutputShape read_shape(wire::OutputShape::Reader in) {
  OutputShape shape;
  shape.name = read_name(in.getName());
  shape.dtype = read_dtype(in.getDtype());
  shape.sizes_known = !in.getSizesUnknown();
  shape.sizes = read_list(in.getSizes(), limits::kRank, read_expr);
  return shape;
}

ServiceClass read_service(uint8_t number) {
  return read_enum(number, ServiceClass::kInteractive, ServiceClass::kIdle);
}

void write_kernels(wire::KernelTable::Builder out, const KernelTable& table) {
  out.setReadMbs(table.read_mbs);
  auto rows = out.initRowMbs(count_of(table.row_mbs));
  for (unsigned i = 0; i < rows.size(); ++i) rows.set(i, table.row_mbs[i]);
  write_list(table.products, out.initProducts(count_of(table.products)),
             [](wire::ProductKernels::Builder to, const ProductKernels& product) {
               to.setOwnMflops(product.own_mflops);
               to.setLibraryMflops(product.library_mflops);
             });
}

KernelTable read_kernels(wire::KernelTable::Reader in) {
  KernelTable table;
  const auto rows = in.getRowMbs();
  const auto products = in.getProducts();
  if (rows.size() != table.row_mbs.size() || products.size() != table.products.size()) {
    refuse(ErrorCode::kMalformed, "A table of kernels has other rows than this build knows.");
  }
  table.read_mbs = in.getReadMbs();
  for (unsigned i = 0; i < rows.size(); ++i) table.row_mbs[i] = rows[i];
  for (unsigned i = 0; i < products.size(); ++i) {
    table.products[i] = {products[i].getOwnMflops(), products[i].getLibraryMflops()};
  }
  return table;
}

void write_schedule(wire::LaneSchedule::Builder out, const LaneSchedule& schedule) {
  out.setPolicy(static_cast<uint8_t>(schedule.policy));
  const auto write = [](wire::ScheduleDecision::Builder item, const ScheduleDecision& decision) {
    item.setNumber(decision.number);
    item.setSession(decision.session.value);
    item.setService(static_cast<uint8_t>(decision.service));
    item.setReason(static_cast<uint8_t>(decision.reason));
    item.setAgoNs(decision.ago_ns);
    item.setReady(decision.ready);
    item.setLagNs(decision.lag_ns);
    item.setDeadlineNs(decision.deadline_ns);
    item.setPredictedNs(decision.predicted_ns);
    item.setMeasuredNs(decision.measured_ns);
    item.setPaused(decision.paused.value);
  };
  write_list(schedule.decisions, out.initDecisions(count_of(schedule.decisions)), write);
}

LaneSchedule read_schedule(wire::LaneSchedule::Reader in) {
  const auto read = [](wire::ScheduleDecision::Reader item) {
    ScheduleDecision decision;
    decision.number = item.getNumber();
    decision.session = {item.getSession()};
    decision.service = read_service(item.getService());
    decision.reason = read_enum(item.getReason(), PickReason::kOnly, PickReason::kSlice);
    decision.ago_ns = item.getAgoNs();
    decision.ready = item.getReady();
    decision.lag_ns = item.getLagNs();
    decision.deadline_ns = item.getDeadlineNs();
    decision.predicted_ns = item.getPredictedNs();
    decision.measured_ns = item.getMeasuredNs();
    decision.paused = {item.getPaused()};
    return decision;
  };
  return {read_enum(in.getPolicy(), SchedulePolicy::kFair, SchedulePolicy::kFifo),
          read_list(in.getDecisions(), limits::kDecisions, read)};
}

void write_geometry(wire::SequenceGeometry::Builder out, const SequenceGeometry& geometry) {
  out.setRows(geometry.rows);
  out.setLayers(geometry.layers);
  out.setKvHeads(geometry.kv_heads);
  out.setHeadDim(geometry.head_dim);
  out.setDtype(static_cast<uint8_t>(geometry.dtype));
  out.setCapacity(geometry.capacity);
  out.setBanks(geometry.banks);
}

SequenceGeometry read_geometry(wire::SequenceGeometry::Reader in) {
  SequenceGeometry geometry;
  geometry.rows = in.getRows();
  geometry.layers = in.getLayers();
  geometry.kv_heads = in.getKvHeads();
  geometry.head_dim = in.getHeadDim();
  geometry.dtype = read_dtype(in.getDtype());
  geometry.capacity = in.getCapacity();
  geometry.banks = in.getBanks();
  return geometry;
}

void write_identity(wire::FileIdentity::Builder out, const FileIdentity& identity) {
  out.setDeviceMajor(identity.device_major);
  out.setDeviceMinor(identity.device_minor);
  out.setInode(identity.inode);
  out.setBytes(identity.bytes);
  out.setMtimeNs(identity.mtime_ns);
  out.setCtimeNs(identity.ctime_ns);
  out.setOnBlockDevice(identity.on_block_device);
  if (identity.content) out.setContent(data(*identity.content));
  out.setUnwritten(identity.unwritten);
}

FileIdentity read_identity(wire::FileIdentity::Reader in) {
  FileIdentity identity;
  identity.device_major = in.getDeviceMajor();
  identity.device_minor = in.getDeviceMinor();
  identity.inode = in.getInode();
  identity.bytes = in.getBytes();
  identity.mtime_ns = in.getMtimeNs();
  identity.ctime_ns = in.getCtimeNs();
  identity.on_block_device = in.getOnBlockDevice();
  if (in.hasContent()) identity.content = read_sha256(in.getContent());
  identity.unwritten = in.getUnwritten();
  return identity;
}

std::vector<std::byte> read_part(capnp::Data::Reader in) {
  if (in.size() > limits::kManifestPartBytes) {
    refuse(ErrorCode::kLimitExceeded, "A part of a manifest or graph is over its limit.");
  }
  const auto* const bytes = reinterpret_cast<const std::byte*>(in.begin());
  return {bytes, bytes + in.size()};
}

std::array<uint8_t, 32> read_sha256(capnp::Data::Reader in) {
  std::array<uint8_t, 32> hash;
  if (in.size() != hash.size()) {
    refuse(ErrorCode::kMalformed, "A hash in a control message does not have 32 bytes.");
  }
  memcpy(hash.data(), in.begin(), hash.size());
  return hash;
}

std::vector<std::byte> flatten(capnp::MessageBuilder& message) {
  const kj::Array<capnp::word> words = capnp::messageToFlatArray(message);
  const auto* begin = reinterpret_cast<const std::byte*>(words.begin());
  return {begin, begin + words.size() * sizeof(capnp::word)};
}

kj::Array<capnp::word> copy_words(std::span<const std::byte> bytes) {
  if (bytes.size() > limits::kControlMessageBytes) {
    refuse(ErrorCode::kLimitExceeded, "A control message is larger than 64 KiB.");
  }
  if (bytes.empty() || bytes.size() % sizeof(capnp::word) != 0) {
    refuse(ErrorCode::kMalformed, "A control message is not made of words of 8 bytes.");
  }
  auto words = kj::heapArray<capnp::word>(bytes.size() / sizeof(capnp::word));
  DJINN_ASSERT(words.size() * sizeof(capnp::word) == bytes.size());
  memcpy(words.begin(), bytes.data(), bytes.size());
  return words;
}

capnp::ReaderOptions options_for(size_t words) {
  DJINN_ASSERT(words > 0 && words <= limits::kControlMessageBytes / sizeof(capnp::word));
  capnp::ReaderOptions options;
  // Every getter is called once, so an honest message is traversed once. Twice the words leaves
  // room for those that KJ counts for empty elements.
  options.traversalLimitInWords = 2 * words + 64;
  options.nestingLimit = 16;  // a reply is 6 deep
  return options;
}

}  // namespace djinn::ipc::control

namespace djinn::ipc {

namespace {

std::string showable(std::string_view text, size_t bytes_max) {
  std::string shown = djinn::showable(text);
  shown.resize(whole_characters(shown, bytes_max).size());
  return shown;
}

}  // namespace

std::string showable_name(std::string_view name) {
  return showable(name, limits::kNameBytes);
}

std::string showable_sentence(std::string_view sentence) {
  return showable(sentence, limits::kMessageTextBytes);
}

}  // namespace djinn::ipc
