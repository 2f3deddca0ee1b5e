# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own operator samples, on the device and on the CPU: equal, or refused in so many words.

    opinfo.py [--samples N|all] [--side ghost|local|wrong] [--scratch DIR] [NAME...]

`torch.testing` holds samples for each operator (`op_db`): inputs that it must accept and inputs
that it must refuse. Each is made on the CPU, run there, moved to the device and run again. What can
happen to a sample is an Outcome. SIDE is what the CPU is compared with: the device (`ghost`), the
CPU once more (`local`: all must be equal), the CPU with changed bits (`wrong`: none may be).

Operators run in a child, one after the other; it writes a line before and after each, so the
operator that crashes it, or stays in one sample for too long, is known by name and the next child
goes on behind it.
"""

import argparse
import faulthandler
import itertools
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from unittest import mock

sys.path.append(str(Path(__file__).resolve().parents[1] / "e2e"))

import children
import documents
import torch
from compare import Side, distance, import_torch_device, same_bits
from private_daemon import ROOT, THREADS, Daemon, running
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves

Outcome = Literal[
    "equal",  # bit for bit
    "metadata",  # equal dtypes and shapes; the CPU itself gives other values for another seed
    "refused",  # by a NotImplementedError of djinn's that says what, why and what next
    "unlisted",  # refused because an operator is not on the allow-list
    "differs",
    "error",  # raised, where the CPU did not
    "other error",  # the CPU raised too, but another type, or it alone raised
    "same error",
    "crash",
    "unmade",  # PyTorch's own code could not make the samples here
]
GOOD = ("equal", "metadata", "refused", "unlisted", "same error")
Verdict = tuple[Outcome, str]  # and an example, in words
ERRORS = ("error", "other error")
FORWARD = ("equal", "metadata", "refused", "differs", "error", "crash")

DTYPES = (torch.float32, torch.int64, torch.bool)
SAMPLE_LIMIT_S = 15
CHILDREN_MAX = 40  # each after the first because one crashed
CHILD_LIMIT_S = 3000.0
EQUAL_SHARE_MIN = 0.99
EXAMPLES_MAX = 3  # of each outcome of an operator
MESSAGE_CHARACTERS_MAX = 400
# Made by others, so not a refusal of ours.
NOT_OURS = re.compile(
    r"^Could not run '|not implemented for '|not implemented on |^Cannot copy out of meta tensor"
    r"|PrivateUse1HooksInterface"
)
UNLISTED = re.compile(r"is not offered( by djinnd:|\. )")
# Their values are nobody's: uninitialised memory. No other operator is excused by its name.
UNINITIALISED = re.compile(r"^(new_)?empty(_like|_permuted|_strided)?$")
SEEDS = range(2, 12)  # few elements draw alike
# Neither equal nor refused in our words, each for its reason. It excuses errors: a value that
# differs and a worker that dies are never known, and one that nothing needs any more is stale.
KNOWN = {
    "amax": "an empty reduction raises another type of error",
    "amin": "an empty reduction raises another type of error",
    "aminmax": "an empty reduction raises another type of error",
    "cat": "tensors without dimensions raise another type of error",
    "complex": "one error has another type",
    "gradient": "tensors of two devices raise otherwise",
    "logcumsumexp": "the meta kernel raises AssertionError for a dimension out of range",
    "narrow_copy": "a dimension out of range is an IndexError",
    "native_layer_norm": "an empty shape is a ValueError",
    "roll": "a dimension out of range is found in djinnd, when the value is read",
    "sparse.mm.reduce": "a sparse tensor is refused by PyTorch, in its words",
    "sparse.sampled_addmm": "a sparse tensor is refused by PyTorch, in its words",
}
ALL = sys.maxsize
TABLE = ROOT / "docs" / "OPERATORS.md"
ALLOW_LIST = ROOT / "kernel" / "srg" / "allowed.cc"


@dataclass
class Report:
    """What became of one operator's samples."""

    name: str
    outcomes: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    other_strides: int = 0  # outputs that are equal, but lie otherwise in memory
    on_device: int = 0  # results that are there, where the arguments said
    worker_deaths: int = 0

    def count(self, outcome: Outcome, what: str = "") -> None:
        self.outcomes[outcome] += 1
        examples = self.examples.setdefault(outcome, [])
        if what and len(examples) < EXAMPLES_MAX:
            examples.append(what[:MESSAGE_CHARACTERS_MAX])

    @property
    def bad(self) -> bool:
        return self.worker_deaths > 0 or any(outcome not in GOOD for outcome in self.outcomes)

    @property
    def known(self) -> bool:
        only_errors = all(outcome in GOOD + ERRORS for outcome in self.outcomes)
        return self.name in KNOWN and only_errors and self.worker_deaths == 0


def full_name(op: OpInfo) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


OPERATORS = {full_name(op): op for op in op_db}


def allow_list() -> set[str]:
    """Operators without their overloads, as the daemon and the client have them."""
    found = set(re.findall(r'^ +"aten::(\w+)', ALLOW_LIST.read_text(), re.MULTILINE))
    assert "add" in found, f"{ALLOW_LIST} is not the allow-list any more"
    return found


def is_listed(name: str, allowed: set[str]) -> bool:
    """Whether the operator that gave an OpInfo its name is allowed; it may call others."""
    op = OPERATORS[name]
    return any(one.split(".")[-1] in allowed for one in (op.name, op.aten_name))


# --- one sample -----------------------------------------------------------------------------------


class Bench:
    """Runs samples of one operator on both sides."""

    def __init__(self, op: OpInfo, side: Side, device: torch.device) -> None:
        self.op = op
        self.side = side
        self.device = device
        self.report = Report(full_name(op))

    def run(self, samples_max: int) -> Report:
        for dtype in DTYPES:
            if dtype in self.op.supported_dtypes("cpu"):
                self.each(lambda dtype=dtype: self.samples(dtype), samples_max)
        if self.op.error_inputs_func is not None:
            self.each(self.error_samples, samples_max)
        return self.report

    def samples(self, dtype: torch.dtype) -> Iterator[SampleInput]:
        return iter(self.op.sample_inputs("cpu", dtype, requires_grad=False))

    def error_samples(self) -> Iterator[SampleInput]:
        return (error.sample_input for error in self.op.error_inputs("cpu"))

    def each(self, make: Callable[[], Iterator[SampleInput]], samples_max: int) -> None:
        torch.manual_seed(20)
        try:
            samples = list(itertools.islice(make(), samples_max))
        except Exception as error:
            self.report.count("unmade", said(error))
            return
        for sample in samples:
            self.report.count(*self.verdict(sample))

    def verdict(self, sample: SampleInput) -> Verdict:
        """A sample that takes too long ends the process, with a trace of where it was."""
        faulthandler.dump_traceback_later(SAMPLE_LIMIT_S, exit=True)
        try:
            return self.compared(sample)
        except Exception as error:
            return "error", f"not compared: {said(error)}: {summary(sample)}"
        finally:
            faulthandler.cancel_dump_traceback_later()

    def compared(self, sample: SampleInput) -> Verdict:
        expected, found = self.on_the_cpu(sample), self.elsewhere(sample)
        if isinstance(found, Exception):
            return self.raised(expected, found, sample)
        if isinstance(expected, Exception):
            return "other error", f"{said(expected)} / {said(found)}: {summary(sample)}"
        difference = self.difference(expected, found)
        if difference is None:
            return "equal", ""
        if metadata(expected) == metadata(found) and self.is_unsteady(sample):
            return "metadata", ""
        return "differs", f"{difference}: {summary(sample)}"

    def raised(self, expected: Any, found: Exception, sample: SampleInput) -> Verdict:
        if isinstance(found, OtherDeviceError):  # never excused, as an error may be
            return "differs", f"{said(found)}: {summary(sample)}"
        if is_ours(found):
            return "unlisted" if UNLISTED.search(str(found)) else "refused", said(found)
        if not isinstance(expected, Exception):
            return "error", f"{said(found)}: {summary(sample)}"
        if type(expected) is type(found):
            return "same error", ""
        return "other error", f"{said(expected)} / {said(found)}: {summary(sample)}"

    def on_the_cpu(self, sample: SampleInput, seed: int = 1) -> Any:
        return self.attempt(sample, torch.device("cpu"), seed)

    def elsewhere(self, sample: SampleInput) -> Any:
        if self.side == "ghost":
            return self.attempt(sample, self.device, seed=1)
        found = self.on_the_cpu(sample)
        return found if self.side == "local" else with_changed_bits(found)

    def attempt(self, sample: SampleInput, device: torch.device, seed: int) -> Any:
        """The result's leaves, tensors among them on the CPU; or the exception."""
        torch.manual_seed(seed)
        try:
            with torch.no_grad(), own_seeds_moved_by(seed - 1):
                moved = sample.transform(lambda x: placed(x, device))
                args = [device if is_device(x) else x for x in moved.args]
                kwargs = {k: device if is_device(x) else x for k, x in moved.kwargs.items()}
                if self.op.is_factory_function:
                    kwargs["device"] = device
                result = self.op(moved.input, *args, **kwargs)
                leaves = tree_leaves(result)
                plain = [leaf_on_the_cpu(leaf, device) for leaf in leaves]
                self.report.on_device += sum(is_elsewhere(leaf) for leaf in leaves)
                return plain
        except Exception as error:
            return error

    def is_unsteady(self, sample: SampleInput) -> bool:
        """Whether the CPU gives other values for another seed, or promises none."""
        if UNINITIALISED.search(self.op.name):
            return True
        first = self.on_the_cpu(sample)
        others = (self.on_the_cpu(sample, seed) for seed in SEEDS)
        return any(self.difference(first, other) is not None for other in others)

    def difference(self, expected: list[Any], found: list[Any]) -> str | None:
        if len(expected) != len(found):
            return f"{len(found)} results and not {len(expected)}"
        for a, b in zip(expected, found, strict=True):
            different = leaf_difference(a, b)
            if different:
                return different
            if isinstance(a, torch.Tensor) and a.stride() != b.stride():
                self.report.other_strides += 1
        return None


@contextmanager
def own_seeds_moved_by(offset: int) -> Iterator[None]:
    """Some samples set a seed themselves, always the same; so they seem to draw nothing."""
    original = torch.manual_seed
    with mock.patch.object(torch, "manual_seed", lambda seed: original(seed + offset)):
        yield


class OtherDeviceError(Exception):
    """A result lies elsewhere than the arguments said."""


def placed(leaf: Any, device: torch.device) -> Any:
    """A tensor that moves is copied on the CPU as well: so both lie alike in memory."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.clone() if device.type == "cpu" else leaf.to(device)


def is_device(argument: Any) -> bool:
    return isinstance(argument, torch.device) or (isinstance(argument, str) and argument == "cpu")


def is_elsewhere(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu"


def leaf_on_the_cpu(leaf: Any, device: torch.device) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if leaf.device.type != device.type:
        raise OtherDeviceError(f"a result is on {leaf.device}")
    plain = leaf.cpu().resolve_conj().resolve_neg()
    return plain.to_dense() if plain.layout != torch.strided else plain


def leaf_difference(a: Any, b: Any) -> str | None:
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return None if a == b or (a != a and b != b) else f"{b!r} and not {a!r}"
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{b.dtype} {list(b.shape)} and not {a.dtype} {list(a.shape)}"
    if same_bits(a, b):
        return None
    far = distance(*(torch.view_as_real(t) if t.is_complex() else t for t in (a, b)))
    return f"differs by at most {far:.2g}" if far else "differs in bits alone (NaN, -0)"


def with_changed_bits(found: Any) -> Any:
    """Every tensor with its first byte changed; so none is equal any more."""
    if isinstance(found, Exception):
        return found
    changed = []
    for leaf in found:
        if isinstance(leaf, torch.Tensor) and leaf.numel():
            flat = leaf.clone(memory_format=torch.contiguous_format)
            flat.reshape(-1).view(torch.uint8)[0] ^= 1
            leaf = flat
        changed.append(leaf)
    return changed


def metadata(leaves: list[Any]) -> list[Any]:
    return [(x.dtype, x.shape) if isinstance(x, torch.Tensor) else type(x) for x in leaves]


def is_ours(error: Exception) -> bool:
    return isinstance(error, NotImplementedError) and not NOT_OURS.search(str(error))


def said(error: Any) -> str:
    if not isinstance(error, Exception):
        return "no exception"
    return f"{type(error).__name__}: {' '.join(str(error).split())[: MESSAGE_CHARACTERS_MAX // 2]}"


def summary(sample: SampleInput) -> str:
    return " ".join(str(sample.summary()).split())


# --- the child ------------------------------------------------------------------------------------


def child(report: Path, host: str, side: Side, samples_max: int, names: list[str]) -> None:
    os.environ["DJINN_HOST"] = host
    torch.set_num_threads(THREADS)
    djinn = import_torch_device() if side == "ghost" else None
    device = torch.device("remote_accelerator:0" if djinn else "cpu")
    observer = djinn.connect(host, "opinfo", observer=True) if djinn else None
    deaths = 0
    with report.open("a") as out:
        for name in names:
            print(json.dumps({"begins": name}), file=out, flush=True)
            done = Bench(OPERATORS[name], side, device).run(samples_max)
            if observer:
                total = sum(worker["restarts"] for worker in observer.status()["workers"])
                done.worker_deaths, deaths = total - deaths, total
            print(json.dumps(vars(done)), file=out, flush=True)


def lines_of(report: Path) -> Iterator[dict[str, Any]]:
    for line in report.read_text().splitlines() if report.exists() else []:
        yield json.loads(line)


def reports_of(report: Path) -> tuple[list[Report], str | None]:
    """What is done, and the operator that was begun and not done."""
    done, begun = [], None
    for line in lines_of(report):
        if "begins" in line:
            begun = line["begins"]
        else:
            done.append(Report(**(line | {"outcomes": Counter(line["outcomes"])})))
            begun = None
    return done, begun


# --- the parent -----------------------------------------------------------------------------------


def run(
    daemon: Daemon, scratch: Path, samples_max: int, side: Side, names: list[str] | None = None
) -> list[Report]:
    """All operators, or those named; one child after the other until none is left."""
    left, reports = list(names or OPERATORS), []
    for number in range(CHILDREN_MAX):
        report, log = (scratch / f"operators-{number}.{end}" for end in ("jsonl", "log"))
        report.unlink(missing_ok=True)
        arguments = ("--child", str(report), daemon.host, side, str(samples_max), *left)
        ended = children.python(log, CHILD_LIMIT_S, "opinfo.py", *arguments)
        done, begun = reports_of(report)
        if begun and is_own_failure(log):
            raise RuntimeError(f"{begun}: {ended}; see {log}")
        if begun:
            done.append(crashed(begun, ended or "the process ended"))
        assert done, f"no operator was begun: {ended}; see {log}"
        reports += done
        left = left[len(done) :]
        if not left:
            return reports
    raise RuntimeError(f"{CHILDREN_MAX} processes died; see {scratch}/operators-*.log")


def is_own_failure(log: Path) -> bool:
    """A Python exception that no sample caught: this file is wrong, not an operator."""
    return re.search(r"^Traceback", log.read_text(errors="replace"), re.MULTILINE) is not None


def crashed(name: str, ended: str) -> Report:
    report = Report(name)
    report.count("crash", ended)
    return report


@dataclass
class Summary:
    """Shares of the forward samples whose operators are all on the allow-list."""

    outcomes: Counter[str]
    listed: Counter[str]  # of the operators whose own name is on the allow-list
    names: set[str]
    bad: list[Report]
    refusals: Counter[str]  # operators, by the reason why samples of theirs were refused

    @staticmethod
    def of(reports: list[Report]) -> "Summary":
        allowed = allow_list()
        total, listed, refusals = Counter[str](), Counter[str](), Counter[str]()
        for report in reports:
            total += report.outcomes
            refusals.update(set(report.examples.get("refused", [])))
            if is_listed(report.name, allowed):
                listed += report.outcomes
        bad = [report for report in reports if report.bad]
        names = {report.name for report in reports}
        return Summary(total, listed, names, bad, refusals)

    @staticmethod
    def share(outcomes: Counter[str]) -> float:
        """Equal ones among those that were not refused for the allow-list."""
        samples = sum(outcomes[name] for name in FORWARD)
        return (outcomes["equal"] + outcomes["metadata"]) / samples if samples else 0.0

    @property
    def unknown(self) -> list[Report]:
        """Those that fail, and nobody has said why."""
        return [report for report in self.bad if not report.known]

    @property
    def stale(self) -> list[str]:
        """Reasons for what fails no more; all samples must have run on the device."""
        bad = {report.name for report in self.bad}
        return [name for name in KNOWN if name in self.names - bad]

    @property
    def good(self) -> bool:
        return not self.unknown and self.share(self.outcomes) >= EQUAL_SHARE_MIN

    def text(self) -> str:
        counts = [f"{n} {name}" for name, n in self.outcomes.most_common()]
        listed = [f"{n} {name}" for name, n in self.listed.most_common()]
        return "\n".join(
            [
                f"samples: {', '.join(counts)}",
                f"  of operators whose name is on the allow-list: {', '.join(listed)}",
                f"equal where all operators are on the allow-list: {self.share(self.outcomes):.2%}",
                f"  where the name is, too: {self.share(self.listed):.2%}",
                f"operators that are otherwise: {len(self.bad)}, for no known reason:"
                f" {len(self.unknown)}",
                *(f"  refused, {n} operators: {why}" for why, n in self.refusals.most_common(20)),
            ]
        )


def describe(report: Report) -> str:
    bad = {k: v for k, v in report.examples.items() if k not in GOOD}
    counts = ", ".join(f"{n} {name}" for name, n in report.outcomes.most_common())
    deaths = f", the worker died {report.worker_deaths} times" if report.worker_deaths else ""
    examples = [f"    {name}: {one}" for name, found in bad.items() for one in found]
    return "\n".join([f"{report.name}: {counts}{deaths}", *examples])


# --- docs/OPERATORS.md ----------------------------------------------------------------------------


def table(reports: list[Report]) -> str:
    """Each operator is in one of the lists: its worst outcome tells which."""
    lists: dict[str, list[Report]] = {"known": [], "refused": [], "drawn": [], "equal": []}
    for report in sorted(reports, key=lambda one: one.name):
        lists[kind_of(report)].append(report)
    samples = sum(sum(report.outcomes.values()) for report in reports)
    counts = {name: len(found) for name, found in lists.items()}
    return documents.wrapped(
        [
            "# Operators",
            "",
            f"Made by `./dev matrix --operators` on {datetime.now(UTC):%Y-%m-%d}: PyTorch"
            f" {torch.__version__}'s own samples of its operators ({samples} samples of"
            f" {len(reports)} operators, {THREADS} threads) on the device and on the CPU. Equal"
            " means bit for bit, and every result lies on the device.",
            "",
            f"What was tried: samples of {tried()}, those of them that the operator takes on the"
            " CPU, and inputs that it must refuse, under `no_grad`. Other dtypes were tried where a"
            " sample converts to one or takes one beside, and gradients were not.",
            "",
            f"{counts['equal']} operators are equal, {counts['drawn']} draw numbers,"
            f" {counts['refused']} are refused in part or whole, {counts['known']} are otherwise.",
            "",
            "## Otherwise",
            "",
            "No value that is given differs. What does, and why:",
            "",
            "| operator | samples | bound | reason |",
            "| --- | --- | --- | --- |",
            *(f"| `{r.name}` | {counted(r)} | {bound_of(r)} | {why(r)} |" for r in lists["known"]),
            "",
            "## Refused",
            "",
            "By a NotImplementedError that says what is not taken, an operator or a dtype, before"
            " anything is computed. Samples that are not refused are equal, draw numbers"
            " (metadata), or are errors of the same type on the CPU (same error).",
            "",
            "| operator | samples | reason |",
            "| --- | --- | --- |",
            *(f"| `{r.name}` | {counted(r)} | {refusal_of(r)} |" for r in lists["refused"]),
            "",
            "## Drawn, or not steady on the CPU itself",
            "",
            "The bound is dtype and shape, which are equal; values are those of djinn's generator.",
            "",
            named(lists["drawn"]),
            "",
            "## Equal",
            "",
            named(lists["equal"]),
        ]
    )


def tried() -> str:
    *names, last = (str(dtype).removeprefix("torch.") for dtype in DTYPES)
    return f"{', '.join(names)} and {last}"


def kind_of(report: Report) -> str:
    if report.bad:
        return "known"
    if report.outcomes["refused"] or report.outcomes["unlisted"]:
        return "refused"
    return "drawn" if report.outcomes["metadata"] else "equal"


def named(reports: list[Report]) -> str:
    return ", ".join(f"`{report.name}`" for report in reports)


def counted(report: Report) -> str:
    return ", ".join(f"{n} {outcome}" for outcome, n in report.outcomes.most_common())


def bound_of(report: Report) -> str:
    found = report.examples.get("differs", [])
    return escaped(found[0].split(":")[0]) if found else "no value differs"


def why(report: Report) -> str:
    return KNOWN.get(report.name, "**not known**")


def refusal_of(report: Report) -> str:
    found = report.examples.get("unlisted", []) + report.examples.get("refused", [])
    return escaped(found[0].removeprefix("NotImplementedError: ").split(". ")[0])


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace(str(ROOT) + "/", "")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="opinfo.py")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--samples", default="all", help="of an operator and dtype")
    parser.add_argument("--side", choices=("ghost", "local", "wrong"), default="ghost")
    parser.add_argument("--table", action="store_true", help=f"write {TABLE.relative_to(ROOT)}")
    parser.add_argument("--scratch", type=Path, default=ROOT / "build" / "matrix")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in OPERATORS]
    if unknown:
        parser.error(f"not in op_db: {', '.join(unknown)}")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    arguments.scratch.mkdir(parents=True, exist_ok=True)
    samples_max = ALL if arguments.samples == "all" else int(arguments.samples)
    with running() as daemon:
        reports = run(daemon, arguments.scratch, samples_max, arguments.side, arguments.names)
    found = Summary.of(reports)
    for report in found.bad:
        print(describe(report))
    print(found.text())
    items = [vars(report) for report in reports]
    text = json.dumps({"schema": "djinn.operators.v1", "side": arguments.side, "items": items})
    (arguments.scratch / "operators.json").write_text(text + "\n")
    if arguments.table:
        TABLE.write_text(table(reports))
    all_ran = arguments.side == "ghost" and samples_max == ALL
    if all_ran and found.stale:
        print(f"excused in KNOWN, and fail no more: {', '.join(found.stale)}")
    return 0 if found.good and not (all_ran and found.stale) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        place, daemon_host, which, most, *wanted = sys.argv[2:]
        child(Path(place), daemon_host, which, int(most), wanted)  # type: ignore[arg-type]
    else:
        sys.exit(main())
