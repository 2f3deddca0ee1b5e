// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/arguments.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernel/exec/convert.h"
#include "kernel/exec/expression.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {
namespace {

using c10::TypeKind;

// This is one argument as it was filled in: a constant of the template, or a patch for each run.
struct Bound {
  c10::IValue constant;
  std::optional<Patch> patch;
};

Bound constant(c10::IValue value) {
  return {std::move(value), std::nullopt};
}

Bound patched(PatchKind kind) {
  Bound bound;
  bound.patch.emplace().kind = kind;
  return bound;
}

Error wrong(std::string_view why) {
  return {ErrorCode::kInvalidArgument, std::string(why)};
}

// Where the schema says Tensor, a Python number promotes unlike a tensor of that number.
at::Tensor wrapped_number(const c10::Scalar& number) {
  at::Tensor tensor = at::full({}, number, at::TensorOptions().dtype(number.type()));
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

Bound expression(PatchKind kind, const srg::Expr& expr) {
  Bound bound = patched(kind);
  bound.patch->exprs.push_back(expr);
  return bound;
}

Result<Bound> bind_tensor(const c10::Argument& formal, const srg::ArgumentValue& value) {
  if (const auto* ref = std::get_if<srg::ValueRef>(&value)) {
    Bound bound = patched(PatchKind::kValue);
    bound.patch->value = ref->id;
    return bound;
  }
  // A number tensor is shared by all runs, so no operator may hand it on or write it.
  if (formal.alias_info() != nullptr) return wrong("must be a tensor");
  if (const auto* number = std::get_if<srg::Expr>(&value)) {
    if (!number->is_constant()) return expression(PatchKind::kNumberTensor, *number);
    return constant(wrapped_number(number->constant));
  }
  if (const auto* number = std::get_if<double>(&value)) return constant(wrapped_number(*number));
  if (const auto* flag = std::get_if<bool>(&value)) return constant(wrapped_number(*flag));
  return wrong("must be a tensor or a number");
}

Result<Bound> bind_int(const srg::ArgumentValue& value) {
  const auto* expr = std::get_if<srg::Expr>(&value);
  if (expr == nullptr) return wrong("must be an integer");
  if (!expr->is_constant()) return expression(PatchKind::kInt, *expr);
  return constant(expr->constant);
}

Result<Bound> bind_double(const srg::ArgumentValue& value) {
  if (const auto* number = std::get_if<double>(&value)) return constant(*number);
  const auto* expr = std::get_if<srg::Expr>(&value);
  if (expr == nullptr) return wrong("must be a number");
  if (!expr->is_constant()) return expression(PatchKind::kDouble, *expr);
  return constant(static_cast<double>(expr->constant));
}

Result<Bound> bind_scalar(const srg::ArgumentValue& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return constant(*flag);
  if (const auto* number = std::get_if<double>(&value)) return constant(*number);
  return bind_int(value);
}

Result<Bound> bind_bool(const srg::ArgumentValue& value) {
  const auto* flag = std::get_if<bool>(&value);
  if (flag == nullptr) return wrong("must be a bool");
  return constant(*flag);
}

Result<Bound> bind_string(const srg::ArgumentValue& value) {
  const auto* text = std::get_if<std::string>(&value);
  if (text == nullptr) return wrong("must be a string");
  return constant(*text);
}

Result<Bound> bind_dtype(const srg::ArgumentValue& value) {
  const auto* dtype = std::get_if<DType>(&value);
  const auto type = dtype == nullptr ? std::nullopt : to_torch(*dtype);
  if (!type) return wrong("must be a dtype");
  return constant(static_cast<int64_t>(*type));
}

Result<Bound> bind_memory_format(const srg::ArgumentValue& value) {
  const auto* text = std::get_if<std::string>(&value);
  if (text == nullptr) return wrong("must be a memory format's name");
  if (*text == "contiguous_format") return constant(at::MemoryFormat::Contiguous);
  if (*text == "preserve_format") return constant(at::MemoryFormat::Preserve);
  if (*text == "channels_last") return constant(at::MemoryFormat::ChannelsLast);
  if (*text == "channels_last_3d") return constant(at::MemoryFormat::ChannelsLast3d);
  return wrong("must be contiguous_format, preserve_format, channels_last or channels_last_3d");
}

Result<Bound> bind_layout(const srg::ArgumentValue& value) {
  const auto* text = std::get_if<std::string>(&value);
  if (text == nullptr || *text != "strided") return wrong("must be the layout strided");
  return constant(at::kStrided);
}

// The device is always the program's own; naming another is an error and not a hint (rule 7).
Result<Bound> bind_device(c10::Device device, const srg::ArgumentValue& value) {
  const auto* text = std::get_if<std::string>(&value);
  const std::string name = c10::DeviceTypeName(device.type(), /*lower_case=*/true);
  const bool ours = std::holds_alternative<srg::None>(value) ||
                    (text != nullptr && (*text == name || *text == name + ":0"));
  if (!ours) return wrong("must be left out: a program runs on one device");
  return patched(PatchKind::kDevice);
}

Result<Bound> bind_tensor_list(const srg::ArgumentValue& value, PatchKind kind) {
  const auto* list = std::get_if<srg::ValueList>(&value);
  if (list == nullptr) return wrong("must be a list of tensors");
  for (const auto& id : list->ids) {
    if (!id && kind == PatchKind::kValueList) return wrong("must have no empty entries");
  }
  Bound bound = patched(kind);
  bound.patch->values = list->ids;
  return bound;
}

// aten takes one int for int[N], as in sum(dim=1).
Result<Bound> bind_int_list(const c10::Argument& formal, const srg::ArgumentValue& value) {
  std::vector<srg::Expr> exprs;
  if (const auto* list = std::get_if<srg::ExprList>(&value)) {
    exprs = list->items;
  } else if (const auto* one = std::get_if<srg::Expr>(&value); one != nullptr && formal.N()) {
    exprs.assign(static_cast<size_t>(*formal.N()), *one);
  } else {
    return wrong("must be a list of integers");
  }
  Bound bound = patched(PatchKind::kIntList);
  bound.patch->exprs = std::move(exprs);
  for (const srg::Expr& expr : bound.patch->exprs) {
    if (!expr.is_constant()) return bound;
  }
  c10::List<int64_t> items;
  for (const srg::Expr& expr : bound.patch->exprs) items.push_back(expr.constant);
  return constant(items);
}

Result<Bound> bind_double_list(const srg::ArgumentValue& value) {
  c10::List<double> items;
  if (const auto* list = std::get_if<srg::DoubleList>(&value)) {
    for (const double item : list->items) items.push_back(item);
    return constant(items);
  }
  const auto* ints = std::get_if<srg::ExprList>(&value);
  if (ints == nullptr) return wrong("must be a list of numbers");
  for (const srg::Expr& expr : ints->items) {
    if (!expr.is_constant()) return wrong("must be a list of constant numbers");
    items.push_back(static_cast<double>(expr.constant));
  }
  return constant(items);
}

Result<Bound> bind_bool_list(const srg::ArgumentValue& value) {
  const auto* list = std::get_if<srg::BoolList>(&value);
  if (list == nullptr) return wrong("must be a list of bools");
  c10::List<bool> items;
  for (const bool item : list->items) items.push_back(item);
  return constant(items);
}

// Tensor?[] is List<optional<Tensor>>, unlike Tensor[].
Result<Bound> bind_list(const c10::Argument& formal, const c10::Type& element,
                        const srg::ArgumentValue& value) {
  switch (element.kind()) {
    case TypeKind::TensorType:
      return bind_tensor_list(value, PatchKind::kValueList);
    case TypeKind::OptionalType:
      return bind_tensor_list(value, PatchKind::kOptionalValueList);
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return bind_int_list(formal, value);
    case TypeKind::FloatType:
      return bind_double_list(value);
    case TypeKind::BoolType:
      return bind_bool_list(value);
    default:
      return wrong("has a type that graphs cannot express");
  }
}

Result<Bound> bind_typed(const c10::Argument& formal, const c10::Type& type,
                         const srg::ArgumentValue& value) {
  switch (type.kind()) {
    case TypeKind::TensorType:
      return bind_tensor(formal, value);
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return bind_int(value);
    case TypeKind::FloatType:
      return bind_double(value);
    case TypeKind::NumberType:
      return bind_scalar(value);
    case TypeKind::BoolType:
    case TypeKind::SymBoolType:
      return bind_bool(value);
    case TypeKind::StringType:
      return bind_string(value);
    case TypeKind::ScalarTypeType:
      return bind_dtype(value);
    case TypeKind::LayoutType:
      return bind_layout(value);
    case TypeKind::MemoryFormatType:
      return bind_memory_format(value);
    case TypeKind::ListType:
      return bind_list(formal, *type.castRaw<c10::ListType>()->getElementType(), value);
    default:
      return wrong("has a type that graphs cannot express");
  }
}

Result<Bound> bind_one(c10::Device device, const c10::Argument& formal,
                       const srg::ArgumentValue& value) {
  const c10::Type* type = formal.real_type().get();
  const auto* optional = type->castRaw<c10::OptionalType>();
  const c10::Type& inner = optional == nullptr ? *type : *optional->getElementType();
  if (inner.kind() == TypeKind::DeviceObjType) return bind_device(device, value);
  if (!std::holds_alternative<srg::None>(value)) {
    if (formal.name() == "pin_memory" && value != srg::ArgumentValue(false)) {
      return wrong("must be left out: a graph cannot pin memory");
    }
    return bind_typed(formal, inner, value);
  }
  if (optional == nullptr) return wrong("must not be none");
  return constant(c10::IValue());
}

Result<Bound> bind_default(const c10::Argument& formal) {
  const c10::Type* type = formal.real_type().get();
  const auto* optional = type->castRaw<c10::OptionalType>();
  const c10::Type& inner = optional == nullptr ? *type : *optional->getElementType();
  if (inner.kind() == TypeKind::DeviceObjType) return patched(PatchKind::kDevice);
  if (!formal.default_value()) return wrong("is missing");
  return constant(*formal.default_value());
}

// Gives the value for each schema argument, in the schema's order; nullptr where none was given.
Result<std::vector<const srg::ArgumentValue*>> match(const srg::Node& node,
                                                     const c10::FunctionSchema& schema) {
  std::vector<const srg::ArgumentValue*> given(schema.arguments().size(), nullptr);
  size_t positional = 0;
  for (const srg::Argument& argument : node.arguments) {
    std::optional<int> index;
    if (!argument.name.empty()) {
      index = schema.argumentIndexWithName(argument.name);
    } else if (positional < given.size() && !schema.arguments()[positional].kwarg_only()) {
      index = static_cast<int>(positional++);
    } else {
      return wrong("too many positional arguments");
    }
    if (!index) return wrong(fmt::format("no argument named {}", argument.name.substr(0, 60)));
    auto& slot = given[static_cast<size_t>(*index)];
    if (slot != nullptr) return wrong(fmt::format("argument {} is given twice", argument.name));
    slot = &argument.value;
  }
  return given;
}

void note_write(const c10::Argument& formal, const Patch& patch, Step& step) {
  if (formal.alias_info() == nullptr || !formal.alias_info()->isWrite()) return;
  if (patch.kind == PatchKind::kValue) step.written.push_back(patch.value);
  for (const auto& id : patch.values) {
    if (id) step.written.push_back(*id);
  }
}

Status bind_at(c10::Device device, const c10::Argument& formal, const srg::ArgumentValue* value,
               Step& step) {
  auto bound = value == nullptr ? bind_default(formal) : bind_one(device, formal, *value);
  if (!bound) {
    return Error{bound.error().code,
                 fmt::format("Argument {} {}.", formal.name(), bound.error().message)};
  }
  if (bound->patch) {
    bound->patch->position = static_cast<uint32_t>(step.stack.size());
    note_write(formal, *bound->patch, step);
    step.patches.push_back(*std::move(bound->patch));
  }
  step.stack.push_back(std::move(bound->constant));
  return {};
}

// A number may stand for a tensor only beside a tensor: a reduction of a number alone takes it for
// another type than its result has, and leaves half of the result unwritten.
Status check_numbers(const Step& step) {
  const auto takes = [&step](auto&& kinds) {
    return std::ranges::any_of(step.patches, [&](const Patch& patch) { return kinds(patch.kind); });
  };
  const bool has_number =
      takes([](PatchKind kind) { return kind == PatchKind::kNumberTensor; }) ||
      std::ranges::any_of(step.stack, [](const c10::IValue& value) { return value.isTensor(); });
  const bool has_tensor = takes([](PatchKind kind) {
    return kind == PatchKind::kValue || kind == PatchKind::kValueList ||
           kind == PatchKind::kOptionalValueList;
  });
  if (!has_number || has_tensor) return {};
  return wrong("Numbers stand for tensors beside a tensor only. Use aten::scalar_tensor.");
}

c10::IValue take(Frame& frame, srg::ValueId id, bool moves) {
  at::Tensor& tensor = frame.values[id];
  return moves && !frame.keeps_values ? c10::IValue(std::move(tensor)) : c10::IValue(tensor);
}

c10::IValue tensor_list(const Patch& patch, const Frame& frame) {
  c10::List<at::Tensor> list;
  list.reserve(patch.values.size());
  for (const auto& id : patch.values) list.push_back(frame.values[*id]);
  return list;
}

c10::IValue optional_tensor_list(const Patch& patch, const Frame& frame) {
  c10::List<std::optional<at::Tensor>> list;
  list.reserve(patch.values.size());
  for (const auto& id : patch.values) {
    list.push_back(id ? std::optional<at::Tensor>(frame.values[*id]) : std::nullopt);
  }
  return list;
}

Result<c10::IValue> number(const Patch& patch, const Frame& frame) {
  const auto value = evaluate(patch.exprs[0], frame.symbols);
  if (!value) return overflow_error();
  if (patch.kind == PatchKind::kDouble) return c10::IValue(static_cast<double>(*value));
  if (patch.kind == PatchKind::kNumberTensor) return c10::IValue(wrapped_number(*value));
  return c10::IValue(*value);
}

Result<c10::IValue> int_list(const Patch& patch, const Frame& frame) {
  c10::List<int64_t> list;
  list.reserve(patch.exprs.size());
  for (const srg::Expr& expr : patch.exprs) {
    const auto value = evaluate(expr, frame.symbols);
    if (!value) return overflow_error();
    list.push_back(*value);
  }
  return c10::IValue(std::move(list));
}

// Tells whether all values that the patch names were made: a node may have left a result out.
bool are_made(const Patch& patch, const Frame& frame) {
  if (patch.kind == PatchKind::kValue) return frame.values[patch.value].defined();
  return std::all_of(patch.values.begin(), patch.values.end(),
                     [&](const auto& id) { return !id || frame.values[*id].defined(); });
}

Result<c10::IValue> apply(const Patch& patch, Frame& frame) {
  if (!are_made(patch, frame)) return wrong("an argument is a result that its node left out");
  switch (patch.kind) {
    case PatchKind::kValue:
      return take(frame, patch.value, patch.moves);
    case PatchKind::kValueList:
      return tensor_list(patch, frame);
    case PatchKind::kOptionalValueList:
      return optional_tensor_list(patch, frame);
    case PatchKind::kIntList:
      return int_list(patch, frame);
    case PatchKind::kDevice:
      return c10::IValue(frame.device);
    case PatchKind::kInt:
    case PatchKind::kDouble:
    case PatchKind::kNumberTensor:
      return number(patch, frame);
  }
  return Error{ErrorCode::kInternal, "a patch of no kind"};
}

}  // namespace

Status bind_arguments(c10::Device device, const srg::Node& node, Step& step) {
  const c10::FunctionSchema& schema = step.op->handle.schema();
  DJINN_TRY(const auto given, match(node, schema));
  step.stack.reserve(given.size());
  for (size_t i = 0; i < given.size(); ++i) {
    DJINN_CHECK(bind_at(device, schema.arguments()[i], given[i], step));
  }
  step.splits = splits_of(node.op, step.stack);
  return check_numbers(step);
}

Status fill_stack(const Step& step, Frame& frame, std::vector<c10::IValue>& stack) {
  stack.assign(step.stack.begin(), step.stack.end());
  for (const Patch& patch : step.patches) {
    auto value = apply(patch, frame);
    if (!value) return std::move(value).error();
    stack[patch.position] = *std::move(value);
  }
  return {};
}

}  // namespace djinn::exec
