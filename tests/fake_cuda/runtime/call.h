// SPDX-License-Identifier: Apache-2.0

// Call: one call of a function of the fake runtime, from its arguments to its line in the log.
//
// All calls are made one after the other, under one lock. A fault stands before the work, or after
// it where it says so. A code after which a process has to end is answered for ever.
#pragma once

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>

#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "tests/fake_cuda/options.h"

namespace djinn::fake_runtime {

using fake_cuda::Code;
using fake_cuda::Fault;

// Ends the process: an answer that nobody thought of would make a test pass.
[[noreturn]] void not_faked(std::string_view function);

// What an address is: of the device's or of pinned memory, a kernel, a handle; or "host".
[[nodiscard]] std::string name_of(const void* address);
[[nodiscard]] std::string name_of(const void* address, std::string_view argument);
[[nodiscard]] std::string text_of(const char* text);
[[nodiscard]] std::string text_of(uint3 size);
[[nodiscard]] std::string text_of(double value);
[[nodiscard]] std::string text_of(long long value);
[[nodiscard]] std::string text_of(unsigned long long value);

[[nodiscard]] Code code_of(cudaError_t error);
[[nodiscard]] Code code_of(cublasStatus_t status);
void answer(Code code, cudaError_t& error);
void answer(Code code, cublasStatus_t& status);

template <typename T>
inline constexpr bool kIsStatus =
    std::is_same_v<T, cudaError_t> || std::is_same_v<T, cublasStatus_t>;

class Call {
 public:
  explicit Call(std::string_view function);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call();

  template <typename T>
  void show(std::string_view argument, const T& value) {
    if constexpr (std::is_same_v<T, const char*>)
      add(argument, text_of(value));
    else if constexpr (std::is_pointer_v<T>)
      add(argument, name_of((const void*)value, argument));
    else if constexpr (std::is_enum_v<T> || (std::is_integral_v<T> && std::is_signed_v<T>))
      add(argument, text_of(static_cast<long long>(value)));
    else if constexpr (std::is_integral_v<T>)
      add(argument, text_of(static_cast<unsigned long long>(value)));
    else if constexpr (std::is_floating_point_v<T>)
      add(argument, text_of(static_cast<double>(value)));
    else if constexpr (std::is_same_v<T, dim3>)
      add(argument, text_of(static_cast<uint3>(value)));
    else
      add(argument, "struct");
  }

  void add(std::string_view argument, std::string_view text);
  void add_line(std::string_view replayed);
  [[nodiscard]] std::string_view line() const { return line_; }

  template <typename Work>
  auto run(Work work) {
    using Result = std::invoke_result_t<Work>;
    if constexpr (kIsStatus<Result>) {
      Result result{};
      answer(refusal(), result);
      if (code_of(result) == Code::kSuccess) result = work();
      if (fault_ != nullptr) answer(fault_->code, result);
      end(code_of(result), std::is_same_v<Result, cudaError_t>);
      return result;
    } else {
      return work();
    }
  }

 private:
  // The fault that is planted before this call's work, or the code that stays.
  [[nodiscard]] Code refusal() const;
  void end(Code code, bool is_of_runtime);

  std::unique_lock<std::recursive_mutex> lock_;
  const Fault* fault_ = nullptr;
  std::string_view function_;
  std::string line_;
  std::string replayed_;  // lines
};

// cuBLAS computes something, on the handle's stream.
[[nodiscard]] cublasStatus_t compute(cublasHandle_t handle);
[[nodiscard]] cublasStatus_t compute(cudaStream_t stream);

// Adds to the line of the call that is being made.
void note(std::string_view what, std::string_view text);
// That line, so far.
[[nodiscard]] std::string_view current_line();
// Writes, behind that line, one of a call that was captured and is replayed by it.
void note_line(std::string_view replayed);

}  // namespace djinn::fake_runtime
