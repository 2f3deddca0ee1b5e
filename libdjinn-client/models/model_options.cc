// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/models/model_options.h"

#include <string>

#include "kernel/srg/names.h"
#include "kernel/srg/weight_form.h"

namespace djinn::client {

Result<srg::Numerics> numerics_named(std::string_view name) {
  if (const auto numerics = srg::from_name<srg::Numerics>(name)) return *numerics;
  return Error{ErrorCode::kInvalidArgument, "There are no numerics '" +
                                                std::string(name.substr(0, 100)) +
                                                "'. There are exact, fast and fast-only."};
}

Result<srg::WeightForm> weights_named(std::string_view name) {
  if (name == "int8") return srg::WeightForm::kInt8;
  return Error{ErrorCode::kInvalidArgument,
               "There is no form of weights '" + std::string(name.substr(0, 100)) +
                   "'. There is int8; name none for weights as the files have them."};
}

Status check_options(const ModelOptions& options) {
  const bool is_exact = options.numerics == srg::Numerics::kExact;
  if (options.matrices == srg::WeightForm::kPlain || !is_exact) return {};
  return Error{ErrorCode::kUnsupported,
               "The numerics are exact, and the weights are to be int8, which fast kernels alone "
               "compute with. Ask for the numerics fast, or for the weights as the files have "
               "them."};
}

Result<srg::Numerics> numerics_of(Client& client, const OpenedModel& model,
                                  const ModelOptions& options) {
  const ModelOptions said{options.numerics ? options.numerics : model.numerics, options.matrices};
  const Status agree = check_options(said);
  if (!agree) {
    DJINN_CHECK(client.close_model(model.id));
    return agree.error();
  }
  if (said.numerics) return *said.numerics;
  const srg::Numerics configured = client.welcome().numerics;
  const bool is_int8 = options.matrices != srg::WeightForm::kPlain;
  return is_int8 && configured == srg::Numerics::kExact ? srg::Numerics::kFast : configured;
}

std::optional<srg::LoadPlan> plan_of(const srg::LoadPlan* plan, srg::WeightForm matrices) {
  const bool is_plain = matrices == srg::WeightForm::kPlain;
  if (plan == nullptr && is_plain) return std::nullopt;
  return srg::in_form(plan != nullptr ? *plan : srg::LoadPlan(), matrices);
}

}  // namespace djinn::client
