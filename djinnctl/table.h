// SPDX-License-Identifier: Apache-2.0

// Table: rows under an upper-case header, as wide as their cells. The only printer of tables.
//
//   layout   how much room there is, and how the header looks
//   fit      what happens to a column on a terminal that is too narrow for all
#pragma once

#include <string>
#include <vector>

namespace djinn::ctl {

class Table {
 public:
  enum class Align { kLeft, kRight };
  enum class Legend { kShown, kHidden };
  // kOptional columns are left out first, from the right; then kShortened ones lose their ends, the
  // widest first; where that is not enough, kLeftOutLast ones are left out, too, from the right.
  enum class Fit { kWhole, kShortened, kOptional, kLeftOutLast };
  struct Column {
    std::string header;
    Align align = Align::kLeft;
    Fit fit = Fit::kWhole;
  };
  struct Layout {
    Legend legend = Legend::kShown;
    bool bold = false;       // the header, by an escape code
    bool isolates = false;   // what is written from right to left: text.h
    size_t columns_max = 0;  // of a line; 0: any length
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // A cell for each column. Cells are made showable; an empty one shows as "-", so that a row has
  // as many words as the header.
  void add(std::vector<std::string> cells);
  // Header (the legend) and rows, two spaces between columns, none at the end of a line.
  [[nodiscard]] std::string text(const Layout& layout) const;
  [[nodiscard]] std::string text(Legend legend = Legend::kShown) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace djinn::ctl
