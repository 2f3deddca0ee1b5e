# SPDX-License-Identifier: Apache-2.0
@0xd2a5c1f0b7e94683;
using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("djinn::rpc");

# What djinn-reach, beside a program, and djinn-gate, beside djinnd, say to each other.
#
# A remote session has two session memories of the same layout and size (ipc/session_memory.h): the
# near one, which the program has, and the far one, which djinnd made. djinn-reach stands for the
# worker in the near one, djinn-gate for the client in the far one, and both carry over what
# changes. Indices of submissions and completions are the same in both.
#
# Requests and answers are the messages of ipc/codec/djinn.capnp as bytes; each side decodes what
# the other sent. What travels there as a descriptor is a payload here. Submissions and completions
# are the structs of session_memory.h, little-endian, 64 bytes each.
#
# Calls on one capability arrive in the order in which they were made. A side whose call
# failed drops its Session, which ends it.

interface Gate {
  # hello: an encoded ClientRequest with a Hello. answer: its DaemonReply; session: if that is a
  # Welcome.
  open @0 (hello :Data, near :Near) -> (answer :Data, session :Session);
  # The near side calls it every few seconds: so each side knows that the other one is there
  # (heartbeat.h).
  ping @1 ();
}

# Bytes of a staging slab.
struct Piece {
  offset @0 :UInt64;
  data @1 :Data;  # at most pieceBytes
}

const pieceBytes :UInt32 = 1048576;  # 1 MiB; what one message carries is at most so much in all

interface Session {
  # Adds bytes to a payload that a later ask names. Ids are the near side's, each used once.
  addPayload @0 (id :UInt64, data :Data) -> stream;
  # An encoded ClientRequest, and its answer. payloads: for its descriptors, in their order.
  ask @1 (request :Data, payloads :List(UInt64)) -> (answer :Data);
  stage @2 (piece :Piece) -> stream;
  # Submission number index, whose arguments lie in the far staging once pieces are there.
  # beginWithin: ns that are left until its deadline, if it has one; its beginBy is not used.
  submit @3 (index :UInt64, submission :Data, beginWithin :UInt64, pieces :List(Piece)) -> stream;
  cancel @4 (through :UInt64);
  # The program's ClientStatement.
  state @5 (words :List(UInt64)) -> stream;
}

struct ErrorText {
  submission @0 :UInt64;
  text @1 :Text;
}

interface Near {
  stage @0 (piece :Piece) -> stream;
  # Completions from number first on; an answer frees their slots on the far side.
  complete @1 (first :UInt64, completions :Data, pieces :List(Piece), texts :List(ErrorText));
  # A DaemonReply that nobody asked for.
  tell @2 (notice :Data) -> stream;
  # djinnd has closed the session.
  end @3 ();
}
