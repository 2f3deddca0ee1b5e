// SPDX-License-Identifier: Apache-2.0

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "kernel/srg/expr.h"
#include "kernel/srg/lexer.h"
#include "kernel/srg/limits.h"
#include "kernel/srg/names.h"
#include "kernel/srg/text.h"
#include "kernel/srg/verify.h"

namespace djinn::srg {
namespace {

constexpr size_t kTokenShownBytes = 40;  // of a token in a message

// Gives the token as messages show it: printable and short.
std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kEnd:
      return "the end of the text";
    case TokenKind::kNewline:
      return "the end of the line";
    case TokenKind::kInteger:
      return fmt::format("the integer {}", token.integer);
    case TokenKind::kDouble:
      return fmt::format("the number {}", token.number);
    case TokenKind::kString:
      return "a text in quotes";
    case TokenKind::kRange:
      return "'..'";
    case TokenKind::kReference:
      if (token.quoted) return "a value's name in quotes";
      return "'%" + token.text.substr(0, kTokenShownBytes) + "'";
    case TokenKind::kWord:
    case TokenKind::kSign:
      break;
  }
  return "'" + token.text.substr(0, kTokenShownBytes) + "'";
}

// Gives the number in a reference such as %12; nothing for a name.
std::optional<uint64_t> number_of(const Token& reference) {
  if (reference.quoted || reference.text[0] < '0' || reference.text[0] > '9') return std::nullopt;
  uint64_t number = 0;
  for (const char c : reference.text) {
    if (c < '0' || c > '9' || number > UINT32_MAX) return UINT64_MAX;
    number = number * 10 + static_cast<uint64_t>(c - '0');
  }
  return number;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : lexer_(text) {}

  Result<Graph> run() {
    DJINN_CHECK(advance());
    DJINN_CHECK(advance());
    DJINN_CHECK(skip_newlines());
    DJINN_CHECK(parse_header());
    while (true) {
      DJINN_CHECK(skip_newlines());
      if (token_.kind == TokenKind::kEnd) return std::move(graph_);
      DJINN_CHECK(parse_statement());
      if (token_.kind == TokenKind::kEnd) continue;
      if (token_.kind != TokenKind::kNewline) return expected("the end of the line");
    }
  }

 private:
  // --- tokens: token_ is the current one, next_ the one after it.

  Status advance() {
    token_ = std::move(next_);
    DJINN_TRY(next_, lexer_.next());
    return {};
  }

  Status skip_newlines() {
    while (token_.kind == TokenKind::kNewline) DJINN_CHECK(advance());
    return {};
  }

  [[nodiscard]] Error expected(std::string_view what) const {
    return error_at(token_, fmt::format("Expected {}, found {}.", what, describe(token_)));
  }

  [[nodiscard]] bool is_sign(char sign) const {
    return token_.kind == TokenKind::kSign && token_.text[0] == sign;
  }
  [[nodiscard]] bool is_word(std::string_view word) const {
    return token_.kind == TokenKind::kWord && token_.text == word;
  }
  [[nodiscard]] bool next_is_sign(char sign) const {
    return next_.kind == TokenKind::kSign && next_.text[0] == sign;
  }

  Status take_sign(char sign) {
    if (!is_sign(sign)) return expected(fmt::format("'{}'", sign));
    return advance();
  }

  // Takes the sign or word if it is there.
  Result<bool> try_sign(char sign) {
    if (!is_sign(sign)) return false;
    DJINN_CHECK(advance());
    return true;
  }
  Result<bool> try_word(std::string_view word) {
    if (!is_word(word)) return false;
    DJINN_CHECK(advance());
    return true;
  }

  Result<std::string> take_text(TokenKind kind, std::string_view what) {
    if (token_.kind != kind) return expected(what);
    std::string text = std::move(token_.text);
    DJINN_CHECK(advance());
    return text;
  }
  Result<std::string> take_word(std::string_view what) { return take_text(TokenKind::kWord, what); }
  Result<std::string> take_string() { return take_text(TokenKind::kString, "a text in quotes"); }

  Result<uint64_t> take_unsigned(uint64_t max) {
    if (token_.kind != TokenKind::kInteger) return expected("an integer of 0 or more");
    if (token_.integer > max) return expected(fmt::format("an integer of at most {}", max));
    const uint64_t value = token_.integer;
    DJINN_CHECK(advance());
    return value;
  }

  Result<int64_t> take_signed() {
    DJINN_TRY(bool negative, try_sign('-'));
    const uint64_t limit = uint64_t{INT64_MAX} + (negative ? 1 : 0);
    DJINN_TRY(uint64_t magnitude, take_unsigned(limit));
    return static_cast<int64_t>(negative ? uint64_t{0} - magnitude : magnitude);
  }

  template <typename Enum>
  Result<Enum> take_name(std::string_view what) {
    const auto value = from_name<Enum>(token_.text);
    if (token_.kind != TokenKind::kWord || !value) return expected(what);
    DJINN_CHECK(advance());
    return *value;
  }

  // --- statements

  Status parse_header() {
    if (!is_word("srg")) return expected("'srg 1 \"name\"' on the first line");
    DJINN_CHECK(advance());
    if (token_.kind != TokenKind::kInteger || token_.integer != 1) {
      return expected("version 1 of the text form");
    }
    DJINN_CHECK(advance());
    DJINN_TRY(graph_.name, take_string());
    if (is_word("numerics")) DJINN_CHECK(parse_numerics());
    if (token_.kind == TokenKind::kNewline || token_.kind == TokenKind::kEnd) return {};
    return expected("the end of the line");
  }

  Status parse_numerics() {
    DJINN_CHECK(advance());
    const Token at = token_;
    DJINN_TRY(const std::string name, take_string());
    const auto numerics = from_name<Numerics>(name);
    if (!numerics) {
      return error_at(at, "There are the numerics \"exact\", \"fast\" and \"fast-only\".");
    }
    graph_.numerics = *numerics;
    return {};
  }

  Status parse_statement() {
    if (token_.kind == TokenKind::kReference) return parse_node();
    if (token_.kind != TokenKind::kWord) return expected("a statement");
    if (next_is_sign('(')) return parse_node();
    DJINN_TRY(const std::string word, take_word("a statement"));
    if (word == "symbol") return parse_symbol();
    if (word == "storage") return parse_storage();
    if (word == "weight") return parse_viewed_storage(StorageKind::kWeight);
    if (word == "input") return parse_viewed_storage(StorageKind::kInput);
    if (word == "sequence") return parse_viewed_storage(StorageKind::kSequence);
    if (word == "view") return parse_view();
    if (word == "output") return parse_outputs();
    return expected(
        "one of symbol, storage, weight, input, sequence, view, output or an operator "
        "before this");
  }

  Status parse_symbol() {
    const Token at = token_;
    Symbol symbol;
    DJINN_TRY(symbol.name, take_word("a symbol's name"));
    DJINN_TRY(symbol.min, take_signed());
    if (token_.kind != TokenKind::kRange) return expected("'..' and the symbol's upper bound");
    DJINN_CHECK(advance());
    DJINN_TRY(symbol.max, take_signed());
    if (token_.kind == TokenKind::kWord) {
      DJINN_TRY(symbol.role,
                take_name<SymbolRole>("a symbol's role: batch, tokens, past, capacity"));
    }
    if (!is_identifier(symbol.name) || is_reserved_word(symbol.name)) {
      return error_at(at, "This word cannot name a symbol: it has a meaning of its own.");
    }
    const auto index = static_cast<SymbolIndex>(graph_.symbols.size());
    if (!symbols_.emplace(symbol.name, index).second) {
      return error_at(at, "This symbol is declared already. Rename one of them.");
    }
    graph_.symbols.push_back(std::move(symbol));
    return {};
  }

  static bool is_dense(const Value& value) {
    return value.strides.empty() && value.offset == Expr();
  }

  // Parses: storage weight "name"
  Status parse_storage() {
    Storage storage;
    DJINN_TRY(const std::string kind, take_word("weight, input or sequence"));
    if (kind == "sequence") {
      storage.kind = StorageKind::kSequence;
      DJINN_CHECK(parse_buffer(storage));
    } else if (kind == "weight" || kind == "input") {
      storage.kind = kind == "weight" ? StorageKind::kWeight : StorageKind::kInput;
      DJINN_TRY(storage.name, take_string());
      DJINN_CHECK(parse_role(storage));
    } else {
      return error_at(token_, "Before this, expected weight, input or sequence.");
    }
    graph_.storages.push_back(std::move(storage));
    return {};
  }

  Status parse_buffer(Storage& storage) {
    DJINN_TRY(storage.part, take_name<SequencePart>("key or value"));
    DJINN_TRY(uint64_t layer, take_unsigned(UINT32_MAX));
    storage.layer = static_cast<uint32_t>(layer);
    return {};
  }

  Status parse_role(Storage& storage) {
    DJINN_TRY(bool has_role, try_word("role"));
    if (!has_role) return {};
    DJINN_TRY(storage.role,
              take_name<InputRole>("an input's role: token_ids, positions, attention_mask"));
    return {};
  }

  // Parses: weight %w "name" : type
  Status parse_viewed_storage(StorageKind kind) {
    Storage storage;
    storage.kind = kind;
    Value value;
    DJINN_CHECK(parse_new_name(value));
    if (kind == StorageKind::kSequence) {
      DJINN_CHECK(parse_buffer(storage));
    } else if (token_.kind == TokenKind::kString) {
      DJINN_TRY(storage.name, take_string());
    } else if (!value.name.empty()) {
      storage.name = value.name;
    } else {
      return expected("the storage's name in quotes");
    }
    value.storage = static_cast<StorageIndex>(graph_.storages.size());
    DJINN_CHECK(take_sign(':'));
    DJINN_CHECK(parse_view_type(value));
    DJINN_CHECK(parse_role(storage));
    storage.is_declared = kind == StorageKind::kWeight && is_dense(value);
    graph_.storages.push_back(std::move(storage));
    graph_.values.push_back(std::move(value));
    return {};
  }

  // Parses: view %v of $3 : type, or view %v of %x : type
  Status parse_view() {
    Value value;
    DJINN_CHECK(parse_new_name(value));
    DJINN_TRY(bool has_of, try_word("of"));
    if (!has_of) return expected("'of' and a storage");
    DJINN_TRY(value.storage, parse_storage_reference());
    DJINN_CHECK(take_sign(':'));
    DJINN_CHECK(parse_view_type(value));
    graph_.values.push_back(std::move(value));
    return {};
  }

  Result<StorageIndex> parse_storage_reference() {
    const Token at = token_;
    DJINN_TRY(bool by_number, try_sign('$'));
    if (by_number) {
      DJINN_TRY(uint64_t index, take_unsigned(UINT32_MAX));
      if (index < graph_.storages.size()) return static_cast<StorageIndex>(index);
      return error_at(at, fmt::format("There are only {} storages so far; they are counted from 0.",
                                      graph_.storages.size()));
    }
    if (token_.kind != TokenKind::kReference)
      return expected("'$' and a storage's number, or a value");
    DJINN_TRY(ValueId id, parse_reference());
    if (graph_.values[id].storage != kLocalStorage) return graph_.values[id].storage;
    return error_at(at,
                    "This value is made by a node. Only views of a storage have further views; "
                    "use a view operator such as aten::view.");
  }

  Status parse_view_type(Value& value) {
    DJINN_CHECK(parse_type(value));
    if (value.claims_sizes) {
      value.claims_sizes = false;
      return {};
    }
    return expected("the sizes in brackets");
  }

  // Parses: float32[tokens, 384] strides [..] offset 3 criticality 9. claims_sizes tells that there
  // were sizes.
  Status parse_type(Value& value) {
    DJINN_TRY(bool open, try_sign('?'));
    if (!open) {
      const auto dtype = dtype_from_name(token_.text);
      if (token_.kind != TokenKind::kWord || !dtype) return expected("a dtype, such as float32");
      value.dtype = *dtype;
      DJINN_CHECK(advance());
    }
    if (is_sign('[')) {
      DJINN_TRY(value.sizes, parse_exprs());
      value.claims_sizes = true;
    }
    DJINN_TRY(bool has_strides, try_word("strides"));
    if (has_strides) {
      DJINN_TRY(value.strides, parse_exprs());
    }
    DJINN_TRY(bool has_offset, try_word("offset"));
    if (has_offset) {
      DJINN_TRY(value.offset, parse_expr());
    }
    return parse_criticality(value);
  }

  Status parse_criticality(Value& value) {
    DJINN_TRY(bool present, try_word("criticality"));
    if (!present) return {};
    DJINN_TRY(uint64_t criticality, take_unsigned(UINT8_MAX));
    value.criticality = static_cast<uint8_t>(criticality);
    return {};
  }

  Status parse_outputs() {
    while (true) {
      if (token_.kind != TokenKind::kReference) return expected("a value");
      DJINN_TRY(ValueId id, parse_reference());
      graph_.outputs.push_back(id);
      DJINN_TRY(bool more, try_sign(','));
      if (!more) return {};
    }
  }

  // --- nodes

  Status parse_node() {
    Node node;
    std::vector<Value> results;
    std::vector<Token> names;
    if (token_.kind == TokenKind::kReference) DJINN_CHECK(parse_results(results, names));
    if (!is_operator_name(token_.text) || token_.kind != TokenKind::kWord) {
      return expected("an operator, such as aten::add.Tensor");
    }
    DJINN_TRY(node.op, take_word("an operator"));
    DJINN_CHECK(parse_arguments(node));
    if (is_sign('{')) DJINN_CHECK(parse_annotation(node.annotation));
    // Results get their names only now, so that a node cannot use its own.
    for (size_t i = 0; i < results.size(); ++i) {
      DJINN_CHECK(bind_name(names[i], results[i]));
      node.outputs.push_back(static_cast<ValueId>(graph_.values.size()));
      graph_.values.push_back(std::move(results[i]));
    }
    graph_.nodes.push_back(std::move(node));
    return {};
  }

  Status parse_results(std::vector<Value>& results, std::vector<Token>& names) {
    while (true) {
      if (token_.kind != TokenKind::kReference) return expected("a value");
      names.push_back(token_);
      DJINN_CHECK(advance());
      Value& value = results.emplace_back();
      DJINN_TRY(bool typed, try_sign(':'));
      DJINN_CHECK(typed ? parse_type(value) : parse_criticality(value));
      DJINN_TRY(bool more, try_sign(','));
      if (!more) return take_sign('=');
    }
  }

  Status parse_new_name(Value& value) {
    if (token_.kind != TokenKind::kReference) return expected("a value's name");
    DJINN_CHECK(bind_name(token_, value));
    return advance();
  }

  // Gives the next value its name. If the reference is a number, it must be the value's own.
  Status bind_name(const Token& reference, Value& value) {
    const auto id = static_cast<ValueId>(graph_.values.size());
    if (const auto number = number_of(reference)) {
      if (*number == id) return {};
      return error_at(reference,
                      fmt::format("This is value {}. Write %{}, or give it a name.", id, id));
    }
    value.name = reference.text;
    if (values_.emplace(value.name, id).second) return {};
    return error_at(reference, "This name is taken by an earlier value. Rename one of them.");
  }

  Result<ValueId> parse_reference() {
    const Token at = token_;
    DJINN_CHECK(advance());
    if (const auto number = number_of(at)) {
      if (*number < graph_.values.size()) return static_cast<ValueId>(*number);
    } else if (const auto known = values_.find(at.text); known != values_.end()) {
      // A name that is being defined is known before its value, so the value's number is compared.
      if (known->second < graph_.values.size()) return known->second;
    }
    return error_at(at,
                    "This value is not defined before its use. Define it above, or correct its "
                    "name.");
  }

  Status parse_arguments(Node& node) {
    DJINN_CHECK(take_sign('('));
    while (!is_sign(')')) {
      Argument argument;
      if (token_.kind == TokenKind::kWord && next_is_sign('=')) {
        argument.name = token_.text;
        DJINN_CHECK(advance());
        DJINN_CHECK(advance());
      }
      DJINN_TRY(argument.value, parse_argument_value());
      node.arguments.push_back(std::move(argument));
      DJINN_TRY(bool more, try_sign(','));
      if (!more && !is_sign(')')) return expected("',' or ')'");
    }
    return advance();
  }

  Result<ArgumentValue> parse_argument_value() {
    if (token_.kind == TokenKind::kReference) {
      DJINN_TRY(ValueId id, parse_reference());
      return ArgumentValue(ValueRef{id});
    }
    if (token_.kind == TokenKind::kString) {
      DJINN_TRY(std::string text, take_string());
      return ArgumentValue(std::move(text));
    }
    if (is_sign('[')) return parse_list();
    if (token_.kind == TokenKind::kWord && next_is_sign('[')) return parse_empty_list();
    if (is_double()) {
      DJINN_TRY(double number, parse_double());
      return ArgumentValue(number);
    }
    if (token_.kind == TokenKind::kWord) {
      if (auto constant = constant_of(token_.text)) {
        DJINN_CHECK(advance());
        return *std::move(constant);
      }
    }
    DJINN_TRY(Expr expr, parse_expr());
    return ArgumentValue(std::move(expr));
  }

  static std::optional<ArgumentValue> constant_of(std::string_view word) {
    if (word == "none") return ArgumentValue(None{});
    if (word == "true") return ArgumentValue(true);
    if (word == "false") return ArgumentValue(false);
    if (const auto dtype = dtype_from_name(word)) return ArgumentValue(*dtype);
    return std::nullopt;
  }

  // Parses values[], doubles[] and bools[]: lists that have no item to tell their kind.
  Result<ArgumentValue> parse_empty_list() {
    const Token at = token_;
    DJINN_CHECK(advance());
    DJINN_CHECK(take_sign('['));
    DJINN_CHECK(take_sign(']'));
    if (at.text == "values") return ArgumentValue(ValueList{});
    if (at.text == "doubles") return ArgumentValue(DoubleList{});
    if (at.text == "bools") return ArgumentValue(BoolList{});
    return error_at(at, "Expected values[], doubles[] or bools[].");
  }

  // The first item tells the kind of the list.
  Result<ArgumentValue> parse_list() {
    const bool word = next_.kind == TokenKind::kWord;
    if (next_.kind == TokenKind::kReference || (word && next_.text == "none")) {
      DJINN_TRY(auto ids, parse_items([this] { return parse_entry(); }));
      return ArgumentValue(ValueList{std::move(ids)});
    }
    if (word && (next_.text == "true" || next_.text == "false")) {
      DJINN_TRY(auto flags, parse_items([this] { return parse_bool(); }));
      return ArgumentValue(BoolList{std::move(flags)});
    }
    DJINN_CHECK(take_sign('['));
    if (is_double()) {
      DJINN_TRY(auto numbers, parse_rest([this] { return parse_double(); }));
      return ArgumentValue(DoubleList{std::move(numbers)});
    }
    DJINN_TRY(auto exprs, parse_rest([this] { return parse_expr(); }));
    return ArgumentValue(ExprList{std::move(exprs)});
  }

  Result<std::vector<Expr>> parse_exprs() {
    return parse_items([this] { return parse_expr(); });
  }

  template <typename Item>
  auto parse_items(Item item) -> Result<std::vector<typename decltype(item())::Value>> {
    DJINN_CHECK(take_sign('['));
    return parse_rest(item);
  }

  // Parses a list after its '['.
  template <typename Item>
  auto parse_rest(Item item) -> Result<std::vector<typename decltype(item())::Value>> {
    std::vector<typename decltype(item())::Value> items;
    while (!is_sign(']')) {
      DJINN_TRY(auto next, item());
      items.push_back(std::move(next));
      DJINN_TRY(bool more, try_sign(','));
      if (!more && !is_sign(']')) return expected("',' or ']'");
    }
    DJINN_CHECK(advance());
    return items;
  }

  Result<std::optional<ValueId>> parse_entry() {
    DJINN_TRY(bool empty, try_word("none"));
    if (empty) return std::optional<ValueId>();
    if (token_.kind != TokenKind::kReference) return expected("a value or none");
    DJINN_TRY(ValueId id, parse_reference());
    return std::optional<ValueId>(id);
  }

  Result<bool> parse_bool() {
    if (!is_word("true") && !is_word("false")) return expected("true or false");
    const bool flag = is_word("true");
    DJINN_CHECK(advance());
    return flag;
  }

  static bool is_unsigned_double(const Token& token) {
    return token.kind == TokenKind::kDouble ||
           (token.kind == TokenKind::kWord && (token.text == "inf" || token.text == "nan"));
  }

  [[nodiscard]] bool is_double() const { return is_unsigned_double(is_sign('-') ? next_ : token_); }

  Result<double> parse_double() {
    if (!is_double()) return expected("a number with a point or an exponent, inf or nan");
    DJINN_TRY(bool negative, try_sign('-'));
    double number = token_.number;
    if (is_word("inf")) number = std::numeric_limits<double>::infinity();
    if (is_word("nan")) return parse_nan();
    DJINN_CHECK(advance());
    return negative ? -number : number;
  }

  // All NaNs are one, whatever sign stands before them.
  Result<double> parse_nan() {
    DJINN_CHECK(advance());
    return std::numeric_limits<double>::quiet_NaN();
  }

  // --- expressions: [-] term {(+|-) term}; term: integer, symbol, or both with '*' between.

  Result<Expr> parse_expr() {
    const Token at = token_;
    DJINN_TRY(bool negative, try_sign('-'));
    DJINN_TRY(Expr sum, parse_term(negative));
    while (is_sign('+') || is_sign('-')) {
      negative = is_sign('-');
      DJINN_CHECK(advance());
      DJINN_TRY(Expr term, parse_term(negative));
      sum = add(sum, term);
    }
    if (is_canonical(sum)) return sum;
    return error_at(at, "This expression leaves the range of 64-bit integers.");
  }

  Result<Expr> parse_term(bool negative) {
    if (token_.kind == TokenKind::kWord) {
      DJINN_TRY(Expr symbol, parse_symbol_use());
      DJINN_TRY(bool times, try_sign('*'));
      if (!times) return mul(symbol, negative ? -1 : 1);
      DJINN_TRY(int64_t factor, parse_factor(negative));
      return mul(symbol, factor);
    }
    DJINN_TRY(int64_t factor, parse_factor(negative));
    DJINN_TRY(bool times, try_sign('*'));
    if (!times) return Expr(factor);
    DJINN_TRY(Expr symbol, parse_symbol_use());
    return mul(symbol, factor);
  }

  Result<int64_t> parse_factor(bool negative) {
    if (token_.kind != TokenKind::kInteger) return expected("an integer or a symbol");
    DJINN_TRY(uint64_t magnitude, take_unsigned(uint64_t{INT64_MAX} + (negative ? 1 : 0)));
    return static_cast<int64_t>(negative ? uint64_t{0} - magnitude : magnitude);
  }

  Result<Expr> parse_symbol_use() {
    if (token_.kind != TokenKind::kWord) return expected("a symbol");
    const auto known = symbols_.find(token_.text);
    if (known == symbols_.end()) {
      return error_at(token_, fmt::format("There is no symbol {}. Declare it above with 'symbol "
                                          "NAME MIN..MAX'.",
                                          describe(token_)));
    }
    DJINN_CHECK(advance());
    return symbol_expr(known->second);
  }

  // --- annotations: {role "mlp", phase decode}

  Status parse_annotation(Annotation& note) {
    DJINN_CHECK(take_sign('{'));
    while (!is_sign('}')) {
      DJINN_TRY(const std::string field, take_word("an annotation"));
      DJINN_CHECK(parse_field(field, note));
      DJINN_TRY(bool more, try_sign(','));
      if (!more && !is_sign('}')) return expected("',' or '}'");
    }
    return advance();
  }

  Status parse_field(std::string_view field, Annotation& note) {
    if (field == "module") return store(take_string(), note.module_path);
    if (field == "role") return store(take_string(), note.role);
    if (field == "phase") return store(take_name<Phase>("a phase"), note.phase);
    if (field == "residency") return store(take_name<Residency>("a residency"), note.residency);
    if (field == "modality") return store(take_name<Modality>("a modality"), note.modality);
    if (field == "flops") return store(take_unsigned(UINT64_MAX), note.flops);
    if (field == "bytes") return store(take_unsigned(UINT64_MAX), note.bytes);
    if (field == "group") return store(take_unsigned(UINT32_MAX), note.colocation_group);
    if (field == "priority") return parse_priority(note);
    return expected(
        "one of module, role, phase, residency, modality, flops, bytes, group, priority "
        "before this");
  }

  Status parse_priority(Annotation& note) {
    const Token at = token_;
    DJINN_TRY(int64_t priority, take_signed());
    if (priority < INT32_MIN || priority > INT32_MAX) {
      return error_at(at, "A priority has 32 bits.");
    }
    note.priority = static_cast<int32_t>(priority);
    return {};
  }

  template <typename T, typename U>
  static Status store(Result<T> result, U& out) {
    if (!result) return std::move(result).error();
    out = static_cast<U>(*std::move(result));
    return {};
  }

  Lexer lexer_;
  Token token_;
  Token next_;
  Graph graph_;
  std::map<std::string, SymbolIndex, std::less<>> symbols_;
  std::unordered_map<std::string, ValueId> values_;
};

}  // namespace

Result<Graph> parse_text(std::string_view text) {
  if (text.size() > limits::kSourceBytes) {
    return Error{ErrorCode::kLimitExceeded, fmt::format("The text has {} bytes; the limit is {}.",
                                                        text.size(), limits::kSourceBytes)};
  }
  return Parser(text).run();
}

}  // namespace djinn::srg
