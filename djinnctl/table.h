// Table: rows under an upper-case header, as wide as their cells. The only printer of tables.
#pragma once

#include <string>
#include <vector>

namespace djinn::ctl {

class Table {
 public:
  enum class Align { kLeft, kRight };
  enum class Legend { kShown, kHidden };
  struct Column {
    std::string header;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // A cell for each column. Cells are made printable; an empty one shows as "-", so that a row has
  // as many words as the header.
  void add(std::vector<std::string> cells);
  // Header (the legend) and rows, two spaces between columns, none at the end of a line.
  [[nodiscard]] std::string text(Legend legend = Legend::kShown) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace djinn::ctl
