// SPDX-License-Identifier: Apache-2.0

#include "python/device/arguments.h"

#include "kernel/exec/convert.h"
#include "python/device/storage.h"

namespace djinn::device {
namespace {

using c10::TypeKind;

class Writer {
 public:
  srg::ArgumentValue write(const c10::Argument& formal, const c10::IValue& value) {
    name_ = formal.name();
    const c10::Type* type = formal.real_type().get();
    if (const auto* optional = type->castRaw<c10::OptionalType>()) {
      type = optional->getElementType().get();
    }
    if (value.isNone()) return srg::None{};
    return write_typed(*type, value);
  }

 private:
  srg::ArgumentValue write_typed(const c10::Type& type, const c10::IValue& value) {
    switch (type.kind()) {
      case TypeKind::TensorType:
        return write_tensor(value.toTensor());
      case TypeKind::IntType:
      case TypeKind::SymIntType:
        return srg::Expr(value.toInt());
      case TypeKind::FloatType:
        return value.toDouble();
      case TypeKind::NumberType:
        return write_scalar(value.toScalar());
      case TypeKind::BoolType:
        return value.toBool();
      case TypeKind::StringType:
        return value.toStringRef();
      case TypeKind::ScalarTypeType:
        return exec::from_torch(value.toScalarType());
      case TypeKind::MemoryFormatType:
        return write_memory_format(value.toMemoryFormat());
      case TypeKind::LayoutType:
        TORCH_CHECK_NOT_IMPLEMENTED(value.toLayout() == at::kStrided,
                                    "Tensors of the device are strided; argument ", name_,
                                    " asks for another layout. Convert on the CPU.");
        return std::string("strided");
      case TypeKind::ListType:
        return write_list(*type.castRaw<c10::ListType>()->getElementType(), value);
      default:
        return refuse(value);
    }
  }

  srg::ArgumentValue write_tensor(const at::Tensor& tensor) {
    if (!tensor.defined()) return srg::None{};
    if (is_ours(tensor)) return srg::ValueRef{next_++};
    return write_scalar(tensor.item());
  }

  srg::ArgumentValue write_scalar(const c10::Scalar& number) {
    if (number.isBoolean()) return number.toBool();
    if (number.isIntegral(false)) return srg::Expr(number.toLong());
    TORCH_CHECK_NOT_IMPLEMENTED(!number.isComplex(), "Complex numbers as arguments (", name_,
                                ") do not cross to djinnd; use a complex tensor.");
    return number.toDouble();
  }

  static srg::ArgumentValue write_memory_format(at::MemoryFormat format) {
    switch (format) {
      case at::MemoryFormat::Contiguous:
        return std::string("contiguous_format");
      case at::MemoryFormat::Preserve:
        return std::string("preserve_format");
      case at::MemoryFormat::ChannelsLast:
        return std::string("channels_last");
      default:
        TORCH_CHECK_NOT_IMPLEMENTED(false, "The memory format ", format,
                                    " is not offered; use contiguous or channels_last.");
    }
  }

  srg::ArgumentValue write_list(const c10::Type& element, const c10::IValue& value) {
    switch (element.kind()) {
      case TypeKind::TensorType:
      case TypeKind::OptionalType:
        return write_tensors(value);
      case TypeKind::IntType:
      case TypeKind::SymIntType: {
        srg::ExprList list;
        for (const c10::IValue& item : value.toListRef()) list.items.emplace_back(item.toInt());
        return list;
      }
      case TypeKind::FloatType: {
        srg::DoubleList list;
        for (const double item : value.toDoubleVector()) list.items.push_back(item);
        return list;
      }
      case TypeKind::BoolType: {
        srg::BoolList list;
        for (const c10::IValue& item : value.toListRef()) list.items.push_back(item.toBool());
        return list;
      }
      default:
        return refuse(value);
    }
  }

  srg::ArgumentValue write_tensors(const c10::IValue& value) {
    srg::ValueList list;
    for (const c10::IValue& item : value.toListRef()) {
      const bool none = item.isNone() || !item.toTensor().defined();
      list.ids.push_back(none ? std::optional<srg::ValueId>() : next_++);
    }
    return list;
  }

  srg::ArgumentValue refuse(const c10::IValue& value) const {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "An argument of type ", value.tagKind(), " (", name_,
                                ") does not cross to djinnd. Compute this operator on the CPU: "
                                "call .cpu() on its tensors.");
  }

  std::string name_;
  srg::ValueId next_ = 0;
};

bool stays_here(const c10::Argument& formal) {
  const c10::Type* type = formal.real_type().get();
  if (const auto* optional = type->castRaw<c10::OptionalType>()) {
    type = optional->getElementType().get();
  }
  return type->kind() == TypeKind::DeviceObjType || type->kind() == TypeKind::GeneratorType ||
         formal.name() == "pin_memory";
}

}  // namespace

std::vector<srg::Argument> to_arguments(const c10::FunctionSchema& schema,
                                        const std::vector<c10::IValue>& stack) {
  std::vector<srg::Argument> arguments;
  Writer writer;
  for (size_t i = 0; i < stack.size(); ++i) {
    const c10::Argument& formal = schema.arguments()[i];
    if (stays_here(formal)) continue;
    srg::ArgumentValue value = writer.write(formal, stack[i]);
    if (!formal.kwarg_only()) {
      arguments.push_back({"", std::move(value)});
    } else if (!std::holds_alternative<srg::None>(value)) {
      arguments.push_back({formal.name(), std::move(value)});
    }
  }
  return arguments;
}

}  // namespace djinn::device
