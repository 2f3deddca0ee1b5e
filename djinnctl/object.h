// SPDX-License-Identifier: Apache-2.0

// Object: what people mean by what they type: a session or a program by the beginning of its id, a
// model also by its name, or by the path that it was loaded from.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libdjinn-client/client.h"

namespace djinn::ctl {

// What somebody calls a model.
struct Called {
  std::string name;
  std::string path;  // absolute; or empty
};

// One object that a text may mean.
struct Candidate {
  uint64_t id = 0;
  std::string what;  // "model bert-base"
  std::string name;  // of a model; or empty
  std::string path;  // likewise, absolute
  std::vector<Called> by_others{};
  std::string detail{};  // what tells it from another of that name, ", 5.0 MiB, resident"; or empty
};

// Index of the only candidate whose id (12 hex digits, in either case) begins with text, four
// digits of it at least, or whose name or path it is; a whole id finds itself. A path may be
// relative, and go through symbolic links. Errors: kInvalidArgument for an ambiguous one, listing
// the candidates; kNotFound.
Result<size_t> find_object(std::string_view text, std::span<const Candidate> candidates);

// Likewise. What others call the models, which are the first candidates, is asked for where nothing
// else is found.
Result<size_t> find_object(client::Client& client, std::string_view text,
                           std::span<const ipc::ModelReport> models,
                           std::vector<Candidate> candidates);

Result<ipc::ModelReport> find_model(client::Client& client, std::string_view text);
// By its id: clients choose their sessions' names.
Result<ipc::SessionReport> find_session(client::Client& client, std::string_view text);

[[nodiscard]] Candidate candidate_of(const ipc::ModelReport& model);
[[nodiscard]] Candidate candidate_of(const ipc::SessionReport& session);
[[nodiscard]] Candidate candidate_of(const ipc::ProgramReport& program);

}  // namespace djinn::ctl
