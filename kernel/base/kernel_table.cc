// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/kernel_table.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

namespace djinn {
namespace {

constexpr uint64_t kMarginPercent = 125;  // of the standard's rate, to leave it
constexpr std::string_view kOwn = "own", kLibrary = "library";

// Takes what is before the separator off the text, or all of it.
std::string_view take_word(std::string_view& text, char separator) {
  const size_t end = text.find(separator);
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return word;
}

std::optional<uint32_t> rate_of(std::string_view word) {
  uint32_t rate = 0;
  const auto [end, failed] = std::from_chars(word.data(), word.data() + word.size(), rate);
  if (failed != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return rate;
}

std::optional<ProductKernels> product_of(std::string_view word, bool standard) {
  const auto own = rate_of(take_word(word, '/'));
  const auto library = rate_of(take_word(word, '='));
  if (!own || !library || (word != kOwn && word != kLibrary)) return std::nullopt;
  const bool owns = word == kOwn;
  if (owns != takes_own(*own, *library, standard)) return std::nullopt;
  return ProductKernels{*own, *library, owns};
}

}  // namespace

// MKL has nothing but AVX2 for processors of AMD's, and packs weights for each call; by AMX ours
// are faster than AVX-512 is, where inputs lie side by side. oneDNN's bfloat16 is as fast as ours,
// and PyTorch has nothing fast for 16 bits where there is no AVX-512.
KernelTable standard_kernels(IsaLevel level, bool amd) {
  KernelTable table;
  static_assert(kKernelDtypeNames[0] == "float32");
  for (size_t dtype = 0; dtype < kKernelDtypes; ++dtype) {
    const bool owns = dtype == 0 ? amd && level >= IsaLevel::kAvx2 : level == IsaLevel::kAvx2;
    for (const bool inputs_dense : {false, true}) {
      const bool splits = dtype == 0 && inputs_dense && level == IsaLevel::kAmx;
      table.products[product_index(dtype, inputs_dense)].takes_own = owns || splits;
    }
  }
  return table;
}

bool takes_own(uint32_t own_mflops, uint32_t library_mflops, bool standard) {
  if (own_mflops == 0 || library_mflops == 0) return standard;
  const uint64_t kept = standard ? own_mflops : library_mflops;
  const uint64_t other = standard ? library_mflops : own_mflops;
  return other * 100 >= kept * kMarginPercent ? !standard : standard;
}

std::string text_of(const KernelTable& table) {
  std::string text = fmt::format("{}", table.read_mbs);
  for (const uint32_t rate : table.row_mbs) text += fmt::format(" {}", rate);
  for (const ProductKernels& product : table.products) {
    text += fmt::format(" {}/{}={}", product.own_mflops, product.library_mflops,
                        product.takes_own ? kOwn : kLibrary);
  }
  return text;
}

Result<KernelTable> kernel_table_of(std::string_view given, const KernelTable& standard) {
  std::string_view text = given;
  const Error wrong{ErrorCode::kMalformed, "It is no table of kernels."};
  KernelTable table;
  const auto take_rate = [&text](uint32_t& rate) {
    const auto read = rate_of(take_word(text, ' '));
    rate = read.value_or(0);
    return read.has_value();
  };
  if (!take_rate(table.read_mbs)) return wrong;
  for (uint32_t& rate : table.row_mbs) {
    if (!take_rate(rate)) return wrong;
  }
  for (size_t i = 0; i < kKernelProducts; ++i) {
    const auto product = product_of(take_word(text, ' '), standard.products[i].takes_own);
    if (!product) return wrong;
    table.products[i] = *product;
  }
  if (text_of(table) != given) return wrong;  // there is more, or a number is written otherwise
  return table;
}

}  // namespace djinn
