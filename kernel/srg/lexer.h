// SPDX-License-Identifier: Apache-2.0

// The words of SRG text (man/djinn-srg.7.scd). Private to text.h's parser.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernel/base/result.h"

namespace djinn::srg {

enum class TokenKind : uint8_t {
  kEnd,
  kNewline,    // outside of brackets only
  kWord,       // tokens, aten::add.Tensor
  kReference,  // %name, %"any name", %12; text holds what follows the sign
  kInteger,
  kDouble,
  kString,  // text holds it without escapes
  kRange,   // ..
  kSign,    // one of ( ) [ ] { } , : = + - * $ ?; text holds it
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  uint64_t integer = 0;  // kInteger
  double number = 0;     // kDouble
  bool quoted = false;   // kReference: the name stood in quotes
  uint32_t line = 1;
  uint32_t column = 1;
};

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  // The next token; kEnd for ever after the last. Errors: kMalformed, with the place.
  Result<Token> next();

 private:
  void skip_blanks();
  [[nodiscard]] char peek(size_t ahead = 0) const;
  char take();
  Result<Token> lex_number(Token token);
  Result<Token> lex_reference(Token token);
  Result<Token> lex_sign(Token token);
  Result<std::string> lex_string(const Token& at);
  Result<char> lex_escape(const Token& at);
  std::string take_word(std::string_view extra);

  std::string_view text_;
  size_t at_ = 0;
  uint32_t line_ = 1;
  uint32_t column_ = 1;
  uint32_t depth_ = 0;  // of open brackets
};

// kMalformed: "line 3:14: what".
Error error_at(const Token& token, std::string_view what);

}  // namespace djinn::srg
