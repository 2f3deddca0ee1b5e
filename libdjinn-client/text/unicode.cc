// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/text/unicode.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <vector>

#include "kernel/base/assert.h"
#include "libdjinn-client/text/unicode_tables.h"

namespace djinn::text {
namespace {

template <typename Row>
const Row* row_of(std::span<const Row> rows, uint32_t point) {
  const auto row = std::ranges::lower_bound(rows, point, {}, &Row::last);
  return row != rows.end() && row->first <= point ? &*row : nullptr;
}

bool is_in(std::span<const Points> rows, uint32_t point) {
  return row_of(rows, point) != nullptr;
}

const Younger* younger(uint32_t point) {
  return row_of(std::span<const Younger>(kYounger), point);
}

utf8proc_category_t category_of(uint32_t point) {
  const Younger* const row = younger(point);
  if (row != nullptr) return row->category;
  return utf8proc_category(static_cast<utf8proc_int32_t>(point));
}

bool is_letter(utf8proc_category_t category) {
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool is_mark_category(utf8proc_category_t category) {
  return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
}

// Symbols that are Alphabetic: letters in circles and squares.
bool is_enclosed_letter(uint32_t point) {
  return (point >= 0x24b6 && point <= 0x24e9) || (point >= 0x1f130 && point <= 0x1f149) ||
         (point >= 0x1f150 && point <= 0x1f169) || (point >= 0x1f170 && point <= 0x1f189);
}

// A character that utf8proc takes, in clusters, for what Unicode 17 takes this one for.
utf8proc_int32_t in_clusters(uint32_t point) {
  constexpr utf8proc_int32_t kExtending = 0x301;
  constexpr utf8proc_int32_t kPrepended = 0x110bd;
  if (is_in(kExtends, point)) return kExtending;
  if (point == 0x113d1) return kPrepended;
  if (point == 0x11a3a) return 'x';
  return static_cast<utf8proc_int32_t>(point);
}

int options_of(NormalForm form) {
  switch (form) {
    case NormalForm::kC:
      return UTF8PROC_COMPOSE;
    case NormalForm::kD:
      return UTF8PROC_DECOMPOSE;
    case NormalForm::kKC:
      return UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
    case NormalForm::kKD:
      return UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
  }
  return 0;
}

using PointList = std::vector<utf8proc_int32_t>;

void append_decomposed(PointList& points, uint32_t point, utf8proc_option_t options) {
  constexpr size_t kLongest = 18;  // U+FDFA's, the longest there is
  const size_t before = points.size();
  points.resize(before + kLongest);
  const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(point), &points[before],
                                             kLongest, options, nullptr);
  DJINN_ASSERT(count >= 0 && static_cast<size_t>(count) <= kLongest);
  points.resize(before + static_cast<size_t>(count));
}

// Canonical order: within each run of marks, by their combining class. utf8proc_map() swaps
// neighbours until all is in order, which takes hours for a megabyte of marks.
void order_marks(PointList& points) {
  const auto class_of = [](utf8proc_int32_t point) {
    return utf8proc_get_property(point)->combining_class;
  };
  const auto is_mark = [&](utf8proc_int32_t point) { return class_of(point) != 0; };
  for (auto begin = points.begin(); begin != points.end();) {
    begin = std::find_if(begin, points.end(), is_mark);
    const auto end = std::find_if_not(begin, points.end(), is_mark);
    std::ranges::stable_sort(begin, end, {}, class_of);
    begin = end;
  }
}

void append_normalized(std::string& out, std::string_view text, NormalForm form) {
  const auto options = static_cast<utf8proc_option_t>(options_of(form) | UTF8PROC_STABLE);
  PointList points;
  for (size_t at = 0; at < text.size();) {
    const Character one = character_at(text, at);
    append_decomposed(points, one.point, options);
    at += one.bytes;
  }
  order_marks(points);
  const auto count = utf8proc_normalize_utf32(
      points.data(), static_cast<utf8proc_ssize_t>(points.size()), options);
  DJINN_ASSERT(count >= 0 && static_cast<size_t>(count) <= points.size());
  points.resize(static_cast<size_t>(count));
  for (const utf8proc_int32_t point : points) append_character(out, static_cast<uint32_t>(point));
}

}  // namespace

size_t valid_bytes(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Character one = first_character(text.substr(at));
    if (one.point == kNoCharacter) break;
    at += one.bytes;
  }
  return at;
}

Character character_before(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && is_continuation(text[at])) --at;
  return character_at(text, at);
}

void append_character(std::string& text, uint32_t point) {
  utf8proc_uint8_t bytes[4];
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(point), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(count));
}

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(std::ranges::count(text, false, is_continuation));
}

bool is_space(uint32_t point) {
  return (point >= 0x09 && point <= 0x0d) || point == 0x20 || point == 0x85 || point == 0xa0 ||
         point == 0x1680 || (point >= 0x2000 && point <= 0x200a) || point == 0x2028 ||
         point == 0x2029 || point == 0x202f || point == 0x205f || point == 0x3000;
}

bool is_number(uint32_t point) {
  const auto category = category_of(point);
  if (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO) return true;
  // Unicode 17's, which Rust's char knows and Oniguruma does not.
  return (point >= 0x11de0 && point <= 0x11de9) || (point >= 0x16ff4 && point <= 0x16ff6);
}

bool is_word(uint32_t point) {
  const auto category = category_of(point);
  return is_letter(category) || is_mark_category(category) || category == UTF8PROC_CATEGORY_ND ||
         category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_PC || point == 0x200c ||
         point == 0x200d || is_enclosed_letter(point);
}

bool is_punctuation(uint32_t point) {
  if (point < 0x80) {
    return (point >= '!' && point <= '/') || (point >= ':' && point <= '@') ||
           (point >= '[' && point <= '`') || (point >= '{' && point <= '~');
  }
  // Symbols to later Unicode.
  if (point == 0x166d || point == 0x111c9) return true;
  const auto category = category_of(point);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO &&
         younger(point) == nullptr && !is_in(kNoPunctuation, point);
}

bool is_mark(uint32_t point) {
  if (point == 0x1cf2 || point == 0x1cf3) return true;
  return is_mark_category(category_of(point)) && younger(point) == nullptr &&
         !is_in(kNoMark, point);
}

bool is_accent(uint32_t point) {
  if (point == 0x1734) return true;
  return category_of(point) == UTF8PROC_CATEGORY_MN && younger(point) == nullptr &&
         !is_in(kNoAccent, point);
}

bool is_control(uint32_t point) {
  // Of category Cf to later Unicode.
  if (point == 0x890 || point == 0x891 || point == 0x8e2 || point == 0x110cd) return false;
  if (younger(point) != nullptr || (point >= 0x13430 && point <= 0x1343f)) return false;
  const auto category = category_of(point);
  return category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF ||
         category == UTF8PROC_CATEGORY_CO;
}

void append_lower(std::string& text, uint32_t point) {
  if (point == 0x130) {  // the one that becomes two
    text += "i\u0307";
    return;
  }
  const auto is_between = [point](uint32_t first, uint32_t last) {
    return point >= first && point <= last;
  };
  // Of Unicode 16 and 17.
  if (point == 0xa7cb) return append_character(text, 0x264);
  if (point == 0xa7dc) return append_character(text, 0x19b);
  if (point == 0x1c89 || point == 0xa7cc || point == 0xa7ce || point == 0xa7d2 || point == 0xa7d4 ||
      point == 0xa7da) {
    return append_character(text, point + 1);
  }
  if (is_between(0x10d50, 0x10d65)) return append_character(text, point + 0x20);
  if (is_between(0x16ea0, 0x16eb8)) return append_character(text, point + 0x1b);
  append_character(text,
                   static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(point))));
}

size_t cluster_end(std::string_view text, size_t at) {
  Character one = character_at(text, at);
  size_t end = at + one.bytes;
  utf8proc_int32_t state = 0;
  while (end < text.size()) {
    const Character next = character_at(text, end);
    if (utf8proc_grapheme_break_stateful(in_clusters(one.point), in_clusters(next.point), &state)) {
      break;
    }
    end += next.bytes;
    one = next;
  }
  return end;
}

std::string normalized(std::string_view text, NormalForm form) {
  const bool is_ascii =
      std::ranges::all_of(text, [](char byte) { return static_cast<unsigned char>(byte) < 0x80; });
  if (is_ascii) return std::string(text);
  std::string out;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const Character one = character_at(text, at);
    // Whoever does not know a character takes it for one that nothing is moved across.
    if (is_in(kNotNormalized, one.point)) {
      append_normalized(out, text.substr(begin, at - begin), form);
      out.append(text.substr(at, one.bytes));
      begin = at + one.bytes;
    }
    at += one.bytes;
  }
  append_normalized(out, text.substr(begin), form);
  return out;
}

bool replace_younger(std::string& text) {
  bool was_one = false;
  for (size_t at = 0; at < text.size();) {
    const Character one = character_at(text, at);
    const Younger* const row = one.point < kYounger[0].first ? nullptr : younger(one.point);
    if (row != nullptr) {
      std::string other;
      append_character(other, row->stands_for_it);
      DJINN_ASSERT(other.size() == one.bytes);
      std::ranges::copy(other, text.begin() + static_cast<std::ptrdiff_t>(at));
      was_one = true;
    }
    at += one.bytes;
  }
  return was_one;
}

}  // namespace djinn::text
