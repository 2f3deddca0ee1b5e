// SPDX-License-Identifier: Apache-2.0

// ProgramGraph: the graph of a program as it is run, what the passes of fast numerics made of it,
// and what its nodes are for and cost. djinnd hands out the graph as it was defined; passes and
// annotator are pure, so what its worker made of it is made here again.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "djinnctl/json.h"
#include "ipc/messages.h"
#include "kernel/base/result.h"
#include "kernel/sched/cost.h"
#include "kernel/srg/graph.h"
#include "kernel/srg/load_plan.h"
#include "kernel/srg/pass_report.h"
#include "kernel/srg/weight_form.h"

namespace djinn::ctl {

struct ProgramGraph {
  ipc::ProgramReport program;
  srg::Numerics asked = srg::Numerics::kExact;  // by the definition
  srg::Graph graph;        // rewritten, if that is what runs, and annotated once it is admitted
  srg::WeightForms forms;  // of its model
  sched::GraphCost cost;   // at the upper bounds of its symbols; likewise
  std::vector<srg::PassReport> passes;  // of an exact program: what they would make; none of one
                                        // that is not admitted yet
};

// model: the tensors of its model, or none. Errors: kMalformed for a graph that no session of
// djinnd's can have defined.
[[nodiscard]] Result<ProgramGraph> graph_as_run(const ipc::ProgramReport& program, srg::Graph graph,
                                                std::span<const srg::TensorEntry> model = {});

// SRG text, with what the passes did as comments in front.
[[nodiscard]] std::string text_of(const ProgramGraph& shown);
[[nodiscard]] Json to_json(const ProgramGraph& shown);

}  // namespace djinn::ctl
