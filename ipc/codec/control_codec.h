// SPDX-License-Identifier: Apache-2.0

// Control messages as bytes and back (djinn.capnp explains the protocol and has the form).
//
// Encoding never fails, but what it gives is a message only if it has at most
// limits::kControlMessageBytes: pages of kListPage reports always fit, a ProgramAdded or
// ProgramDefined of very many outputs may not, and its sender checks. Error texts are cut to
// kMessageTextBytes; all else must be within limits.h, since the decoder refuses the rest.
//
// Decoding is for bytes from outside, in private memory: any span, aligned or not. It says nothing
// about ids and numbers beyond their form. Errors: kUnsupported for union members and enumerators
// that this version does not know, kLimitExceeded for names, lists and messages over limits.h,
// kMalformed for all else.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/messages.h"
#include "kernel/base/result.h"

namespace djinn::ipc {

[[nodiscard]] std::vector<std::byte> encode(const ClientRequest& request);
[[nodiscard]] std::vector<std::byte> encode(const DaemonReply& reply);
[[nodiscard]] std::vector<std::byte> encode(const WorkerCommand& command);
[[nodiscard]] std::vector<std::byte> encode(const WorkerEvent& event);
[[nodiscard]] std::vector<std::byte> encode(const LoaderCommand& command);
[[nodiscard]] std::vector<std::byte> encode(const LoaderEvent& event);

Result<ClientRequest> decode_client_request(std::span<const std::byte> bytes);
Result<DaemonReply> decode_daemon_reply(std::span<const std::byte> bytes);
Result<WorkerCommand> decode_worker_command(std::span<const std::byte> bytes);
Result<WorkerEvent> decode_worker_event(std::span<const std::byte> bytes);
Result<LoaderCommand> decode_loader_command(std::span<const std::byte> bytes);
Result<LoaderEvent> decode_loader_event(std::span<const std::byte> bytes);

// The number of a request that decode_client_request() refused, so that it can be answered; 0 when
// it can't be read.
[[nodiscard]] uint32_t number_of_request(std::span<const std::byte> bytes);

// A name as a message may carry it: showable (kernel/base/text.h), and what is over kNameBytes is
// left out.
[[nodiscard]] std::string showable_name(std::string_view name);
// The same for a sentence, which may have kMessageTextBytes.
[[nodiscard]] std::string showable_sentence(std::string_view sentence);

}  // namespace djinn::ipc
