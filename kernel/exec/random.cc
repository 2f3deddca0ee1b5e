// SPDX-License-Identifier: Apache-2.0

// These are the random operators. kernel/srg/random.h says how far each moves a generator's offset.
//
//   djinn::rand(int[] size, ScalarType dtype, int seed, int offset) -> Tensor
//     uniform in [0, 1); of the element's 64 bits the highest that the dtype's fraction holds
//   djinn::randn(likewise) -> Tensor
//     normal, Box-Muller in double, rounded to the dtype; a block gives a cosine and a sine
//   djinn::randint(int low, int high, int[] size, ScalarType dtype, int seed, int offset) -> Tensor
//     uniform in [low, high): the high word of 64 bits times high - low. A number is off its due by
//     at most (high - low) / 2^64
//   djinn::randperm(int n, ScalarType dtype, int seed, int offset) -> Tensor
//     Fisher and Yates from the end; the step at i takes element i
//   djinn::bernoulli(Tensor p, int seed, int offset) -> Tensor
//     1 where a uniform number of 53 bits is below p
//   djinn::multinomial(Tensor probabilities, int num_samples, bool replacement, int seed,
//                      int offset) -> Tensor
//     [rows, num_samples] or [num_samples]. Sample j of row r is the inverse of the row's
//     distribution at philox_uniform(seed, offset + r * num_samples + j): one sample a row is what
//     exec::sample() draws
//
// invariant: an element depends on (seed, offset) and its index alone.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <cmath>
#include <numbers>
#include <numeric>

#include "kernel/exec/own_operators.h"
#include "kernel/exec/torch_headers.h"
#include "kernel/executor/sample.h"

namespace djinn::exec {
namespace {

constexpr int64_t kGrain = 4096;  // blocks a thread takes at least

struct Generator {
  uint64_t seed;
  uint64_t offset;

  Generator(int64_t seed_bits, int64_t offset_bits)
      : seed(static_cast<uint64_t>(seed_bits)), offset(static_cast<uint64_t>(offset_bits)) {}

  // Gives both halves of a block.
  [[nodiscard]] std::array<uint64_t, 2> block(uint64_t index) const {
    const auto words = philox_block(seed, offset + index);
    return {uint64_t{words[0]} << 32 | words[1], uint64_t{words[2]} << 32 | words[3]};
  }
};

// Puts make(block's index) into elements 2 * index and 2 * index + 1.
template <typename T, typename Make>
void fill_by_blocks(const at::Tensor& out, const Make& make) {
  T* const data = out.mutable_data_ptr<T>();
  const int64_t count = out.numel();
  at::parallel_for(0, (count + 1) / 2, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const std::array<T, 2> pair = make(static_cast<uint64_t>(i));
      data[2 * i] = pair[0];
      if (2 * i + 1 < count) data[2 * i + 1] = pair[1];
    }
  });
}

// Calls f(T()) with the dtype's C++ type T.
template <typename F>
void for_floating(at::ScalarType type, const char* op, F&& f) {
  switch (type) {
    case at::kDouble:
      return f(double());
    case at::kFloat:
      return f(float());
    case at::kHalf:
      return f(at::Half());
    case at::kBFloat16:
      return f(at::BFloat16());
    default:
      TORCH_CHECK_TYPE(false, op, " takes float16, bfloat16, float32 and float64, not ", type);
  }
}

template <typename F>
void for_numbers(at::ScalarType type, const char* op, F&& f) {
  switch (type) {
    case at::kBool:
      return f(bool());
    case at::kByte:
      return f(uint8_t());
    case at::kChar:
      return f(int8_t());
    case at::kShort:
      return f(int16_t());
    case at::kInt:
      return f(int32_t());
    case at::kLong:
      return f(int64_t());
    default:
      return for_floating(type, op, std::forward<F>(f));
  }
}

// Gives the largest integer up to which all are exact.
template <typename T>
constexpr int64_t exact_max() {
  if constexpr (std::is_same_v<T, bool>) return 1;
  if constexpr (std::is_integral_v<T>) return std::numeric_limits<T>::max();
  return int64_t{1} << std::numeric_limits<T>::digits;
}
template <typename T>
constexpr int64_t exact_min() {
  if constexpr (std::is_same_v<T, bool>) return 0;
  if constexpr (std::is_integral_v<T>) return std::numeric_limits<T>::min();
  return -exact_max<T>();
}

at::Tensor empty(at::IntArrayRef size, at::ScalarType type, std::optional<at::Device> device) {
  return at::empty(size, at::TensorOptions().dtype(type).device(device.value_or(c10::kCPU)));
}

double unit(uint64_t bits, int digits) {
  return std::ldexp(static_cast<double>(bits >> (64 - digits)), -digits);
}

at::Tensor uniform(at::IntArrayRef size, at::ScalarType type, int64_t seed, int64_t offset,
                   std::optional<at::Device> device) {
  const at::Tensor out = empty(size, type, device);
  const Generator generator(seed, offset);
  for_floating(type, "djinn::rand", [&]<typename T>(T) {
    constexpr int kDigits = std::numeric_limits<T>::digits;
    if (out.is_meta()) return;
    fill_by_blocks<T>(out, [&](uint64_t i) {
      const auto [a, b] = generator.block(i);
      return std::array<T, 2>{static_cast<T>(unit(a, kDigits)), static_cast<T>(unit(b, kDigits))};
    });
  });
  return out;
}

// Gives two normal numbers, made of one block.
std::array<double, 2> normals(const std::array<uint64_t, 2>& bits) {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - unit(bits[0], 53)));
  const double angle = 2.0 * std::numbers::pi * unit(bits[1], 53);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

at::Tensor randn(at::IntArrayRef size, at::ScalarType type, int64_t seed, int64_t offset,
                 std::optional<at::Device> device) {
  const at::Tensor out = empty(size, type, device);
  const Generator generator(seed, offset);
  for_floating(type, "djinn::randn", [&]<typename T>(T) {
    if (out.is_meta()) return;
    fill_by_blocks<T>(out, [&](uint64_t i) {
      const auto [a, b] = normals(generator.block(i));
      return std::array<T, 2>{static_cast<T>(a), static_cast<T>(b)};
    });
  });
  return out;
}

uint64_t scaled(uint64_t bits, uint64_t range) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(bits) * range >> 64);
}

at::Tensor randint(int64_t low, int64_t high, at::IntArrayRef size, at::ScalarType type,
                   int64_t seed, int64_t offset, std::optional<at::Device> device) {
  TORCH_CHECK_VALUE(low < high, "djinn::randint: nothing lies in [", low, ", ", high, ")");
  const at::Tensor out = empty(size, type, device);
  const Generator generator(seed, offset);
  const uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  const auto pick = [&](uint64_t bits) {
    return static_cast<int64_t>(static_cast<uint64_t>(low) + scaled(bits, range));
  };
  for_numbers(type, "djinn::randint", [&]<typename T>(T) {
    TORCH_CHECK_VALUE(low >= exact_min<T>() && high - 1 <= exact_max<T>(), "djinn::randint: [", low,
                      ", ", high, ") does not fit ", type);
    if (out.is_meta()) return;
    fill_by_blocks<T>(out, [&](uint64_t i) {
      const auto [a, b] = generator.block(i);
      return std::array<T, 2>{static_cast<T>(pick(a)), static_cast<T>(pick(b))};
    });
  });
  return out;
}

at::Tensor randperm(int64_t n, at::ScalarType type, int64_t seed, int64_t offset,
                    std::optional<at::Device> device) {
  TORCH_CHECK_VALUE(n >= 0, "djinn::randperm: n is ", n);
  const at::Tensor out = empty({n}, type, device);
  const Generator generator(seed, offset);
  for_numbers(type, "djinn::randperm", [&]<typename T>(T) {
    TORCH_CHECK_VALUE(n - 1 <= exact_max<T>(), "djinn::randperm: ", n, " numbers do not fit ",
                      type);
    if (out.is_meta()) return;
    T* const data = out.mutable_data_ptr<T>();
    for (int64_t i = 0; i < n; ++i) data[i] = static_cast<T>(i);
    for (auto i = static_cast<uint64_t>(n); i-- > 1;) {
      std::swap(data[i], data[scaled(generator.block(i / 2)[i % 2], i + 1)]);
    }
  });
  return out;
}

template <typename T>
std::array<T, 2> decide(const T* p, bool both, const std::array<uint64_t, 2>& bits) {
  std::array<T, 2> pair{T(0), T(0)};
  for (size_t i = 0; i < (both ? 2u : 1u); ++i) {
    const auto probability = static_cast<double>(p[i]);
    TORCH_CHECK_VALUE(probability >= 0 && probability <= 1,
                      "djinn::bernoulli: a probability is outside [0, 1]");
    pair[i] = static_cast<T>(unit(bits[i], 53) < probability ? 1 : 0);
  }
  return pair;
}

at::Tensor bernoulli(const at::Tensor& p, int64_t seed, int64_t offset) {
  const at::Tensor given = p.contiguous();
  const at::Tensor out = at::empty(p.sizes(), p.options());
  const Generator generator(seed, offset);
  for_floating(p.scalar_type(), "djinn::bernoulli", [&]<typename T>(T) {
    const T* const data = given.const_data_ptr<T>();
    const auto count = static_cast<uint64_t>(given.numel());
    fill_by_blocks<T>(out, [&](uint64_t i) {
      return decide<T>(data + 2 * i, 2 * i + 1 < count, generator.block(i));
    });
  });
  return out;
}

at::Tensor bernoulli_meta(const at::Tensor& p, int64_t, int64_t) {
  return at::empty(p.sizes(), p.options());
}

at::Tensor multinomial_meta(const at::Tensor& probabilities, int64_t samples, bool replacement,
                            int64_t, int64_t) {
  TORCH_CHECK_VALUE(probabilities.dim() == 1 || probabilities.dim() == 2,
                    "djinn::multinomial takes one or two dimensions");
  TORCH_CHECK_VALUE(samples > 0 && probabilities.size(-1) > 0 &&
                        (replacement || samples <= probabilities.size(-1)),
                    "djinn::multinomial cannot draw ", samples, " of ", probabilities.size(-1));
  at::DimVector sizes(probabilities.sizes().begin(), probabilities.sizes().end());
  sizes.back() = samples;
  return at::empty(sizes, probabilities.options().dtype(at::kLong));
}

template <typename T>
void check_row(std::span<const T> row, int64_t samples, bool replacement) {
  int64_t possible = 0;
  for (const T probability : row) {
    TORCH_CHECK_VALUE(std::isfinite(probability) && probability >= 0,
                      "djinn::multinomial: a probability is negative, infinite or NaN");
    if (probability > 0) ++possible;
  }
  TORCH_CHECK_VALUE(possible >= (replacement ? 1 : samples),
                    "djinn::multinomial: a row has too few probabilities above zero");
}

// Draws several times from one row, which is scratch.
template <typename T>
void draw_row(std::span<T> row, std::span<int64_t> out, bool replacement, uint64_t seed,
              uint64_t offset) {
  check_row<T>(row, static_cast<int64_t>(out.size()), replacement);
  for (size_t i = 0; i < out.size(); ++i) {
    const auto drawn = static_cast<size_t>(invert(row, philox_uniform(seed, offset + i)));
    out[i] = static_cast<int64_t>(drawn);
    if (!replacement) row[drawn] = 0;
  }
}

at::Tensor multinomial(const at::Tensor& probabilities, int64_t samples, bool replacement,
                       int64_t seed, int64_t offset) {
  TORCH_CHECK_TYPE(at::isFloatingType(probabilities.scalar_type()),
                   "djinn::multinomial takes floating probabilities");
  const at::Tensor out = multinomial_meta(probabilities, samples, replacement, seed, offset);
  const bool wide = probabilities.scalar_type() == at::kDouble;
  const at::Tensor scratch =
      probabilities.to(wide ? at::kDouble : at::kFloat, /*non_blocking=*/false, /*copy=*/true)
          .contiguous();
  const Generator generator(seed, offset);
  for_floating(scratch.scalar_type(), "djinn::multinomial", [&]<typename T>(T) {
    if constexpr (std::is_floating_point_v<T>) {
      const auto columns = static_cast<size_t>(scratch.size(-1));
      const auto wanted = static_cast<size_t>(samples);
      T* const rows = scratch.mutable_data_ptr<T>();
      int64_t* const drawn = out.mutable_data_ptr<int64_t>();
      const int64_t count = probabilities.dim() == 1 ? 1 : probabilities.size(0);
      at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
        for (auto r = static_cast<uint64_t>(begin); r < static_cast<uint64_t>(end); ++r) {
          draw_row<T>({rows + r * columns, columns}, {drawn + r * wanted, wanted}, replacement,
                      generator.seed, generator.offset + r * wanted);
        }
      });
    }
  });
  return out;
}

}  // namespace

void define_random(OwnLibraries& libraries) {
  torch::Library& define = libraries.definition;
  define.def(
      "rand(int[] size, ScalarType dtype, int seed, int offset, *, Device? device=None) -> Tensor");
  define.def(
      "randn(int[] size, ScalarType dtype, int seed, int offset, *, Device? device=None) -> "
      "Tensor");
  define.def(
      "randint(int low, int high, int[] size, ScalarType dtype, int seed, int offset, *, "
      "Device? device=None) -> Tensor");
  define.def(
      "randperm(int n, ScalarType dtype, int seed, int offset, *, Device? device=None) -> Tensor");
  define.def("bernoulli(Tensor p, int seed, int offset) -> Tensor");
  define.def(
      "multinomial(Tensor probabilities, int num_samples, bool replacement, int seed, int offset) "
      "-> Tensor");
  libraries.any.impl("rand", &uniform);
  libraries.any.impl("randn", &randn);
  libraries.any.impl("randint", &randint);
  libraries.any.impl("randperm", &randperm);
  libraries.cpu.impl("bernoulli", &bernoulli);
  libraries.meta.impl("bernoulli", &bernoulli_meta);
  libraries.cpu.impl("multinomial", &multinomial);
  libraries.meta.impl("multinomial", &multinomial_meta);
}

}  // namespace djinn::exec
