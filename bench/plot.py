# SPDX-License-Identifier: Apache-2.0
"""Draws what `./dev bench` has measured, each plot as SVG and PNG: plot.py build/bench.

    decode     a token's time, of the floor: ours, and other programs' where they were measured
    together   tokens a second of several processes with one model, of one alone
    gaps       between the tokens of one that decodes beside another's long prompt, and alone

A plot whose figures were not measured is not drawn.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

BARS = Path(__file__).with_name("bars.json")
OURS, OTHERS, QUIET = "#2456a6", "#b9bec7", "#6b7280"
MODELS = {
    "qwen_bfloat16": "0.5B, bf16",
    "qwen_float32": "0.5B, fp32",
    "qwen_int8": "0.5B, int8",
    "gpt2_bfloat16": "GPT-2, bf16",
    "gpt2_float32": "GPT-2, fp32",
}
PROGRAMS = {
    "djinn_fast": "djinn, fast",
    "djinn_exact": "djinn, exact",
    "llama_cpp": "llama.cpp",
    "openvino": "OpenVINO",
    "onnxruntime": "onnxruntime",
    "compiled": "PyTorch, compiled",
    "eager": "PyTorch",
}

NUMERICS = {"beside/prompt_fast": "fast", "beside/prompt_exact": "exact"}
BESIDE = "beside_bench.py.json"  # the report that says of each token when it came

# Of each benchmark, the medians of its fields.
Measured = dict[str, dict[str, float]]


def of_floor(measured: Measured, model: str) -> dict[str, float]:
    """How many times the floor a token takes, by program, the quickest first."""
    fields = measured.get(f"peers/{model}", {})
    found = {program: fields.get(f"{program}_of_floor") for program in PROGRAMS}
    if not fields and (alone := measured.get(f"fast/{model}")):
        ours = alone["of_floor"]
        found = {"djinn_fast": ours}
        if "of_exact" in alone:  # int8 has no exact form
            found["djinn_exact"] = ours / alone["of_exact"]
    known = {program: value for program, value in found.items() if value is not None}
    return dict(sorted(known.items(), key=lambda one: one[1]))


def most_of(benchmark: str, field: str) -> float | None:
    """What bars.json lets the figure be."""
    bars = {(bar["benchmark"], bar["field"]): bar for bar in json.loads(BARS.read_text())}
    return bars.get((benchmark, field), {}).get("at_most")


def plain(axes: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=QUIET, length=0)


def decode(measured: Measured, _: Path) -> Any | None:
    models = {model: found for model in MODELS if (found := of_floor(measured, model))}
    if not models:
        return None
    rows = sum(len(found) for found in models.values())
    figure, all_axes = pyplot.subplots(
        len(models),
        1,
        figsize=(7.5, 0.3 * rows + 0.7 * len(models)),
        sharex=True,
        squeeze=False,
        height_ratios=[len(found) for found in models.values()],
        layout="constrained",
    )
    for axes, (model, found) in zip(all_axes[:, 0], models.items(), strict=True):
        colours = [OURS if program.startswith("djinn") else OTHERS for program in found]
        bars = axes.barh([PROGRAMS[program] for program in found], found.values(), color=colours)
        behind = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # of what the line crosses
        axes.bar_label(bars, fmt="%.2f", padding=4, color=QUIET, bbox=behind)
        axes.axvline(1, color=QUIET, linewidth=0.8, linestyle="--")
        axes.invert_yaxis()
        axes.set_title(MODELS[model], loc="left", fontsize=10)
        plain(axes)
    all_axes[-1, 0].set_xlabel("a token's time, of reading the weights once")
    return figure


def together(measured: Measured, _: Path) -> Any | None:
    prefix = "together/processes_"
    rates = {
        int(name.removeprefix(prefix)): fields["of_one"]
        for name, fields in measured.items()
        if name.startswith(prefix)
    }
    if not rates:
        return None
    counts = [1, *sorted(rates)]
    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    axes.plot(counts, [1.0, *(rates[count] for count in counts[1:])], color=OURS, marker="o")
    axes.plot(counts, counts, color=QUIET, linewidth=0.8, linestyle="--")
    axes.annotate("as many as there are", (counts[-1], counts[-1]), color=QUIET, ha="right")
    axes.set_xticks(counts)
    axes.set_xlabel("processes that generate at once, with one model")
    axes.set_ylabel("tokens a second of all, of one alone")
    plain(axes)
    return figure


def usual(report: Path, benchmark: str) -> dict[str, Any]:
    """The repetition whose longest gap is the median."""
    found = json.loads(report.read_text())["benchmarks"]
    same = [one for one in found if one["run_name"] == benchmark]
    return sorted(same, key=lambda one: one["worst_gap_ms"])[len(same) // 2]


def beside_prompt(run: dict[str, Any]) -> list[tuple[float, float]]:
    """The gaps that the prompt has a part in."""
    ended = run["real_time"] * 1e-6
    return [(at, gap) for at, gap in run["tokens"] if at > 0 and at - gap * 1e-3 < ended]


def draw_gaps(axes: Any, tokens: list[tuple[float, float]], colour: str, bar_ms: float) -> None:
    seconds, gaps_ms = zip(*tokens, strict=True)
    axes.vlines(seconds, 0, gaps_ms, color=colour, linewidth=1)
    axes.plot(seconds, gaps_ms, "o", color=colour, markersize=3.5)
    if bar_ms:
        axes.axhline(bar_ms, color=QUIET, linewidth=0.8, linestyle="--")
    plain(axes)


def gaps(measured: Measured, folder: Path) -> Any | None:
    runs = {name: usual(folder / BESIDE, name) for name in NUMERICS if name in measured}
    if not runs:
        return None
    both = [(run["tokens_alone"], beside_prompt(run)) for run in runs.values()]
    figure, all_axes = pyplot.subplots(
        len(runs),
        2,
        figsize=(9, 2.6 * len(runs) + 0.4),
        sharex="col",
        sharey="row",
        squeeze=False,
        width_ratios=[max(tokens[-1][0] for tokens in arm) for arm in zip(*both, strict=True)],
        layout="constrained",
    )
    for (left, right), (name, run), (alone, beside) in zip(
        all_axes, runs.items(), both, strict=True
    ):
        units = most_of(name, "worst_gap_units")
        bar_ms = units * run["worst_gap_ms"] / run["worst_gap_units"] if units else 0.0
        draw_gaps(left, alone, OTHERS, bar_ms)
        draw_gaps(right, beside, OURS, bar_ms)
        if units:
            left.text(0, bar_ms, f"bar: {units:g} units\n", color=QUIET, fontsize=9, va="center")
        left.set_ylim(0, 1.15 * max(bar_ms, *(gap for _, gap in alone + beside)))
        left.set_ylabel(f"{NUMERICS[name]}: ms between tokens")
    all_axes[0, 0].set_title("alone", loc="left", fontsize=10)
    all_axes[0, 1].set_title("beside another's prompt of 1,024 tokens", loc="left", fontsize=10)
    figure.supxlabel("seconds", fontsize=10)
    return figure


def draw(measured: Measured, folder: Path) -> Iterator[Path]:
    """Gives the files that it has written."""
    for name, plot in {"decode": decode, "together": together, "gaps": gaps}.items():
        figure = plot(measured, folder)
        if figure is None:
            continue
        for ending in ("svg", "png"):
            path = folder / f"{name}.{ending}"
            figure.savefig(path, dpi=150)
            yield path
        pyplot.close(figure)


def main() -> None:
    folder = Path(sys.argv[1])
    for path in draw(json.loads((folder / "measured.json").read_text()), folder):
        print(f"drawn: {path}")


if __name__ == "__main__":
    main()
