#include "djinnctl/json.h"

#include <gtest/gtest.h>

namespace djinn::ctl {
namespace {

TEST(Json, an_empty_list_is_an_array) {
  EXPECT_EQ(json_text("ps", {}), "{\"schema\":\"djinn.ps.v1\",\"items\":[]}\n");
}

TEST(Json, a_model_has_raw_bytes_rfc_3339_times_and_null_for_the_unknown) {
  ipc::ModelReport model;
  model.model = ModelId{0xabc};
  model.label = "bert";
  model.owner = "ann";
  model.state = ipc::ModelState::kResident;
  model.bytes = 4096;
  model.bytes_loaded = 4096;
  model.files = 1;
  model.loaded_wall_ns = 1'000'000'000;
  EXPECT_EQ(json_text("ps", {to_json(model)}),
            "{\"schema\":\"djinn.ps.v1\",\"items\":[{\"id\":\"000000000abc\",\"name\":\"bert\","
            "\"owner\":\"ann\",\"state\":\"resident\",\"bytes\":4096,\"bytes_loaded\":4096,"
            "\"files\":1,\"leases\":0,\"pinned\":false,\"sha256\":null,"
            "\"loaded\":\"1970-01-01T00:00:01.000000000Z\"}]}\n");
}

TEST(Json, a_name_that_is_no_utf_8_is_replaced_and_throws_nothing) {
  ipc::SessionReport session;
  session.client_name = "a\xff";
  const std::string text = json_text("sessions", {to_json(session)});
  EXPECT_EQ(Json::parse(text)["items"][0]["name"], "a\xef\xbf\xbd");
}

TEST(Json, workers_are_in_the_status) {
  ipc::StatusReport status;
  status.workers.resize(2);
  status.workers[1].device = "cpu:0";
  status.workers[1].state = ipc::WorkerState::kReady;
  const Json item = to_json(status);
  EXPECT_EQ(item["started"], nullptr);
  EXPECT_EQ(item["workers"][1]["device"], "cpu:0");
  EXPECT_EQ(item["workers"][1]["state"], "ready");
}

}  // namespace
}  // namespace djinn::ctl
