// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/convert.h"

#include <array>

namespace djinn::exec {
namespace {

struct Pair {
  DType ours;
  at::ScalarType theirs;
};

constexpr std::array<Pair, 17> kPairs{{
    {DType::kBool, at::ScalarType::Bool},
    {DType::kUInt8, at::ScalarType::Byte},
    {DType::kInt8, at::ScalarType::Char},
    {DType::kInt16, at::ScalarType::Short},
    {DType::kInt32, at::ScalarType::Int},
    {DType::kInt64, at::ScalarType::Long},
    {DType::kFloat16, at::ScalarType::Half},
    {DType::kBFloat16, at::ScalarType::BFloat16},
    {DType::kFloat32, at::ScalarType::Float},
    {DType::kFloat64, at::ScalarType::Double},
    {DType::kUInt16, at::ScalarType::UInt16},
    {DType::kUInt32, at::ScalarType::UInt32},
    {DType::kUInt64, at::ScalarType::UInt64},
    {DType::kFloat8E4M3, at::ScalarType::Float8_e4m3fn},
    {DType::kFloat8E5M2, at::ScalarType::Float8_e5m2},
    {DType::kComplex64, at::ScalarType::ComplexFloat},
    {DType::kComplex128, at::ScalarType::ComplexDouble},
}};

constexpr size_t kTextMax = 400;

// Tells whether a word would tell a client about our process or our build.
bool is_private(std::string_view word) {
  const bool address = word.find("0x") != std::string_view::npos;
  const bool path = word.find(".cpp:") != std::string_view::npos ||
                    word.find(".h:") != std::string_view::npos || word.starts_with('/') ||
                    word.starts_with("\"/");
  return address || path;
}

}  // namespace

std::optional<at::ScalarType> to_torch(DType dtype) noexcept {
  for (const Pair& pair : kPairs) {
    if (pair.ours == dtype) return pair.theirs;
  }
  return std::nullopt;
}

DType from_torch(at::ScalarType type) noexcept {
  for (const Pair& pair : kPairs) {
    if (pair.theirs == type) return pair.ours;
  }
  return DType::kInvalid;
}

std::string presentable(std::string_view what) {
  std::string_view rest = what.substr(0, what.find('\n'));
  if (rest.find("INTERNAL ASSERT") != std::string_view::npos) return "an internal check failed";
  std::string text;
  while (!rest.empty() && text.size() < kTextMax) {
    const std::string_view word = rest.substr(0, rest.find(' '));
    text += is_private(word) ? std::string_view("...") : word.substr(0, kTextMax - text.size());
    rest.remove_prefix(word.size());
    if (!rest.empty()) text += ' ', rest.remove_prefix(1);
  }
  return text;
}

// Of what CUDA's runtime answers these are about the call alone. All others tell of the device, or
// of work before the call, and then nobody knows what else is wrong.
static ErrorCode code_of_runtime(int32_t code) {
  switch (code) {
    case 2:  // cudaErrorMemoryAllocation
      return ErrorCode::kOutOfMemory;
    case 1:  // cudaErrorInvalidValue
    case 9:  // cudaErrorInvalidConfiguration
      return ErrorCode::kInvalidArgument;
    case 98:   // cudaErrorInvalidDeviceFunction
    case 209:  // cudaErrorNoKernelImageForDevice
    case 701:  // cudaErrorLaunchOutOfResources
    case 801:  // cudaErrorNotSupported
      return ErrorCode::kUnsupported;
    default:
      return ErrorCode::kDeviceLost;
  }
}

// Likewise of cuBLAS and cublasLt, whose status LibTorch tells by its name. Nothing where the error
// is not theirs.
static std::optional<ErrorCode> code_of_cublas(std::string_view why) {
  constexpr std::string_view kPrefix = "CUDA error: CUBLAS_STATUS_";  // within, a graph may say so
  if (!why.starts_with(kPrefix)) return std::nullopt;
  const std::string_view status = why.substr(kPrefix.size());
  if (status.starts_with("ALLOC_FAILED")) return ErrorCode::kOutOfMemory;
  if (status.starts_with("INVALID_VALUE")) return ErrorCode::kInvalidArgument;
  if (status.starts_with("NOT_SUPPORTED")) return ErrorCode::kUnsupported;
  return ErrorCode::kDeviceLost;
}

static Error error_of_device(ErrorCode code, std::string_view what) {
  const std::string why = presentable(what);
  if (code != ErrorCode::kDeviceLost) return {code, why};
  return {code, "The device has failed, and this process can use it no more: " + why};
}

static Error error_of_torch(const c10::Error& error) {
  const std::string what = error.what_without_backtrace();
  const auto code = code_of_cublas(what);
  return code ? error_of_device(*code, what)
              : Error{ErrorCode::kInvalidArgument, presentable(what)};
}

Error error_of_current_exception() {
  try {
    throw;
  } catch (const c10::AcceleratorError& error) {
    return error_of_device(code_of_runtime(error.get_error_code()), error.what_without_backtrace());
  } catch (const c10::OutOfMemoryError& error) {
    return {ErrorCode::kOutOfMemory, presentable(error.what_without_backtrace())};
  } catch (const c10::IndexError& error) {
    return {ErrorCode::kOutOfRange, presentable(error.what_without_backtrace())};
  } catch (const c10::NotImplementedError& error) {
    return {ErrorCode::kUnsupported, presentable(error.what_without_backtrace())};
  } catch (const c10::Error& error) {
    return error_of_torch(error);
  } catch (const std::bad_alloc&) {
    return {ErrorCode::kOutOfMemory, "The host has no memory left for this run."};
  } catch (const std::exception& error) {
    return {ErrorCode::kInvalidArgument, presentable(error.what())};
  } catch (...) {
    return {ErrorCode::kInternal, "an unknown exception"};
  }
}

Error located(Error error, std::string_view where) {
  error.message.insert(0, ": ").insert(0, where);
  return error;
}

}  // namespace djinn::exec
