// SPDX-License-Identifier: Apache-2.0

#include "python/device/recipe.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <pybind11/pybind11.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "kernel/exec/shape_rules.h"
#include "python/device/arguments.h"
#include "python/device/breaker.h"
#include "python/device/storage.h"
#include "python/device/structured.h"

namespace djinn::device {
namespace {

// In some programs shapes change all the time. When there are more recipes than this, all are
// forgotten.
constexpr size_t kRecipesMax = 32 * 1024;
// This process keeps a copy of a value with up to this many integers: ids, positions and masks.
constexpr int64_t kShadowElements = 16 * 1024;

template <typename F>
void each_tensor(const Stack& stack, F&& f) {
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) {
      f(value.toTensor());
    } else if (value.isList()) {
      for (const c10::IValue& item : value.toListRef()) {
        if (item.isTensor()) f(item.toTensor());
      }
    }
  }
}

// --- keys

enum class Word : uint64_t { kNone = 1, kTensor, kNumber, kInt, kDouble, kBool, kString, kList };

class KeyWriter {
 public:
  explicit KeyWriter(Key& key) : key_(key) {}

  void put(const c10::IValue& value) {
    if (value.isTensor()) return put_tensor(value.toTensor());
    if (value.isInt()) return put(Word::kInt, static_cast<uint64_t>(value.toInt()));
    if (value.isNone()) return put(Word::kNone, 0);
    if (value.isBool()) return put(Word::kBool, value.toBool() ? 1 : 0);
    if (value.isDouble()) return put_double(value.toDouble());
    if (value.isList()) return put_list(value);
    if (value.isString()) return put_string(value.toStringRef());
    if (value.isDevice()) check_index(value.toDevice().index());
    put(Word::kNone, 1);  // devices and generators: one device, no part in shapes
  }

 private:
  void put(Word tag, uint64_t word) {
    key_.push_back(static_cast<uint64_t>(tag));
    key_.push_back(word);
  }

  void put_double(double number) {
    uint64_t word = 0;
    std::memcpy(&word, &number, sizeof word);
    put(Word::kDouble, word);
  }

  void put_string(const std::string& text) {
    put(Word::kString, text.size());
    for (const char letter : text) key_.push_back(static_cast<uint64_t>(letter));
  }

  void put_list(const c10::IValue& list) {
    const auto items = list.toListRef();
    put(Word::kList, items.size());
    for (const c10::IValue& item : items) put(item);
  }

  void put_tensor(const at::Tensor& tensor) {
    if (!tensor.defined()) return put(Word::kNone, 2);
    if (!is_ours(tensor)) return put_number(tensor);
    const uint64_t flags = static_cast<uint64_t>(tensor.scalar_type()) |
                           (tensor.is_conj() ? 0x100u : 0u) | (tensor.is_neg() ? 0x200u : 0u) |
                           (static_cast<uint64_t>(tensor.dim()) << 16) |
                           (number_of(tensor.storage()) << 32);
    put(Word::kTensor, flags);
    for (const int64_t size : tensor.sizes()) key_.push_back(static_cast<uint64_t>(size));
    for (const int64_t stride : tensor.strides()) key_.push_back(static_cast<uint64_t>(stride));
    key_.push_back(static_cast<uint64_t>(tensor.storage_offset()));
  }

  void put_number(const at::Tensor& tensor) {
    put(Word::kNumber, static_cast<uint64_t>(tensor.scalar_type()));
    uint64_t word = 0;
    std::memcpy(&word, tensor.const_data_ptr(), std::min(tensor.nbytes(), sizeof word));
    key_.push_back(word);
  }

  // Gives the storage's number among those of the call, in the order of their first use.
  uint64_t number_of(const c10::Storage& storage) {
    const void* const address = storage.data();
    for (size_t i = 0; i < storages_.size(); ++i) {
      if (storages_[i] == address) return i;
    }
    storages_.push_back(address);
    return storages_.size() - 1;
  }

  Key& key_;
  c10::SmallVector<const void*, 8> storages_;
};

struct KeyHash {
  size_t operator()(const Key& key) const {
    return XXH3_64bits(key.data(), key.size() * sizeof(uint64_t));
  }
};

// --- inference

// Holds a call's arguments on the meta device. They share storages as the originals do.
class MetaCall {
 public:
  explicit MetaCall(const Stack& stack) {
    for (const c10::IValue& value : stack) stack_.push_back(to_meta(value));
  }

  [[nodiscard]] Stack& stack() { return stack_; }
  // Gives the tensors, in the order of tensors_of().
  [[nodiscard]] const std::vector<at::Tensor>& tensors() const { return tensors_; }

 private:
  c10::IValue to_meta(const c10::IValue& value) {
    if (value.isDevice()) return c10::Device(c10::kMeta);
    if (value.isGenerator()) return {};
    return with_tensors(value, [this](const at::Tensor& tensor) { return to_meta(tensor); });
  }

  at::Tensor to_meta(const at::Tensor& tensor) {
    if (!tensor.defined() || !is_ours(tensor)) return tensor;
    c10::Storage& storage = storages_[tensor.storage().data()];
    if (!storage) {
      storage = c10::Storage(c10::Storage::use_byte_size_t{},
                             c10::SymInt(static_cast<int64_t>(tensor.storage().nbytes())),
                             c10::DataPtr(nullptr, c10::kMeta), nullptr, false);
    }
    tensors_.push_back(strided_tensor(c10::DispatchKey::Meta, storage, tensor.scalar_type(),
                                      tensor.sizes(), tensor.strides(), tensor.storage_offset()));
    return tensors_.back();
  }

  Stack stack_;
  std::vector<at::Tensor> tensors_;
  std::unordered_map<const void*, c10::Storage> storages_;
};

class ProductReader {
 public:
  explicit ProductReader(const std::vector<at::Tensor>& arguments) : arguments_(arguments) {}

  Product read(const at::Tensor& tensor) {
    Product product;
    if (!tensor.defined()) {
      product.kind = Product::Kind::kUndefined;
      earlier_.push_back(tensor);
      return product;
    }
    product.type = tensor.scalar_type();
    product.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
    product.strides.assign(tensor.strides().begin(), tensor.strides().end());
    product.offset = tensor.storage_offset();
    product.bytes = tensor.storage().nbytes();
    classify(tensor, product);
    earlier_.push_back(tensor);
    return product;
  }

 private:
  void classify(const at::Tensor& tensor, Product& product) const {
    for (uint32_t i = 0; i < arguments_.size(); ++i) {
      if (!tensor.is_same(arguments_[i]) && !tensor.is_alias_of(arguments_[i])) continue;
      product.kind =
          tensor.is_same(arguments_[i]) ? Product::Kind::kArgument : Product::Kind::kView;
      product.argument = i;
      if (product.kind == Product::Kind::kArgument) return;
    }
    if (product.kind == Product::Kind::kView) return;
    for (uint32_t i = 0; i < earlier_.size(); ++i) {
      if (!earlier_[i].defined() || !tensor.is_alias_of(earlier_[i])) continue;
      product.kind = Product::Kind::kShared;
      product.argument = i;
      return;
    }
  }

  const std::vector<at::Tensor>& arguments_;
  std::vector<at::Tensor> earlier_;
};

std::vector<uint32_t> written_by(const c10::FunctionSchema& schema, const Stack& stack) {
  std::vector<uint32_t> written;
  uint32_t number = 0;
  for (size_t i = 0; i < stack.size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    const bool writes = alias != nullptr && alias->isWrite();
    each_tensor({stack[i]}, [&](const at::Tensor& tensor) {
      if (!tensor.defined() || !is_ours(tensor)) return;
      if (writes) written.push_back(number);
      ++number;
    });
  }
  return written;
}

bool is_small_integer(const Product& product) {
  return product.kind == Product::Kind::kFresh && c10::isIntegralType(product.type, true) &&
         c10::multiply_integers(product.sizes) <= kShadowElements;
}

std::shared_ptr<Recipe> begin_recipe(const c10::OperatorHandle& op, const Stack& stack) {
  auto recipe = std::make_shared<Recipe>();
  recipe->op = qualified(op.operator_name());
  recipe->arguments = to_arguments(op.schema(), stack);
  recipe->written = written_by(op.schema(), stack);
  const auto& returns = op.schema().returns();
  recipe->list = returns.size() == 1 && returns[0].type()->kind() == c10::TypeKind::ListType;
  return recipe;
}

bool gives_what_it_writes(const c10::FunctionSchema& schema, const Recipe& recipe) {
  const auto is_written = [](const c10::Argument& result) {
    return result.alias_info() != nullptr && result.alias_info()->isWrite();
  };
  return !recipe.list && !recipe.written.empty() &&
         recipe.written.size() == schema.returns().size() &&
         std::ranges::all_of(schema.returns(), is_written);
}

void read_products(const MetaCall& call, const Stack& results, Recipe& recipe) {
  ProductReader reader(call.tensors());
  each_tensor(results,
              [&](const at::Tensor& tensor) { recipe.products.push_back(reader.read(tensor)); });
}

// Kernels do not make the results that a mask leaves out, though meta kernels may.
void leave_out(const c10::FunctionSchema& schema, const Stack& stack, Recipe& recipe) {
  for (size_t i = 0; i < stack.size(); ++i) {
    if (schema.arguments()[i].name() != "output_mask") continue;
    const auto mask = stack[i].toListRef();
    for (size_t k = 0; k < std::min(mask.size(), recipe.products.size()); ++k) {
      if (!mask[k].toBool()) recipe.products[k].kind = Product::Kind::kUndefined;
    }
  }
}

// Tells whether the exception means "no meta kernel" or "the shape depends on data". Only what() is
// asked, because the exception's type belongs to torch's own pybind11.
bool was_not_implemented(const std::exception& error) {
  const std::string_view text = error.what();
  return text.starts_with("NotImplementedError") ||
         text.find("a meta tensor without output_size") != std::string_view::npos;
}

// A kernel in Python that raises leaves its error pending in this thread.
void forget_python_error() {
  const pybind11::gil_scoped_acquire gil;
  PyErr_Clear();
}

// Our own factories have no tensor argument that would lead to the meta device, so their results
// are made from the sizes.
std::optional<at::Tensor> made_by_ours(const std::string& op, const Stack& stack) {
  const auto empty = [](at::IntArrayRef sizes, const c10::IValue& type) {
    return at::empty(sizes, at::TensorOptions().dtype(type.toScalarType()).device(c10::kMeta));
  };
  if (op == "djinn::rand" || op == "djinn::randn") return empty(stack[0].toIntVector(), stack[1]);
  if (op == "djinn::randint") return empty(stack[2].toIntVector(), stack[3]);
  if (op == "djinn::randperm") return empty({stack[0].toInt()}, stack[1]);
  return std::nullopt;
}

bool run_on_meta(const c10::OperatorHandle& op, MetaCall& call, Stack& results) {
  const at::AutoDispatchBelowADInplaceOrView below;
  try {
    if (const auto made = made_by_ours(op.operator_name().name, call.stack())) {
      results.assign(1, *made);
      return true;
    }
    if (const exec::ShapeRule rule = exec::shape_rule_of(qualified(op.operator_name()))) {
      const std::vector<at::Tensor> ruled = rule(call.stack());
      results.assign(ruled.begin(), ruled.end());
      return true;
    }
    if (const auto made = structured(qualified(op.operator_name()), call.stack())) {
      results.assign(1, *made);
      return true;
    }
    results = call.stack();
    op.callBoxed(&results);
    return true;
  } catch (const c10::NotImplementedError&) {
    forget_python_error();
    return false;
  } catch (const pybind11::error_already_set& error) {
    if (was_not_implemented(error)) return false;
    const bool indices =
        std::string_view(error.what()).find("tensors used as indices") != std::string_view::npos;
    if (!indices) throw;
    forget_python_error();
    TORCH_CHECK_INDEX(false, "tensors used as indices must be long, int, byte or bool tensors");
  }
}

// Checks what kernels check before they write element by element. Meta kernels cannot, for they
// have no addresses; ours are of no memory, but they do tell what lies where.
void check_overlaps(const c10::OperatorHandle& op, const Recipe& recipe, const Stack& stack) {
  const std::string& name = op.schema().name();
  const bool repeats =
      name == "aten::fill_" || name == "aten::zero_" || name == "aten::masked_fill_";
  if (recipe.written.empty() || repeats) return;
  if (!op.hasTag(at::Tag::pointwise) && name != "aten::copy_") return;
  const std::vector<at::Tensor> tensors = tensors_of(stack);
  for (const uint32_t written : recipe.written) {
    at::assert_no_internal_overlap(tensors[written]);
    for (uint32_t i = 0; i < tensors.size(); ++i) {
      if (i != written) at::assert_no_partial_overlap(tensors[written], tensors[i]);
    }
  }
}

class Cache {
 public:
  std::shared_ptr<const Recipe> find(const Key& key) {
    const std::shared_lock lock(mutex_);
    const auto found = recipes_.find(key);
    if (found == recipes_.end()) {
      misses_.fetch_add(1, std::memory_order_relaxed);
      return nullptr;
    }
    hits_.fetch_add(1, std::memory_order_relaxed);
    return found->second;
  }

  void keep(Key key, std::shared_ptr<const Recipe> recipe) {
    const std::unique_lock lock(mutex_);
    if (recipes_.size() >= kRecipesMax) recipes_.clear();
    recipes_.insert_or_assign(std::move(key), std::move(recipe));
  }

  RecipeStats stats() const { return {hits_.load(), misses_.load()}; }

 private:
  std::shared_mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<const Recipe>, KeyHash> recipes_;
  std::atomic<uint64_t> hits_ = 0;
  std::atomic<uint64_t> misses_ = 0;
};

Cache& cache() {
  static auto* const instance = new Cache;
  return *instance;
}

}  // namespace

std::string qualified(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

std::vector<at::Tensor> tensors_of(const Stack& stack) {
  std::vector<at::Tensor> tensors;
  each_tensor(stack, [&](const at::Tensor& tensor) {
    if (tensor.defined() && is_ours(tensor)) tensors.push_back(tensor);
  });
  return tensors;
}

void make_key(const c10::OperatorHandle& op, const Stack& stack, Key& key) {
  key.push_back(std::hash<c10::OperatorHandle>()(op));
  KeyWriter writer(key);
  for (const c10::IValue& value : stack) writer.put(value);
}

void check_on_meta(const c10::OperatorHandle& op, const Stack& stack) {
  MetaCall call(stack);
  Stack results;
  run_on_meta(op, call, results);
}

std::shared_ptr<const Recipe> infer(const c10::OperatorHandle& op, const Stack& stack) {
  MetaCall call(stack);
  Stack results;
  if (!run_on_meta(op, call, results)) return nullptr;
  auto recipe = begin_recipe(op, stack);
  check_overlaps(op, *recipe, stack);
  read_products(call, results, *recipe);
  leave_out(op.schema(), stack, *recipe);
  recipe->small_integers = !recipe->products.empty();
  for (const Product& product : recipe->products) {
    recipe->small_integers = recipe->small_integers && is_small_integer(product);
  }
  return recipe;
}

std::shared_ptr<const Recipe> open_ended(const c10::OperatorHandle& op, const Stack& stack) {
  auto recipe = begin_recipe(op, stack);
  if (gives_what_it_writes(op.schema(), *recipe)) {
    for (const uint32_t written : recipe->written) {
      recipe->products.emplace_back();
      recipe->products.back().kind = Product::Kind::kArgument;
      recipe->products.back().argument = written;
    }
  }
  return recipe;
}

Found recipe_for(const c10::OperatorHandle& op, const Stack& stack) {
  Key key;
  make_key(op, stack, key);
  if (auto known = cache().find(key)) return {std::move(known), nullptr};
  if (breaker().is_tripped(op)) return {};
  const auto begin = std::chrono::steady_clock::now();
  try {
    auto recipe = infer(op, stack);
    breaker().note_success(op, std::chrono::steady_clock::now() - begin);
    if (recipe != nullptr) cache().keep(std::move(key), recipe);
    return {std::move(recipe), nullptr};
  } catch (...) {
    if (!breaker().note_failure(op)) throw;
    return {nullptr, std::current_exception()};
  }
}

RecipeStats recipe_stats() {
  return cache().stats();
}

}  // namespace djinn::device
