// SPDX-License-Identifier: Apache-2.0
//
// How near to the memory's bandwidth a decode step's products with bf16 weights come (the kernels
// are gemv_kernels.cuh), and which shape of kernel is the fastest for which weight.
//
//   nvcc -O3 -std=c++20 -arch=sm_90 -o gemv gemv.cu && ./gemv [--seconds S]
//
// GB/s = bytes of weights × launches / time of a graph of launches, each after the one before, each
// with other weights, so that none is in the L2; the best of many variants, which the detail names.
// "of the copy": per cent of what cudaMemcpyAsync reaches in this process, bytes read and written.
// Right: ‖found - fp64‖ / ‖fp64‖ over 256 rows of the weight, before results are rounded to bf16;
// outputs begin as NaN. With an RMS norm x is rounded to bf16 once, which alone makes about 0.002.

#include <cmath>
#include <memory>
#include <optional>

#include "gemv_kernels.cuh"
#include "stage.cuh"

namespace {

using gemv::Problem;
using gemv::Source;
using stage::Buffer;
using stage::check;
using stage::fact;
using stage::Graph;
using stage::kGigabyte;
using stage::kMiB;
using stage::Stage;
using stage::Stream;

constexpr size_t kArenaBytes = 3072 * kMiB;
constexpr size_t kSearchBytes = 1024 * kMiB;  // that a graph of the search reads, about
constexpr int kLaunchesMin = 64;              // of the graph of a winner
constexpr int kLaunchesMax = 512;
constexpr int kRepetitions = 3;
constexpr int kSampled = 256;
constexpr double kRight = 1e-5;
constexpr double kRightOnTensorCores = 1e-4;  // they truncate what they add
constexpr double kRightWithNorm = 4e-3;
constexpr size_t kOutputs = size_t{8} * 131072;

struct Variant {
  void (*kernel)(Problem);
  std::string name;
  Source source;
  int inputs;  // 0: any number
  int rows;    // of a weight at a time: of a warp, or of a block for the tensor cores
  bool is_mma;

  bool takes(int rows_of_x) const { return inputs == 0 || inputs == rows_of_x; }
};

const char* name_of(Source source) {
  switch (source) {
    case Source::kDirect:
      return "x from the L1";
    case Source::kStaged:
      return "x in shared memory";
    case Source::kNormed:
      return "x normed in shared memory";
  }
  return "";
}

template <int kM, int kR, int kU, Source kSource>
Variant fma() {
  return {gemv::gemv_fma<kM, kR, kU, kSource>,
          "FMA, a warp has " + std::to_string(kR) + " rows × " + std::to_string(kU) + " loads, " +
              name_of(kSource),
          kSource,
          kM,
          kR,
          false};
}

template <int kU, Source kSource>
Variant mma() {
  return {gemv::gemv_mma<kU, kSource>,
          "tensor cores, a block has 16 rows, a lane 2 × " + std::to_string(kU) + " loads, " +
              name_of(kSource),
          kSource,
          0,
          gemv::kTile,
          true};
}

template <Source kSource>
void add_variants(std::vector<Variant>& all) {
  all.insert(all.end(), {fma<1, 1, 4, kSource>(), fma<1, 1, 8, kSource>(), fma<1, 2, 4, kSource>(),
                         fma<1, 4, 4, kSource>(), fma<4, 1, 4, kSource>(), fma<4, 2, 4, kSource>(),
                         fma<4, 4, 2, kSource>(), fma<8, 2, 4, kSource>(), fma<8, 4, 2, kSource>(),
                         mma<2, kSource>(), mma<4, kSource>(), mma<8, kSource>()});
}

std::vector<Variant> variants() {
  std::vector<Variant> all;
  add_variants<Source::kDirect>(all);
  add_variants<Source::kStaged>(all);
  add_variants<Source::kNormed>(all);
  return all;
}

struct Shape {
  std::string name;
  std::vector<int> rows;  // of each weight
  int length;

  int total() const {
    int sum = 0;
    for (const int count : rows) sum += count;
    return sum;
  }
  size_t bytes() const { return size_t(total()) * length * sizeof(__nv_bfloat16); }
};

const Shape kShapes[] = {{"[4096×4096]", {4096}, 4096},
                         {"[14336×4096]", {14336}, 4096},
                         {"[4096×14336]", {4096}, 14336},
                         {"[896×896]", {896}, 896},
                         {"[4864×896]", {4864}, 896},
                         {"[128256×4096]", {128256}, 4096},
                         {"[1600×1600]", {1600}, 1600},
                         {"[6400×1600]", {6400}, 1600},
                         {"QKV [4096+1024+1024×4096]", {4096, 1024, 1024}, 4096},
                         {"QKV [896+128+128×896]", {896, 128, 128}, 896},
                         {"gate and up [2 of 4864×896]", {4864, 4864}, 896},
                         {"gate and up [2 of 14336×4096]", {14336, 14336}, 4096}};

/// A number of the seed and the place, the same on host and device: |number| < scale.
__host__ __device__ __nv_bfloat16 number(uint32_t seed, uint64_t place, float scale) {
  uint64_t mixed = place * 0x9e3779b97f4a7c15ull + seed;
  mixed ^= mixed >> 32;
  mixed *= 0xd6e8feb86659fd93ull;
  mixed ^= mixed >> 32;
  const int32_t centred = static_cast<int32_t>(mixed & 0xffff) - 0x8000;
  return __float2bfloat16_rn(static_cast<float>(centred) * (scale / 0x8000));
}

__global__ void fill(__nv_bfloat16* values, size_t count, uint32_t seed, float scale) {
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    values[i] = number(seed, i, scale);
  }
}

constexpr uint32_t kSeedOfWeights = 1;
constexpr uint32_t kSeedOfX = 2;
constexpr uint32_t kSeedOfNorm = 3;

struct Launch {
  const Variant* variant;
  int threads;
  unsigned blocks;
  size_t shared_bytes;
  bool pdl;

  std::string text() const {
    return variant->name + ", " + std::to_string(threads) + " threads × " + std::to_string(blocks) +
           " blocks";
  }
};

struct Found {
  Launch launch;
  double gb_per_second;
};

double value_of(__nv_bfloat16 number) {
  return __bfloat162float(number);
}

class Bench {
 public:
  explicit Bench(const Stage& stage)
      : stage_(stage),
        arena_(kArenaBytes),
        x_(8 * 16384 * 2),
        norm_(16384 * 2),
        y_(kOutputs * sizeof(__nv_bfloat16)),
        precise_(kOutputs * sizeof(float)) {
    fill_with(arena_, kSeedOfWeights, 0.125f);
    fill_with(x_, kSeedOfX, 1);
    fill_with(norm_, kSeedOfNorm, 2);
    stream_.wait();
  }

  void measure_copy() {
    const size_t bytes = 1024 * kMiB;
    const double ms = stage::device_ms(stream_, 7, [&] {
      check(cudaMemcpyAsync(arena_.as<char>(bytes), arena_.as<char>(), bytes,
                            cudaMemcpyDeviceToDevice, stream_));
    });
    copy_ = 2.0 * static_cast<double>(bytes) / (ms / 1e3) / kGigabyte;
    fact("device copy of 1 GiB, bytes read and written", copy_, "GB/s");
    fill_with(arena_, kSeedOfWeights, 0.125f);
    stream_.wait();
  }

  /// Each variant once, on a shape that has a tail everywhere.
  void check_variants() {
    const Shape shape{"", {912, 128, 64}, 1120};
    int right = 0;
    int all = 0;
    std::string wrong;
    for (const Variant& variant : variants_) {
      for (const int inputs : {1, 3, 4, 8}) {
        if (!variant.takes(inputs)) continue;
        const std::optional<Launch> launch = launch_of(variant, shape, inputs, 256, 2);
        ++all;
        const double error = launch ? error_of(*launch, shape, inputs) : NAN;
        const bool is_right = error < bar(variant);
        right += is_right;
        if (!is_right && wrong.size() < 400) {
          wrong += variant.name + ", " + std::to_string(inputs) + " rows: " + stage::number(error) +
                   "; ";
        }
      }
    }
    stage::fact_text("GEMV variants that are right against fp64",
                     std::to_string(right) + " of " + std::to_string(all), wrong);
  }

  void search(const Shape& shape, int inputs, bool norm, double seconds) {
    const double end = stage::seconds_now() + seconds;
    std::optional<Found> best;
    int tried = 0;
    for (const int threads : {256, 512, 128}) {
      for (const Variant& variant : variants_) {
        if (!variant.takes(inputs) || (variant.source == Source::kNormed) != norm) continue;
        for (const int resident : {8, 2}) {
          const std::optional<Launch> launch = launch_of(variant, shape, inputs, threads, resident);
          if (!launch || (best && stage::seconds_now() > end)) continue;
          const double found = gb_per_second(*launch, shape, inputs, launches_of_search(shape));
          if (!best || found > best->gb_per_second) best = Found{*launch, found};
          ++tried;
        }
      }
    }
    if (!best) throw stage::Failure("no variant takes this shape");
    report(shape, inputs, norm, best->launch, tried);
  }

  void check_pdl() {
    const Shape& shape = kShapes[0];
    const std::optional<Launch> plain = launch_of(variants_.front(), shape, 1, 256, 8);
    if (!plain) throw stage::Failure("no launch");
    std::vector<__nv_bfloat16> with = chained(*plain, true);
    std::vector<__nv_bfloat16> without = chained(*plain, false);
    const bool same = std::equal(
        with.begin(), with.end(), without.begin(), without.end(),
        [](auto a, auto b) { return __bfloat16_as_ushort(a) == __bfloat16_as_ushort(b); });
    const bool moves = std::any_of(with.begin(), with.end(), [](__nv_bfloat16 value) {
      return std::isfinite(value_of(value)) && value_of(value) != 0;
    });
    stage::fact_bool("a chain of 16 GEMV with PDL has the bits of one without", same && moves);
  }

  void use_pdl(bool yes) { pdl_ = yes; }

 private:
  void fill_with(const Buffer& buffer, uint32_t seed, float scale) {
    fill<<<stage_.device.multiProcessorCount * 8, 256, 0, stream_>>>(
        buffer.as<__nv_bfloat16>(), buffer.bytes() / sizeof(__nv_bfloat16), seed, scale);
    stage::check_launch();
  }

  static double bar(const Variant& variant) {
    if (variant.source == Source::kNormed) return kRightWithNorm;
    return variant.is_mma ? kRightOnTensorCores : kRight;
  }

  /// Nothing where the variant does not fit: its shared memory, its rows.
  std::optional<Launch> launch_of(const Variant& variant, const Shape& shape, int inputs,
                                  int threads, int resident_max) const {
    const int vectors = shape.length / gemv::kVector;
    const size_t shared = variant.source == Source::kDirect
                              ? 0
                              : size_t(inputs) * gemv::pitch_of(vectors) * sizeof(uint4);
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, variant.kernel));
    if (threads > attributes.maxThreadsPerBlock) return {};
    if (shared + attributes.sharedSizeBytes > stage_.device.sharedMemPerBlockOptin) return {};
    check(cudaFuncSetAttribute(
        variant.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
        static_cast<int>(stage_.device.sharedMemPerBlockOptin - attributes.sharedSizeBytes)));
    int resident = 0;
    check(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, variant.kernel, threads, shared));
    resident = std::min(resident, resident_max);
    if (resident == 0) return {};
    const int at_once = variant.is_mma ? variant.rows : variant.rows * (threads / 32);
    const int wanted = (shape.total() + at_once - 1) / at_once;
    const int blocks = std::min(wanted, resident * stage_.device.multiProcessorCount);
    return Launch{&variant, threads, static_cast<unsigned>(blocks), shared, false};
  }

  /// The weights lie in reverse order, so that a kernel that takes one for another is found.
  static uint64_t place_of(const Shape& shape, int row) {
    int behind = shape.total();
    for (const int count : shape.rows) {
      behind -= count;
      if (row < count) return uint64_t(behind + row) * shape.length;
      row -= count;
    }
    throw stage::Failure("no such row");
  }

  Problem problem_of(const Shape& shape, int inputs, size_t turn) const {
    const size_t slices = arena_.bytes() / shape.bytes();
    const size_t offset = turn % slices * shape.bytes();
    Problem problem{};
    int first = 0;
    for (size_t i = 0; i < shape.rows.size(); ++i) {
      problem.rows[i] = shape.rows[i];
      problem.weights[i] =
          reinterpret_cast<const uint4*>(arena_.as<__nv_bfloat16>(offset) + place_of(shape, first));
      first += shape.rows[i];
    }
    problem.total = shape.total();
    problem.vectors = shape.length / gemv::kVector;
    problem.inputs = inputs;
    problem.x = x_.as<uint4>();
    problem.norm = norm_.as<uint4>();
    problem.y = y_.as<__nv_bfloat16>();
    return problem;
  }

  void enqueue(const Launch& launch, const Problem& problem) const {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(launch.blocks);
    config.blockDim = dim3(static_cast<unsigned>(launch.threads));
    config.dynamicSmemBytes = launch.shared_bytes;
    config.stream = stream_;
    config.attrs = &attribute;
    config.numAttrs = launch.pdl ? 1 : 0;
    check(cudaLaunchKernelEx(&config, launch.variant->kernel, problem));
  }

  static int launches_of_search(const Shape& shape) {
    return static_cast<int>(
        std::clamp(kSearchBytes / shape.bytes(), size_t{4}, size_t{kLaunchesMax}));
  }

  double gb_per_second(const Launch& launch, const Shape& shape, int inputs, int launches) {
    const Graph graph(stream_, [&] {
      for (int i = 0; i < launches; ++i) enqueue(launch, problem_of(shape, inputs, size_t(i)));
    });
    const double ms = stage::device_ms(stream_, kRepetitions, [&] { graph.launch(stream_); });
    return static_cast<double>(shape.bytes()) * launches / (ms / 1e3) / kGigabyte;
  }

  double error_of(const Launch& launch, const Shape& shape, int inputs) {
    const size_t outputs = size_t(inputs) * shape.total();
    check(cudaMemsetAsync(precise_.as<float>(), 0xff, outputs * sizeof(float), stream_));
    Problem problem = problem_of(shape, inputs, 0);
    problem.precise = precise_.as<float>();
    enqueue(launch, problem);
    stream_.wait();
    std::vector<float> found(outputs);
    check(cudaMemcpy(found.data(), precise_.as<float>(), outputs * sizeof(float),
                     cudaMemcpyDeviceToHost));
    for (const float value : found) {
      if (!std::isfinite(value)) return NAN;
    }
    double squares = 0;
    double errors = 0;
    const bool norm = launch.variant->source == Source::kNormed;
    for (int m = 0; m < inputs; ++m) {
      const std::vector<double> x = input(shape, m, norm);
      for (int i = 0; i < kSampled; ++i) {
        const int row = static_cast<int>(int64_t{i} * (shape.total() - 1) / (kSampled - 1));
        const double exact = product(shape, row, x);
        const double error = found[size_t(m) * shape.total() + row] - exact;
        squares += exact * exact;
        errors += error * error;
      }
    }
    return std::sqrt(errors / squares);
  }

  static std::vector<double> input(const Shape& shape, int m, bool norm) {
    std::vector<double> x(shape.length);
    double squares = 0;
    for (int k = 0; k < shape.length; ++k) {
      x[k] = value_of(number(kSeedOfX, uint64_t(m) * shape.length + k, 1));
      squares += x[k] * x[k];
    }
    if (!norm) return x;
    const double scale = 1 / std::sqrt(squares / shape.length + gemv::kEpsilon);
    for (int k = 0; k < shape.length; ++k) x[k] *= scale * value_of(number(kSeedOfNorm, k, 2));
    return x;
  }

  static double product(const Shape& shape, int row, const std::vector<double>& x) {
    const uint64_t place = place_of(shape, row);
    double sum = 0;
    for (int k = 0; k < shape.length; ++k) {
      sum += value_of(number(kSeedOfWeights, place + k, 0.125f)) * x[k];
    }
    return sum;
  }

  void report(const Shape& shape, int inputs, bool norm, Launch launch, int tried) {
    const std::string name = "GEMV " + shape.name + ", " + std::to_string(inputs) + " row" +
                             (inputs == 1 ? "" : "s") + (norm ? ", RMS norm fused" : "");
    const int launches = std::max(kLaunchesMin, launches_of_search(shape));
    const std::string detail = launch.text() + "; the best of " + std::to_string(tried) + "; " +
                               std::to_string(launches) + " launches in a graph";
    report_speed(name, gb_per_second(launch, shape, inputs, launches), detail);
    const double error = error_of(launch, shape, inputs);
    if (!(error < bar(*launch.variant))) stage::fact_bool(name + " is right", false);
    fact(name + ", relative error against fp64", error, "");
    if (!pdl_) return;
    launch.pdl = true;
    report_speed(name + ", with PDL", gb_per_second(launch, shape, inputs, launches), "");
  }

  void report_speed(const std::string& name, double found, const std::string& detail) const {
    fact(name, found, "GB/s", detail);
    if (copy_ > 0) fact(name + ", of the copy", found / copy_ * 100, "%");
  }

  /// y of one product is x of the next.
  std::vector<__nv_bfloat16> chained(Launch launch, bool pdl) {
    const Shape& shape = kShapes[0];
    launch.pdl = pdl;
    const size_t bytes = size_t(shape.length) * sizeof(__nv_bfloat16);
    const Buffer first(bytes);
    const Buffer second(bytes);
    check(
        cudaMemcpyAsync(first.as<char>(), x_.as<char>(), bytes, cudaMemcpyDeviceToDevice, stream_));
    const Graph graph(stream_, [&] {
      for (size_t i = 0; i < 16; ++i) {
        Problem problem = problem_of(shape, 1, i);
        problem.x = (i % 2 == 0 ? first : second).as<uint4>();
        problem.y = (i % 2 == 0 ? second : first).as<__nv_bfloat16>();
        enqueue(launch, problem);
      }
    });
    graph.launch(stream_);
    stream_.wait();
    std::vector<__nv_bfloat16> found(shape.length);
    check(cudaMemcpy(found.data(), first.as<char>(), bytes, cudaMemcpyDeviceToHost));
    return found;
  }

  const Stage& stage_;
  const std::vector<Variant> variants_ = variants();
  Stream stream_;
  Buffer arena_;
  Buffer x_;
  Buffer norm_;
  Buffer y_;
  Buffer precise_;
  double copy_ = 0;
  bool pdl_ = false;
};

/// Each search gets an equal share of what is left of the time.
void search_all(Stage& stage, Bench& bench) {
  struct Task {
    const Shape* shape;
    int inputs;
    bool norm;
  };
  std::vector<Task> tasks;
  for (const int inputs : {1, 8, 4}) {
    for (const Shape& shape : kShapes) tasks.push_back({&shape, inputs, false});
    if (inputs != 1) continue;
    for (const Shape& shape : kShapes) {
      if (shape.rows.size() > 1) tasks.push_back({&shape, inputs, true});
    }
  }
  for (size_t i = 0; i < tasks.size(); ++i) {
    const Task& task = tasks[i];
    const double share = (stage.left() - 1) / static_cast<double>(tasks.size() - i);
    stage.part("GEMV " + task.shape->name + " " + std::to_string(task.inputs),
               [&] { bench.search(*task.shape, task.inputs, task.norm, share); });
  }
}

void measure(Stage& stage) {
  if (stage.device.major < 8) {
    stage::fact_text("GEMV", "not measured: bf16 tensor cores are needed");
    return;
  }
  std::unique_ptr<Bench> bench;
  stage.part("memory", [&] { bench = std::make_unique<Bench>(stage); });
  if (!bench) return;
  stage.part("the copy", [&] { bench->measure_copy(); });
  stage.part("variants against fp64", [&] { bench->check_variants(); });
  stage.part("PDL", [&] {
    bench->use_pdl(stage::has_pdl());
    if (stage::has_pdl()) bench->check_pdl();
  });
  search_all(stage, *bench);
}

}  // namespace

int main(int argc, char** argv) {
  return Stage(60).run(argc, argv, measure);
}
