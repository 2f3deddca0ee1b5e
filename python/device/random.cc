// SPDX-License-Identifier: Apache-2.0

// Each random operator becomes a djinn:: operator that carries seed and offset, taken from a
// generator here, so that a run repeated after a worker's death draws the same numbers. They are
// not the numbers that the CPU's generator would draw.
#include "kernel/srg/random.h"

#include <ATen/Context.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones_like.h>

#include "python/device/device.h"

namespace djinn::device {
namespace {

using OptionalGenerator = std::optional<at::Generator>;

at::Generator choose(const OptionalGenerator& given) {
  if (!given || !given->defined()) {
    return at::globalContext().defaultGenerator(c10::Device(kDeviceType, 0));
  }
  TORCH_CHECK(given->device().type() == kDeviceType, "Expected a '", c10::Device(kDeviceType, 0),
              "' generator device but found '", given->device(),
              "'. Make it with torch.Generator('remote_accelerator').");
  return *given;
}

// Calls djinn::name with arguments, seed and offset, and moves the generator on.
at::Tensor draw(const std::string& name, Stack arguments, int64_t elements,
                const OptionalGenerator& given) {
  at::Generator generator = choose(given);
  {
    const std::lock_guard lock(generator.mutex());
    const uint64_t offset = generator.get_offset();
    arguments.emplace_back(static_cast<int64_t>(generator.current_seed()));
    arguments.emplace_back(static_cast<int64_t>(offset));
    generator.set_offset(offset + srg::offsets_used(name, static_cast<uint64_t>(elements)));
  }
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "");
  if (arguments.size() < op.schema().arguments().size()) arguments.emplace_back();  // no device
  Device::get().call(op, arguments);
  return arguments[0].toTensor();
}

at::Tensor draw_like(const std::string& name, const at::Tensor& like, at::ScalarType type,
                     const OptionalGenerator& generator) {
  return draw(name, {like.sizes().vec(), static_cast<int64_t>(type)}, like.numel(), generator);
}

at::ScalarType floating(const at::Tensor& tensor) {
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(tensor.scalar_type()),
                              "This draw needs a floating point tensor, not ", tensor.scalar_type(),
                              ".");
  return tensor.scalar_type();
}

at::Tensor& normal(at::Tensor& self, double mean, double deviation, OptionalGenerator generator) {
  TORCH_CHECK(deviation >= 0, "normal expects std >= 0.0, but found std ", deviation);
  const at::Tensor drawn = draw_like("djinn::randn", self, floating(self), generator);
  return self.copy_(drawn.mul(deviation).add(mean));
}

at::Tensor normal_like(const at::Tensor& like, at::IntArrayRef sizes,
                       const OptionalGenerator& generator) {
  return draw("djinn::randn", {sizes.vec(), static_cast<int64_t>(floating(like))},
              c10::multiply_integers(sizes), generator);
}

void check_deviations(const at::Tensor& deviation) {
  TORCH_CHECK(deviation.numel() == 0 || deviation.min().ge(0).item<bool>(),
              "normal expects all elements of std >= 0.0");
}

at::Tensor normal_by_both(const at::Tensor& mean, const at::Tensor& deviation,
                          OptionalGenerator generator) {
  check_deviations(deviation);
  const std::vector<int64_t> sizes = at::infer_size(mean.sizes(), deviation.sizes());
  const at::Tensor drawn = normal_like(mean, sizes, generator);
  return drawn.mul(deviation).add(mean).to(mean.scalar_type());
}

at::Tensor normal_by_mean(const at::Tensor& mean, double deviation, OptionalGenerator generator) {
  TORCH_CHECK(deviation >= 0, "normal expects std >= 0.0, but found std ", deviation);
  return normal_like(mean, mean.sizes(), generator).mul(deviation).add(mean);
}

at::Tensor normal_by_deviation(double mean, const at::Tensor& deviation,
                               OptionalGenerator generator) {
  check_deviations(deviation);
  return normal_like(deviation, deviation.sizes(), generator).mul(deviation).add(mean);
}

at::Tensor& uniform(at::Tensor& self, double from, double to, OptionalGenerator generator) {
  TORCH_CHECK(from <= to, "uniform_ expects to return a [from, to) range, but found from=", from,
              " > to=", to);
  const at::Tensor drawn = draw_like("djinn::rand", self, floating(self), generator);
  return self.copy_(drawn.mul(to - from).add(from));
}

at::Tensor& exponential(at::Tensor& self, double rate, OptionalGenerator generator) {
  TORCH_CHECK(rate > 0, "exponential_ expects lambda > 0.0, but found lambda=", rate);
  const at::Tensor drawn = draw_like("djinn::rand", self, floating(self), generator);
  return self.copy_(drawn.neg().log1p().div(-rate));
}

at::Tensor& integers(at::Tensor& self, int64_t low, int64_t high, OptionalGenerator generator) {
  TORCH_CHECK(low < high, "random_ expects 'from' to be less than 'to', but got from=", low,
              " >= to=", high);
  const at::Tensor drawn =
      draw("djinn::randint", {low, high, self.sizes().vec(), static_cast<int64_t>(at::kLong)},
           self.numel(), generator);
  return self.copy_(drawn);
}

// Gives the largest number up to which the type holds all integers exactly.
int64_t top_of(at::ScalarType type) {
  switch (type) {
    case at::kBool:
      return 1;
    case at::kByte:
      return UINT8_MAX;
    case at::kChar:
      return INT8_MAX;
    case at::kShort:
      return INT16_MAX;
    case at::kInt:
      return INT32_MAX;
    case at::kLong:
      return INT64_MAX - 1;
    case at::kHalf:
      return int64_t{1} << 11;
    case at::kBFloat16:
      return int64_t{1} << 8;
    case at::kFloat:
      return int64_t{1} << 24;
    default:
      return int64_t{1} << 53;
  }
}

at::Tensor& random(at::Tensor& self, OptionalGenerator generator) {
  return integers(self, 0, top_of(self.scalar_type()) + 1, std::move(generator));
}

at::Tensor& random_to(at::Tensor& self, int64_t to, OptionalGenerator generator) {
  return integers(self, 0, to, std::move(generator));
}

at::Tensor& random_from(at::Tensor& self, int64_t from, std::optional<int64_t> to,
                        OptionalGenerator generator) {
  return integers(self, from, to.value_or(top_of(self.scalar_type())), std::move(generator));
}

at::Tensor trials(const at::Tensor& probabilities, const OptionalGenerator& generator) {
  return draw("djinn::bernoulli", {probabilities}, probabilities.numel(), generator);
}

at::Tensor bernoulli(const at::Tensor& self, OptionalGenerator generator) {
  return trials(self, generator);
}

at::Tensor& bernoulli_tensor(at::Tensor& self, const at::Tensor& p, OptionalGenerator generator) {
  return self.copy_(trials(p.expand(self.sizes()).contiguous(), generator));
}

at::Tensor& bernoulli_float(at::Tensor& self, double p, OptionalGenerator generator) {
  TORCH_CHECK(0 <= p && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", p);
  const auto type = at::isFloatingType(self.scalar_type()) ? self.scalar_type() : at::kFloat;
  return self.copy_(trials(at::full_like(self, p, self.options().dtype(type)), generator));
}

at::Tensor multinomial(const at::Tensor& self, c10::SymInt samples, bool replacement,
                       OptionalGenerator generator) {
  const int64_t count = samples.expect_int();
  TORCH_CHECK(self.dim() == 1 || self.dim() == 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(
      at::isFloatingType(self.scalar_type()),
      "multinomial only supports floating-point dtypes for input, got: ", self.scalar_type());
  TORCH_CHECK(count > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(replacement || count <= self.size(-1),
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  const int64_t rows = self.dim() == 2 ? self.size(0) : 1;
  return draw("djinn::multinomial", {self, count, replacement}, rows * count, generator);
}

at::Tensor& randperm(int64_t n, OptionalGenerator generator, at::Tensor& out) {
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  out.resize_({n});
  return out.copy_(draw("djinn::randperm", {n, static_cast<int64_t>(at::kLong)}, n, generator));
}

std::tuple<at::Tensor, at::Tensor> dropout(const at::Tensor& input, double p,
                                           std::optional<bool> train) {
  if (p == 0 || !train.value_or(true) || input.numel() == 0) {
    return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  }
  const at::Tensor mask = trials(at::full_like(input, 1 - p), {});
  const double scale = p == 1 ? 0.0 : 1 / (1 - p);
  return {input.mul(mask).mul(scale), mask.to(at::kBool)};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("normal_", &normal);
  library.impl("normal.Tensor_Tensor", &normal_by_both);
  library.impl("normal.Tensor_float", &normal_by_mean);
  library.impl("normal.float_Tensor", &normal_by_deviation);
  library.impl("uniform_", &uniform);
  library.impl("exponential_", &exponential);
  library.impl("random_", &random);
  library.impl("random_.to", &random_to);
  library.impl("random_.from", &random_from);
  library.impl("bernoulli", &bernoulli);
  library.impl("bernoulli_.Tensor", &bernoulli_tensor);
  library.impl("bernoulli_.float", &bernoulli_float);
  library.impl("multinomial", &multinomial);
  library.impl("randperm.generator_out", &randperm);
  library.impl("native_dropout", &dropout);
}

}  // namespace djinn::device
