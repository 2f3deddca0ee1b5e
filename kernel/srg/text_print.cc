// SPDX-License-Identifier: Apache-2.0

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <span>

#include "kernel/srg/expr.h"
#include "kernel/srg/names.h"
#include "kernel/srg/text.h"

namespace djinn::srg {
namespace {

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte >= 0x7f) {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

// Tells whether a value's name needs no quotes: [A-Za-z_][A-Za-z0-9_.]*
bool is_plain_name(std::string_view name) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  return !name.empty() && is_letter(name[0]) && std::all_of(name.begin(), name.end(), [&](char c) {
    return is_letter(c) || c == '.' || (c >= '0' && c <= '9');
  });
}

// Gives the shortest text that reads back as this double, and never as an integer.
std::string text_of(double number) {
  if (std::isnan(number)) return "nan";
  std::string text = fmt::format("{}", number);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

class Printer {
 public:
  explicit Printer(const Graph& graph) : graph_(graph) {}

  std::string run() {
    add("srg 1 {}", quoted(graph_.name));
    if (graph_.numerics != Numerics::kExact) {
      add(" numerics {}", quoted(name_of(graph_.numerics)));
    }
    out_ += '\n';
    for (const Symbol& symbol : graph_.symbols) print(symbol);
    for (const Node& node : graph_.nodes) {
      print_values_before(first_number_of(node));
      print(node);
    }
    print_values_before(graph_.values.size());
    print_storages_before(graph_.storages.size());
    print_outputs();
    return std::move(out_);
  }

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }

  // Gives the number up to which values on storages are printed before the node: its first output,
  // or, if it has no outputs, the last value that it uses.
  static uint64_t first_number_of(const Node& node) {
    if (!node.outputs.empty()) return node.outputs.front();
    uint64_t number = 0;
    for (const Argument& argument : node.arguments) {
      if (const auto* ref = std::get_if<ValueRef>(&argument.value)) {
        number = std::max<uint64_t>(number, uint64_t{ref->id} + 1);
      } else if (const auto* list = std::get_if<ValueList>(&argument.value)) {
        for (const auto& id : list->ids) {
          if (id) number = std::max<uint64_t>(number, uint64_t{*id} + 1);
        }
      }
    }
    return number;
  }

  void print_values_before(uint64_t end) {
    for (; next_value_ < std::min<uint64_t>(end, graph_.values.size()); ++next_value_) {
      const Value& value = graph_.values[next_value_];
      if (value.storage != kLocalStorage) print_view(static_cast<ValueId>(next_value_), value);
    }
  }

  void print_storages_before(uint64_t end) {
    for (; next_storage_ < std::min<uint64_t>(end, graph_.storages.size()); ++next_storage_) {
      out_ += "storage ";
      const Storage& storage = graph_.storages[next_storage_];
      print_kind(storage);
      if (storage.kind != StorageKind::kSequence) add(" {}", quoted(storage.name));
      print_buffer(storage);
      print_role(storage);
      out_ += '\n';
    }
  }

  // A weight with a contiguous view reads back as the whole tensor.
  [[nodiscard]] bool may_declare(const Value& value) const {
    const Storage& storage = graph_.storages[value.storage];
    const bool whole = value.strides.empty() && value.offset == Expr();
    return storage.kind != StorageKind::kWeight || storage.is_declared == whole;
  }

  // The first view of a storage declares it, if the storages before it are declared.
  void print_view(ValueId id, const Value& value) {
    print_storages_before(value.storage);
    const bool first = value.storage == next_storage_ && next_storage_ < graph_.storages.size();
    if (!first || !may_declare(value)) {
      if (first) print_storages_before(uint64_t{value.storage} + 1);
      add("view {} of ${} : ", reference(id), value.storage);
      print_type(value);
      out_ += '\n';
      return;
    }
    const Storage& storage = graph_.storages[next_storage_++];
    print_kind(storage);
    add(" {}", reference(id));
    const bool named = storage.kind != StorageKind::kSequence;
    if (named && (storage.name != value.name || value.name.empty())) {
      add(" {}", quoted(storage.name));
    }
    print_buffer(storage);
    out_ += " : ";
    print_type(value);
    print_role(storage);
    out_ += '\n';
  }

  void print_kind(const Storage& storage) {
    switch (storage.kind) {
      case StorageKind::kWeight:
        out_ += "weight";
        return;
      case StorageKind::kInput:
        out_ += "input";
        return;
      case StorageKind::kSequence:
        out_ += "sequence";
        return;
    }
    out_ += "unknown_kind";
  }

  void print_buffer(const Storage& storage) {
    if (storage.kind == StorageKind::kSequence) {
      add(" {} {}", name_of(storage.part), storage.layer);
    }
  }

  void print_role(const Storage& storage) {
    if (storage.role != InputRole::kUser) add(" role {}", name_of(storage.role));
  }

  void print(const Symbol& symbol) {
    add("symbol {} {}..{}", symbol.name, symbol.min, symbol.max);
    if (symbol.role != SymbolRole::kPlain) add(" {}", name_of(symbol.role));
    out_ += '\n';
  }

  void print_type(const Value& value) {
    out_ += value.dtype == DType::kInvalid ? "?" : name_of(value.dtype);
    if (value.storage != kLocalStorage || value.claims_sizes) print_exprs(value.sizes);
    if (!value.strides.empty()) {
      out_ += " strides ";
      print_exprs(value.strides);
    }
    if (value.offset != Expr()) add(" offset {}", text(value.offset));
    print_criticality(value);
  }

  void print_criticality(const Value& value) {
    if (value.criticality != 0) add(" criticality {}", value.criticality);
  }

  void print(const Node& node) {
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (i > 0) out_ += ", ";
      print_result(node.outputs[i]);
    }
    add("{}{}(", node.outputs.empty() ? "" : " = ", node.op);
    for (size_t i = 0; i < node.arguments.size(); ++i) {
      if (i > 0) out_ += ", ";
      if (!node.arguments[i].name.empty()) add("{}=", node.arguments[i].name);
      std::visit([this](const auto& value) { print_argument(value); }, node.arguments[i].value);
    }
    out_ += ')';
    print(node.annotation);
    out_ += '\n';
  }

  void print_result(ValueId id) {
    out_ += reference(id);
    if (id >= graph_.values.size()) return;
    const Value& value = graph_.values[id];
    if (value.dtype == DType::kInvalid && !value.claims_sizes) return print_criticality(value);
    out_ += " : ";
    print_type(value);
  }

  void print_argument(const None&) { out_ += "none"; }
  void print_argument(const ValueRef& ref) { out_ += reference(ref.id); }
  void print_argument(const Expr& expr) { out_ += text(expr); }
  void print_argument(const ExprList& list) { print_exprs(list.items); }
  void print_argument(double number) { out_ += text_of(number); }
  void print_argument(bool flag) { out_ += flag ? "true" : "false"; }
  void print_argument(const std::string& string) { out_ += quoted(string); }
  void print_argument(DType dtype) { out_ += name_of(dtype); }

  void print_argument(const ValueList& list) {
    if (list.ids.empty()) out_ += "values";
    print_items(list.ids, [this](const std::optional<ValueId>& id) {
      return id ? reference(*id) : std::string("none");
    });
  }

  void print_argument(const DoubleList& list) {
    if (list.items.empty()) out_ += "doubles";
    print_items(list.items, [](double number) { return text_of(number); });
  }

  void print_argument(const BoolList& list) {
    if (list.items.empty()) out_ += "bools";
    print_items(list.items, [](bool flag) { return flag ? "true" : "false"; });
  }

  void print_exprs(const std::vector<Expr>& exprs) {
    print_items(exprs, [this](const Expr& expr) { return text(expr); });
  }

  template <typename Items, typename Text>
  void print_items(const Items& items, Text text) {
    out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += ", ";
      out_ += text(items[i]);
    }
    out_ += ']';
  }

  void print(const Annotation& note) {
    const Annotation plain;
    if (note == plain) return;
    std::vector<std::string> fields;
    if (!note.module_path.empty()) fields.push_back("module " + quoted(note.module_path));
    if (!note.role.empty()) fields.push_back("role " + quoted(note.role));
    if (note.phase != plain.phase) fields.push_back(fmt::format("phase {}", name_of(note.phase)));
    if (note.residency != plain.residency) {
      fields.push_back(fmt::format("residency {}", name_of(note.residency)));
    }
    if (note.modality != plain.modality) {
      fields.push_back(fmt::format("modality {}", name_of(note.modality)));
    }
    if (note.flops != 0) fields.push_back(fmt::format("flops {}", note.flops));
    if (note.bytes != 0) fields.push_back(fmt::format("bytes {}", note.bytes));
    if (note.colocation_group != 0) {
      fields.push_back(fmt::format("group {}", note.colocation_group));
    }
    if (note.priority != 0) fields.push_back(fmt::format("priority {}", note.priority));
    add(" {{{}}}", fmt::join(fields, ", "));
  }

  void print_outputs() {
    if (graph_.outputs.empty()) return;
    out_ += "output ";
    for (size_t i = 0; i < graph_.outputs.size(); ++i) {
      add("{}{}", i > 0 ? ", " : "", reference(graph_.outputs[i]));
    }
    out_ += '\n';
  }

  [[nodiscard]] std::string reference(ValueId id) const {
    const bool named = id < graph_.values.size() && !graph_.values[id].name.empty();
    if (!named) return fmt::format("%{}", id);
    const std::string& name = graph_.values[id].name;
    return "%" + (is_plain_name(name) ? name : quoted(name));
  }

  [[nodiscard]] std::string text(const Expr& expr) const {
    return srg::text_of(expr, graph_.symbols);
  }

  const Graph& graph_;
  std::string out_;
  size_t next_value_ = 0;    // values on storages below are printed
  size_t next_storage_ = 0;  // storages below are declared
};

}  // namespace

std::string print_text(const Graph& graph) {
  return Printer(graph).run();
}

}  // namespace djinn::srg
