// SPDX-License-Identifier: Apache-2.0

// For verbs that take several models: all are looked up before anything is done to one, and one
// that stays as it was keeps none of the others.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "djinnctl/verb.h"

namespace djinn::ctl {

// The models that the texts name, each once. Errors: those of find_model(), for the first text that
// names none.
Result<std::vector<ipc::ModelReport>> find_models(client::Client& client,
                                                  const std::vector<std::string>& named);

// Gives what a model is called in a sentence, "llama (e5f02b957d89)".
std::string title_of(const ipc::ModelReport& model);

// Does it to each of the models that are named. Gives the first failure; others are written to
// stderr on the way. With several models a failure names its own.
Status with_each_model(const Invocation& invocation, client::Client& client,
                       const std::vector<std::string>& named,
                       const std::function<Status(const ipc::ModelReport&)>& act);

}  // namespace djinn::ctl
