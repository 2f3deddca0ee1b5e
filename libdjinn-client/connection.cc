// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/connection.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "kernel/base/clock.h"
#include "libdjinn-client/host.h"
#include "libdjinn-client/wait.h"

namespace djinn::client {
namespace {

// Another machine is asked by a login of its own each time.
constexpr uint64_t kFarPauseFirstMs = 1000;
constexpr uint64_t kFarPauseMostMs = 5000;
// A djinnd that has a worker answers within milliseconds.
constexpr uint64_t kAnswerLeastMs = 1000;
// Generations begin anew well before they run out. A ref that is so old cannot be told from a new
// one.
constexpr uint32_t kGenerationsMost = uint32_t{1} << 31;

// Tells whether the error may pass while djinnd restarts: its socket is not there yet, its queue is
// full, it was about to stop, or has no worker yet.
bool may_pass(ErrorCode code) {
  return code == ErrorCode::kNotFound || code == ErrorCode::kBusy ||
         code == ErrorCode::kDisconnected || code == ErrorCode::kWorkerLost;
}

}  // namespace

uint64_t Backoff::next_ms() {
  const uint64_t half = now_ms_ / 2;
  now_ms_ = std::min(2 * now_ms_, most_ms_);
  return half + random_.below(half + 1);
}

Connection::Connection(ConnectOptions options, std::optional<uint64_t> reconnect_wait_ms)
    : options_(std::move(options)), reconnect_wait_ms_(reconnect_wait_ms) {}

Status Connection::check() {
  if (client_ != nullptr) {
    Status alive = client_->check();
    if (alive) return alive;
    let_go(std::move(alive).error());
  }
  if (session_ == 0) return Error{ErrorCode::kDisconnected, "There is no session yet."};
  return end_.why;
}

Result<Client*> Connection::open(const CancelPredicate& given_up) {
  DJINN_CHECK(refuse_held());
  if (session_ == 0) {
    DJINN_CHECK(try_once(options_.answer_ms, given_up));
  } else if (const bool known = client_ == nullptr || client_->has_ended(); !check()) {
    // The reason that djinnd gave is told once. If the session ended because djinnd is gone, that
    // needs no telling.
    const bool has_reason = end_.was_terminated || end_.why.code != ErrorCode::kDisconnected;
    if (!known && has_reason) return end_.why;
    if (!reconnect_wait_ms_) return end_.why;
    const uint64_t gone_ms = (clock_.monotonic_ns() - ended_ns_) / kNsPerMs;
    const uint64_t wait_ms = *reconnect_wait_ms_ - std::min(gone_ms, *reconnect_wait_ms_);
    // Even if djinnd started long after the session ended, and has no worker yet, it gets the usual
    // time.
    Status made =
        wait_ms > 0 ? try_again(wait_ms, given_up) : try_once(*reconnect_wait_ms_, given_up);
    if (!made && made.error().code != ErrorCode::kCancelled) {
      return Error{
          ErrorCode::kDisconnected,
          "The connection to djinnd is lost, and no new one can be made: " + made.error().message};
    }
    DJINN_CHECK(std::move(made));
  }
  return client_.get();
}

Result<Client*> Connection::of(uint64_t session) {
  DJINN_CHECK(refuse_held());
  if (client_ != nullptr && client_->has_ended()) [[maybe_unused]]
    const Status ended = check();
  if (client_ == nullptr || session != session_) return gone();
  return client_.get();
}

Result<Client*> Connection::of(RefHandle ref) {
  if (!ref.valid()) {
    return Error{
        ErrorCode::kNotFound,
        "The ref's generation is 0, which is no ref's. Give one that a put or a run left."};
  }
  return of(ref.generation > refs_gone_ ? session_ : 0);
}

Status Connection::reconnect(uint64_t wait_ms, const CancelPredicate& given_up) {
  DJINN_CHECK(refuse_held());
  if (session_ != 0 && check()) return {};
  return try_again(wait_ms, given_up);
}

Status Connection::try_again(uint64_t wait_ms, const CancelPredicate& given_up) {
  const Deadline deadline(clock_, wait_ms, given_up);
  const uint64_t seed = clock_.monotonic_ns() ^ static_cast<uint64_t>(::getpid());
  const auto host = resolve_host(options_.host);
  const bool is_far = host && host->is_far();
  Backoff backoff = is_far ? Backoff(seed, kFarPauseFirstMs, kFarPauseMostMs) : Backoff(seed);
  for (;;) {
    const uint64_t left_ms = deadline.left_ms();
    Status made = try_once(left_ms, given_up);
    if (made || !may_pass(made.error().code) || left_ms == 0) return made;
    const Deadline pause(clock_, std::min(backoff.next_ms(), left_ms), given_up);
    Status slept = pause.check();
    if (slept) slept = wait_for({}, {options_.interrupt, nullptr}, &pause);
    if (slept.error().code == ErrorCode::kCancelled) return slept;
  }
}

Status Connection::try_once(uint64_t answer_ms, const CancelPredicate& given_up) {
  DJINN_TRY(auto made, attempt(Deadline(clock_, std::max(answer_ms, kAnswerLeastMs), given_up)));
  adopt(std::move(made));
  return {};
}

// The user's djinnd may be away while the system's runs, and the program's session was not there.
// So later sessions stay with the djinnd of the first one, unless somebody names another.
Result<std::unique_ptr<Client>> Connection::attempt(const Deadline& deadline) {
  ConnectOptions options = options_;
  const bool named = !options.host.empty() || ::getenv("DJINN_HOST") != nullptr;
  if (!named) options.host = usual_host_;
  DJINN_TRY(const Host host, resolve_host(options.host));
  options.host = host.text();
  DJINN_TRY(auto client, Client::connect(options, &deadline));
  if (!named) usual_host_ = options.host;
  return client;
}

void Connection::adopt(std::unique_ptr<Client> client) {
  client_ = std::move(client);
  client_->begin_generations_after(refs_gone_);
  ++session_;
}

void Connection::set_begin_within_ms(uint64_t ms) {
  options_.begin_within_ms = ms;
  if (client_ != nullptr) client_->set_begin_within_ms(ms);
}

void Connection::set_service_class(std::string name) {
  options_.service_class = std::move(name);
}

void Connection::abandon() {
  [[maybe_unused]] const auto* const of_parent = client_.release();
  end_ = {forked()};
  ended_ns_ = clock_.monotonic_ns();
}

void Connection::let_go(Error why) {
  const uint32_t last = client_->last_generation();
  refs_gone_ = last < kGenerationsMost ? last : 0;
  end_ = {std::move(why), client_->was_terminated()};
  client_.reset();
  ended_ns_ = clock_.monotonic_ns();
}

Status Connection::refuse_held() const {
  if (!held_) return {};
  return Error{ErrorCode::kBusy,
               "The client is in the middle of a generation, and its token callback must not use "
               "it. Have the callback end the generation first."};
}

Error Connection::gone() const {
  const char* const what = "This belongs to a session that is gone.";
  const std::string& why = end_.why.message;
  return {ErrorCode::kDisconnected, why.empty() ? what : std::string(what) + ' ' + why};
}

}  // namespace djinn::client
