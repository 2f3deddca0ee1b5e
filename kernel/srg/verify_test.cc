// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/verify.h"

#include <gtest/gtest.h>

#include "kernel/srg/limits.h"
#include "kernel/srg/test_graphs.h"
#include "kernel/srg/text.h"

namespace djinn::srg {
namespace {

// Storages: 0 input x, 1 input ids, 2 input mask, 3 weight w, 4 keys of layer 0. Values 0 to 4 view
// them; node 0 makes 5 from 0 and 3, node 1 makes nothing from 4 and 5, node 2 makes 6 and 7 of 5.
Graph verified_graph() {
  auto graph = parse_text(R"(srg 1 "good"
symbol tokens 1..512 tokens
symbol past 0..1024 past
input %x : float32[tokens, 8]
input %ids : int64[1, tokens] role token_ids
input %mask : bool[1, 1, tokens, past + tokens] role attention_mask
weight %w : float32[8, 8]
sequence %k key 0 : float32[1, 2, 64, 8]
%5 : float32[tokens, 8] = aten::linear(%x, %w, none, scale=1.0, sizes=[tokens, 8])
djinn::kv_append(%k, [%5, none], past)
%6, %7 = aten::split(%5, 4, "text", float32)
output %6
)");
  return *std::move(graph);
}

struct BadGraph {
  const char* what;
  ErrorCode code;
  void (*damage)(Graph&);
};

void PrintTo(const BadGraph& bad, std::ostream* out) {
  *out << bad.what;
}

class Verify : public ::testing::TestWithParam<BadGraph> {};

TEST_P(Verify, refuses_a_damaged_graph_with_its_code) {
  Graph graph = verified_graph();
  GetParam().damage(graph);
  const auto status = verify(graph);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, GetParam().code) << status.error().message;
  EXPECT_LT(status.error().message.size(), 257u);
  EXPECT_FALSE(print_text(graph).empty());
}

Expr raw_expr(int64_t constant, std::vector<Term> terms) {
  Expr expr(constant);
  expr.terms = std::move(terms);
  return expr;
}

Expr& size_argument(Graph& g) {
  return std::get<ExprList>(g.nodes[0].arguments[4].value).items[0];
}

template <typename T>
void repeat(std::vector<T>& items, size_t count) {
  items.resize(count, T(items.front()));
}

constexpr auto kLimit = ErrorCode::kLimitExceeded;
constexpr auto kMalformed = ErrorCode::kMalformed;
constexpr auto kOutOfRange = ErrorCode::kOutOfRange;
constexpr auto kTwice = ErrorCode::kAlreadyExists;
constexpr auto kContradiction = ErrorCode::kInvalidArgument;

const std::string kLong(limits::kNameBytes + 1, 'n');

constexpr BadGraph kTooMuch[] = {
    {"symbols", kLimit, [](Graph& g) { repeat(g.symbols, limits::kSymbols + 1); }},
    {"storages", kLimit, [](Graph& g) { repeat(g.storages, limits::kStorages + 1); }},
    {"values", kLimit, [](Graph& g) { repeat(g.values, limits::kValues + 1); }},
    {"nodes", kLimit, [](Graph& g) { repeat(g.nodes, limits::kNodes + 1); }},
    {"outputs", kLimit, [](Graph& g) { repeat(g.outputs, limits::kOutputs + 1); }},
    {"rank", kLimit, [](Graph& g) { repeat(g.values[0].sizes, limits::kRank + 1); }},
    {"stride rank", kLimit,
     [](Graph& g) { g.values[0].strides.assign(limits::kRank + 1, Expr(1)); }},
    {"layer", kLimit, [](Graph& g) { g.storages[4].layer = limits::kLayers; }},
    {"arguments", kLimit, [](Graph& g) { repeat(g.nodes[2].arguments, limits::kArguments + 1); }},
    {"node outputs", kLimit,
     [](Graph& g) { repeat(g.nodes[2].outputs, limits::kNodeOutputs + 1); }},
    {"list items", kLimit,
     [](Graph& g) {
       g.nodes[0].arguments[0].value = BoolList{std::vector<bool>(limits::kListItems + 1)};
     }},
    {"terms", kLimit,
     [](Graph& g) {
       size_argument(g).terms.assign(limits::kTerms + 1, Term{0, 1});
     }},
    {"items in all", kLimit,
     [](Graph& g) {
       g.nodes[1].arguments[0].value = BoolList{std::vector<bool>(limits::kListItems)};
       repeat(g.nodes[1].arguments, limits::kArguments);
       g.nodes.insert(g.nodes.begin() + 2, 100, g.nodes[1]);
       for (size_t i = 1; i < 102; ++i) {
         for (auto& a : g.nodes[i].arguments) a = g.nodes[1].arguments[0];
       }
     }},
    {"graph name", kLimit, [](Graph& g) { g.name = kLong; }},
    {"symbol name", kLimit, [](Graph& g) { g.symbols[0].name = kLong; }},
    {"storage name", kLimit, [](Graph& g) { g.storages[3].name = kLong; }},
    {"value name", kLimit, [](Graph& g) { g.values[0].name = kLong; }},
    {"argument name", kLimit, [](Graph& g) { g.nodes[0].arguments[3].name = kLong; }},
    {"operator name", kLimit, [](Graph& g) { g.nodes[0].op = "a::" + kLong; }},
    {"role", kLimit, [](Graph& g) { g.nodes[0].annotation.role = kLong; }},
    {"module", kLimit, [](Graph& g) { g.nodes[0].annotation.module_path = kLong; }},
    {"text argument", kLimit, [](Graph& g) {
       g.nodes[2].arguments[2].value = std::string(limits::kTextArgumentBytes + 1, 'x');
     }}};

INSTANTIATE_TEST_SUITE_P(Limits, Verify, ::testing::ValuesIn(kTooMuch));

constexpr BadGraph kBadForm[] = {
    {"control character in a name", kMalformed, [](Graph& g) { g.name = "a\x1b[2J"; }},
    {"symbol without a name", kMalformed, [](Graph& g) { g.symbols[0].name = ""; }},
    {"symbol named 1x", kMalformed, [](Graph& g) { g.symbols[0].name = "1x"; }},
    {"symbol named none", kMalformed, [](Graph& g) { g.symbols[0].name = "none"; }},
    {"symbol named int8", kMalformed, [](Graph& g) { g.symbols[0].name = "int8"; }},
    {"symbol role 9", kMalformed, [](Graph& g) { g.symbols[0].role = static_cast<SymbolRole>(9); }},
    {"storage kind 9", kMalformed,
     [](Graph& g) { g.storages[0].kind = static_cast<StorageKind>(9); }},
    {"input role 9", kMalformed, [](Graph& g) { g.storages[0].role = static_cast<InputRole>(9); }},
    {"part 9", kMalformed, [](Graph& g) { g.storages[4].part = static_cast<SequencePart>(9); }},
    {"weight without a name", kMalformed, [](Graph& g) { g.storages[3].name = ""; }},
    {"view without dtype", kMalformed, [](Graph& g) { g.values[0].dtype = DType::kInvalid; }},
    {"view of dtype 99", kMalformed, [](Graph& g) { g.values[0].dtype = static_cast<DType>(99); }},
    {"claim of dtype 99", kMalformed, [](Graph& g) { g.values[5].dtype = static_cast<DType>(99); }},
    {"terms out of order", kMalformed,
     [](Graph& g) {
       size_argument(g) = raw_expr(0, {{1, 1}, {0, 1}});
     }},
    {"term twice", kMalformed,
     [](Graph& g) {
       size_argument(g) = raw_expr(0, {{0, 1}, {0, 1}});
     }},
    {"zero coefficient", kMalformed,
     [](Graph& g) {
       size_argument(g) = raw_expr(0, {{0, 0}});
     }},
    {"operator without namespace", kMalformed, [](Graph& g) { g.nodes[0].op = "add"; }},
    {"operator with two dots", kMalformed, [](Graph& g) { g.nodes[0].op = "aten::a.b.c"; }},
    {"operator with a blank", kMalformed, [](Graph& g) { g.nodes[0].op = "aten::a b"; }},
    {"positional after named", kMalformed, [](Graph& g) { g.nodes[0].arguments[4].name = ""; }},
    {"argument name no identifier", kMalformed,
     [](Graph& g) { g.nodes[0].arguments[4].name = "a-b"; }},
    {"dtype argument 99", kMalformed,
     [](Graph& g) { g.nodes[2].arguments[3].value = static_cast<DType>(99); }},
    {"another NaN", kMalformed,
     [](Graph& g) { g.nodes[0].arguments[3].value = std::bit_cast<double>(0x7ff8000000000001); }},
    {"use before definition", kMalformed,
     [](Graph& g) { g.nodes[0].arguments[0].value = ValueRef{6}; }},
    {"use of its own output", kMalformed,
     [](Graph& g) { g.nodes[0].arguments[0].value = ValueRef{5}; }},
    {"use of a later view", kMalformed,
     [](Graph& g) {
       g.values.push_back(g.values[3]);
       g.values[8].name = "";
       g.nodes[0].arguments[1].value = ValueRef{8};
     }},
    {"defined twice", kMalformed, [](Graph& g) { g.nodes[1].outputs = {5}; }},
    {"never defined", kMalformed, [](Graph& g) { g.nodes[2].outputs = {6}; }},
    {"outputs in descending order", kMalformed,
     [](Graph& g) {
       g.nodes[2].outputs = {7, 6};
     }},
    {"outputs with a gap", kMalformed,
     [](Graph& g) {
       g.values.push_back(Value{});
       g.nodes[2].outputs = {6, 8};
     }},
    {"defines a view", kMalformed, [](Graph& g) { g.nodes[1].outputs = {4}; }},
    {"phase 9", kMalformed, [](Graph& g) { g.nodes[0].annotation.phase = static_cast<Phase>(9); }},
    {"residency 9", kMalformed,
     [](Graph& g) { g.nodes[0].annotation.residency = static_cast<Residency>(9); }},
    {"modality 9", kMalformed,
     [](Graph& g) { g.nodes[0].annotation.modality = static_cast<Modality>(9); }}};

INSTANTIATE_TEST_SUITE_P(Form, Verify, ::testing::ValuesIn(kBadForm));

constexpr BadGraph kBadRanges[] = {
    {"empty range", kOutOfRange, [](Graph& g) { g.symbols[0].min = 513; }},
    {"negative range", kOutOfRange, [](Graph& g) { g.symbols[0].min = -1; }},
    {"range too high", kOutOfRange, [](Graph& g) { g.symbols[0].max = limits::kSymbolMax + 1; }},
    {"storage", kOutOfRange, [](Graph& g) { g.values[0].storage = 5; }},
    {"symbol", kOutOfRange,
     [](Graph& g) {
       size_argument(g) = raw_expr(0, {{2, 1}});
     }},
    {"overflow at the bounds", kOutOfRange,
     [](Graph& g) {
       size_argument(g) = raw_expr(INT64_MAX, {{0, 1}});
     }},
    {"product overflows", kOutOfRange,
     [](Graph& g) {
       size_argument(g) = raw_expr(0, {{0, INT64_MAX / 2}});
     }},
    {"negative size", kOutOfRange, [](Graph& g) { g.values[0].sizes[0] = Expr(-1); }},
    {"size that can be negative", kOutOfRange,
     [](Graph& g) {
       g.values[0].sizes[0] = raw_expr(0, {{0, 1}, {1, -1}});
     }},
    {"negative stride", kOutOfRange,
     [](Graph& g) {
       g.values[0].strides = {Expr(-8), Expr(1)};
     }},
    {"negative offset", kOutOfRange, [](Graph& g) { g.values[0].offset = Expr(-1); }},
    {"tensor of 2^50 bytes", kOutOfRange,
     [](Graph& g) { g.values[0].sizes[0] = Expr(int64_t{1} << 45); }},
    {"reach by strides", kOutOfRange,
     [](Graph& g) {
       g.values[0].strides = {Expr(int64_t{1} << 45), Expr(1)};
     }},
    {"reach that overflows", kOutOfRange,
     [](Graph& g) {
       g.values[0].strides = {Expr(INT64_MAX), Expr(INT64_MAX)};
     }},
    {"claimed stride that is negative", kOutOfRange,
     [](Graph& g) { g.values[5].strides.assign(g.values[5].sizes.size(), Expr(-1)); }},
    {"claimed strides that reach too far", kOutOfRange,
     [](Graph& g) {
       g.values[5].strides.assign(g.values[5].sizes.size(), Expr(int64_t{1} << 46));
     }},
    {"reach by offset", kOutOfRange, [](Graph& g) { g.values[0].offset = Expr(INT64_MAX); }},
    {"argument value", kOutOfRange, [](Graph& g) { g.nodes[0].arguments[0].value = ValueRef{8}; }},
    {"list value", kOutOfRange,
     [](Graph& g) { g.nodes[1].arguments[1].value = ValueList{{{UINT32_MAX}}}; }},
    {"node output", kOutOfRange, [](Graph& g) { g.nodes[1].outputs = {8}; }},
    {"output", kOutOfRange, [](Graph& g) { g.outputs[0] = 8; }}};

INSTANTIATE_TEST_SUITE_P(Ranges, Verify, ::testing::ValuesIn(kBadRanges));

constexpr BadGraph kDuplicates[] = {
    {"symbol names", kTwice, [](Graph& g) { g.symbols[1].name = "tokens"; }},
    {"symbol roles", kTwice, [](Graph& g) { g.symbols[1].role = SymbolRole::kTokens; }},
    {"input names", kTwice, [](Graph& g) { g.storages[1].name = "x"; }},
    {"input roles", kTwice, [](Graph& g) { g.storages[2].role = InputRole::kTokenIds; }},
    {"weight names", kTwice, [](Graph& g) { g.storages.push_back(g.storages[3]); }},
    {"sequence buffers", kTwice, [](Graph& g) { g.storages.push_back(g.storages[4]); }},
    {"value names", kTwice, [](Graph& g) { g.values[5].name = "x"; }},
    {"argument names", kTwice, [](Graph& g) { g.nodes[0].arguments[4].name = "scale"; }},
    {"outputs", kTwice, [](Graph& g) {
       g.outputs = {6, 7, 6};
     }}};

INSTANTIATE_TEST_SUITE_P(Uniqueness, Verify, ::testing::ValuesIn(kDuplicates));

constexpr BadGraph kContradictions[] = {
    {"weight with a role", kContradiction,
     [](Graph& g) { g.storages[3].role = InputRole::kPositions; }},
    {"input with a layer", kContradiction, [](Graph& g) { g.storages[0].layer = 1; }},
    {"weight with a part", kContradiction,
     [](Graph& g) { g.storages[3].part = SequencePart::kValue; }},
    {"declared input", kContradiction, [](Graph& g) { g.storages[0].is_declared = true; }},
    {"declared weight without a view", kContradiction,
     [](Graph& g) {
       g.storages.push_back({.kind = StorageKind::kWeight, .name = "v"});
       g.storages.back().is_declared = true;
     }},
    {"weight that is declared late", kContradiction,
     [](Graph& g) { std::swap(g.values[3].storage, g.values[4].storage); }},
    {"weight declared whole with an offset", kContradiction,
     [](Graph& g) { g.values[3].offset = Expr(1); }},
    {"weight declared whole with strides", kContradiction,
     [](Graph& g) {
       g.values[3].strides = {Expr(1), Expr(8)};
     }},
    {"sequence with a name", kContradiction, [](Graph& g) { g.storages[4].name = "k"; }},
    {"strides without sizes", kContradiction, [](Graph& g) { g.values[0].strides = {Expr(1)}; }},
    {"view that claims", kContradiction, [](Graph& g) { g.values[0].claims_sizes = true; }},
    {"sizes without a claim", kContradiction, [](Graph& g) { g.values[5].claims_sizes = false; }},
    {"local value with an offset", kContradiction, [](Graph& g) { g.values[5].offset = Expr(1); }},
    {"token ids as float", kContradiction, [](Graph& g) { g.values[1].dtype = DType::kFloat32; }},
    {"token ids of rank 1", kContradiction, [](Graph& g) { g.values[1].sizes.pop_back(); }},
    {"mask of rank 2", kContradiction, [](Graph& g) { g.values[2].sizes.resize(2); }}};

INSTANTIATE_TEST_SUITE_P(Contradictions, Verify, ::testing::ValuesIn(kContradictions));

TEST(VerifyGood, the_undamaged_graphs_pass) {
  EXPECT_TRUE(verify(verified_graph()).ok());
  EXPECT_TRUE(verify(Graph{}).ok());
  EXPECT_TRUE(verify(testing::bert_like()).ok());
  EXPECT_TRUE(verify(testing::llama_like(512)).ok());
}

// One field somewhere gets a value that nobody meant.
class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  void mutate(Graph& g) {
    switch (random_.below(8)) {
      case 0:
        return mutate_symbol(g);
      case 1:
        return mutate_storage(g);
      case 2:
      case 3:
        return mutate_value(g);
      case 4:
      case 5:
        return mutate_node(g);
      case 6:
        g.outputs.push_back(index());
        return;
      default:
        return drop(g);
    }
  }

 private:
  uint32_t index() {
    return random_.below(8) == 0 ? static_cast<uint32_t>(random_.next())
                                 : static_cast<uint32_t>(random_.below(40));
  }
  int64_t integer() {
    static constexpr int64_t kSpecial[] = {0, 1, -1, INT64_MIN, INT64_MAX, int64_t{1} << 40};
    return kSpecial[random_.below(6)];
  }
  Expr expr() { return raw_expr(integer(), {{index(), integer()}, {index(), integer()}}); }
  template <typename T>
  T* pick(std::vector<T>& items) {
    return items.empty() ? nullptr : &items[random_.below(items.size())];
  }

  void mutate_symbol(Graph& g) {
    if (Symbol* symbol = pick(g.symbols)) {
      symbol->min = integer();
      if (random_.below(2) == 0) symbol->max = integer();
      if (random_.below(4) == 0) symbol->role = static_cast<SymbolRole>(random_.below(256));
    }
  }

  void mutate_storage(Graph& g) {
    if (Storage* storage = pick(g.storages)) {
      if (random_.below(2) == 0) storage->kind = static_cast<StorageKind>(random_.below(256));
      storage->layer = index();
      storage->part = static_cast<SequencePart>(random_.below(256));
    }
  }

  void mutate_value(Graph& g) {
    Value* value = pick(g.values);
    if (value == nullptr) return;
    switch (random_.below(6)) {
      case 0:
        value->storage = random_.below(2) == 0 ? kLocalStorage : index();
        return;
      case 1:
        value->dtype = static_cast<DType>(random_.below(256));
        return;
      case 2:
        value->sizes.push_back(expr());
        return;
      case 3:
        value->strides.push_back(expr());
        return;
      case 4:
        value->offset = expr();
        return;
      default:
        value->claims_sizes = !value->claims_sizes;
        return;
    }
  }

  void mutate_node(Graph& g) {
    Node* node = pick(g.nodes);
    if (node == nullptr) return;
    switch (random_.below(6)) {
      case 0:
        node->outputs.push_back(index());
        return;
      case 1:
        node->arguments.push_back({"", ValueRef{index()}});
        return;
      case 2:
        node->arguments.push_back({"x", expr()});
        return;
      case 3:
        node->arguments.push_back({"\n", static_cast<DType>(random_.below(256))});
        return;
      case 4:
        node->op = "\x01";
        return;
      default:
        node->annotation.phase = static_cast<Phase>(random_.below(256));
        return;
    }
  }

  void drop(Graph& g) {
    if (random_.below(2) == 0 && !g.values.empty()) g.values.pop_back();
    if (random_.below(2) == 0 && !g.storages.empty()) g.storages.pop_back();
    if (random_.below(2) == 0 && !g.symbols.empty()) g.symbols.pop_back();
    if (random_.below(2) == 0 && !g.nodes.empty()) g.nodes.erase(g.nodes.begin());
  }

  Random random_;
};

#ifdef __SANITIZE_ADDRESS__
constexpr uint64_t kSeeds = 4000;  // instrumented code is many times slower
#else
constexpr uint64_t kSeeds = 20000;
#endif

TEST(VerifyMutations, never_crash_the_verifier_or_the_printer_and_what_passes_reads_back) {
  Graph models[] = {verified_graph(), testing::llama_like(8)};
  uint64_t passed = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Mutator mutator(seed);
    Graph graph = seed % 4 == 0 ? models[seed / 4 % 2] : testing::RandomGraph(seed % 97).make();
    for (uint64_t n = 0; n <= seed % 3; ++n) mutator.mutate(graph);
    const std::string text = print_text(graph);
    if (!verify(graph).ok()) continue;
    ++passed;
    const auto again = parse_text(text);
    ASSERT_TRUE(again.ok()) << again.error().message << "\n" << text;
    ASSERT_EQ(*again, graph) << text;
  }
  EXPECT_GT(passed, 100u);
}

}  // namespace
}  // namespace djinn::srg
