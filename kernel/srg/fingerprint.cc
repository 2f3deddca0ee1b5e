// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/fingerprint.h"

// The whole library is compiled into this file, so that there is nothing to link.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace djinn::srg {
namespace {

// Writes a graph as bytes from which it could be read back: every list begins with its length,
// every alternative with its number. Each function unpacks its struct into all of its fields, so
// that a new field does not compile until it is written, too.
class Writer {
 public:
  void graph(const Graph& graph) {
    const auto& [name, symbols, storages, values, nodes, outputs, numerics] = graph;
    put(name);
    put(symbols);
    put(storages);
    put(values);
    put(nodes);
    put(outputs);
    put(numerics);
  }

  [[nodiscard]] std::span<const char> bytes() const { return {room_.get(), used_}; }

 private:
  // Most of what is written has a few bytes, of a number that the compiler knows.
  void append(const void* from, size_t bytes) {
    if (room_bytes_ - used_ < bytes) grow(bytes);
    std::memcpy(room_.get() + used_, from, bytes);
    used_ += bytes;
  }
  void grow(size_t bytes) {
    room_bytes_ = std::max(2 * room_bytes_, used_ + bytes);
    auto room = std::make_unique_for_overwrite<char[]>(room_bytes_);
    std::memcpy(room.get(), room_.get(), used_);
    room_ = std::move(room);
  }

  template <typename T>
  requires(std::integral<T> || std::is_enum_v<T>) void put(T number) {
    append(&number, sizeof number);
  }
  void put(double number) { put(std::bit_cast<uint64_t>(number)); }

  void put(const std::string& text) {
    put(text.size());
    append(text.data(), text.size());
  }

  template <typename T>
  void put(const std::vector<T>& items) {
    put(items.size());
    for (const T& item : items) put(item);
  }
  void put(const std::vector<bool>& items) {
    put(items.size());
    for (const bool item : items) put(item);
  }

  void put(const Term& term) {
    const auto& [symbol, coefficient] = term;
    put(symbol);
    put(coefficient);
  }
  void put(const Expr& expr) {
    const auto& [constant, terms] = expr;
    put(constant);
    put(terms);
  }
  void put(const Symbol& symbol) {
    const auto& [name, min, max, role] = symbol;
    put(name);
    put(min);
    put(max);
    put(role);
  }
  void put(const Storage& storage) {
    const auto& [kind, name, role, layer, part, is_declared] = storage;
    put(kind);
    put(name);
    put(role);
    put(layer);
    put(part);
    put(is_declared);
  }
  void put(const Value& value) {
    const auto& [name, storage, dtype, sizes, strides, offset, claims_sizes, criticality] = value;
    put(name);
    put(storage);
    put(dtype);
    put(sizes);
    put(strides);
    put(offset);
    put(claims_sizes);
    put(criticality);
  }

  void put(const None&) {}
  void put(const ValueRef& ref) { put(ref.id); }
  void put(const std::optional<ValueId>& id) {
    put(id.has_value());
    put(id.value_or(0));
  }
  void put(const ValueList& list) { put(list.ids); }
  void put(const ExprList& list) { put(list.items); }
  void put(const DoubleList& list) { put(list.items); }
  void put(const BoolList& list) { put(list.items); }
  void put(const Argument& argument) {
    const auto& [name, value] = argument;
    put(name);
    put(value.index());
    std::visit([this](const auto& alternative) { put(alternative); }, value);
  }

  void put(const Annotation& note) {
    const auto& [module_path, role, phase, residency, modality, flops, bytes, group, priority] =
        note;
    put(module_path);
    put(role);
    put(phase);
    put(residency);
    put(modality);
    put(flops);
    put(bytes);
    put(group);
    put(priority);
  }
  void put(const Node& node) {
    const auto& [op, arguments, outputs, annotation] = node;
    put(op);
    put(arguments);
    put(outputs);
    put(annotation);
  }

  size_t room_bytes_ = 4096;
  std::unique_ptr<char[]> room_ = std::make_unique_for_overwrite<char[]>(room_bytes_);
  size_t used_ = 0;
};

}  // namespace

Fingerprint fingerprint_of(const Graph& graph) {
  Writer writer;
  writer.graph(graph);
  const XXH128_hash_t hash = XXH3_128bits(writer.bytes().data(), writer.bytes().size());
  return {hash.high64, hash.low64};
}

}  // namespace djinn::srg
