// SPDX-License-Identifier: Apache-2.0

// Everything that a client can make grow has a limit, most of them here, with its reason
// (ARCHITECTURE rule 4).
#pragma once

#include <cstdint>

namespace djinn::limits {

// --- control socket
inline constexpr uint32_t kControlMessageBytes =
    64 * 1024;                                       // one SEQPACKET datagram fits a socket buffer
inline constexpr uint32_t kControlDescriptors = 64;  // SCM_RIGHTS takes 253; fewer bound a burst
inline constexpr uint32_t kRequestsPending = 64;     // each keeps what its answer is made of
inline constexpr uint32_t kNameBytes =
    256;  // three in each report of a list fill three quarters of a message
inline constexpr uint32_t kWordBytes = 32;           // of a vocabulary of ours
inline constexpr uint32_t kMessageTextBytes = 1024;  // an error's sentences with the names in them
inline constexpr uint32_t kDecisions = 256;          // of a lane: a third of a message
inline constexpr uint32_t kListPage = 64;  // reports with the longest names still fit a message
inline constexpr uint32_t kDevices =
    32;  // with all that is told of each, one message; hosts have 16
inline constexpr uint32_t kEventTextBytes = 44 * 1024;  // of a page's events, beside their numbers
inline constexpr uint32_t kProgramOutputs = 1024;       // bindings of 24 bytes stay under a table

// --- sessions
inline constexpr uint32_t kSessions = 1024;  // about 20 descriptors each stays under LimitNOFILE
inline constexpr uint32_t kSessionsPerUser = 128;  // one user leaves room for seven others
inline constexpr uint32_t kSessionsOfPrincipals =
    512;  // together: whoever names them may name any; half is left to users of the machine
inline constexpr uint32_t kClosingPerUser = 8192;  // descriptors that hang; eight users may
inline constexpr uint32_t kSubmissionSlots =
    256;  // 16 KiB of descriptors; deeper queues hide nothing
inline constexpr uint32_t kCompletionSlots =
    1024;  // a generation's tokens while the client is away
inline constexpr uint64_t kStagingBytesDefault = 8u << 20;  // a batch of inputs; filled as used
inline constexpr uint64_t kStagingBytesMax = 1u << 30;      // larger tensors cross in slices
inline constexpr uint32_t kErrorTextBytes = 256;            // three short sentences

// --- data path
inline constexpr uint32_t kQueuedSubmissions =
    256;  // of a lane, before one with a deadline; as many as one session may have
inline constexpr uint32_t kBindingTableBytes = 64 * 1024;  // large runs; about 2700 storages
inline constexpr uint32_t kSymbols = 64;                   // a run binds each by value
inline constexpr uint32_t kRefs = 16 * 1024;  // ref table: 1.5 MiB of state, touched as used
inline constexpr uint32_t kRefChunks = 48;    // of a session; with four others, one message
inline constexpr uint32_t kSequences = 64;    // a descriptor, a mapping and an entry of state each
inline constexpr uint32_t kRows = 32;         // rows of a group: one bit each in a mask
inline constexpr uint32_t kStopTokens = 16;   // with every row's padding in a small binding block
inline constexpr uint32_t kRank = 8;  // models use up to 6; sizes and strides are arrays of it
inline constexpr uint64_t kSequenceTokens = 1u << 20;  // 4 MiB of token slots a row
inline constexpr uint32_t kLayers = 512;               // deeper than any published model
inline constexpr uint64_t kSessionBytesDefault = uint64_t{4}
                                                 << 30;  // refs and groups; quota, not reserve

// --- addresses of a worker: it maps what all sessions of its user have, touched or not
inline constexpr uint64_t kWorkerAddressBytes = uint64_t{1} << 47;  // x86-64: a process has so many
inline constexpr uint64_t kSequenceAddressBytes = uint64_t{1}
                                                  << 39;  // a session's groups; a million tokens of
                                                          // 80 layers with 8 heads have 320 GiB
inline constexpr uint64_t kRefAddressBytes = uint64_t{1} << 38;  // a session's refs, in one piece

// --- models and programs
inline constexpr uint32_t kModelFiles = 256;  // what a loader tells of all fits one message
inline constexpr uint32_t kModelFilesPerUser =
    8192;  // descriptors of files that models are read from; 64 users' fill LimitNOFILE
inline constexpr uint32_t kModels = 256;  // each keeps its files and extents open in djinnd
inline constexpr uint32_t kModelsPerUser =
    32;  // kept at a time unless configured; one user leaves room for seven others
inline constexpr uint32_t kModelsCompared = 8;  // with an open's files; each costs a loader's start
inline constexpr uint32_t kModelExtents = 32;   // with the manifest, one message carries them
inline constexpr uint32_t kModelTensors = 256 * 1024;      // every expert of every layer as its own
inline constexpr uint64_t kLoadPlanBytes = 64u << 20;      // 200,000 tensors with long names
inline constexpr uint64_t kManifestBytes = 64u << 20;      // likewise
inline constexpr uint32_t kManifestPartBytes = 48 * 1024;  // a message beside its other fields
inline constexpr uint32_t kKeptDescriptors =
    8192;  // FileDescriptorStoreMax= of djinnd.service: kModels of 30 descriptors each fit
inline constexpr uint32_t kModelUsers =
    256;  // whose pins, times and numerics it remembers: 12 KiB of a record
inline constexpr uint32_t kModelNamesKept = 16;     // longest names and paths: 8 KiB of a record
inline constexpr uint64_t kGraphBytes = 16u << 20;  // a graph of 64 Ki nodes
inline constexpr uint32_t kGraphPartBytes = kManifestPartBytes;
inline constexpr uint32_t kProgramsPerUser = 1024;  // memfds; each new worker verifies all
// Operators that an admission calls on meta, each in some 10 us: 32,000 nodes with 4 symbols, or
// 5,000 with 48.
inline constexpr uint64_t kAdmissionEvaluations = 256u * 1024;
// Processor time of an admission: many times what that many usual operators take.
inline constexpr uint64_t kAdmissionCpuMs = 10'000;

// --- recovery
inline constexpr uint32_t kDeathsWithoutProgress = 3;  // then the run in flight is refused

// --- what one limit says of another
static_assert(kNameBytes * 3 * kListPage <= kControlMessageBytes / 4 * 3);
static_assert(kEventTextBytes < kControlMessageBytes);
static_assert(kManifestPartBytes < kControlMessageBytes);
static_assert(kMessageTextBytes < kControlMessageBytes);
static_assert(kModelExtents + 1 <= kControlDescriptors);
static_assert(kRefChunks + 4 <= kControlDescriptors);
static_assert(kSessionsPerUser * 8 <= kSessions);
static_assert(kSessionsOfPrincipals * 2 <= kSessions);
static_assert(kStagingBytesDefault <= kStagingBytesMax);
static_assert(kStagingBytesDefault < kSessionBytesDefault);
static_assert(kRows <= 32);
// All sessions that a user may have fit their worker, whatever they map; a fifth is the models'.
static_assert(kSessionsPerUser * (kSequenceAddressBytes + kRefAddressBytes + kStagingBytesMax) <=
              kWorkerAddressBytes / 5 * 4);
static_assert(kSessionBytesDefault <= kRefAddressBytes);
static_assert(kModelsPerUser * 8 <= kModels);
static_assert(kModels * 30 <= kKeptDescriptors);
static_assert(kModelNamesKept <= kModelUsers);
static_assert(kModelFiles <= kModelFilesPerUser);

}  // namespace djinn::limits
