// SPDX-License-Identifier: Apache-2.0

// Gate's authority: what djinn-gate-ca answers, which has the certificates of a gate and of its
// clients. djinnctl knows no X.509: it runs that program, and shows what it says.
#pragma once

#include <string>
#include <vector>

#include "djinnctl/json.h"
#include "djinnctl/table.h"

namespace djinn::ctl {

struct AuthorityAnswer {
  std::vector<Json> items;         // times as RFC 3339
  std::vector<std::string> notes;  // sentences for people
  std::string profile;             // of an enrolment that names no file; secret
};

// words: a verb of djinn-gate-ca's and what follows it. Errors: its own; kNotFound where it is not
// installed.
Result<AuthorityAnswer> ask_authority(const std::vector<std::string>& words);
// Of what the program printed. Errors: the one that it tells; kMalformed.
Result<AuthorityAnswer> parse_authority_answer(const std::string& text);

// Who has a certificate: PRINCIPAL SERIAL UNTIL STATE.
[[nodiscard]] Table certificate_table(const std::vector<Json>& items);

}  // namespace djinn::ctl
