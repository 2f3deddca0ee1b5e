// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/table.h"

#include <algorithm>
#include <numeric>

#include "djinnctl/text.h"
#include "kernel/base/text.h"

namespace djinn::ctl {
namespace {

constexpr size_t kGap = 2;
// A name that is cut further tells nothing.
constexpr size_t kShortenedMin = 4;

// This is a column that is shown: which one, and how wide.
struct Shown {
  size_t index = 0;
  size_t width = 0;
};

size_t line_width(const std::vector<Shown>& shown) {
  const size_t gaps = shown.empty() ? 0 : (shown.size() - 1) * kGap;
  return std::accumulate(shown.begin(), shown.end(), gaps,
                         [](size_t sum, const Shown& one) { return sum + one.width; });
}

// Leaves out the last column of that fit. Gives false if there is none.
bool leave_out_last(std::vector<Shown>& shown, const std::vector<Table::Column>& columns,
                    Table::Fit fit) {
  const auto last = std::find_if(shown.rbegin(), shown.rend(),
                                 [&](const Shown& one) { return columns[one.index].fit == fit; });
  if (last == shown.rend()) return false;
  shown.erase(std::next(last).base());
  return true;
}

// Makes the widest column narrower by one. Gives false if none may become narrower.
bool narrow_widest(std::vector<Shown>& shown, const std::vector<Table::Column>& columns) {
  Shown* widest = nullptr;
  for (Shown& one : shown) {
    if (columns[one.index].fit != Table::Fit::kShortened || one.width <= kShortenedMin) continue;
    if (widest == nullptr || one.width > widest->width) widest = &one;
  }
  if (widest != nullptr) --widest->width;
  return widest != nullptr;
}

void make_fit(std::vector<Shown>& shown, const std::vector<Table::Column>& columns, size_t max) {
  while (line_width(shown) > max && leave_out_last(shown, columns, Table::Fit::kOptional)) {
  }
  for (;;) {
    std::vector<Shown> narrowed = shown;
    while (line_width(narrowed) > max && narrow_widest(narrowed, columns)) {
    }
    const bool fits = line_width(narrowed) <= max;
    if (fits || !leave_out_last(shown, columns, Table::Fit::kLeftOutLast)) {
      shown = std::move(narrowed);
      return;
    }
  }
}

std::string line_of(const std::vector<std::string>& cells, const std::vector<Shown>& shown,
                    const std::vector<Table::Column>& columns, const Table::Layout& layout) {
  std::string out;
  for (const Shown& one : shown) {
    const std::string plain = shortened(cells[one.index], one.width);
    const std::string gap(one.width - width_of(plain), ' ');
    const std::string cell = layout.isolates ? isolated(plain) : plain;
    const bool right = columns[one.index].align == Table::Align::kRight;
    if (!out.empty()) out += "  ";
    out += right ? gap + cell : cell + gap;
  }
  out.erase(out.find_last_not_of(' ') + 1);
  return out;
}

}  // namespace

void Table::add(std::vector<std::string> cells) {
  DJINN_ASSERT(cells.size() == columns_.size());
  for (std::string& cell : cells) cell = cell.empty() ? "-" : showable(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::text(Legend legend) const {
  return text(Layout{legend});
}

std::string Table::text(const Layout& layout) const {
  const bool has_header = layout.legend == Legend::kShown;
  std::vector<std::string> header;
  std::vector<Shown> shown;
  for (const Column& column : columns_) {
    shown.push_back({header.size(), has_header ? width_of(column.header) : 0});
    header.push_back(column.header);
  }
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i)
      shown[i].width = std::max(shown[i].width, width_of(row[i]));
  }
  if (layout.columns_max > 0) make_fit(shown, columns_, layout.columns_max);
  std::string out;
  if (has_header) {
    const std::string line = line_of(header, shown, columns_, layout);
    out = (layout.bold ? "\x1b[1m" + line + "\x1b[0m" : line) + '\n';
  }
  for (const auto& row : rows_) out += line_of(row, shown, columns_, layout) + '\n';
  return out;
}

}  // namespace djinn::ctl
