#include "djinnctl/table.h"

#include <algorithm>

#include "djinnctl/text.h"

namespace djinn::ctl {
namespace {

// Columns on a screen: bytes that begin a character. Wide characters count as one.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(std::ranges::count_if(
      text, [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; }));
}

std::string line_of(const std::vector<std::string>& cells, const std::vector<size_t>& widths,
                    const std::vector<Table::Column>& columns) {
  std::string out;
  for (size_t i = 0; i < cells.size(); ++i) {
    const std::string gap(widths[i] - width_of(cells[i]), ' ');
    const bool right = columns[i].align == Table::Align::kRight;
    if (i != 0) out += "  ";
    out += right ? gap + cells[i] : cells[i] + gap;
  }
  out.erase(out.find_last_not_of(' ') + 1);
  return out + '\n';
}

}  // namespace

void Table::add(std::vector<std::string> cells) {
  DJINN_ASSERT(cells.size() == columns_.size());
  for (std::string& cell : cells) cell = cell.empty() ? "-" : printable(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::text(Legend legend) const {
  std::vector<std::string> header;
  std::vector<size_t> widths;
  for (const Column& column : columns_) {
    header.push_back(column.header);
    widths.push_back(legend == Legend::kShown ? width_of(column.header) : 0);
  }
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string out = legend == Legend::kShown ? line_of(header, widths, columns_) : "";
  for (const auto& row : rows_) out += line_of(row, widths, columns_);
  return out;
}

}  // namespace djinn::ctl
