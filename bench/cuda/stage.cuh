// SPDX-License-Identifier: Apache-2.0
//
// What the measuring stages in CUDA C++ share. They stand alone: no library of ours, no fmt, so
// that nvcc and a driver are enough.
//
//   fact    one line of JSON on stdout: {"name", "value", "unit", "detail"}, flushed at once
//   part    a group of measurements that fails by itself: its error goes to stderr, the next runs
//   Stage   the command line, the time that is left, and the exit status: 0 measured, 1 a part
//           failed, 77 there is no device here
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace stage {

inline constexpr int kNoDevice = 77;
inline constexpr double kGigabyte = 1e9;
inline constexpr size_t kMiB = 1 << 20;

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void say(const std::string& text) {
  std::fputs((text + "\n").c_str(), stderr);
}

inline std::string number(double value) {
  char digits[64];
  const auto end =
      std::to_chars(digits, digits + sizeof(digits), value, std::chars_format::general, 6);
  return std::string(digits, end.ptr);
}

inline std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return out + '"';
}

inline void print_fact(const std::string& name, const std::string& value, const std::string& unit,
                       const std::string& detail) {
  std::string line = "{\"name\": " + json_string(name) + ", \"value\": " + value;
  if (!unit.empty()) line += ", \"unit\": " + json_string(unit);
  if (!detail.empty()) line += ", \"detail\": " + json_string(detail);
  std::fputs((line + "}\n").c_str(), stdout);
  std::fflush(stdout);
}

/// JSON has no infinity: a figure that is none is a failure of its part.
inline void fact(const std::string& name, double value, const std::string& unit,
                 const std::string& detail = "") {
  if (!(value - value == 0)) throw Failure(name + ": the figure is not finite");
  print_fact(name, number(value), unit, detail);
}

inline void fact_bool(const std::string& name, bool value, const std::string& detail = "") {
  print_fact(name, value ? "true" : "false", "", detail);
}

inline void fact_text(const std::string& name, const std::string& value,
                      const std::string& detail = "") {
  print_fact(name, json_string(value), "", detail);
}

inline void check(cudaError_t error, std::source_location where = std::source_location::current()) {
  if (error == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // so that the next part does not find it again
  throw Failure("line " + std::to_string(where.line()) + ": " + cudaGetErrorName(error) + ": " +
                cudaGetErrorString(error));
}

/// After a launch: its own error; what the kernel does wrong shows at the next synchronisation.
inline void check_launch(std::source_location where = std::source_location::current()) {
  check(cudaGetLastError(), where);
}

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double median(std::vector<double> values) {
  if (values.empty()) throw Failure("no measurement was made");
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes) { check(cudaMalloc(&data_, bytes)); }
  ~Buffer() { static_cast<void>(cudaFree(data_)); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  template <typename T>
  T* as(size_t offset_bytes = 0) const {
    return reinterpret_cast<T*>(static_cast<char*>(data_) + offset_bytes);
  }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

class Pinned {
 public:
  explicit Pinned(size_t bytes) : bytes_(bytes) {
    check(cudaHostAlloc(&data_, bytes, cudaHostAllocDefault));
  }
  ~Pinned() { static_cast<void>(cudaFreeHost(data_)); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  char* data() const { return static_cast<char*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { static_cast<void>(cudaStreamDestroy(stream_)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  operator cudaStream_t() const { return stream_; }
  void wait() const { check(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  explicit Event(unsigned flags = cudaEventDefault) {
    check(cudaEventCreateWithFlags(&event_, flags));
  }
  ~Event() { static_cast<void>(cudaEventDestroy(event_)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

/// What `enqueue` puts on the stream, as a graph; instantiated and uploaded.
class Graph {
 public:
  Graph(cudaStream_t stream, const std::function<void()>& enqueue) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    try {
      enqueue();
    } catch (...) {
      static_cast<void>(cudaStreamEndCapture(stream, &graph_));
      if (graph_ != nullptr) static_cast<void>(cudaGraphDestroy(graph_));
      throw;
    }
    check(cudaStreamEndCapture(stream, &graph_));
    try {
      check(cudaGraphInstantiate(&exec_, graph_, 0));
      check(cudaGraphUpload(exec_, stream));
    } catch (...) {
      destroy();
      throw;
    }
  }
  ~Graph() { destroy(); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  cudaGraph_t graph() const { return graph_; }
  cudaGraphExec_t exec() const { return exec_; }
  void launch(cudaStream_t stream) const { check(cudaGraphLaunch(exec_, stream)); }

 private:
  void destroy() {
    if (exec_ != nullptr) static_cast<void>(cudaGraphExecDestroy(exec_));
    static_cast<void>(cudaGraphDestroy(graph_));
  }

  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

/// The device's time between two events around `enqueue`: the median of `repetitions`, after one
/// that warms up.
inline double device_ms(cudaStream_t stream, int repetitions,
                        const std::function<void()>& enqueue) {
  const Event begin;
  const Event end;
  std::vector<double> times;
  for (int i = 0; i <= repetitions; ++i) {
    check(cudaEventRecord(begin, stream));
    enqueue();
    check(cudaEventRecord(end, stream));
    check(cudaEventSynchronize(end));
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end));
    if (i > 0) times.push_back(ms);
  }
  return median(times);
}

static __global__ void architecture(int* version) {
#ifdef __CUDA_ARCH__
  *version = __CUDA_ARCH__;
#endif
}

/// Programmatic dependent launch needs sm_90, and kernels that were compiled for it: others do not
/// wait for the one before.
inline bool has_pdl() {
  const Buffer version(sizeof(int));
  architecture<<<1, 1>>>(version.as<int>());
  check_launch();
  int found = 0;
  check(cudaMemcpy(&found, version.as<int>(), sizeof(found), cudaMemcpyDeviceToHost));
  return found >= 900;
}

class Stage {
 public:
  explicit Stage(double seconds) : seconds_(seconds) {}

  /// `measure` runs the parts; its order is that of importance.
  int run(int argc, char** argv, const std::function<void(Stage&)>& measure) {
    if (!read_options(argc, argv)) return 2;
    end_ = seconds_now() + seconds_;
    int devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess || devices == 0) {
      say(std::string("no CUDA device: ") +
          (error == cudaSuccess ? "the driver counts none" : cudaGetErrorString(error)));
      return kNoDevice;
    }
    part("device", [&] {
      check(cudaSetDevice(0));
      check(cudaGetDeviceProperties(&device, 0));
      fact_text("device", device.name);
    });
    if (failed_ == 0) measure(*this);
    return failed_ == 0 ? 0 : 1;
  }

  void part(const std::string& name, const std::function<void()>& measure) {
    if (left() <= 0) {
      say(name + ": left out, the time is up");
      return;
    }
    try {
      measure();
      check(cudaDeviceSynchronize());
    } catch (const std::exception& error) {
      say(name + " failed: " + error.what());
      ++failed_;
    }
  }

  double left() const { return end_ - seconds_now(); }

  cudaDeviceProp device{};

 private:
  bool read_options(int argc, char** argv) {
    const std::vector<std::string_view> words(argv + 1, argv + argc);
    if (words.empty()) return true;
    if (words.size() == 2 && words[0] == "--seconds") {
      const auto end = words[1].data() + words[1].size();
      const auto found = std::from_chars(words[1].data(), end, seconds_);
      if (found.ec == std::errc() && found.ptr == end && seconds_ > 0) return true;
    }
    say(std::string("usage: ") + argv[0] + " [--seconds S]   (S > 0)");
    return false;
  }

  double seconds_;
  double end_ = 0;
  int failed_ = 0;
};

}  // namespace stage
