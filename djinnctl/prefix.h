// SPDX-License-Identifier: Apache-2.0

// Prefix: an object by the beginning of its id, as people type it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "libdjinn-client/client.h"

namespace djinn::ctl {

// One object that an id may mean.
struct Candidate {
  uint64_t id = 0;
  std::string what;  // "model bert-base"
};

// Index of the only candidate whose id (12 hex digits, in either case) begins with prefix; a whole
// id finds itself. Errors: kInvalidArgument for what is no prefix of an id, and for an ambiguous
// one, listing the candidates; kNotFound.
Result<size_t> find_by_prefix(std::string_view prefix, std::span<const Candidate> candidates);

Result<ipc::ModelReport> find_model(client::Client& client, std::string_view prefix);
Result<ipc::SessionReport> find_session(client::Client& client, std::string_view prefix);

[[nodiscard]] Candidate candidate_of(const ipc::ModelReport& model);
[[nodiscard]] Candidate candidate_of(const ipc::SessionReport& session);
[[nodiscard]] Candidate candidate_of(const ipc::ProgramReport& program);

}  // namespace djinn::ctl
