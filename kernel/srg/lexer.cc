// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/lexer.h"

#include <fmt/format.h>

#include <charconv>

namespace djinn::srg {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

Error error_at(const Token& token, std::string_view what) {
  return {ErrorCode::kMalformed, fmt::format("line {}:{}: {}", token.line, token.column, what)};
}

char Lexer::peek(size_t ahead) const {
  return ahead < text_.size() - at_ ? text_[at_ + ahead] : '\0';
}

char Lexer::take() {
  const char c = text_[at_++];
  ++column_;
  if (c == '\n') {
    ++line_;
    column_ = 1;
  }
  return c;
}

// Skips blanks and comments, and within brackets also newlines.
void Lexer::skip_blanks() {
  while (at_ < text_.size()) {
    const char c = peek();
    if (c == '#') {
      while (at_ < text_.size() && peek() != '\n') take();
    } else if (c == ' ' || c == '\t' || c == '\r' || (c == '\n' && depth_ > 0)) {
      take();
    } else {
      return;
    }
  }
}

// Takes letters, digits, and the characters of `extra`.
std::string Lexer::take_word(std::string_view extra) {
  std::string word;
  while (is_letter(peek()) || is_digit(peek()) ||
         (peek() != '\0' && extra.find(peek()) != std::string_view::npos)) {
    word += take();
  }
  return word;
}

Result<Token> Lexer::next() {
  skip_blanks();
  Token token;
  token.line = line_;
  token.column = column_;
  if (at_ == text_.size()) return token;
  const char c = peek();
  if (is_digit(c)) return lex_number(std::move(token));
  if (is_letter(c)) {
    token.kind = TokenKind::kWord;
    token.text = take_word("");
    if (peek() == ':' && peek(1) == ':') token.text += take_word(":.");
    return token;
  }
  if (c == '%') return lex_reference(std::move(token));
  if (c == '"') {
    token.kind = TokenKind::kString;
    DJINN_TRY(token.text, lex_string(token));
    return token;
  }
  if (c == '\n') {
    take();
    token.kind = TokenKind::kNewline;
    return token;
  }
  return lex_sign(std::move(token));
}

Result<Token> Lexer::lex_number(Token token) {
  const size_t begin = at_;
  token.kind = TokenKind::kInteger;
  while (is_digit(peek())) take();
  if (peek() == '.' && peek(1) != '.') {
    token.kind = TokenKind::kDouble;
    take();
    while (is_digit(peek())) take();
  }
  if (peek() == 'e' || peek() == 'E') {
    token.kind = TokenKind::kDouble;
    take();
    if (peek() == '+' || peek() == '-') take();
    while (is_digit(peek())) take();
  }
  const char* first = text_.data() + begin;
  const char* last = text_.data() + at_;
  const auto read = token.kind == TokenKind::kInteger ? std::from_chars(first, last, token.integer)
                                                      : std::from_chars(first, last, token.number);
  if (read.ec == std::errc() && read.ptr == last && !is_letter(peek())) return token;
  return error_at(token,
                  "This number cannot be read. Integers have 64 bits, doubles digits after "
                  "their exponent, and both end before the next word.");
}

Result<Token> Lexer::lex_reference(Token token) {
  token.kind = TokenKind::kReference;
  take();
  if (peek() == '"') {
    token.quoted = true;
    DJINN_TRY(token.text, lex_string(token));
  } else {
    token.text = take_word(".");
  }
  if (!token.text.empty()) return token;
  return error_at(token, "A value's name must follow '%': %x, %12 or %\"any name\".");
}

Result<Token> Lexer::lex_sign(Token token) {
  if (peek() == '.' && peek(1) == '.') {
    take(), take();
    token.kind = TokenKind::kRange;
    return token;
  }
  const char c = peek();
  if (c == '\0' || std::string_view("()[]{},:=+-*$?").find(c) == std::string_view::npos) {
    return error_at(token,
                    "This character begins nothing. Put texts into double quotes, and "
                    "comments behind '#'.");
  }
  token.kind = TokenKind::kSign;
  token.text = take();
  if (c == '(' || c == '[' || c == '{') ++depth_;
  if ((c == ')' || c == ']' || c == '}') && depth_ > 0) --depth_;
  return token;
}

Result<std::string> Lexer::lex_string(const Token& at) {
  std::string out;
  take();
  while (peek() != '"') {
    if (at_ == text_.size() || peek() == '\n') {
      return error_at(at, "This text has no end. Close it with '\"' on the same line.");
    }
    if (peek() == '\\') {
      DJINN_TRY(char c, lex_escape(at));
      out += c;
    } else {
      out += take();
    }
  }
  take();
  return out;
}

Result<char> Lexer::lex_escape(const Token& at) {
  take();
  const char c = peek();
  if (c == '"' || c == '\\') return take();
  if (c == 'n' || c == 't') {
    take();
    return c == 'n' ? '\n' : '\t';
  }
  const int high = hex_digit(peek(1));
  const int low = hex_digit(peek(2));
  if (c == 'x' && high >= 0 && low >= 0) {
    take(), take(), take();
    return static_cast<char>(high * 16 + low);
  }
  return error_at(at,
                  "This text has an unknown escape. Known are \\\" \\\\ \\n \\t and \\x with two "
                  "hexadecimal digits.");
}

}  // namespace djinn::srg
