// SPDX-License-Identifier: Apache-2.0

// What the control codecs share: the boundary that no exception leaves, and the forms that several
// messages have in common. Only the .cc files of this folder include it.
//
//   Refused   thrown by a read_*() below the boundary; carries the Error to answer with
#pragma once

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/exception.h>

#include <array>
#include <cstring>
#include <limits>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "ipc/codec/djinn.capnp.h"
#include "ipc/messages.h"
#include "kernel/base/assert.h"
#include "kernel/base/result.h"

namespace djinn::ipc::control {

struct Refused {
  Error error;
};
[[noreturn]] void refuse(ErrorCode code, std::string_view what);

// --- texts
inline capnp::Text::Reader text(const std::string& string) {
  return {string.data(), string.size()};
}
// The longest beginning of at most kMessageTextBytes that does not end inside a UTF-8 character.
[[nodiscard]] std::string cut_message(const std::string& message);
// A name has at most kNameBytes of UTF-8, without what steers a terminal or the order of characters
// there.
std::string read_name(capnp::Text::Reader reader);
// Of a vocabulary, which may be a newer one than ours.
std::string read_word(capnp::Text::Reader reader);
// A sentence is a name that may have kMessageTextBytes.
std::string read_sentence(capnp::Text::Reader reader);

// --- numbers
template <typename Tag>
uint64_t pack(Handle<Tag> handle) {
  static_assert(sizeof handle == sizeof(uint64_t));
  return uint64_t{handle.generation} << 32 | handle.index;
}
template <typename HandleType>
HandleType unpack(uint64_t word) {
  return {static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32)};
}

// Enumerators are numbered first, first + 1, ..., last.
template <typename Enum>
Enum read_enum(uint8_t number, Enum first, Enum last) {
  DJINN_ASSERT(first <= last);
  if (number < static_cast<uint8_t>(first) || number > static_cast<uint8_t>(last)) {
    refuse(ErrorCode::kUnsupported, "A control message has an unknown enumerator.");
  }
  return static_cast<Enum>(number);
}
inline DType read_dtype(uint8_t number) {
  return read_enum(number, DType::kInvalid, DType::kComplex128);
}
inline srg::Numerics read_numerics(uint8_t number) {
  return read_enum(number, srg::Numerics::kExact, srg::Numerics::kFastOnly);
}

// --- lists
template <typename List, typename Read>
auto read_list(const List& list, uint32_t limit, Read read) {
  if (list.size() > limit) {
    refuse(ErrorCode::kLimitExceeded, "A list of a control message is over its limit.");
  }
  std::vector<std::decay_t<decltype(read(list[0]))>> out;
  out.reserve(list.size());
  for (const auto item : list) out.push_back(read(item));
  DJINN_ASSERT(out.size() <= limit);
  return out;
}
// list: made with the count of the items.
template <typename Items, typename List, typename Write>
void write_list(const Items& items, List list, Write write) {
  DJINN_ASSERT(list.size() == items.size());
  for (unsigned i = 0; i < list.size(); ++i) write(list[i], items[i]);
}
template <typename Items>
unsigned count_of(const Items& items) {
  DJINN_ASSERT(items.size() <= std::numeric_limits<unsigned>::max());
  return static_cast<unsigned>(items.size());
}

// --- forms that several messages share
void write_failure(wire::Failure::Builder out, ErrorCode code, const std::string& message);
enum class Success : uint8_t { kRefused, kAllowed };  // may the code be kOk?
Error read_failure(wire::Failure::Reader in, Success success);

void write_shape(wire::OutputShape::Builder out, const OutputShape& shape);
OutputShape read_shape(wire::OutputShape::Reader in);

void write_geometry(wire::SequenceGeometry::Builder out, const SequenceGeometry& geometry);
SequenceGeometry read_geometry(wire::SequenceGeometry::Reader in);

ServiceClass read_service(uint8_t number);

void write_schedule(wire::LaneSchedule::Builder out, const LaneSchedule& schedule);
LaneSchedule read_schedule(wire::LaneSchedule::Reader in);

void write_kernels(wire::KernelTable::Builder out, const KernelTable& table);
KernelTable read_kernels(wire::KernelTable::Reader in);

void write_identity(wire::FileIdentity::Builder out, const FileIdentity& identity);
FileIdentity read_identity(wire::FileIdentity::Reader in);

std::array<uint8_t, 32> read_sha256(capnp::Data::Reader in);
inline capnp::Data::Reader data(const std::array<uint8_t, 32>& hash) {
  return {hash.data(), hash.size()};
}
inline capnp::Data::Reader part(std::span<const std::byte> bytes) {  // of a manifest or graph
  return {reinterpret_cast<const capnp::byte*>(bytes.data()), bytes.size()};
}
std::vector<std::byte> read_part(capnp::Data::Reader in);

// --- whole messages
[[nodiscard]] std::vector<std::byte> flatten(capnp::MessageBuilder& message);

// Aligned private words of bytes; refuses sizes that no message has.
kj::Array<capnp::word> copy_words(std::span<const std::byte> bytes);
[[nodiscard]] capnp::ReaderOptions options_for(size_t words);

template <typename Wire, typename Read>
auto read_message(std::span<const std::byte> bytes, Read read) {
  const kj::Array<capnp::word> words = copy_words(bytes);
  capnp::FlatArrayMessageReader message(words, options_for(words.size()));
  if (message.getEnd() != words.end()) {
    refuse(ErrorCode::kMalformed, "A control message is longer than its segments.");
  }
  return read(message.getRoot<Wire>());
}

// The boundary of every decoder: neither KJ's exceptions nor ours leave it. KJ's own words stay
// here too, they tell of source files.
template <typename Wire, typename Read>
auto decode_message(std::span<const std::byte> bytes, Read read)
    -> Result<decltype(read(std::declval<typename Wire::Reader>()))> {
  try {
    return read_message<Wire>(bytes, read);
  } catch (const Refused& refused) {
    return refused.error;
  } catch (const kj::Exception&) {
    return Error{ErrorCode::kMalformed, "A control message cannot be decoded."};
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::kOutOfMemory, "There is no memory left to decode a control message."};
  }
}

}  // namespace djinn::ipc::control
