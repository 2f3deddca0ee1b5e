# SPDX-License-Identifier: Apache-2.0
"""What bench/plot.py draws of given figures, in the environment that `./dev bench` makes for it."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.ci  # each test imports matplotlib

ROOT = Path(__file__).resolve().parents[2]
PLOT = ROOT / "bench" / "plot.py"
LOOK = Path(__file__).with_name("look_at_plots.py")
PYTHONS = (ROOT / "build" / "plot" / "bin" / "python", Path(sys.executable))
PNG = b"\x89PNG\r\n\x1a\n"
PROGRAMS = (
    "djinn_fast",
    "djinn_exact",
    "eager",
    "compiled",
    "llama_cpp",
    "openvino",
    "onnxruntime",
)
TITLES = {
    "qwen_bfloat16": "0.5B, bf16",
    "qwen_float32": "0.5B, fp32",
    "qwen_int8": "0.5B, int8",
    "gpt2_bfloat16": "GPT-2, bf16",
    "gpt2_float32": "GPT-2, fp32",
}


def has_matplotlib(python: Path) -> bool:
    find = "import importlib.util as u, sys; sys.exit(u.find_spec('matplotlib') is None)"
    return python.exists() and subprocess.run([python, "-c", find]).returncode == 0


@pytest.fixture(scope="module")
def python() -> Path:
    for one in PYTHONS:
        if has_matplotlib(one):
            return one
    pytest.skip("there is no matplotlib: `./dev bench` installs it, and plots are not looked at")


def gaps_of(slow_ms: float) -> dict[str, Any]:
    """Beside a prompt of a second every token takes three times as long as alone."""
    alone = [[0.03 * token, 30.0] for token in range(20)]
    beside = [[0.09 * token, slow_ms] for token in range(12)]
    return {
        "run_name": "",
        "real_time": 1e6,
        "worst_gap_ms": slow_ms,
        "worst_gap_units": slow_ms / 30,
        "tokens": beside,
        "tokens_alone": alone,
    }


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """As `./dev bench` leaves them. Two programs of each model are as quick as each other."""
    quick = [1.0, 2.2, 2.5, 2.4, 1.26, 1.26, 11.5]
    measured: dict[str, dict[str, float]] = {
        f"peers/{model}": {
            f"{program}_of_floor": times for program, times in zip(PROGRAMS, quick, strict=True)
        }
        for model in TITLES
    }
    measured |= {f"together/processes_{count}": {"of_one": count * 0.8} for count in (2, 4, 8)}
    runs = []
    for name, slow_ms in (("beside/prompt_fast", 90.0), ("beside/prompt_exact", 260.0)):
        measured[name] = {"real_time": 1.0}
        runs.append({**gaps_of(slow_ms), "run_name": name})
    (tmp_path / "measured.json").write_text(json.dumps(measured))
    (tmp_path / "beside_bench.py.json").write_text(json.dumps({"benchmarks": runs}))
    return tmp_path


def look(python: Path, results: Path, *scale: str) -> dict[str, Any]:
    words = [python, LOOK, PLOT, results, *scale]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_each_plot_is_written_as_svg_and_png(python: Path, results: Path) -> None:
    done = subprocess.run([python, PLOT, results], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    drawn = {Path(line.removeprefix("drawn: ")) for line in done.stdout.splitlines()}
    names = [f"{name}.{kind}" for name in ("decode", "together", "gaps") for kind in ("svg", "png")]
    assert drawn == {results / name for name in names}
    for path in drawn:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(PNG)
        else:
            assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_what_was_not_measured_is_not_drawn(python: Path, tmp_path: Path) -> None:
    (tmp_path / "measured.json").write_text(json.dumps({"ring_round_trip": {"real_time": 1.0}}))
    done = subprocess.run([python, PLOT, tmp_path], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_plots_say_what_they_show(python: Path, results: Path) -> None:
    found = look(python, results)
    decode, together, gaps = found["decode"], found["together"], found["gaps"]
    assert decode["titles"] == list(TITLES.values())
    assert "a token's time, of reading the weights once" in decode["along"]
    assert decode["texts"].count("llama.cpp") == len(TITLES)
    assert decode["texts"].count("11.50") == len(TITLES), "each bar says its figure"
    assert together["along"][0] == "processes that generate at once, with one model"
    assert together["up"] == ["tokens a second of all, of one alone"]
    assert gaps["titles"][:2] == ["alone", "beside another's prompt of 1,024 tokens"]
    assert [one for one in gaps["up"] if one] == [
        "fast: ms between tokens",
        "exact: ms between tokens",
    ]
    assert gaps["along"][-1] == "seconds"


def test_no_text_meets_another_or_leaves_its_plot(python: Path, results: Path) -> None:
    for name, plot in look(python, results).items():
        assert (plot["meeting"], plot["outside"]) == ([], []), name


def test_texts_that_meet_are_seen(python: Path, results: Path) -> None:
    """Where plots are a third as large, and their texts as large as before."""
    for name, plot in look(python, results, "0.33").items():
        assert plot["meeting"], name
