// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/table.h"

#include <gtest/gtest.h>

#include <array>

#include "djinnctl/tables.h"
#include "djinnctl/text.h"
#include "kernel/base/clock.h"

namespace djinn::ctl {
namespace {

TEST(Table, columns_are_as_wide_as_their_widest_cell) {
  Table table({{"ID"}, {"SIZE", Table::Align::kRight}, {"NAME"}});
  table.add({"a", "1.0 KiB", "first"});
  table.add({"bcd", "0 B", "x"});
  EXPECT_EQ(table.text(),
            "ID      SIZE  NAME\n"
            "a    1.0 KiB  first\n"
            "bcd      0 B  x\n");
}

TEST(Table, without_rows_is_its_header) {
  EXPECT_EQ(Table({{"ID"}, {"NAME"}}).text(), "ID  NAME\n");
}

TEST(Table, a_name_with_control_characters_or_none_keeps_its_row_one_line) {
  Table table({{"NAME"}, {"OWNER"}});
  table.add({"two\nlines", ""});
  EXPECT_EQ(table.text(), "NAME       OWNER\ntwo?lines  -\n");
}

TEST(Table, a_character_of_two_bytes_is_one_column_wide) {
  Table table({{"NAME"}, {"N"}});
  table.add({"ÄÖÜß", "1"});
  EXPECT_EQ(table.text(), "NAME  N\nÄÖÜß  1\n");
}

TEST(Table, without_legend_columns_are_as_wide_as_their_cells) {
  Table table({{"A LONG HEADER"}, {"N", Table::Align::kRight}});
  table.add({"a", "1"});
  table.add({"b", "22"});
  EXPECT_EQ(table.text(Table::Legend::kHidden), "a   1\nb  22\n");
}

// --- on a terminal

TEST(Table, a_header_is_bold_where_escape_codes_may_go) {
  Table table({{"ID"}, {"NAME"}});
  table.add({"a", "b"});
  EXPECT_EQ(table.text({.bold = true}), "\x1b[1mID  NAME\x1b[0m\na   b\n");
}

TEST(Table, a_name_from_right_to_left_turns_no_other_cell_and_takes_no_more_room) {
  Table table({{"NAME", Table::Align::kLeft, Table::Fit::kShortened}, {"N"}});
  table.add({"\u05d0\u05d1 \u05d2\u05d3", "12"});
  table.add({"plain", "3"});
  EXPECT_EQ(table.text({.isolates = true}),
            "NAME   N\n\u2068\u05d0\u05d1 \u05d2\u05d3\u2069  12\nplain  3\n");
  EXPECT_EQ(table.text({.isolates = true, .columns_max = 8}),
            "NAME  N\n\u2068\u05d0\u05d1 …\u2069  12\npla…  3\n");
  EXPECT_EQ(table.text(), "NAME   N\n\u05d0\u05d1 \u05d2\u05d3  12\nplain  3\n");
}

TEST(Table, a_narrow_terminal_shortens_the_widest_name_first) {
  constexpr auto kLeft = Table::Align::kLeft;
  Table table(
      {{"NAME", kLeft, Table::Fit::kShortened}, {"ID"}, {"USER", kLeft, Table::Fit::kShortened}});
  table.add({"a-model-with-a-long-name", "0123456789ab", "alexandra"});
  EXPECT_EQ(table.text({.columns_max = 36}),
            "NAME         ID            USER\n"
            "a-model-wi…  0123456789ab  alexandra\n");
  EXPECT_EQ(table.text({.columns_max = 30}),
            "NAME     ID            USER\n"
            "a-mode…  0123456789ab  alexan…\n");
}

TEST(Table, a_narrow_terminal_leaves_out_optional_columns_from_the_right) {
  Table table({{"ID"},
               {"FIRST", Table::Align::kLeft, Table::Fit::kOptional},
               {"N"},
               {"SECOND", Table::Align::kLeft, Table::Fit::kOptional}});
  table.add({"a", "b", "1", "c"});
  EXPECT_EQ(table.text({.columns_max = 20}), "ID  FIRST  N  SECOND\na   b      1  c\n");
  EXPECT_EQ(table.text({.columns_max = 19}), "ID  FIRST  N\na   b      1\n");
  EXPECT_EQ(table.text({.columns_max = 11}), "ID  N\na   1\n");
}

TEST(Table, where_shortening_is_not_enough_more_columns_are_left_out_from_the_right) {
  constexpr auto kLeft = Table::Align::kLeft;
  Table table({{"NAME", kLeft, Table::Fit::kShortened},
               {"REFS", kLeft, Table::Fit::kLeftOutLast},
               {"STATE", kLeft, Table::Fit::kLeftOutLast},
               {"N", kLeft, Table::Fit::kOptional}});
  table.add({"a-model", "1", "resident", "2"});
  EXPECT_EQ(table.text({.columns_max = 23}), "NAME     REFS  STATE\na-model  1     resident\n");
  EXPECT_EQ(table.text({.columns_max = 20}), "NAME  REFS  STATE\na-m…  1     resident\n");
  EXPECT_EQ(table.text({.columns_max = 19}), "NAME     REFS\na-model  1\n");
  EXPECT_EQ(table.text({.columns_max = 7}), "NAME\na-model\n");
}

TEST(Table, what_cannot_be_narrower_is_shown_all_the_same) {
  Table table({{"ID"}, {"NAME", Table::Align::kLeft, Table::Fit::kShortened}});
  table.add({"0123456789ab", "a-name"});
  EXPECT_EQ(table.text({.columns_max = 5}), "ID            NAME\n0123456789ab  a-n…\n");
}

// --- each verb's table, as scripts know it

TEST(Tables, models) {
  ipc::ModelReport models[4];
  models[0].model = ModelId{0xabc};
  models[0].label = "bert";
  models[0].device = "cpu:0";
  models[0].bytes = 2048;
  models[0].bytes_loaded = 1024;
  models[0].leases = 1;
  models[0].owner = "ann";
  models[1] = models[0];
  models[1].state = ipc::ModelState::kResident;
  models[1].pinned = true;  // which keeps it when the last session has closed it
  models[2] = models[1];
  models[2].leases = 0;
  models[2].pinned = false;
  models[2].state = ipc::ModelState::kEvicting;
  models[3] = models[2];
  models[3].state = ipc::ModelState::kDisk;
  models[3].expires_wall_ns = 181 * kNsPerSecond;
  EXPECT_EQ(model_table(models, kNsPerSecond).text(),
            "NAME  ID            DEVICE            SIZE  REFS  STATE     PIN  UNTIL    USER\n"
            "bert  000000000abc  cpu:0   50% of 2.0 KiB     1  loading   no   close    ann\n"
            "bert  000000000abc  cpu:0          2.0 KiB     1  resident  yes  unload   ann\n"
            "bert  000000000abc  cpu:0          2.0 KiB     0  evicting  no   leaving  ann\n"
            "bert  000000000abc  cpu:0          2.0 KiB     0  disk      no   3m       ann\n");
}

TEST(Tables, two_load_plans_of_one_checkpoint_are_told_apart) {
  ipc::ModelReport models[2];
  models[0].label = models[1].label = "bytes";
  EXPECT_EQ(model_table(models, 0).text(Table::Legend::kShown).find("PLAN"), std::string::npos);
  models[1].plan = 0x3fa2c011;
  const std::string text = model_table(models, 0).text(Table::Legend::kShown);
  EXPECT_NE(text.find("PLAN"), std::string::npos);
  EXPECT_NE(text.find("3fa2c011\n"), std::string::npos);
}

TEST(Tables, the_numerics_of_models_are_told_where_any_were_said) {
  ipc::ModelReport models[2];
  EXPECT_EQ(model_table(models, 0).text().find("NUMERICS"), std::string::npos);
  models[0].numerics = srg::Numerics::kExact;
  models[1].numerics = srg::Numerics::kFastOnly;
  const std::string text = model_table(models, 0).text();
  EXPECT_NE(text.find("  NUMERICS\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  exact\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  fast-only\n"), std::string::npos) << text;
}

TEST(Tables, a_model_that_leaves_does_not_stay_until_memory_is_short) {
  ipc::ModelReport model;
  model.state = ipc::ModelState::kResident;
  EXPECT_EQ(until_text(model, 0), "pressure");
  model.state = ipc::ModelState::kEvicting;
  EXPECT_EQ(until_text(model, 0), "leaving");
}

TEST(Tables, a_decision_is_told_in_milliseconds) {
  const ipc::ScheduleDecision decision{7,
                                       SessionId{0xabc},
                                       ServiceClass::kBatch,
                                       PickReason::kDeadline,
                                       1'500'000,
                                       3,
                                       -20'000'000,
                                       4'000'000,
                                       1'000'000,
                                       2'345'678,
                                       SessionId{0xdef}};
  EXPECT_EQ(schedule_table({&decision, 1}).text({}),
            "   AGO  SESSION       CLASS  READY       LAG  DEADLINE  PREDICTED    TOOK  WHY       "
            "PAUSED\n"
            "1.50ms  000000000abc  batch      3  -20.00ms    4.00ms     1.00ms  2.35ms  deadline  "
            "000000000def\n");
}

TEST(Tables, fit_40_columns) {
  ipc::ModelReport model;
  model.model = ModelId{0xabc};
  model.label = "a-model-with-a-long-name";
  model.device = "cpu:0";
  model.bytes = uint64_t{1001} << 20;
  model.state = ipc::ModelState::kResident;
  model.owner = "ann";
  ipc::SessionReport session;
  session.session = SessionId{0xdef};
  session.client_name = "a-program-with-a-long-name";
  session.owner = "a-user-with-a-long-name";
  session.granted_bytes = session.shared_bytes = uint64_t{1001} << 20;
  for (const std::string& text :
       {model_table({&model, 1}, kNsPerSecond).text({.columns_max = 40}),
        session_table({&session, 1}, kNsPerSecond).text({.columns_max = 40})}) {
    std::string_view left = text;
    while (!left.empty()) {
      EXPECT_LE(width_of(left.substr(0, left.find('\n'))), 40u) << text;
      left.remove_prefix(left.find('\n') + 1);
    }
  }
  EXPECT_EQ(model_table({&model, 1}, kNsPerSecond).text({.columns_max = 60}),
            "NAME   ID                SIZE  REFS  STATE     PIN  UNTIL\n"
            "a-mo…  000000000abc  1001 MiB     0  resident  no   pressure\n");
}

TEST(Tables, models_of_two_users_and_plans_tell_the_users_on_80_columns) {
  ipc::ModelReport models[2];
  for (ipc::ModelReport& model : models) {
    model.label = "a-model";
    model.device = "cpu:0";
    model.bytes = uint64_t{1001} << 20;
    model.state = ipc::ModelState::kResident;
  }
  models[0].owner = "somebody";
  models[1].owner = "ann";
  models[1].plan = 0x3fa2c011;
  const std::string text = model_table(models, kNsPerSecond).text({.columns_max = 80});
  EXPECT_NE(text.find("somebody"), std::string::npos) << text;
  EXPECT_NE(text.find("PIN"), std::string::npos) << text;
  EXPECT_EQ(text.find("PLAN"), std::string::npos) << text;
}

TEST(Tables, a_program_that_calls_itself_at_length_is_shortened_everywhere) {
  const std::string name(255, 'n');
  EXPECT_EQ(app_text(name), std::string(63, 'n') + "…");
  EXPECT_EQ(app_text("demo.py"), "demo.py");
}

TEST(Tables, sessions) {
  ipc::SessionReport session;
  session.session = SessionId{0xdef};
  session.client_name = "demo.py";
  session.owner = "ann";
  session.pid = 42;
  session.started_wall_ns = 1'000'000'000;
  session.granted_bytes = 4096;
  session.shared_bytes = 2048;
  session.state = ipc::SessionState::kWaiting;
  session.wait = ipc::SessionWait::kMemory;
  session.counts.tier = ipc::RunTier::kProgram;
  session.counts.bytes_in = 1000;
  session.counts.bytes_out = 24;
  session.stated.local_models = 3;
  EXPECT_EQ(session_table({&session, 1}, 61'000'000'000).text(),
            "SESSION       USER  PID  APP      STATE    SINCE  WAIT     MEMORY   SHARED  TIER  "
            "CROSSED  LOCAL\n"
            "000000000def  ann    42  demo.py  waiting     1m  memory  4.0 KiB  2.0 KiB     1  "
            "1.0 KiB      3\n");
}

TEST(Tables, holders_of_a_model) {
  const ipc::UseReport use{ipc::UseKind::kHold, "ann", {0xdef}, 42, "demo.py", "", ""};
  EXPECT_EQ(holder_table({&use, 1}).text(),
            "SESSION       USER  PID  APP\n"
            "000000000def  ann    42  demo.py\n");
}

TEST(Tables, dtypes_of_a_model) {
  const DTypeUse uses[] = {{DType::kBFloat16, 20, 2048}, {DType::kInt64, 1, 8}};
  EXPECT_EQ(dtype_table(uses).text(),
            "DTYPE     TENSORS     SIZE\n"
            "bfloat16       20  2.0 KiB\n"
            "int64           1      8 B\n");
}

TEST(Tables, programs) {
  const ipc::ProgramReport program{{1}, {}, "ann", "cpu:0", ipc::ProgramState::kAdmitted,
                                   512, 2,  3};
  EXPECT_EQ(program_table({&program, 1}).text(),
            "PROGRAM       MODEL  DEVICE   SIZE  OUTPUTS  REFS  STATE     USER\n"
            "000000000001  -      cpu:0   512 B        2     3  admitted  ann\n");
}

TEST(Tables, devices) {
  const ipc::DeviceReport device{"cpu:0", "A CPU",  1024,    4096, 512, 1, ipc::DeviceState::kReady,
                                 768,     "advise", "avx512"};
  EXPECT_EQ(device_table({&device, 1}).text(),
            "DEVICE  NAME      USED    TOTAL  PLANNED  LANES  STATE   HUGE  HUGE PAGES  ISA\n"
            "cpu:0   A CPU  1.0 KiB  4.0 KiB    512 B      1  ready  768 B  advise      avx512\n");
}

TEST(Tables, devices_with_a_gpu_among_them_tell_its_driver_and_what_is_wrong) {
  const std::array devices{ipc::DeviceReport{.device = "cpu:0", .name = "A CPU"},
                           ipc::DeviceReport{.device = "cuda:0",
                                             .name = "A GPU",
                                             .state = ipc::DeviceState::kFailed,
                                             .driver = "580.1",
                                             .reason = "It is used by others alone."}};
  const std::string text = device_table(devices).text();
  EXPECT_NE(text.find("HAS  FREE  DRIVER\n"), std::string::npos) << text;
  EXPECT_NE(text.find("failed"), std::string::npos) << text;
  EXPECT_NE(text.find("580.1\n"), std::string::npos) << text;
  // Below the table, where no narrow terminal cuts off what is to be done.
  EXPECT_EQ(reasons_text(devices), "cuda:0: It is used by others alone.\n");
}

TEST(Tables, pools_of_memory) {
  const ipc::MemoryReport pool{"cpu:0", ipc::MemoryPool::kWeights, 4096, 3072, 2048, 1024, 512};
  EXPECT_EQ(memory_table({&pool, 1}).text(),
            "DEVICE  POOL     RESERVED   MAPPED   CACHED  EVICTABLE  PINNED\n"
            "cpu:0   weights   4.0 KiB  3.0 KiB  2.0 KiB    1.0 KiB   512 B\n");
}

}  // namespace
}  // namespace djinn::ctl
