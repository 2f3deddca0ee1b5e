// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/prefix.h"

#include <algorithm>
#include <cctype>

#include "djinnctl/text.h"

namespace djinn::ctl {
namespace {

constexpr size_t kDigits = 12;
constexpr size_t kListedMax = 8;  // more would not be read

bool is_prefix(std::string_view text) {
  const auto is_hex = [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; };
  return !text.empty() && text.size() <= kDigits && std::ranges::all_of(text, is_hex);
}

Error ambiguous(std::string_view prefix, const std::vector<size_t>& found,
                std::span<const Candidate> candidates) {
  std::string list;
  for (size_t i = 0; i < std::min(found.size(), kListedMax); ++i) {
    const Candidate& candidate = candidates[found[i]];
    list += (i == 0 ? "" : ", ") + id_text(candidate.id) + " (" + candidate.what + ")";
  }
  if (found.size() > kListedMax) list += ", ...";
  return {ErrorCode::kInvalidArgument, "The id '" + std::string(prefix) +
                                           "' is ambiguous. It may be " + list +
                                           ". Give more of its digits."};
}

}  // namespace

Result<size_t> find_by_prefix(std::string_view prefix, std::span<const Candidate> candidates) {
  if (!is_prefix(prefix)) {
    return Error{ErrorCode::kInvalidArgument, "'" + std::string(prefix) +
                                                  "' is no id: ids are 12 hex digits, or the first "
                                                  "few of them."};
  }
  std::string lower(prefix);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  std::vector<size_t> found;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (id_text(candidates[i].id).starts_with(lower)) found.push_back(i);
  }
  if (found.size() == 1) return found.front();
  if (!found.empty()) return ambiguous(prefix, found, candidates);
  return Error{ErrorCode::kNotFound, "There is nothing with the id '" + lower +
                                         "'. 'djinnctl ps' and 'djinnctl sessions' list what is."};
}

namespace {

template <typename Report>
Result<Report> find_among(const std::vector<Report>& reports, std::string_view prefix) {
  std::vector<Candidate> candidates;
  for (const Report& report : reports) candidates.push_back(candidate_of(report));
  DJINN_TRY(const size_t index, find_by_prefix(prefix, candidates));
  return reports[index];
}

}  // namespace

Result<ipc::ModelReport> find_model(client::Client& client, std::string_view prefix) {
  DJINN_TRY(const auto models, client.models());
  return find_among(models, prefix);
}

Result<ipc::SessionReport> find_session(client::Client& client, std::string_view prefix) {
  DJINN_TRY(const auto sessions, client.sessions());
  return find_among(sessions, prefix);
}

Candidate candidate_of(const ipc::ModelReport& model) {
  return {model.model.value, "model " + model.label};
}

Candidate candidate_of(const ipc::SessionReport& session) {
  return {session.session.value, "session " + session.client_name};
}

Candidate candidate_of(const ipc::ProgramReport& program) {
  return {program.program.value, "program of " + program.owner};
}

}  // namespace djinn::ctl
