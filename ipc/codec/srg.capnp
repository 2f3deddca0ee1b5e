# SPDX-License-Identifier: Apache-2.0
@0xc7a1f0a3d5e94b12;
# SRG on the wire: kernel/srg/graph.h and load_plan.h as Cap'n Proto structs.
#
# A message is one segment without framing (a "flat array"): its first word is the root pointer. The
# encoder writes the canonical form, so equal graphs give equal bytes and a hash of the bytes names
# the graph. Fields are only ever added; a decoder gives absent ones the defaults of graph.h.
# Enumerations travel as the numbers of graph.h (UInt8), so that the schema need not repeat them;
# the decoder refuses numbers that it does not know.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("djinn::wire");

struct Term {
  symbol @0 :UInt32;
  coefficient @1 :Int64;
}

struct Expr {
  constant @0 :Int64;
  terms @1 :List(Term);
}

struct Symbol {
  name @0 :Text;
  min @1 :Int64;
  max @2 :Int64;
  role @3 :UInt8;
}

struct Storage {
  kind @0 :UInt8;
  name @1 :Text;
  role @2 :UInt8;
  layer @3 :UInt32;
  part @4 :UInt8;
  isDeclared @5 :Bool;
}

struct Value {
  name @0 :Text;
  storage @1 :UInt32;  # the number of the storage plus one; 0: defined by a node
  dtype @2 :UInt8;
  claimsSizes @3 :Bool;
  criticality @4 :UInt8;
  sizes @5 :List(Expr);
  strides @6 :List(Expr);
  offset @7 :Expr;
}

struct Argument {
  name @0 :Text;
  union {
    none @1 :Void;
    value @2 :UInt32;
    values @3 :List(UInt32);  # plus one; 0: an empty entry
    expr @4 :Expr;
    exprs @5 :List(Expr);
    double @6 :Float64;
    doubles @7 :List(Float64);
    bool @8 :Bool;
    bools @9 :List(Bool);
    text @10 :Text;
    dtype @11 :UInt8;
  }
}

struct Annotation {
  modulePath @0 :Text;
  role @1 :Text;
  phase @2 :UInt8;
  residency @3 :UInt8;
  modality @4 :UInt8;
  flops @5 :UInt64;
  bytes @6 :UInt64;
  colocationGroup @7 :UInt32;
  priority @8 :Int32;
}

struct Node {
  op @0 :Text;
  arguments @1 :List(Argument);
  outputs @2 :List(UInt32);
  annotation @3 :Annotation;
}

struct Graph {
  name @0 :Text;
  symbols @1 :List(Symbol);
  storages @2 :List(Storage);
  values @3 :List(Value);
  nodes @4 :List(Node);
  outputs @5 :List(UInt32);
  numerics @6 :UInt8;
}

# -- load_plan.h ---------------------------------------------------------------------------------

struct Slice {
  dimension @0 :UInt32;
  start @1 :UInt64;
  length @2 :UInt64;
}

struct Piece {
  file @0 :UInt32;
  tensor @1 :Text;
  slices @2 :List(Slice);
  transpose @3 :Bool;
}

struct Destination {
  name @0 :Text;
  dtype @1 :UInt8;
  sizes @2 :List(UInt64);
  concatDimension @3 :UInt32;
  pieces @4 :List(Piece);
  form @5 :UInt8;
}

struct Alias {
  name @0 :Text;
  destination @1 :Text;
}

struct LoadPlan {
  destinations @0 :List(Destination);
  aliases @1 :List(Alias);
  matrices @2 :UInt8;
}

struct TensorEntry {
  name @0 :Text;
  dtype @1 :UInt8;
  sizes @2 :List(UInt64);
  extent @3 :UInt32;
  offset @4 :UInt64;
  bytes @5 :UInt64;
  form @6 :UInt8;
}

struct ModelManifest {
  extentBytes @0 :List(UInt64);
  tensors @1 :List(TensorEntry);
}
