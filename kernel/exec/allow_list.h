// SPDX-License-Identifier: Apache-2.0

// The operators of srg/allowed.h as this LibTorch has them: looked up once, with what admission
// would else ask their schemas for each node.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernel/base/result.h"
#include "kernel/exec/guards.h"
#include "kernel/exec/list_results.h"
#include "kernel/exec/one_thread.h"
#include "kernel/exec/shape_rules.h"
#include "kernel/exec/torch_headers.h"
#include "kernel/srg/allowed.h"

namespace djinn::exec {

using srg::allowed_operators;

// What the schema says of one return (of all, where it is a list).
struct Return {
  bool is_aliased = false;   // shares an argument's storage
  bool is_argument = false;  // is that argument, changed in place
  uint32_t argument = 0;     // which
};

struct Operator {
  explicit Operator(c10::OperatorHandle resolved) : handle(resolved) {}

  c10::OperatorHandle handle;
  ShapeRule shape_rule = nullptr;
  Guard guard = nullptr;
  ListCount list_count = nullptr;
  std::vector<Return> returns;
  bool list_output = false;  // one Tensor[]
  bool is_kv_append = false;
  bool is_as_strided = false;
  bool keeps_bits = false;             // however many threads compute it (one_thread.h)
  MostThreads most_threads = nullptr;  // that leave its bits, where that depends on the call
  bool joins = false;  // its products may be computed with other runs' (joint_products.h)
};

// Whose graph names an operator: internal ones are kernel/srg/rewrite's alone.
enum class Author { kClient, kRewrite };

// The operator of that qualified name; lives as long as the process. Errors: kUnsupported, with
// what to use instead where there is something.
Result<const Operator*> resolve_operator(std::string_view qualified,
                                         Author author = Author::kClient);

}  // namespace djinn::exec
