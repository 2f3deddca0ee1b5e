// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/json.h"

#include <gtest/gtest.h>

#include "kernel/base/clock.h"

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
  model.device = "cpu:0";
  model.keep_alive_ms = 1500;
  model.expires_wall_ns = 2'000'000'000;
  model.path = "/srv/bert";
  model.huge_bytes = 2048;
  model.on_gpus = 0b101;
  EXPECT_EQ(json_text("ps", {to_json(model)}),
            "{\"schema\":\"djinn.ps.v1\",\"items\":[{\"id\":\"000000000abc\",\"name\":\"bert\","
            "\"owner\":\"ann\",\"state\":\"resident\",\"bytes\":4096,\"bytes_loaded\":4096,"
            "\"files\":1,\"leases\":0,\"pinned\":false,\"sha256\":null,"
            "\"loaded\":\"1970-01-01T00:00:01.000000000Z\",\"device\":\"cpu:0\","
            "\"until\":\"expiry\",\"keep_alive_seconds\":1.5,"
            "\"expires\":\"1970-01-01T00:00:02.000000000Z\",\"path\":\"/srv/bert\",\"plan\":null,"
            "\"huge_bytes\":2048,\"copies\":[\"cuda:0\",\"cuda:2\"],\"numerics\":null}]}\n");
  model.numerics = srg::Numerics::kFastOnly;
  EXPECT_EQ(to_json(model)["numerics"], "fast-only");
}

TEST(Json, pretty_is_the_same_in_several_lines) {
  const std::string text = json_text("ps", {{{"id", "1"}}}, JsonStyle::kPretty);
  EXPECT_EQ(text,
            "{\n  \"schema\": \"djinn.ps.v1\",\n  \"items\": [\n    {\n      \"id\": \"1\"\n"
            "    }\n  ]\n}\n");
}

TEST(Json, a_session_tells_its_state_and_what_it_waits_for) {
  ipc::SessionReport session;
  session.session = SessionId{1};
  session.state = ipc::SessionState::kLost;
  session.shared_bytes = 7;
  session.counts = {ipc::RunTier::kGeneration, 1, 2, 3, 4, 5, 6, 7, 8};
  session.stated = {{9, 10, 11}, 12};
  EXPECT_EQ(json_text("sessions", {to_json(session)}),
            "{\"schema\":\"djinn.sessions.v1\",\"items\":[{\"id\":\"000000000001\",\"name\":\"\","
            "\"owner\":\"\",\"pid\":0,\"started\":null,\"granted_bytes\":0,\"models\":0,"
            "\"sequences\":0,\"steps\":0,\"running\":false,\"state\":\"lost\",\"wait\":\"-\","
            "\"shared_bytes\":7,\"tier\":\"2\",\"graphs_run\":1,\"programs_run\":2,"
            "\"generations\":3,\"failed\":4,\"tokens\":5,\"plan_misses\":6,\"bytes_in\":7,"
            "\"bytes_out\":8,\"stated_tier0_calls\":9,\"stated_tier1_calls\":10,"
            "\"stated_tier2_calls\":11,\"stated_local_models\":12,\"device\":\"\"}]}\n");
}

TEST(Json, an_event_tells_what_applies_to_it_and_null_else) {
  ipc::EventReport event;
  event.number = 7;
  event.wall_ns = 1'000'000'000;
  event.kind = ipc::EventKind::kModelEvicted;
  event.text = "gone";
  event.model = ModelId{1};
  event.device = "cpu:0";
  event.bytes = 0;
  EXPECT_EQ(to_json(event).dump(),
            "{\"number\":7,\"time\":\"1970-01-01T00:00:01.000000000Z\","
            "\"event\":\"model-evicted\",\"text\":\"gone\",\"session\":null,"
            "\"model\":\"000000000001\",\"device\":\"cpu:0\",\"bytes\":0,\"error\":null,"
            "\"uid\":null,\"path\":null,\"reason\":null}");
  event.user = 1000;
  event.path = "/srv/bad";
  event.reason = "It is cut short.";
  EXPECT_EQ(to_json(event)["uid"], 1000);
  EXPECT_EQ(to_json(event)["path"], "/srv/bad");
  EXPECT_EQ(to_json(event)["reason"], "It is cut short.");
}

TEST(Json, programs_devices_and_pools) {
  const ipc::ProgramReport program{{1}, {}, "ann", "cpu:0", ipc::ProgramState::kAdmitting, 2, 3, 4};
  EXPECT_EQ(to_json(program).dump(),
            "{\"id\":\"000000000001\",\"model\":null,\"owner\":\"ann\",\"device\":\"cpu:0\","
            "\"state\":\"admitting\",\"graph_bytes\":2,\"outputs\":3,\"sessions\":4,"
            "\"name\":\"\",\"workload\":null,\"numerics\":null,\"fast_nodes\":0}");
  const ipc::ProgramReport admitted{{1}, {}, "ann", "cpu:0",        ipc::ProgramState::kAdmitted,
                                    2,   3,  4,     "llama.decode", ipc::Workload::kDecode};
  EXPECT_EQ(to_json(admitted)["name"], "llama.decode");
  EXPECT_EQ(to_json(admitted)["workload"], "decode step");
  EXPECT_EQ(to_json(admitted)["numerics"], "exact");
  const ipc::DeviceReport device{"cpu:0", "A CPU", 1,     2, 3, 4, ipc::DeviceState::kFailed,
                                 5,       "never", "avx2"};
  EXPECT_EQ(to_json(device).dump(),
            "{\"device\":\"cpu:0\",\"name\":\"A CPU\",\"used_bytes\":1,\"total_bytes\":2,"
            "\"planned_bytes\":3,\"lanes\":4,\"state\":\"failed\",\"huge_bytes\":5,"
            "\"huge_pages\":\"never\",\"isa\":\"avx2\",\"driver\":null,\"reason\":null,"
            "\"hardware_bytes\":null,\"hardware_free_bytes\":null,\"uploaded_bytes\":null}");
  const ipc::DeviceReport lost{.device = "cuda:0",
                               .name = "A GPU",
                               .state = ipc::DeviceState::kLost,
                               .driver = "580.1",
                               .reason = "It is gone.",
                               .hardware_bytes = 8,
                               .hardware_free_bytes = 7};
  EXPECT_EQ(to_json(lost)["state"], "lost");
  EXPECT_EQ(to_json(lost)["driver"], "580.1");
  EXPECT_EQ(to_json(lost)["reason"], "It is gone.");
  EXPECT_EQ(to_json(lost)["hardware_bytes"], 8);
  EXPECT_EQ(to_json(lost)["hardware_free_bytes"], 7);
  EXPECT_EQ(to_json(lost)["uploaded_bytes"], 0) << "nothing was, and that is known";
  const ipc::MemoryReport pool{"cpu:0", ipc::MemoryPool::kLanes, 1, 2, 3, 4, 5};
  EXPECT_EQ(to_json(pool).dump(),
            "{\"device\":\"cpu:0\",\"pool\":\"lanes\",\"reserved_bytes\":1,\"mapped_bytes\":2,"
            "\"cached_bytes\":3,\"evictable_bytes\":4,\"pinned_bytes\":5}");
}

TEST(Json, a_schedule_tells_its_decisions_and_when_they_were) {
  ipc::ScheduleReport report{1, "cpu:0", "ann", {SchedulePolicy::kFifo, {}}};
  report.schedule.decisions.push_back({7,
                                       SessionId{0xabc},
                                       ServiceClass::kIdle,
                                       PickReason::kOnly,
                                       kNsPerSecond,
                                       3,
                                       -20,
                                       4,
                                       1,
                                       2,
                                       {}});
  report.schedule.decisions.push_back(
      {8, SessionId{0xabc}, ServiceClass::kIdle, PickReason::kSlice, 0, 1, 0, 0, 0, 0, {0xdef}});
  EXPECT_EQ(json_text("schedule", {to_json(report, 61 * kNsPerSecond)}),
            "{\"schema\":\"djinn.schedule.v1\",\"items\":[{\"device\":\"cpu:0\",\"owner\":\"ann\","
            "\"policy\":\"fifo\",\"decisions\":[{\"number\":7,"
            "\"time\":\"1970-01-01T00:01:00.000000000Z\",\"session\":\"000000000abc\","
            "\"class\":\"idle\",\"reason\":\"only\",\"ready\":3,\"lag_ns\":-20,\"deadline_ns\":4,"
            "\"predicted_ns\":1,\"measured_ns\":2,\"paused\":null},{\"number\":8,"
            "\"time\":\"1970-01-01T00:01:01.000000000Z\",\"session\":\"000000000abc\","
            "\"class\":\"idle\",\"reason\":\"slice\",\"ready\":1,\"lag_ns\":0,\"deadline_ns\":0,"
            "\"predicted_ns\":0,\"measured_ns\":0,\"paused\":\"000000000def\"}]}]}\n");
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
