// SPDX-License-Identifier: Apache-2.0

#include "kernel/load/cast.h"

#include <string.h>

#include <bit>
#include <concepts>
#include <limits>
#include <string>
#include <type_traits>

#include "kernel/base/half.h"

namespace djinn::load {
namespace {

constexpr uint32_t kFloatSign = 0x8000'0000u;
constexpr uint32_t kFloatInfinity = 0x7f80'0000u;
constexpr int kFloatMantissaBits = 23;
constexpr int kFloatBias = 127;

// These hold, as bits in memory, the smaller element types that C++ does not have.
struct Float8E4M3 {
  uint8_t bits;
};
struct Float8E5M2 {
  uint8_t bits;
};
struct Bool {
  uint8_t bits;
};

// --- small floats -------------------------------------------------------------------------------

// Rounds a finite or infinite float's magnitude (bits without sign) to nearest even in a format of
// `kExponent` and `kMantissa` bits. Above the format's range the result is `kOverflow`.
template <int kExponent, int kMantissa, uint32_t kOverflow>
uint32_t encode_magnitude(uint32_t magnitude) {
  constexpr int kBias = (1 << (kExponent - 1)) - 1;
  constexpr int kDropped = kFloatMantissaBits - kMantissa;
  constexpr uint32_t kMinNormal = uint32_t{kFloatBias - kBias + 1} << kFloatMantissaBits;
  if (magnitude < kMinNormal) {
    // The last bit of this float weighs as much as the format's smallest number, so the addition
    // rounds.
    constexpr uint32_t kMagic = uint32_t{kFloatBias + 1 - kBias - kMantissa + kFloatMantissaBits}
                                << kFloatMantissaBits;
    const float sum = std::bit_cast<float>(magnitude) + std::bit_cast<float>(kMagic);
    return std::bit_cast<uint32_t>(sum) - kMagic;
  }
  const uint32_t rebased = magnitude - (uint32_t{kFloatBias - kBias} << kFloatMantissaBits);
  const uint32_t odd = (rebased >> kDropped) & 1;
  const uint32_t rounded = (rebased + ((1u << (kDropped - 1)) - 1) + odd) >> kDropped;
  return rounded < kOverflow ? rounded : kOverflow;
}

struct Split {
  uint32_t sign;       // bit 31 or nothing
  uint32_t magnitude;  // bits 0 to 30
  bool nan;
};

Split split(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & ~kFloatSign;
  return {bits & kFloatSign, magnitude, magnitude > kFloatInfinity};
}

void round_to(float value, Half& out) {
  const Split in = split(value);
  const uint32_t magnitude = in.nan ? 0x7e00u | (in.magnitude >> 13 & 0x3ffu)
                                    : encode_magnitude<5, 10, 0x7c00>(in.magnitude);
  out.bits = static_cast<uint16_t>(in.sign >> 16 | magnitude);
}

// PyTorch's NaN depends on its source: the vectorised float32 and float64 kernels give all ones,
// and the 16 and 8 bit formats give the plain quiet NaN.
constexpr uint32_t kBFloat16NanOfWide = 0xffffu;
constexpr uint16_t kBFloat16NanOfSmall = 0x7fc0u;

void round_to(float value, BFloat16& out) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
  out.bits = static_cast<uint16_t>(split(value).nan ? kBFloat16NanOfWide : rounded);
}

float as_float(Float8E4M3 value) {
  const uint32_t sign = (value.bits & 0x80u) << 24;
  const uint32_t magnitude = value.bits & 0x7fu;
  if (magnitude == 0x7fu) return std::bit_cast<float>(sign | 0x7ff0'0000u);
  return std::bit_cast<float>(sign | widened_magnitude<4, 3>(magnitude));
}

void round_to(float value, Float8E4M3& out) {
  const Split in = split(value);
  const uint32_t magnitude = in.nan ? 0x7fu : encode_magnitude<4, 3, 0x7f>(in.magnitude);
  out.bits = static_cast<uint8_t>(in.sign >> 24 | magnitude);
}

// float8_e5m2 is float16 without its last eight bits.
float as_float(Float8E5M2 value) {
  return as_float(Half{static_cast<uint16_t>(value.bits << 8)});
}

void round_to(float value, Float8E5M2& out) {
  const Split in = split(value);
  const uint32_t magnitude = in.nan ? 0x7fu : encode_magnitude<5, 2, 0x7c>(in.magnitude);
  out.bits = static_cast<uint8_t>(in.sign >> 24 | magnitude);
}

// --- one element --------------------------------------------------------------------------------

template <typename T>
concept SmallFloat = std::same_as<T, Half> || std::same_as<T, BFloat16> ||
    std::same_as<T, Float8E4M3> || std::same_as<T, Float8E5M2>;

// Gives an element as a C++ arithmetic value.
template <typename T>
auto widen(T value) {
  if constexpr (SmallFloat<T>) {
    return as_float(value);
  } else if constexpr (std::same_as<T, Bool>) {
    return static_cast<uint8_t>(value.bits != 0);
  } else {
    return value;
  }
}

// Truncates as cvttsd2si does: a value that does not fit, NaN included, gives the smallest integer.
template <std::signed_integral Int, std::floating_point Float>
Int truncate_to(Float value) {
  constexpr Float kBound = static_cast<Float>(uint64_t{1} << (sizeof(Int) * 8 - 1));
  constexpr Int kIndefinite = std::numeric_limits<Int>::min();
  return value >= -kBound && value < kBound ? static_cast<Int>(value) : kIndefinite;
}

// Values in the upper half of the unsigned range are moved down first, as vectorised code does.
template <std::unsigned_integral UInt, std::floating_point Float>
UInt truncate_to_unsigned(Float value) {
  using Int = std::make_signed_t<UInt>;
  constexpr UInt kTop = UInt{1} << (sizeof(UInt) * 8 - 1);
  constexpr Float kHalf = static_cast<Float>(kTop);
  if (!(value >= kHalf)) return static_cast<UInt>(truncate_to<Int>(value));
  return static_cast<UInt>(truncate_to<Int>(value - kHalf)) ^ kTop;
}

template <std::integral To, std::floating_point From>
To float_to_integer(From value) {
  if constexpr (std::same_as<To, uint64_t> || std::same_as<To, uint32_t>) {
    return truncate_to_unsigned<To>(value);
  } else if constexpr (std::same_as<To, uint8_t> || std::same_as<To, int64_t>) {
    return static_cast<To>(truncate_to<int64_t>(value));
  } else {
    return static_cast<To>(truncate_to<int32_t>(value));
  }
}

template <typename To, typename Value>
To narrow(Value value) {
  if constexpr (SmallFloat<To>) {
    To out;
    round_to(static_cast<float>(value), out);
    return out;
  } else if constexpr (std::same_as<To, Bool>) {
    return Bool{static_cast<uint8_t>(value != Value{0})};
  } else if constexpr (std::integral<To> && std::floating_point<Value>) {
    return float_to_integer<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

// --- runs ---------------------------------------------------------------------------------------

template <typename From, typename To>
void convert(const std::byte* source, std::byte* target) {
  From in;
  memcpy(&in, source, sizeof in);
  To out = narrow<To>(widen(in));
  if constexpr (SmallFloat<From> && std::same_as<To, BFloat16>) {
    if (split(widen(in)).nan) out.bits = kBFloat16NanOfSmall;
  }
  memcpy(target, &out, sizeof out);
}

template <typename From, typename To>
void cast_run(const std::byte* source, uint64_t source_stride, std::byte* target,
              uint64_t target_stride, uint64_t count) {
  if (source_stride == sizeof(From) && target_stride == sizeof(To)) {
    for (uint64_t i = 0; i < count; ++i) {
      convert<From, To>(source + i * sizeof(From), target + i * sizeof(To));
    }
    return;
  }
  for (uint64_t i = 0; i < count; ++i) {
    convert<From, To>(source + i * source_stride, target + i * target_stride);
  }
}

template <typename Bits>
void move_run(const std::byte* source, uint64_t source_stride, std::byte* target,
              uint64_t target_stride, uint64_t count) {
  if (source_stride == sizeof(Bits) && target_stride == sizeof(Bits)) {
    memcpy(target, source, count * sizeof(Bits));
    return;
  }
  for (uint64_t i = 0; i < count; ++i) {
    memcpy(target + i * target_stride, source + i * source_stride, sizeof(Bits));
  }
}

ElementCopy move_of(uint32_t element_bytes) {
  switch (element_bytes) {
    case 1:
      return move_run<uint8_t>;
    case 2:
      return move_run<uint16_t>;
    case 4:
      return move_run<uint32_t>;
    default:
      return move_run<uint64_t>;
  }
}

template <typename From>
ElementCopy cast_from(DType to) {
  switch (to) {
    case DType::kBool:
      return cast_run<From, Bool>;
    case DType::kUInt8:
      return cast_run<From, uint8_t>;
    case DType::kInt8:
      return cast_run<From, int8_t>;
    case DType::kInt16:
      return cast_run<From, int16_t>;
    case DType::kInt32:
      return cast_run<From, int32_t>;
    case DType::kInt64:
      return cast_run<From, int64_t>;
    case DType::kFloat16:
      return cast_run<From, Half>;
    case DType::kBFloat16:
      return cast_run<From, BFloat16>;
    case DType::kFloat32:
      return cast_run<From, float>;
    case DType::kFloat64:
      return cast_run<From, double>;
    case DType::kUInt16:
      return cast_run<From, uint16_t>;
    case DType::kUInt32:
      return cast_run<From, uint32_t>;
    case DType::kUInt64:
      return cast_run<From, uint64_t>;
    case DType::kFloat8E4M3:
      return cast_run<From, Float8E4M3>;
    case DType::kFloat8E5M2:
      return cast_run<From, Float8E5M2>;
    case DType::kInvalid:
    case DType::kComplex64:
    case DType::kComplex128:
      break;
  }
  return nullptr;
}

ElementCopy cast_between(DType from, DType to) {
  switch (from) {
    case DType::kBool:
      return cast_from<Bool>(to);
    case DType::kUInt8:
      return cast_from<uint8_t>(to);
    case DType::kInt8:
      return cast_from<int8_t>(to);
    case DType::kInt16:
      return cast_from<int16_t>(to);
    case DType::kInt32:
      return cast_from<int32_t>(to);
    case DType::kInt64:
      return cast_from<int64_t>(to);
    case DType::kFloat16:
      return cast_from<Half>(to);
    case DType::kBFloat16:
      return cast_from<BFloat16>(to);
    case DType::kFloat32:
      return cast_from<float>(to);
    case DType::kFloat64:
      return cast_from<double>(to);
    case DType::kUInt16:
      return cast_from<uint16_t>(to);
    case DType::kUInt32:
      return cast_from<uint32_t>(to);
    case DType::kUInt64:
      return cast_from<uint64_t>(to);
    case DType::kFloat8E4M3:
      return cast_from<Float8E4M3>(to);
    case DType::kFloat8E5M2:
      return cast_from<Float8E5M2>(to);
    case DType::kInvalid:
    case DType::kComplex64:
    case DType::kComplex128:
      break;
  }
  return nullptr;
}

}  // namespace

Result<ElementCopy> element_copy(DType from, DType to) {
  if (size_of(from) == 0 || size_of(to) == 0) {
    return Error{ErrorCode::kInvalidArgument, "A cast needs two element types; one is missing."};
  }
  if (from == to) return move_of(size_of(from));
  const ElementCopy cast = cast_between(from, to);
  if (cast == nullptr) {
    return Error{ErrorCode::kUnsupported, "A cast from " + std::string(name_of(from)) + " to " +
                                              std::string(name_of(to)) +
                                              " is not offered. Keep the tensor's own dtype."};
  }
  return cast;
}

}  // namespace djinn::load
