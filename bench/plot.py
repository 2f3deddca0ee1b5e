# SPDX-License-Identifier: Apache-2.0
"""Draws what `./dev bench` has measured, each plot as SVG and PNG: plot.py build/bench.

    decode     a token's time, of the floor: ours, and other programs' where they were measured
    together   tokens a second of several processes with one model, of one alone

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

OURS, OTHERS, QUIET = "#2456a6", "#b9bec7", "#6b7280"
MODELS = {
    "qwen_bfloat16": "0.5B, bf16",
    "qwen_float32": "0.5B, fp32",
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

# Of each benchmark, the medians of its fields.
Measured = dict[str, dict[str, float]]


def of_floor(measured: Measured, model: str) -> dict[str, float]:
    """How many times the floor a token takes, by program, the quickest first."""
    fields = measured.get(f"peers/{model}", {})
    found = {program: fields.get(f"{program}_of_floor") for program in PROGRAMS}
    if not fields and (alone := measured.get(f"fast/{model}")):
        ours = alone["of_floor"]
        found = {"djinn_fast": ours, "djinn_exact": ours / alone["of_exact"]}
    known = {program: value for program, value in found.items() if value is not None}
    return dict(sorted(known.items(), key=lambda one: one[1]))


def plain(axes: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=QUIET, length=0)


def decode(measured: Measured) -> Any | None:
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
        axes.bar_label(bars, fmt="%.2f", padding=3, color=QUIET)
        axes.axvline(1, color=QUIET, linewidth=0.8, linestyle="--")
        axes.invert_yaxis()
        axes.set_title(MODELS[model], loc="left", fontsize=10)
        plain(axes)
    all_axes[-1, 0].set_xlabel("a token's time, of reading the weights once")
    return figure


def together(measured: Measured) -> Any | None:
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


def draw(measured: Measured, folder: Path) -> Iterator[Path]:
    """Gives the files that it has written."""
    for name, plot in {"decode": decode, "together": together}.items():
        figure = plot(measured)
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
