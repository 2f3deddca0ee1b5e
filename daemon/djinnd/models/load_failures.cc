// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/models/load_failures.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "daemon/djinnd/loop/log.h"
#include "ipc/codec/control_codec.h"
#include "ipc/file_number.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

// Gives the error as the client will read it, with the file's name in front.
std::string sentence_of(const Error& error, std::span<const std::string> file_names) {
  const auto about = ipc::file_message(error.message, file_names.size());
  const bool is_named = about && !file_names[about->index].empty();
  return ipc::showable_sentence(
      is_named ? fmt::format("{}: {}", file_names[about->index], about->message) : error.message);
}

LoadFailure failure_of(const OpenRequest& request, const Error& error) {
  return {error, request.opener.domain, request.path, sentence_of(error, request.file_names)};
}

// Gives the user's session that waits for the model; none if the model comes back for a run.
SessionId session_of(const Model& model, Owner user) {
  const auto found = std::ranges::find(*model.openers, user, &Opener::domain);
  return found == model.openers->end() ? SessionId{} : found->waiter.session;
}

}  // namespace

LoadFailure failure_of(const Model& model, Owner user, const Error& error) {
  const auto name = model.names.find(user);
  return {error, user, name == model.names.end() ? std::string() : name->second.path,
          sentence_of(error, {})};
}

LoadFailure failure_of(const Model& model, const Source& source, const Error& error) {
  LoadFailure failure = failure_of(model, source.user(), error);
  failure.sentence = sentence_of(error, source.file_names);
  return failure;
}

void LoadFailures::refuse(const OpenRequest& request, const Error& error) {
  emit(request.opener, failure_of(request, error));
  replies_.refuse(request.opener.waiter, error);
}

void LoadFailures::refuse_opening(const OpenRequest& request, const Error& error) {
  if (error.code != ErrorCode::kCancelled) emit(request.opener, failure_of(request, error));
  refuse_each({request.opener}, error);
}

void LoadFailures::refuse_opener(const Opener& opener, const LoadFailure& failure) {
  emit(opener, failure);
  replies_.refuse(opener.waiter, failure.error);
}

void LoadFailures::refuse_each(const std::vector<Opener>& openers, const Error& error) {
  std::vector<Waiter> waiters;
  for (const Opener& opener : openers) waiters.push_back(opener.waiter);
  replies_.refuse_each(waiters, error);
}

void LoadFailures::emit_end(const Model& model, const LoadFailure& failure) {
  const ErrorCode code = failure.error.code;
  if (code != ErrorCode::kCancelled) return emit(model, failure);
  events_.emit(event_of(EventKind::kModelUnloaded, model,
                        fmt::format("model {} is wanted no more", text_of(model.id)), code));
}

void LoadFailures::emit(const Opener& opener, const LoadFailure& failure) {
  Event event = device_event(opener.device, EventKind::kModelFailed, {});
  event.session = opener.waiter.session;
  emit(std::move(event), failure);
}

void LoadFailures::emit(const Model& model, const LoadFailure& failure) {
  Event event = event_of(EventKind::kModelFailed, model, {});
  event.session = session_of(model, failure.user);
  emit(std::move(event), failure);
}

void LoadFailures::emit(Event event, const LoadFailure& failure) {
  DJINN_ASSERT(failure.error.code != ErrorCode::kOk);
  ++count_;
  const std::string what = event.model.valid() ? "model " + text_of(event.model) : "a model";
  const std::string whom = event.session.valid() ? " for session " + text_of(event.session) : "";
  event.text = fmt::format("{} of {} could not be loaded{}: {}", what,
                           events_.user_text(failure.user), whom, name_of(failure.error.code));
  event.owner = failure.user;
  event.path = failure.path;
  event.error = failure.error.code;
  event.sentence = failure.sentence;
  events_.emit_limited(std::move(event));
}

}  // namespace djinn::daemon
