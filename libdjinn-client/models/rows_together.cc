// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/models/rows_together.h"

#include <algorithm>
#include <utility>

#include "kernel/base/assert.h"
#include "kernel/base/clock.h"
#include "libdjinn-client/deadline.h"

namespace djinn::client {
namespace {

// What may fit beside fewer rows.
bool is_shortage(ErrorCode code) {
  return code == ErrorCode::kOutOfMemory || code == ErrorCode::kQuotaExceeded ||
         code == ErrorCode::kLimitExceeded;
}

}  // namespace

RowsTogether::RowsTogether(Client& client, BundlePrograms& programs, const WeightFiles& files,
                           const GenerateOptions& options, const OnToken& on_token)
    : files_(files), options_(options), on_token_(on_token) {
  Seat& first = seats_.emplace_back();
  first.client = &client;
  first.programs = &programs;
  // A session of another machine takes a login.
  if (client.is_far()) seats_max_ = 1;
}

Result<Generated> RowsTogether::generate(const Prompts& prompts, uint64_t begin_within_ms) {
  DJINN_CHECK(seats_.front().client->check());
  prompts_ = &prompts;
  begin_within_ms_ = begin_within_ms;
  made_ = RowsMade(prompts.size());
  for (uint32_t row = 0; row < prompts.size(); ++row) waiting_.push_back(row);
  for (begin_rows(); running() > 0; begin_rows()) {
    // Where tokens come all the time, nothing sleeps, and would hear of it.
    const Interrupt* const interrupt = seats_.front().client->options().interrupt;
    if (over_for_.empty() && interrupt != nullptr && interrupt->is_raised()) {
      end_all();
    } else if (!take_all() && running() > 0) {
      sleep();
    }
  }
  for (const uint32_t row : waiting_) {
    if (made_.is_given_up()) break;
    made_.fail(row, not_begun(over_for_));
  }
  return std::move(made_).take();
}

size_t RowsTogether::running() const {
  return static_cast<size_t>(
      std::ranges::count_if(seats_, [](const Seat& seat) { return seat.run.has_value(); }));
}

void RowsTogether::begin_rows() {
  while (!waiting_.empty() && over_for_.empty() && running() < seats_max_) {
    if (begin_within_ms_ != 0 && running() > 0) {
      if (!made_.has_said()) return;
      begin_within_ms_ = 0;  // the call has begun: it is no more as if it had not been
    }
    Seat* const seat = free_seat();
    if (seat == nullptr) return;
    begin_row(*seat);
  }
}

RowsTogether::Seat* RowsTogether::free_seat() {
  const auto is_free = [](const Seat& seat) { return !seat.run && !seat.client->has_ended(); };
  const auto found = std::ranges::find_if(seats_, is_free);
  if (found != seats_.end()) return &*found;
  if (seats_.size() < seats_max_ && open_seat()) return &seats_.back();
  // No more sessions than there are: what waits goes on as a row ends.
  seats_max_ = running();
  return nullptr;
}

Status RowsTogether::open_seat() {
  const Seat& first = seats_.front();
  Seat seat;
  DJINN_TRY(seat.own, Client::connect(first.client->options()));
  DJINN_TRY(
      const OpenedModel model,
      seat.own->open_model({files_.label, files_.numbers(), files_.paths}, files_.plan_or_null()));
  if (model.id != first.programs->model()) {
    return Error{ErrorCode::kFileChanged, "The model's files are others than when it was opened."};
  }
  seat.own_programs = first.programs->of_session(*seat.own);
  seat.client = seat.own.get();
  seat.programs = seat.own_programs.get();
  seats_.push_back(std::move(seat));
  return {};
}

void RowsTogether::begin_row(Seat& seat) {
  const uint32_t row = waiting_.front();
  waiting_.pop_front();
  auto run = GenerationRun::begin(
      *seat.client, *seat.programs, {(*prompts_)[row]}, options_, begin_within_ms_,
      [this, row](const TokenEvent& event) { return hear(event, row); });
  if (!run) return fail(row, run.error());
  seat.run = *std::move(run);
  seat.row = row;
}

bool RowsTogether::hear(TokenEvent event, uint32_t row) {
  event.row = row;
  if (!made_.hear(event) || !on_token_ || on_token_(event)) return true;
  give_up();
  return false;
}

// Gives whether anything has come.
bool RowsTogether::take_all() {
  bool any = false;
  for (Seat& seat : seats_) {
    if (!seat.run) continue;
    const auto has_ended = seat.run->poll();
    if (has_ended && !*has_ended) continue;
    any = true;
    end(seat, has_ended ? seat.run->finish() : has_ended.error());
  }
  return any;
}

// Where a wait is ended, each run is waited for as one alone is: it is given up, and may end yet.
void RowsTogether::sleep() {
  std::vector<Client*> clients;
  for (const Seat& seat : seats_) {
    if (seat.run) clients.push_back(seat.client);
  }
  const Status slept = Client::sleep_for_any(clients);
  if (slept) return;
  const auto has_ended = [](Client* client) { return client->has_ended(); };
  const bool some_have_ended = std::ranges::any_of(clients, has_ended);
  if (!some_have_ended) return end_all();
  for (Seat& seat : seats_) {
    if (seat.run && has_ended(seat.client)) end(seat, seat.run->finish());
  }
}

// All are cancelled before one is waited for, and together they have the time of one.
void RowsTogether::end_all() {
  begin_no_more("the call was interrupted");
  const SystemClock clock;
  const Deadline deadline(clock, Client::kGivenUpMs);
  for (Seat& seat : seats_) {
    if (seat.run) seat.run->cancel();
  }
  for (Seat& seat : seats_) {
    if (!seat.run) continue;
    const auto has_ended = seat.run->poll();
    const bool waits = has_ended && !*has_ended;
    end(seat, waits && deadline.left_ms() == 0 ? seat.run->leave() : seat.run->finish());
  }
}

void RowsTogether::begin_no_more(std::string_view why) {
  if (over_for_.empty()) over_for_ = why;
}

void RowsTogether::end(Seat& seat, Status ended) {
  const uint64_t random_offset = seat.run->random_offset();
  seat.run.reset();
  if (seats_.front().client->has_ended()) begin_no_more("the session has ended");
  if (!ended) return fail(seat.row, std::move(ended).error());
  made_.end(random_offset);
}

void RowsTogether::fail(uint32_t row, Error error) {
  const size_t others = running();
  if (is_shortage(error.code) && others > 0 && over_for_.empty()) {
    seats_max_ = others;
    waiting_.push_front(row);
    return;
  }
  // As if it had not been: the others are not begun.
  if (error.code == ErrorCode::kQueueFull) begin_no_more("another would have begun too late");
  made_.fail(row, std::move(error));
}

void RowsTogether::give_up() {
  begin_no_more("the rest was given up");
  made_.give_up();
  for (Seat& seat : seats_) {
    if (seat.run && !seat.run->is_given_up()) seat.run->give_up();
  }
}

}  // namespace djinn::client
