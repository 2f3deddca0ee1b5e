// SPDX-License-Identifier: Apache-2.0

#include "ipc/codec/srg_codec.h"

#include <capnp/message.h>
#include <fmt/format.h>
#include <kj/exception.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "ipc/codec/srg.capnp.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"
#include "kernel/srg/limits.h"

namespace djinn::ipc {
namespace {

// The local path and a graph have these limits in common.
static_assert(srg::limits::kSymbols == limits::kSymbols);
static_assert(srg::limits::kRank == limits::kRank);
static_assert(srg::limits::kLayers == limits::kLayers);
static_assert(srg::limits::kNameBytes == limits::kNameBytes);
static_assert(srg::limits::kOutputs == limits::kProgramOutputs);
static_assert(srg::limits::kNamesBytes == limits::kGraphBytes / 2);
static_assert(srg::limits::kSourceBytes == limits::kGraphBytes * 2);
static_assert(std::variant_size_v<srg::ArgumentValue> == wire::Argument::DTYPE + 1);
static_assert(uint32_t{srg::kLocalStorage + 1} == 0);

// --- encoding. A list, text or struct that is empty stays a null pointer: one form for one value.

template <typename T>
std::vector<std::byte> canonical_bytes(capnp::MallocMessageBuilder& message) {
  const kj::Array<capnp::word> words = capnp::canonicalize(message.getRoot<T>().asReader());
  const auto bytes = words.asBytes();
  std::vector<std::byte> out(bytes.size());
  std::memcpy(out.data(), bytes.begin(), bytes.size());
  return out;
}

capnp::Text::Reader text(const std::string& string) {
  return {string.data(), string.size()};
}

// The writers are members so that templates among them see all overloads.
struct Encoder {
  template <typename Items, typename Init>
  static void write_structs(const Items& items, Init init) {
    if (items.empty()) return;
    auto list = init(static_cast<unsigned>(items.size()));
    DJINN_ASSERT(list.size() == items.size());
    for (unsigned i = 0; i < list.size(); ++i) write(list[i], items[i]);
  }

  template <typename Items, typename Init>
  static void write_numbers(const Items& items, Init init) {
    if (items.empty()) return;
    auto list = init(static_cast<unsigned>(items.size()));
    DJINN_ASSERT(list.size() == items.size());
    for (unsigned i = 0; i < list.size(); ++i) list.set(i, items[i]);
  }

  static void write(wire::Term::Builder out, const srg::Term& term) {
    out.setSymbol(term.symbol);
    out.setCoefficient(term.coefficient);
  }

  static void write(wire::Expr::Builder out, const srg::Expr& expr) {
    out.setConstant(expr.constant);
    write_structs(expr.terms, [&](unsigned n) { return out.initTerms(n); });
  }

  static void write(wire::Symbol::Builder out, const srg::Symbol& symbol) {
    if (!symbol.name.empty()) out.setName(text(symbol.name));
    out.setMin(symbol.min);
    out.setMax(symbol.max);
    out.setRole(static_cast<uint8_t>(symbol.role));
  }

  static void write(wire::Storage::Builder out, const srg::Storage& storage) {
    out.setKind(static_cast<uint8_t>(storage.kind));
    if (!storage.name.empty()) out.setName(text(storage.name));
    out.setRole(static_cast<uint8_t>(storage.role));
    out.setLayer(storage.layer);
    out.setPart(static_cast<uint8_t>(storage.part));
    out.setIsDeclared(storage.is_declared);
  }

  static void write(wire::Value::Builder out, const srg::Value& value) {
    if (!value.name.empty()) out.setName(text(value.name));
    out.setStorage(value.storage + 1);  // kLocalStorage, the greatest number, becomes 0
    out.setDtype(static_cast<uint8_t>(value.dtype));
    out.setClaimsSizes(value.claims_sizes);
    out.setCriticality(value.criticality);
    write_structs(value.sizes, [&](unsigned n) { return out.initSizes(n); });
    write_structs(value.strides, [&](unsigned n) { return out.initStrides(n); });
    if (value.offset != srg::Expr()) write(out.initOffset(), value.offset);
  }

  // Each alternative of ArgumentValue has one overload. Empty lists and texts are written too,
  // because that sets the union's discriminant.

  static void write_argument(wire::Argument::Builder out, const srg::None&) { out.setNone(); }
  static void write_argument(wire::Argument::Builder out, const srg::ValueRef& ref) {
    out.setValue(ref.id);
  }
  static void write_argument(wire::Argument::Builder out, const srg::ValueList& list) {
    auto ids = out.initValues(static_cast<unsigned>(list.ids.size()));
    for (unsigned i = 0; i < ids.size(); ++i) ids.set(i, list.ids[i] ? *list.ids[i] + 1 : 0);
  }
  static void write_argument(wire::Argument::Builder out, const srg::Expr& expr) {
    write(out.initExpr(), expr);
  }
  static void write_argument(wire::Argument::Builder out, const srg::ExprList& list) {
    auto exprs = out.initExprs(static_cast<unsigned>(list.items.size()));
    for (unsigned i = 0; i < exprs.size(); ++i) write(exprs[i], list.items[i]);
  }
  static void write_argument(wire::Argument::Builder out, double number) { out.setDouble(number); }
  static void write_argument(wire::Argument::Builder out, const srg::DoubleList& list) {
    auto items = out.initDoubles(static_cast<unsigned>(list.items.size()));
    for (unsigned i = 0; i < items.size(); ++i) items.set(i, list.items[i]);
  }
  static void write_argument(wire::Argument::Builder out, bool flag) { out.setBool(flag); }
  static void write_argument(wire::Argument::Builder out, const srg::BoolList& list) {
    auto items = out.initBools(static_cast<unsigned>(list.items.size()));
    for (unsigned i = 0; i < items.size(); ++i) items.set(i, list.items[i]);
  }
  static void write_argument(wire::Argument::Builder out, const std::string& string) {
    out.setText(text(string));
  }
  static void write_argument(wire::Argument::Builder out, DType dtype) {
    out.setDtype(static_cast<uint8_t>(dtype));
  }

  static void write(wire::Argument::Builder out, const srg::Argument& argument) {
    if (!argument.name.empty()) out.setName(text(argument.name));
    std::visit([&](const auto& value) { write_argument(out, value); }, argument.value);
  }

  static void write(wire::Annotation::Builder out, const srg::Annotation& note) {
    if (!note.module_path.empty()) out.setModulePath(text(note.module_path));
    if (!note.role.empty()) out.setRole(text(note.role));
    out.setPhase(static_cast<uint8_t>(note.phase));
    out.setResidency(static_cast<uint8_t>(note.residency));
    out.setModality(static_cast<uint8_t>(note.modality));
    out.setFlops(note.flops);
    out.setBytes(note.bytes);
    out.setColocationGroup(note.colocation_group);
    out.setPriority(note.priority);
  }

  static void write(wire::Node::Builder out, const srg::Node& node) {
    if (!node.op.empty()) out.setOp(text(node.op));
    write_structs(node.arguments, [&](unsigned n) { return out.initArguments(n); });
    write_numbers(node.outputs, [&](unsigned n) { return out.initOutputs(n); });
    if (node.annotation != srg::Annotation()) write(out.initAnnotation(), node.annotation);
  }

  static void write(wire::Graph::Builder out, const srg::Graph& graph) {
    if (!graph.name.empty()) out.setName(text(graph.name));
    write_structs(graph.symbols, [&](unsigned n) { return out.initSymbols(n); });
    write_structs(graph.storages, [&](unsigned n) { return out.initStorages(n); });
    write_structs(graph.values, [&](unsigned n) { return out.initValues(n); });
    write_structs(graph.nodes, [&](unsigned n) { return out.initNodes(n); });
    write_numbers(graph.outputs, [&](unsigned n) { return out.initOutputs(n); });
    out.setNumerics(static_cast<uint8_t>(graph.numerics));
  }

  static void write(wire::Slice::Builder out, const srg::Slice& slice) {
    out.setDimension(slice.dimension);
    out.setStart(slice.start);
    out.setLength(slice.length);
  }

  static void write(wire::Piece::Builder out, const srg::Piece& piece) {
    out.setFile(piece.file);
    if (!piece.tensor.empty()) out.setTensor(text(piece.tensor));
    write_structs(piece.slices, [&](unsigned n) { return out.initSlices(n); });
    out.setTranspose(piece.transpose);
  }

  static void write(wire::Destination::Builder out, const srg::Destination& destination) {
    if (!destination.name.empty()) out.setName(text(destination.name));
    out.setDtype(static_cast<uint8_t>(destination.dtype));
    write_numbers(destination.sizes, [&](unsigned n) { return out.initSizes(n); });
    out.setConcatDimension(destination.concat_dimension);
    write_structs(destination.pieces, [&](unsigned n) { return out.initPieces(n); });
    out.setForm(static_cast<uint8_t>(destination.form));
  }

  static void write(wire::Alias::Builder out, const srg::Alias& alias) {
    if (!alias.name.empty()) out.setName(text(alias.name));
    if (!alias.destination.empty()) out.setDestination(text(alias.destination));
  }

  static void write(wire::LoadPlan::Builder out, const srg::LoadPlan& plan) {
    write_structs(plan.destinations, [&](unsigned n) { return out.initDestinations(n); });
    write_structs(plan.aliases, [&](unsigned n) { return out.initAliases(n); });
    out.setMatrices(static_cast<uint8_t>(plan.matrices));
  }

  static void write(wire::TensorEntry::Builder out, const srg::TensorEntry& entry) {
    if (!entry.name.empty()) out.setName(text(entry.name));
    out.setDtype(static_cast<uint8_t>(entry.dtype));
    write_numbers(entry.sizes, [&](unsigned n) { return out.initSizes(n); });
    out.setExtent(entry.extent);
    out.setOffset(entry.offset);
    out.setBytes(entry.bytes);
    out.setForm(static_cast<uint8_t>(entry.form));
  }

  static void write(wire::ModelManifest::Builder out, const srg::ModelManifest& manifest) {
    write_numbers(manifest.extent_bytes, [&](unsigned n) { return out.initExtentBytes(n); });
    write_structs(manifest.tensors, [&](unsigned n) { return out.initTensors(n); });
  }
};

template <typename Wire, typename T>
std::vector<std::byte> encode_as(const T& value) {
  capnp::MallocMessageBuilder message;
  Encoder::write(message.initRoot<Wire>(), value);
  return canonical_bytes<Wire>(message);
}

// --- decoding. Inside, a refusal travels as one of these exceptions or one of KJ's; decode_as ends
// both.

struct Refused {
  Error error;
};

// Says for people what a list is of.
struct ListName {
  std::string_view what;
  std::string_view owner = {};  // whose it is; as it came
};

// Gives enough of the name to recognize it, without characters that a terminal should not be shown.
std::string excerpt(std::string_view name) {
  constexpr size_t kExcerptBytes = 80;
  std::string text(name.substr(0, kExcerptBytes));
  for (char& c : text) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return text + (name.size() > kExcerptBytes ? "..." : "");
}

[[noreturn]] void refuse_count(const ListName& name, unsigned count, uint64_t limit) {
  const std::string owner = name.owner.empty() ? "" : fmt::format(" of {}", excerpt(name.owner));
  throw Refused{
      {ErrorCode::kLimitExceeded, fmt::format("There are {} {}{}; the limit is {}. Give fewer.",
                                              count, name.what, owner, limit)}};
}

// The items made from one message are at most those that verify.h allows in nodes, and as many
// values, nodes and entries.
constexpr uint64_t kItemsMax = 2 * srg::limits::kItems;
static_assert(limits::kModelTensors <= kItemsMax);

// Counts what has been made from one message so far.
class Budget {
 public:
  void spend(uint64_t items) {
    DJINN_ASSERT(spent_ <= kItemsMax && items <= kItemsMax);
    spent_ += items;
    if (spent_ > kItemsMax) {
      throw Refused{{ErrorCode::kLimitExceeded,
                     fmt::format("The message has more than {} items in all.", kItemsMax)}};
    }
  }

 private:
  uint64_t spent_ = 0;
};

template <typename Enum>
Enum read_enum(uint8_t number, Enum last) {
  if (number > static_cast<uint8_t>(last)) {
    throw Refused{{ErrorCode::kMalformed,
                   fmt::format("The message has the number {} where at most {} is known. A newer "
                               "client may have sent it.",
                               number, static_cast<unsigned>(last))}};
  }
  return static_cast<Enum>(number);
}

DType read_dtype(uint8_t number) {
  return read_enum(number, DType::kComplex128);
}

srg::WeightForm read_form(uint8_t number) {
  return read_enum(number, srg::WeightForm::kInt8);
}

std::string read_text(capnp::Text::Reader reader) {
  return {reader.begin(), reader.size()};
}

struct Decoder {
  Budget budget;

  // Reads the list's elements, at most `limit` of them, with get(element).
  template <typename List, typename Get>
  auto read_list(const List& list, const ListName& name, uint64_t limit, Get get) {
    if (list.size() > limit) refuse_count(name, list.size(), limit);
    budget.spend(list.size());
    std::vector<std::decay_t<decltype(get(list[0]))>> out;
    out.reserve(list.size());
    for (const auto item : list) out.push_back(get(item));
    DJINN_ASSERT(out.size() <= limit);
    return out;
  }

  template <typename List>
  auto read_numbers(const List& list, const ListName& name, uint64_t limit) {
    return read_list(list, name, limit, [](auto number) { return number; });
  }

  template <typename List>
  auto read_structs(const List& list, const ListName& name, uint64_t limit) {
    return read_list(list, name, limit, [this](auto item) { return read(item); });
  }

  srg::Term read(wire::Term::Reader in) { return {in.getSymbol(), in.getCoefficient()}; }

  srg::Expr read(wire::Expr::Reader in) {
    srg::Expr expr(in.getConstant());
    expr.terms = read_structs(in.getTerms(), {"terms in an expression"}, srg::limits::kTerms);
    return expr;
  }

  srg::Symbol read(wire::Symbol::Reader in) {
    return {read_text(in.getName()), in.getMin(), in.getMax(),
            read_enum(in.getRole(), srg::SymbolRole::kCapacity)};
  }

  srg::Storage read(wire::Storage::Reader in) {
    return {read_enum(in.getKind(), srg::StorageKind::kSequence),    read_text(in.getName()),
            read_enum(in.getRole(), srg::InputRole::kAttentionMask), in.getLayer(),
            read_enum(in.getPart(), srg::SequencePart::kValue),      in.getIsDeclared()};
  }

  srg::Value read(wire::Value::Reader in) {
    srg::Value value;
    value.name = read_text(in.getName());
    value.storage = in.getStorage() - 1;
    value.dtype = read_dtype(in.getDtype());
    value.sizes = read_structs(in.getSizes(), {"sizes", value.name}, srg::limits::kRank);
    value.strides = read_structs(in.getStrides(), {"strides", value.name}, srg::limits::kRank);
    value.offset = read(in.getOffset());
    value.claims_sizes = in.getClaimsSizes();
    value.criticality = in.getCriticality();
    return value;
  }

  static std::optional<srg::ValueId> read_entry(uint32_t entry) {
    return entry == 0 ? std::nullopt : std::optional<srg::ValueId>(entry - 1);
  }

  srg::ArgumentValue read_argument(wire::Argument::Reader in) {
    constexpr uint32_t kItems = srg::limits::kListItems;
    constexpr ListName kOf{"items in an argument"};
    switch (in.which()) {
      case wire::Argument::NONE:
        return srg::None{};
      case wire::Argument::VALUE:
        return srg::ValueRef{in.getValue()};
      case wire::Argument::VALUES:
        return srg::ValueList{read_list(in.getValues(), kOf, kItems, read_entry)};
      case wire::Argument::EXPR:
        return read(in.getExpr());
      case wire::Argument::EXPRS:
        return srg::ExprList{read_structs(in.getExprs(), kOf, kItems)};
      case wire::Argument::DOUBLE:
        return in.getDouble();
      case wire::Argument::DOUBLES:
        return srg::DoubleList{read_numbers(in.getDoubles(), kOf, kItems)};
      case wire::Argument::BOOL:
        return in.getBool();
      case wire::Argument::BOOLS:
        return srg::BoolList{read_numbers(in.getBools(), kOf, kItems)};
      case wire::Argument::TEXT:
        return read_text(in.getText());
      case wire::Argument::DTYPE:
        return read_dtype(in.getDtype());
    }
    throw Refused{{ErrorCode::kMalformed, "An argument is of an unknown kind."}};
  }

  srg::Argument read(wire::Argument::Reader in) {
    return {read_text(in.getName()), read_argument(in)};
  }

  srg::Annotation read(wire::Annotation::Reader in) {
    srg::Annotation note;
    note.module_path = read_text(in.getModulePath());
    note.role = read_text(in.getRole());
    note.phase = read_enum(in.getPhase(), srg::Phase::kMultimodalFusion);
    note.residency = read_enum(in.getResidency(), srg::Residency::kOutput);
    note.modality = read_enum(in.getModality(), srg::Modality::kFusion);
    note.flops = in.getFlops();
    note.bytes = in.getBytes();
    note.colocation_group = in.getColocationGroup();
    note.priority = in.getPriority();
    return note;
  }

  srg::Node read(wire::Node::Reader in) {
    std::string op = read_text(in.getOp());
    auto arguments = read_structs(in.getArguments(), {"arguments", op}, srg::limits::kArguments);
    auto outputs = read_numbers(in.getOutputs(), {"results", op}, srg::limits::kNodeOutputs);
    return {std::move(op), std::move(arguments), std::move(outputs), read(in.getAnnotation())};
  }

  srg::Graph read(wire::Graph::Reader in) {
    return {read_text(in.getName()),
            read_structs(in.getSymbols(), {"symbols in the graph"}, srg::limits::kSymbols),
            read_structs(in.getStorages(), {"storages in the graph"}, srg::limits::kStorages),
            read_structs(in.getValues(), {"values in the graph"}, srg::limits::kValues),
            read_structs(in.getNodes(), {"nodes in the graph"}, srg::limits::kNodes),
            read_numbers(in.getOutputs(), {"outputs of the graph"}, srg::limits::kOutputs),
            read_enum(in.getNumerics(), srg::Numerics::kFastOnly)};
  }

  srg::Slice read(wire::Slice::Reader in) {
    return {in.getDimension(), in.getStart(), in.getLength()};
  }

  srg::Piece read(wire::Piece::Reader in) {
    std::string tensor = read_text(in.getTensor());
    auto slices = read_structs(in.getSlices(), {"slices", tensor}, srg::limits::kRank);
    return {in.getFile(), std::move(tensor), std::move(slices), in.getTranspose()};
  }

  srg::Destination read(wire::Destination::Reader in) {
    std::string name = read_text(in.getName());
    auto sizes = read_numbers(in.getSizes(), {"sizes", name}, srg::limits::kRank);
    auto pieces = read_structs(in.getPieces(), {"pieces", name}, srg::limits::kListItems);
    return {std::move(name),         read_dtype(in.getDtype()), std::move(sizes),
            in.getConcatDimension(), std::move(pieces),         read_form(in.getForm())};
  }

  srg::Alias read(wire::Alias::Reader in) {
    return {read_text(in.getName()), read_text(in.getDestination())};
  }

  srg::LoadPlan read(wire::LoadPlan::Reader in) {
    return {read_structs(in.getDestinations(), {"tensors in the plan"}, limits::kModelTensors),
            read_structs(in.getAliases(), {"aliases in the plan"}, limits::kModelTensors),
            read_form(in.getMatrices())};
  }

  srg::TensorEntry read(wire::TensorEntry::Reader in) {
    std::string name = read_text(in.getName());
    auto sizes = read_numbers(in.getSizes(), {"sizes", name}, srg::limits::kRank);
    return {std::move(name),        read_dtype(in.getDtype()),
            std::move(sizes),       in.getExtent(),
            in.getOffset(),         in.getBytes(),
            read_form(in.getForm())};
  }

  srg::ModelManifest read(wire::ModelManifest::Reader in) {
    return {read_numbers(in.getExtentBytes(), {"extents of the model"}, limits::kModelExtents),
            read_structs(in.getTensors(), {"tensors in the model"}, limits::kModelTensors)};
  }
};

// Views bytes as words: in place if they are aligned, else in a copy.
class Words {
 public:
  explicit Words(std::span<const std::byte> bytes) {
    DJINN_ASSERT(bytes.size() % sizeof(capnp::word) == 0);
    const size_t count = bytes.size() / sizeof(capnp::word);
    if (reinterpret_cast<uintptr_t>(bytes.data()) % alignof(capnp::word) == 0) {
      words_ = {reinterpret_cast<const capnp::word*>(bytes.data()), count};
      return;
    }
    copy_ = kj::heapArray<capnp::word>(count);
    std::memcpy(copy_.begin(), bytes.data(), count * sizeof(capnp::word));
    words_ = copy_;
  }
  [[nodiscard]] kj::ArrayPtr<const capnp::word> get() const { return words_; }

 private:
  kj::Array<capnp::word> copy_;
  kj::ArrayPtr<const capnp::word> words_;
};

// Every getter is called once, so an honest message is traversed once. KJ also counts a word for
// each element without bytes, such as a zero expression: a graph has fewer of these than words, or
// is small. With a higher limit a reader could spend a thousand times the message's bytes.
constexpr uint64_t kEmptyItems = srg::limits::kListItems;

capnp::ReaderOptions options_for(size_t bytes) {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = 2 * (bytes / sizeof(capnp::word)) + kEmptyItems;
  options.nestingLimit = 16;  // a graph is 6 deep
  return options;
}

Error refusal_of(const kj::Exception& exception) {
  const std::string_view what = exception.getDescription().cStr();
  if (what.find("traversal limit") != what.npos) {
    return {ErrorCode::kLimitExceeded,
            "The message is larger when it is read than its bytes are: it names a part of itself "
            "more than once, or has very many empty items. Encode it in canonical form."};
  }
  return {ErrorCode::kMalformed, fmt::format("The message cannot be decoded: {}", what)};
}

// This is the boundary of every decoder: neither KJ's exceptions nor ours leave it.
template <typename Wire>
auto decode_as(std::span<const std::byte> bytes, uint64_t bytes_max)
    -> Result<decltype(Decoder().read(std::declval<typename Wire::Reader>()))> {
  if (bytes.size() > bytes_max) {
    return Error{
        ErrorCode::kLimitExceeded,
        fmt::format("The message has {} bytes; the limit is {}.", bytes.size(), bytes_max)};
  }
  if (bytes.empty() || bytes.size() % sizeof(capnp::word) != 0) {
    return Error{ErrorCode::kMalformed,
                 fmt::format("A message of {} bytes cannot be decoded: it is made of words of 8 "
                             "bytes.",
                             bytes.size())};
  }
  try {
    const Words words(bytes);
    const kj::ArrayPtr<const capnp::word> segment = words.get();
    capnp::SegmentArrayMessageReader message(kj::arrayPtr(&segment, 1), options_for(bytes.size()));
    return Decoder().read(message.getRoot<Wire>());
  } catch (const Refused& refused) {
    return refused.error;
  } catch (const kj::Exception& exception) {
    return refusal_of(exception);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::kOutOfMemory, "There is no memory left to decode the message."};
  }
}

}  // namespace

std::vector<std::byte> encode(const srg::Graph& graph) {
  return encode_as<wire::Graph>(graph);
}
std::vector<std::byte> encode(const srg::LoadPlan& plan) {
  return encode_as<wire::LoadPlan>(plan);
}
std::vector<std::byte> encode(const srg::ModelManifest& manifest) {
  return encode_as<wire::ModelManifest>(manifest);
}

Result<srg::Graph> decode_graph(std::span<const std::byte> bytes) {
  return decode_as<wire::Graph>(bytes, limits::kGraphBytes);
}

Result<srg::LoadPlan> decode_load_plan(std::span<const std::byte> bytes) {
  return decode_as<wire::LoadPlan>(bytes, limits::kLoadPlanBytes);
}

Result<srg::ModelManifest> decode_manifest(std::span<const std::byte> bytes) {
  return decode_as<wire::ModelManifest>(bytes, limits::kManifestBytes);
}

}  // namespace djinn::ipc
