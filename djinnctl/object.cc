// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/object.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "djinnctl/text.h"
#include "libdjinn-client/place.h"

namespace djinn::ctl {
namespace {

constexpr size_t kDigits = 12;
// A name such as "a" or "e5" is not taken for the beginning of some other object's id.
constexpr size_t kDigitsMin = 4;
constexpr size_t kListedMax = 8;  // more would not be read

bool may_begin_an_id(std::string_view text) {
  const auto is_hex = [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; };
  return text.size() >= kDigitsMin && text.size() <= kDigits && std::ranges::all_of(text, is_hex);
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return lower;
}

// Holds the typed text in all forms in which it may mean a candidate.
class Meaning {
 public:
  explicit Meaning(std::string_view text) : name_(text) {
    if (text.empty()) return;
    if (may_begin_an_id(text)) id_ = lower_case(text);
    const std::string place = client::place_of(std::span(&name_, 1));
    std::error_code failed;
    const auto canonical = std::filesystem::weakly_canonical(place, failed);
    path_ = client::showable_place(place);
    canonical_ = client::showable_place(failed ? place : canonical.string());
  }

  [[nodiscard]] bool is_whole_id_of(const Candidate& candidate) const {
    return id_ == id_text(candidate.id);
  }
  [[nodiscard]] bool may_be(const Candidate& candidate) const {
    const bool begins_id = !id_.empty() && id_text(candidate.id).starts_with(id_);
    return begins_id || is_called({candidate.name, candidate.path}) ||
           std::ranges::any_of(candidate.by_others,
                               [this](const Called& c) { return is_called(c); });
  }

 private:
  [[nodiscard]] bool is_called(const Called& called) const {
    const bool is_name = !called.name.empty() && called.name == name_;
    return is_name || (!called.path.empty() && (called.path == path_ || called.path == canonical_));
  }

  std::string name_;
  std::string id_;
  std::string path_;
  std::string canonical_;
};

Error ambiguous(std::string_view text, const std::vector<size_t>& found,
                std::span<const Candidate> candidates) {
  std::string list;
  for (size_t i = 0; i < std::min(found.size(), kListedMax); ++i) {
    const Candidate& candidate = candidates[found[i]];
    list += fmt::format("{}{} ({}{})", i == 0 ? "" : ", ", id_text(candidate.id), candidate.what,
                        candidate.detail);
  }
  if (found.size() > kListedMax) list += ", ...";
  return {
      ErrorCode::kInvalidArgument,
      fmt::format(
          "'{}' is ambiguous. It may be {}. Give an id, or more of its digits, or a model's path.",
          text, list)};
}

// Makes the error for an object that is there but is of another kind than is wanted. `verb` lists
// the wanted kind.
Error another_kind(const Candidate& named, const char* wanted, const char* verb) {
  return {ErrorCode::kNotFound,
          fmt::format("{} is {}, and no {}. 'djinnctl {}' lists each {} that there is.",
                      id_text(named.id), named.what, wanted, verb, wanted)};
}

template <typename Report>
Result<Report> find_among(const std::vector<Report>& reports, std::string_view text) {
  std::vector<Candidate> candidates;
  for (const Report& report : reports) candidates.push_back(candidate_of(report));
  DJINN_TRY(const size_t index, find_object(text, candidates));
  return reports[index];
}

}  // namespace

Result<size_t> find_object(std::string_view typed, std::span<const Candidate> candidates) {
  const std::string_view text = without_isolate(typed);
  const Meaning meaning(text);
  std::vector<size_t> found;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (meaning.is_whole_id_of(candidates[i])) return i;
    if (meaning.may_be(candidates[i])) found.push_back(i);
  }
  if (found.size() == 1) return found.front();
  if (!found.empty()) return ambiguous(text, found, candidates);
  return Error{
      ErrorCode::kNotFound,
      fmt::format("There is nothing that '{}' names. An id has 12 hex digits, of which the "
                  "first four will do; a model may be called by its name or path, too. "
                  "'djinnctl ps' and 'djinnctl sessions' list what there is.",
                  text)};
}

Result<size_t> find_object(client::Client& client, std::string_view text,
                           std::span<const ipc::ModelReport> models,
                           std::vector<Candidate> candidates) {
  auto found = find_object(text, candidates);
  if (found || found.error().code != ErrorCode::kNotFound) return found;
  for (size_t i = 0; i < models.size(); ++i) {
    const auto uses = client.uses(models[i].model);
    if (!uses) continue;  // it has gone meanwhile
    for (const ipc::UseReport& use : *uses) {
      if (use.kind != ipc::UseKind::kName) continue;
      candidates[i].by_others.push_back({use.label, use.path});
    }
  }
  return find_object(text, candidates);
}

Result<ipc::ModelReport> find_model(client::Client& client, std::string_view text) {
  DJINN_TRY(const auto models, client.models());
  std::vector<Candidate> candidates;
  for (const ipc::ModelReport& model : models) candidates.push_back(candidate_of(model));
  const auto index = find_object(client, text, models, std::move(candidates));
  if (index) return models[*index];
  if (index.error().code != ErrorCode::kNotFound) return index.error();
  DJINN_TRY(const auto sessions, client.sessions());
  const auto session = find_among(sessions, text);
  return session ? another_kind(candidate_of(*session), "model", "ps") : index.error();
}

Result<ipc::SessionReport> find_session(client::Client& client, std::string_view text) {
  DJINN_TRY(const auto sessions, client.sessions());
  auto session = find_among(sessions, text);
  if (session || session.error().code != ErrorCode::kNotFound) return session;
  DJINN_TRY(const auto models, client.models());
  const auto model = find_among(models, text);
  if (model) return another_kind(candidate_of(*model), "session", "sessions");
  return Error{ErrorCode::kNotFound,
               fmt::format("There is no session '{}'. A session is named by its id, the first "
                           "column of 'djinnctl sessions'; the first four digits will do.",
                           text)};
}

Candidate candidate_of(const ipc::ModelReport& model) {
  const std::string where = model.path.empty() ? "" : " from " + model.path;
  return {model.model.value,
          "model " + model.label + where,
          model.label,
          model.path,
          {},
          fmt::format(", {}, {}, plan {}", size_text(model.bytes), state_text(model.state),
                      model.plan == 0 ? "-" : plan_text(model.plan))};
}

Candidate candidate_of(const ipc::SessionReport& session) {
  return {session.session.value, "session " + session.client_name, "", ""};
}

Candidate candidate_of(const ipc::ProgramReport& program) {
  return {program.program.value, "program of " + program.owner, "", ""};
}

}  // namespace djinn::ctl
