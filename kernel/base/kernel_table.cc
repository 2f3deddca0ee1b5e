// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/kernel_table.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

namespace djinn {
namespace {

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

std::optional<ProductKernels> product_of(std::string_view word) {
  const auto own = rate_of(take_word(word, '/'));
  const auto library = rate_of(word);
  if (!own || !library) return std::nullopt;
  return ProductKernels{*own, *library};
}

}  // namespace

std::string text_of(const KernelTable& table) {
  std::string text = fmt::format("{}", table.read_mbs);
  for (const uint32_t rate : table.row_mbs) text += fmt::format(" {}", rate);
  for (const ProductKernels& product : table.products) {
    text += fmt::format(" {}/{}", product.own_mflops, product.library_mflops);
  }
  return text;
}

Result<KernelTable> kernel_table_of(std::string_view given) {
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
    const auto product = product_of(take_word(text, ' '));
    if (!product) return wrong;
    table.products[i] = *product;
  }
  if (text_of(table) != given) return wrong;  // there is more, or a number is written otherwise
  return table;
}

}  // namespace djinn
