# SPDX-License-Identifier: Apache-2.0
"""One entry of the zoo, as a ghost and as PyTorch on the CPU, in one process: are they equal?

A comparison goes through stages: build, forward and generate of one row, of a padded batch, and
for some of longer prompts, in float32 and in bfloat16; then what a step costs. After each it writes
what it knows, so that a crash is named by its stage.

    with Forks() as forks:                                 what tests call
        result = forks.compared("llama", daemon, scratch)
    result = in_fork("llama", daemon, scratch)             what the matrix calls
    compare.py --serve                                     the process that forks for tests

SIDE is what the reference is compared with: `ghost`; `local`, the same model once more, which shows
that a difference can only come from the ghost; `wrong`, a local model with changed bits, and
`crash`, which ends the process: both must be seen.

The reference runs before djinn is enabled, with nothing patched. Equal means that names, dtypes,
shapes and bits of all outputs are equal, of the caches among them too. Where they are not, the
report says how far both are from the same model in float64.
"""

import copy
import importlib
import json
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

sys.path.append(str(Path(__file__).resolve().parents[1] / "e2e"))

import children
import torch
import zoo
from fork_server import Asked, ForkServer, serve
from private_daemon import Daemon
from transformers import PreTrainedModel

Side = Literal["ghost", "local", "wrong", "crash"]
Outputs = dict[str, torch.Tensor]
Costs = dict[str, float]

LIMIT_S = 120.0
SERVE = "--serve"
REASON_CHARACTERS_MAX = 600
EQUAL = "equal"
NOT_HERE = "not on the CPU"  # a verdict that begins so: PyTorch alone refuses it, too
DRAWS = "draws"  # another seed, another result
REFUSED = "refused"
# What djinn says of what it does not do: an operator, an option.
REFUSAL = re.compile(r"is not offered by djinnd|is refused: ")
STEPS = (8, 16)  # tokens of the two generations whose difference is the cost of a step
# Calls before one is counted: the first sends the graph, a later one the program, both once.
WARM_CALLS = 3
COUNTED_CALLS_MAX = 8
# What a layer of a transformers cache may hold.
CACHE_FIELDS = ("keys", "values", "conv_states", "recurrent_states")
OPERATORS, BYTES = "operators_recorded", "bytes_crossed"  # the profiler's; bytes djinnd's own


@dataclass
class Result:
    """What is known of one entry so far."""

    name: str
    family: str
    model: str
    stage: str = "start"
    attention: str = ""
    ghost: dict[str, str] = field(default_factory=dict)  # of a dtype: EQUAL, or what is not so
    forward: dict[str, str] = field(default_factory=dict)  # of a dtype and a variant
    generate: dict[str, str] = field(default_factory=dict)
    tier: int = 0
    why: str = ""  # no higher tier
    operators_a_step: float | None = None
    bytes_a_step: float | None = None
    reasons: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.stage == "done" and not self.reasons

    @property
    def refused(self) -> bool:
        reasons = [one for one in self.reasons if not one.startswith("cost: ")]
        return bool(reasons) and all(REFUSAL.search(one) for one in reasons)

    def note(self, what: str, verdict: str) -> str:
        if verdict != EQUAL:
            self.reasons.append(f"{what}: {verdict}")
        return verdict


# --- outputs and how they differ ------------------------------------------------------------------


def tensors_of(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of an output, by its path; an unknown kind of output is an error."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors_of(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from tensors_of(item, f"{path}[{index}]")
    elif hasattr(value, "self_attention_cache"):  # of an encoder-decoder
        yield from tensors_of(value.self_attention_cache, f"{path}.self")
        yield from tensors_of(value.cross_attention_cache, f"{path}.cross")
    elif hasattr(value, "layers"):
        for index, layer in enumerate(value.layers):
            held = {name: getattr(layer, name, None) for name in CACHE_FIELDS}
            yield from tensors_of(held, f"{path}.layers[{index}]")
    elif value is not None and not isinstance(value, bool | int | float | str):
        raise TypeError(f"no way to compare a {type(value).__name__}, the output {path}")


def on_the_cpu(output: Any) -> Outputs:
    return {path.lstrip("."): one.detach().cpu() for path, one in tensors_of(output)}


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Stricter than torch.equal: zero has a sign, and a NaN equals itself."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    plain = [t.clone(memory_format=torch.contiguous_format).reshape(-1) for t in (a, b)]
    return torch.equal(*(t.view(torch.uint8) for t in plain))


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest absolute difference; infinite where one is not a number and the other is."""
    if a.numel() == 0:
        return 0.0
    a, b = a.double(), b.double()
    both = (a == b) | (a.isnan() & b.isnan())
    return (a - b).abs().masked_fill(both, 0.0).nan_to_num(nan=float("inf")).max().item()


def first_difference(reference: Outputs, found: Outputs) -> str | None:
    """A sentence on the first output that differs; None when all are equal."""
    if reference.keys() != found.keys():
        return f"has other outputs: {sorted(reference.keys() ^ found.keys())}"
    for path, expected in reference.items():
        got = found[path]
        if got.dtype != expected.dtype or got.shape != expected.shape:
            a, b = (f"{t.dtype} {list(t.shape)}" for t in (expected, got))
            return f"{path} is {b} and not {a}"
        if not same_bits(expected, got):
            return f"{path} differs by at most {distance(expected, got):.2g}"
    return None


def shown(outputs: Outputs) -> Outputs:
    """What a draw has no part in: dtypes and shapes."""
    return {path: torch.zeros_like(one) for path, one in outputs.items()}


def error_of(found: Outputs, exact: Outputs) -> float:
    floats = [path for path, one in exact.items() if one.is_floating_point() and path in found]
    alike = [path for path in floats if found[path].shape == exact[path].shape]
    return max((distance(found[path], exact[path]) for path in alike), default=0.0)


# --- one comparison -------------------------------------------------------------------------------


class Comparison:
    """The stages, in their order. A stage that raises is a reason, and the next one still runs."""

    def __init__(
        self,
        entry: zoo.Entry,
        variants: tuple[zoo.Variant, ...],
        directory: Path,
        report: Path,
        side: Side,
    ) -> None:
        self.entry = entry
        self.variants = variants
        self.directory = directory
        self.report = report
        self.side = side
        self.result = Result(entry.name, entry.family, entry.model)

    def run(self) -> Result:
        self.enter("reference")
        zoo.make_checkpoint(self.entry.name, self.directory)
        references = {dtype: Reference(self, dtype) for dtype in zoo.DTYPES}
        self.draws = references["float32"].draws()
        self.result.attention = references["float32"].model.config._attn_implementation
        for dtype, reference in references.items():
            self.attempt(f"build, {dtype}", self.build, dtype)
            if self.result.ghost.get(dtype) == EQUAL:
                self.compare(reference)
                if dtype == "float32":
                    self.attempt("cost", self.measure)
        self.enter("done")
        return self.result

    def count(self) -> Result:
        """What a step costs, and nothing else."""
        self.enter("reference")
        zoo.make_checkpoint(self.entry.name, self.directory)
        self.attempt("build, float32", self.build, "float32")
        if self.result.ghost.get("float32") == EQUAL:
            self.attempt("cost", self.measure)
        self.enter("done")
        return self.result

    def compare(self, reference: "Reference") -> None:
        """In the order of the reference: some models keep something of the last call."""
        for what, expected in reference.forward.items():
            self.attempt(f"forward, {what}", self.compare_forward, reference, what, expected)
            if what in reference.tokens:
                tokens = reference.tokens[what]
                self.attempt(f"generate, {what}", self.compare_tokens, what, tokens)

    def enter(self, stage: str) -> None:
        self.result.stage = stage
        self.report.write_text(json.dumps(asdict(self.result)))

    def attempt(self, stage: str, step: Any, *arguments: Any) -> None:
        self.enter(stage)
        try:
            step(*arguments)
        except Exception as error:
            traceback.print_exc()
            self.result.note(stage, told(error))

    def forward(self, model: PreTrainedModel, variant: zoo.Variant) -> Outputs:
        with torch.no_grad():
            return on_the_cpu(model(**fitting(self.entry.forward_inputs, model, variant)))

    def tokens(self, model: PreTrainedModel, variant: zoo.Variant, **options: Any) -> torch.Tensor:
        inputs = fitting(self.entry.inputs, model, variant)
        return model.generate(**inputs, **(zoo.GREEDY | options)).cpu()

    def build(self, dtype: zoo.Dtype) -> None:
        if self.side == "ghost":
            import_torch_device().enable()
        self.model = zoo.load(self.directory, self.entry, **zoo.in_dtype(dtype))
        if self.side == "wrong":
            flip_lowest_bits(self.model)
        if self.side == "crash":
            os.abort()
        device = "cpu" if self.side != "ghost" else "remote_accelerator:0"
        elsewhere = {str(t.device) for t in self.model.state_dict().values()} - {device}
        verdict = f"weights are on {sorted(elsewhere)}" if elsewhere else EQUAL
        self.result.ghost[dtype] = self.result.note(f"build, {dtype}", verdict)

    def compare_forward(self, reference: "Reference", what: str, expected: Outputs | str) -> None:
        if isinstance(expected, str):
            self.result.forward[what] = expected
            return
        variant = zoo.variant_of(what)
        found = self.forward(self.model, variant)
        verdict = first_difference(expected, found)
        if verdict and self.draws and first_difference(shown(expected), shown(found)) is None:
            self.result.forward[what] = DRAWS
            return
        if verdict:
            exact = reference.in_float64(variant)
            if exact is not None:
                errors = [error_of(one, exact) for one in (expected, found)]
                verdict += "; error against float64: CPU {:.2g}, found {:.2g}".format(*errors)
        self.result.forward[what] = self.result.note(f"forward, {what}", verdict or EQUAL)

    def compare_tokens(self, what: str, expected: torch.Tensor | str) -> None:
        if isinstance(expected, str):
            self.result.generate[what] = expected
            return
        found = self.tokens(self.model, zoo.variant_of(what))
        verdict = EQUAL
        if expected.shape != found.shape:
            verdict = f"tokens are {list(found.shape)} and not {list(expected.shape)}"
        elif not torch.equal(expected, found):
            first = (expected != found).any(0).nonzero()[0].item() - expected.shape[1]
            verdict = f"token {zoo.NEW_TOKENS + first} of {zoo.NEW_TOKENS} differs"
        self.result.generate[what] = self.result.note(f"generate, {what}", verdict)

    def measure(self) -> None:
        """The tier, and what one more token, or one more forward pass, costs."""
        if self.side != "ghost":
            return
        djinn = import_torch_device()
        costs: Costs = {}
        if self.entry.generates:
            short, long = (spent(djinn, partial(self.generate_tokens, n)) for n in STEPS)
            of_tokens = increase(short, long)
            costs = {name: cost / (STEPS[1] - STEPS[0]) for name, cost in of_tokens.items()}
        if not any(costs.values()):  # generate() is one forward pass for some, with CTC
            asking = spent(djinn, lambda: None)
            costs = increase(asking, spent(djinn, lambda: self.forward(self.model, "one")))
        if min(costs.values()) < 0:
            raise ValueError(f"a step costs less than nothing: {costs}")
        self.result.operators_a_step = costs[OPERATORS]
        self.result.bytes_a_step = costs[BYTES]
        self.result.tier, self.result.why = explained(djinn, self.model)

    def generate_tokens(self, count: int) -> None:
        self.tokens(self.model, "one", max_new_tokens=count, min_new_tokens=count)


class Reference:
    """The model on the CPU, and what it gives for each variant, or why it gives nothing."""

    def __init__(self, comparison: Comparison, dtype: zoo.Dtype) -> None:
        self.comparison = comparison
        entry = comparison.entry
        self.model = zoo.load_local(comparison.directory, entry, dtype)
        self.forward: dict[str, Outputs | str] = {}
        self.tokens: dict[str, torch.Tensor | str] = {}
        for variant in comparison.variants:
            what = zoo.name_of(dtype, variant)
            self.forward[what] = self.given(dtype, comparison.forward, variant)
            if entry.generates:
                self.tokens[what] = self.given(dtype, comparison.tokens, variant)

    def given(self, dtype: zoo.Dtype, step: Any, variant: zoo.Variant) -> Any:
        """In float32 it must work, for an entry of the zoo is a model that does."""
        try:
            torch.manual_seed(zoo.SEED)
            return step(self.model, variant)
        except Exception as error:
            if dtype == "float32":
                raise
            return f"{NOT_HERE}: {told(error)}"

    def draws(self) -> bool:
        torch.manual_seed(zoo.SEED + 1)
        again = self.comparison.forward(self.model, "one")
        return first_difference(self.forward[zoo.name_of("float32", "one")], again) is not None

    def in_float64(self, variant: zoo.Variant) -> Outputs | None:
        """None where the CPU has no kernel for it, as for products of groups."""
        model = copy.deepcopy(self.model).double()
        with torch.no_grad(), suppress(RuntimeError):
            return on_the_cpu(
                model(**fitting(self.comparison.entry.forward_inputs, model, variant))
            )
        return None


def fitting(make: Any, model: PreTrainedModel, variant: zoo.Variant) -> zoo.Inputs:
    """On the model's device, numbers in its dtype."""
    inputs = make(model.config, variant)
    plain = {k: v.to(model.dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    return {name: one.to(model.device) for name, one in plain.items()}


def told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:REASON_CHARACTERS_MAX]


def import_torch_device() -> Any:
    """The djinn package, once its PyTorch device is imported too."""
    importlib.import_module("djinn.torch")
    return importlib.import_module("djinn")


def flip_lowest_bits(model: PreTrainedModel) -> None:
    """The lowest bit of each number of the model's largest weight: less is lost in rounding."""
    largest = max(model.parameters(), key=torch.Tensor.numel)
    largest.view({2: torch.int16, 4: torch.int32}[largest.element_size()]).bitwise_xor_(1)


def counters_of(djinn: Any) -> Costs:
    stats = djinn.get_profiler().get_stats()
    return {name: float(stats[name]) for name in (OPERATORS, BYTES)}


def increase(before: Costs, after: Costs) -> Costs:
    return {name: value - before[name] for name, value in after.items()}


def spent(djinn: Any, call: Callable[[], Any]) -> Costs:
    """What a call costs when nothing is sent any more that is sent once."""

    def cost() -> Costs:
        before = counters_of(djinn)
        call()
        return increase(before, counters_of(djinn))

    for _ in range(WARM_CALLS):
        call()
    return settled(cost)


def settled(cost: Callable[[], Costs]) -> Costs:
    """What comes twice in a row; else the least, for what the idle watch hands over early is a
    submission of its own."""
    seen = [cost()]
    while len(seen) < COUNTED_CALLS_MAX:
        seen.append(cost())
        if seen[-1] == seen[-2]:
            return seen[-1]
    return {name: min(one[name] for one in seen) for name in seen[0]}


def explained(djinn: Any, model: PreTrainedModel) -> tuple[int, str]:
    explain = getattr(djinn, "explain", None)
    if explain is None:
        return 0, "djinn.explain does not exist"
    answer = explain(model)
    return int(answer.get("tier") or 0), str(answer.get("why", ""))


# --- the child and who starts it ------------------------------------------------------------------


class Forks:
    """A process that has imported all this and computes nothing, for callers that compute: a
    comparison is a fork of it, and nothing is imported for each."""

    def __enter__(self) -> "Forks":
        self._server = ForkServer([__file__, SERVE], children.ENVIRONMENT, LIMIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def compared(self, name: str, daemon: Daemon, scratch: Path, side: Side = "ghost") -> Result:
        """Its output goes to scratch/NAME.log. No long prompts."""

        def start(log: Path, report: Path) -> str | None:
            arguments = (name, str(report), daemon.host, side, str(daemon.threads), *zoo.VARIANTS)
            return self._server.ask((str(log), *arguments))

        return watched(name, daemon, scratch, start)


def asked_for(request: list[str]) -> Asked:
    log, *arguments = request
    return Asked(Path(log), LIMIT_S, partial(main, *arguments))


def in_fork(
    name: str, daemon: Daemon, scratch: Path, side: Side = "ghost", costs_alone: bool = False
) -> Result:
    """All of it, for a caller that has imported all this and computed nothing yet."""

    def start(log: Path, report: Path) -> str | None:
        variants = () if costs_alone else zoo.entry(name).variants
        arguments = (name, str(report), daemon.host, side, str(daemon.threads), *variants)
        return children.forked(log, LIMIT_S, lambda: main(*arguments))

    return watched(name, daemon, scratch, start)


def watched(
    name: str, daemon: Daemon, scratch: Path, start: Callable[[Path, Path], str | None]
) -> Result:
    report, log = scratch / f"{name}.json", scratch / f"{name}.log"
    report.unlink(missing_ok=True)
    before = children.worker_restarts(daemon)
    ended = start(log, report)
    result = read_result(name, report)
    if ended:
        result.reasons.append(f"{ended} in stage '{result.stage}'"[:REASON_CHARACTERS_MAX])
    deaths = children.worker_restarts(daemon) - before
    if deaths:
        result.reasons.append(f"the worker died {deaths} times")
    return result


def read_result(name: str, report: Path) -> Result:
    entry = zoo.entry(name)
    if not report.exists():
        return Result(name, entry.family, entry.model)
    return Result(**json.loads(report.read_text()))


def main(
    name: str, report: str, host: str, side: Side, threads: str, *variants: zoo.Variant
) -> None:
    """Without a variant: what a step costs, and nothing else."""
    os.environ["DJINN_HOST"] = host
    torch.set_num_threads(int(threads))
    with tempfile.TemporaryDirectory() as directory:
        one = Comparison(zoo.entry(name), variants, Path(directory), Path(report), side)
        one.run() if variants else one.count()


if __name__ == "__main__":
    if sys.argv[1:] != [SERVE]:
        sys.exit(f"compare.py takes {SERVE} alone; './dev matrix' compares models")
    serve(asked_for)
