// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_cuda/options.h"

#include <fmt/format.h>
#include <stdio.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <optional>

namespace djinn::fake_cuda {
namespace {

constexpr auto kSymbols = std::to_array<std::string_view>({
#define DJINN_FAKE_SYMBOL(name, symbol, arguments) #symbol,
    DJINN_CUDA_FUNCTIONS(DJINN_FAKE_SYMBOL)
#undef DJINN_FAKE_SYMBOL
});

constexpr std::string_view kDone = "done:";

[[noreturn]] void refuse(std::string_view word) {
  fmt::print(stderr, "fake CUDA: its options have '{}', which means nothing\n", word);
  std::abort();
}

std::optional<uint64_t> number_in(std::string_view text, int base = 10) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

std::optional<uint64_t> bytes_in(std::string_view text) {
  const size_t unit = text.empty() ? text.npos : std::string_view("KMG").find(text.back());
  if (unit == text.npos) return number_in(text);
  const auto count = number_in(text.substr(0, text.size() - 1));
  if (!count) return {};
  return *count << (10 * (unit + 1));
}

// Reads 32 hexadecimal digits. Dashes may stand anywhere.
std::optional<Uuid> uuid_in(std::string_view text) {
  std::string digits(text);
  std::erase(digits, '-');
  Uuid uuid{};
  if (digits.size() != 2 * uuid.size()) return {};
  for (size_t i = 0; i < uuid.size(); ++i) {
    const auto byte = number_in(std::string_view(digits).substr(2 * i, 2), 16);
    if (!byte) return {};
    uuid[i] = static_cast<unsigned char>(*byte);
  }
  return uuid;
}

bool is_of_driver(std::string_view name) {
  return std::ranges::find(kSymbols, name, plain_name) != kSymbols.end();
}

// Reads "cuMemCreate@3=OUT_OF_MEMORY" or "cuMemCreate@3=done:OUT_OF_MEMORY"; the @ stands at `at`.
std::optional<Fault> fault_in(std::string_view word, size_t at, IsFunction* is_function) {
  const size_t equals = word.find('=', at);
  if (equals == word.npos) return {};
  const std::string_view function = plain_name(word.substr(0, at));
  const auto number = number_in(word.substr(at + 1, equals - at - 1));
  std::string_view name = word.substr(equals + 1);
  const bool is_done = name.starts_with(kDone);
  if (is_done) name.remove_prefix(kDone.size());
  const CodeInfo* const code = find_code(name);
  if (function != "*" && !is_function(function)) return {};
  if (!number || *number == 0 || code == nullptr) return {};
  return Fault{std::string(function), *number, code->code, is_done};
}

template <typename T, typename U>
bool take(T& to, const std::optional<U>& value) {
  if (value) to = static_cast<T>(*value);
  return value.has_value();
}

bool read_word(Options& options, std::string_view word, IsFunction* is_function) {
  if (const size_t at = word.find('@'); at != word.npos) {
    const auto fault = fault_in(word, at, is_function);
    if (fault) options.faults.push_back(*fault);
    return fault.has_value();
  }
  const size_t equals = word.find('=');
  if (equals == word.npos) return false;
  const std::string_view key = word.substr(0, equals), value = word.substr(equals + 1);
  if (key == "uuid") return take(options.uuid, uuid_in(value));
  if (key == "memory") return take(options.memory_bytes, bytes_in(value));
  if (key == "delay_us") return take(options.delay_us, number_in(value));
  if (key == "driver_version") return take(options.driver_version, number_in(value));
  if (key == "compute_mode") return take(options.compute_mode, number_in(value));
  if (key == "mps") return take(options.mps, number_in(value)) && options.mps <= 1;
  if (key == "devices") return take(options.devices, number_in(value)) && options.devices <= 1;
  if (key == "partial_maps")
    return take(options.partial_maps, number_in(value)) && options.partial_maps <= 1;
  if (key == "name") options.name = value;
  return key == "name";
}

}  // namespace

std::string_view plain_name(std::string_view symbol) {
  if (symbol.ends_with("_v2")) symbol.remove_suffix(3);
  return symbol;
}

Options read_options(std::string_view text) {
  return read_options(text, is_of_driver);
}

Options read_options(std::string_view text, IsFunction* is_function) {
  Options options;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(';'));
    if (!word.empty() && !read_word(options, word, is_function)) refuse(word);
    text.remove_prefix(std::min(text.size(), word.size() + 1));
  }
  return options;
}

}  // namespace djinn::fake_cuda
