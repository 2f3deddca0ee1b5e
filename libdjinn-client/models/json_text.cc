// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/models/json_text.h"

namespace djinn::client {

nlohmann::json parse_json(const std::string& text) {
  using Json = nlohmann::json;
  bool is_too_much = false;
  size_t values = 0;
  // What this refuses is dropped while it is read, so that it takes no memory.
  const auto keeps = [&](int depth, Json::parse_event_t event, Json&) {
    const bool begins =
        event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start;
    const bool ends =
        event == Json::parse_event_t::object_end || event == Json::parse_event_t::array_end;
    if (!ends && ++values > kJsonValuesMax) is_too_much = true;
    if (begins && depth >= kJsonDepthMax) is_too_much = true;
    return !is_too_much;
  };
  Json parsed = Json::parse(text, keeps, false);
  return is_too_much ? Json(Json::value_t::discarded) : parsed;
}

}  // namespace djinn::client
