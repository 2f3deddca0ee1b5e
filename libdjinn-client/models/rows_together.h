// SPDX-License-Identifier: Apache-2.0

// RowsTogether: the rows of one call of a bundle, which has programs for one row alone, generated
// at the same time. Each has a session of its own beside the caller's, with the same model open:
// the worker computes the next tokens of sessions together, and gives each what it gets alone
// (the row contract of fast numerics).
//
//   seat   a session, and the row that it generates now; the first is the caller's. The others end
//          with the call, so nothing stays open behind it
//
// invariant: a row that failed for lack of memory beside others is generated again beside fewer, so
// only what fails alone fails here.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string_view>

#include "libdjinn-client/models/bundle.h"
#include "libdjinn-client/models/bundle_programs.h"
#include "libdjinn-client/models/generated.h"

namespace djinn::client {

class RowsTogether {
 public:
  // More rows wait for a seat. Eight have about five times the tokens of one, and beside more of
  // them a session that computes for somebody else would have less than a ninth of the lane.
  static constexpr size_t kSeatsMax = 8;

  // client has the model of files open, and programs are of it. All outlive this.
  RowsTogether(Client& client, BundlePrograms& programs, const WeightFiles& files,
               const GenerateOptions& options, const OnToken& on_token);

  // begin_within_ms: of the first row; the others begin when it has said something. Errors: of the
  // row that failed first, where no row has said anything; else they are in what it gives.
  Result<Generated> generate(const Prompts& prompts, uint64_t begin_within_ms);

 private:
  struct Seat {
    std::unique_ptr<Client> own;  // null: the caller's
    std::unique_ptr<BundlePrograms> own_programs;
    Client* client = nullptr;
    BundlePrograms* programs = nullptr;
    std::optional<GenerationRun> run;
    uint32_t row = 0;
  };

  [[nodiscard]] size_t running() const;
  void begin_rows();
  Seat* free_seat();
  Status open_seat();
  void begin_row(Seat& seat);
  bool hear(TokenEvent event, uint32_t row);
  bool take_all();
  void sleep();
  void end_all();
  void begin_no_more(std::string_view why);
  void end(Seat& seat, Status ended);
  void fail(uint32_t row, Error error);
  void give_up();

  const WeightFiles& files_;
  const GenerateOptions& options_;
  const OnToken& on_token_;
  const Prompts* prompts_ = nullptr;
  uint64_t begin_within_ms_ = 0;  // of a row that begins now
  std::deque<uint32_t> waiting_;
  std::deque<Seat> seats_;
  size_t seats_max_ = kSeatsMax;
  std::string_view over_for_;  // why no row begins any more; empty: they do
  RowsMade made_;
};

}  // namespace djinn::client
