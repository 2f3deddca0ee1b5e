// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_cuda/runtime/call.h"

#include <cxxabi.h>
#include <fmt/format.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <array>

#include "tests/fake_cuda/codes.h"
#include "tests/fake_cuda/runtime/errors.h"
#include "tests/fake_cuda/runtime/world.h"

namespace djinn::fake_runtime {
namespace {

thread_local cudaError_t last = cudaSuccess;
thread_local Call* current = nullptr;

// These tell of an error, and make none.
bool is_question(std::string_view function) {
  return function == "cudaGetLastError" || function == "cudaPeekAtLastError";
}

// After a sticky code, what gives something back is done, and what is known without the device is
// answered.
bool outlives_context(std::string_view function) {
  constexpr auto kKnown = std::to_array<std::string_view>(
      {"cudaGetDevice", "cudaGetDeviceCount", "cudaGetDeviceProperties", "cudaDriverGetVersion",
       "cudaRuntimeGetVersion"});
  const bool gives_back =
      function.find("Free") != function.npos || function.find("Destroy") != function.npos;
  return gives_back || std::ranges::find(kKnown, function) != kKnown.end();
}

const std::string& demangled(const char* name) {
  static auto* const known = new std::unordered_map<const char*, std::string>;
  std::string& text = (*known)[name];
  if (!text.empty()) return text;
  int status = 0;
  char* const made = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  text = status == 0 ? made : name;
  ::free(made);
  return text;
}

std::string scalar_at(const void* address) {
  float value = 0;
  ::memcpy(&value, address, sizeof value);
  return fmt::format("{}", value);
}

}  // namespace

void not_faked(std::string_view function) {
  world().flush();
  fmt::print(stderr, "fake runtime: {} is called, and nobody has faked it\n", function);
  ::abort();
}

std::string name_of(const void* address) {
  if (address == nullptr) return "0";
  size_t offset = 0;
  if (const Block* const block = world().find_block(address, offset))
    return fmt::format("{}{}+{}", block->place == Place::kDevice ? 'd' : 'p', block->number,
                       offset);
  if (const Thing* const thing = world().thing(address)) return thing->text();
  if (const auto mapped = find_mapped(address))
    return fmt::format("v{}+{}", mapped->reservation, mapped->offset);
  const auto kernel = world().kernels.find(address);
  return kernel == world().kernels.end() ? "host" : demangled(kernel->second);
}

std::string name_of(const void* address, std::string_view argument) {
  const std::string name = name_of(address);
  const bool is_scalar = name == "host" && (argument == "alpha" || argument == "beta");
  return is_scalar ? scalar_at(address) : name;
}

std::string text_of(const char* text) {
  return text == nullptr ? "0" : text;
}

std::string text_of(uint3 size) {
  return fmt::format("{},{},{}", size.x, size.y, size.z);
}

std::string text_of(double value) {
  return fmt::format("{}", value);
}

std::string text_of(long long value) {
  return fmt::format("{}", value);
}

std::string text_of(unsigned long long value) {
  return fmt::format("{}", value);
}

Code code_of(cudaError_t error) {
  return static_cast<Code>(error);
}

// cuBLAS says no more than that it could not.
Code code_of(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return Code::kSuccess;
    case CUBLAS_STATUS_ALLOC_FAILED:
      return Code::kOutOfMemory;
    case CUBLAS_STATUS_INVALID_VALUE:
      return Code::kInvalidValue;
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return Code::kNotSupported;
    default:
      return Code::kUnknown;
  }
}

void answer(Code code, cudaError_t& error) {
  error = static_cast<cudaError_t>(code);
}

void answer(Code code, cublasStatus_t& status) {
  switch (code) {
    case Code::kSuccess:
      status = CUBLAS_STATUS_SUCCESS;
      return;
    case Code::kOutOfMemory:
      status = CUBLAS_STATUS_ALLOC_FAILED;
      return;
    case Code::kInvalidValue:
      status = CUBLAS_STATUS_INVALID_VALUE;
      return;
    case Code::kNotSupported:
      status = CUBLAS_STATUS_NOT_SUPPORTED;
      return;
    default:
      status = CUBLAS_STATUS_EXECUTION_FAILED;
  }
}

cudaError_t last_error() {
  return last;
}

void forget_last_error() {
  last = cudaSuccess;
}

Call::Call(std::string_view function)
    : lock_(world().mutex), fault_(world().count(function)), function_(function), line_(function) {
  current = this;
}

Call::~Call() {
  line_ += '\n';
  world().write(line_ + replayed_);
  current = nullptr;
}

void Call::add(std::string_view argument, std::string_view text) {
  fmt::format_to(std::back_inserter(line_), "\t{}={}", argument, text);
}

void Call::add_line(std::string_view replayed) {
  fmt::format_to(std::back_inserter(replayed_), "replayed:{}\n", replayed);
}

Code Call::refusal() const {
  if (fault_ != nullptr && !fault_->is_done) return fault_->code;
  return outlives_context(function_) ? Code::kSuccess : world().fate;
}

void Call::end(Code code, bool is_of_runtime) {
  const auto* const info = fault_ == nullptr ? nullptr : fake_cuda::find_code(fault_->code);
  if (info != nullptr && info->sticky) world().fate = info->code;
  if (code == Code::kSuccess) return;
  add("error", text_of(static_cast<long long>(code)));
  if (is_of_runtime && !is_question(function_)) last = static_cast<cudaError_t>(code);
}

void note(std::string_view what, std::string_view text) {
  if (current != nullptr) current->add(what, text);
}

std::string_view current_line() {
  return current == nullptr ? std::string_view() : current->line();
}

void note_line(std::string_view replayed) {
  if (current != nullptr) current->add_line(replayed);
}

}  // namespace djinn::fake_runtime

// Writes a line of the caller's into the log, and all before it to the file.
extern "C" [[gnu::visibility("default")]] void djinn_fake_mark(const char* text) {
  using djinn::fake_runtime::world;
  const std::lock_guard lock(world().mutex);
  world().write(fmt::format("mark\ttext={}\n", text));
  world().flush();
}
