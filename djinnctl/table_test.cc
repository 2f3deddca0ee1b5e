#include "djinnctl/table.h"

#include <gtest/gtest.h>

#include "djinnctl/tables.h"

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

TEST(Tables, a_model_being_read_tells_how_far) {
  ipc::ModelReport model;
  model.model = ModelId{0xabc};
  model.label = "bert";
  model.owner = "ann";
  model.bytes = 2048;
  model.bytes_loaded = 1024;
  EXPECT_EQ(model_table({&model, 1}, 0),
            "ID            NAME  STATE                  SIZE  LEASES  PINNED  OWNER  AGE\n"
            "000000000abc  bert  loading  1.0 KiB of 2.0 KiB       0  no      ann      -\n");
}

}  // namespace
}  // namespace djinn::ctl
