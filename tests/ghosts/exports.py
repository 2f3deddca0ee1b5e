# SPDX-License-Identifier: Apache-2.0
"""Models that were exported, run without Python: by djinnctl, by C and by the package's Generator,
which are one library, beside transformers on the CPU and a ghost. All in one process, as those of
loads.py.

    exports.py REPORT SCRATCH HOST [NAME...]    runs them; writes {name: None or what went wrong}
    exports.py --record REPORT HOST MODEL...    why each is not exported, and what went wrong of any
"""

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import djinn
import loads
import torch
import zoo
from loads import Case, checkpoint, ghost, refusal
from long_runs import computing, in_time
from private_daemon import BIN, ROOT, THREADS, Daemon, running, wait_until
from transformers import PreTrainedModel

CASES: dict[str, Case] = {}
CAPTURES = ROOT / "tests" / "data" / "captures"
RECORD = ROOT / "docs" / "models.json"
RECORD_THEM = "--record"
# Rotary embeddings and tied weights; a table of positions and transposed weights; the builder's own
# architecture; a window, which 11 and more new tokens outgrow.
NAMES = ("qwen2", "gpt2", "llama", "gemma2")
PROMPTS = (1, 11, 20)
NEW_TOKENS = 24


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def exported(name: str, scratch: Path, **options: Any) -> Path:
    into = scratch / f"{name}-{'-'.join(map(str, options.values()))}.bundle"
    if not into.exists():
        djinn.export(str(checkpoint(name, scratch)), into, **options)
    return into


def said_here(model: PreTrainedModel, ids: torch.Tensor, **options: Any) -> list[int]:
    torch.manual_seed(5)
    plain = {"do_sample": False, "max_new_tokens": NEW_TOKENS, "pad_token_id": zoo.PAD}
    given = {"input_ids": ids.to(model.device), "attention_mask": torch.ones_like(ids)}
    made = model.generate(**given, **(plain | options))
    return made[0, ids.shape[1] :].tolist()


def said(
    bundle: Path,
    ids: torch.Tensor,
    numerics: str | None = None,
    weights: str | None = None,
    **options: Any,
) -> list[int]:
    with djinn.connect() as session:
        generator = djinn.Generator(session, bundle, numerics=numerics, weights=weights)
        return generator.generate(ids.tolist(), max_new_tokens=NEW_TOKENS, **options).tokens[0]


def ran(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def edit(bundle: Path, **values: Any) -> None:
    path = bundle / "djinn.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def greedy_tokens_are_the_local_model_s(name: str, scratch: Path, dtype: zoo.Dtype) -> None:
    bundle = exported(name, scratch, **zoo.in_dtype(dtype))
    one = zoo.load_local(checkpoint(name, scratch), zoo.entry(name), dtype)
    for length in PROMPTS:
        ids = zoo.words(1, length, stream=length)
        assert said(bundle, ids) == said_here(one, ids), (name, length)


@case
def greedy_tokens_are_the_local_model_s_in_float32(scratch: Path) -> None:
    for name in NAMES:
        greedy_tokens_are_the_local_model_s(name, scratch, "float32")


@case
def greedy_tokens_are_the_local_model_s_in_bfloat16(scratch: Path) -> None:
    """Which the load plan casts to."""
    for name in NAMES:
        greedy_tokens_are_the_local_model_s(name, scratch, "bfloat16")


@case
def greedy_tokens_are_the_local_model_s_of_other_architectures(scratch: Path) -> None:
    """Of a class for sound; with two constants alike."""
    for name in ("GlmAsrForConditionalGeneration", "MoshiForCausalLM"):
        greedy_tokens_are_the_local_model_s(name, scratch, "float32")


def why_not_exported(name: str, scratch: Path) -> str:
    """Empty where it is exported, and then says the same."""
    try:
        exported(name, scratch)
    except djinn.errors.RequestError as error:
        said = re.fullmatch(
            r"\w+ cannot be exported: (.*)\. What runs without Python .*", str(error)
        )
        assert said is not None, error
        return said[1]
    greedy_tokens_are_the_local_model_s(name, scratch, "float32")
    return ""


def every_architecture_that_has_captures(scratch: Path) -> None:
    """In the full tier: it is exported and says the same, or is refused as docs/MODELS.md says."""
    rows = json.loads(RECORD.read_text())["rows"]
    names = sorted(path.name.removesuffix(".decode.srg") for path in CAPTURES.glob("*.decode.srg"))
    found, wrong = why_not_exported_of(names, scratch)
    assert not wrong, wrong
    recorded = {name: rows[name].get("export") for name in names}
    assert found == recorded, {
        name: (why, recorded[name]) for name, why in found.items() if why != recorded[name]
    }


def why_not_exported_of(names: list[str], scratch: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Of each, or what went wrong, as when it says something else."""
    found, wrong = {}, {}
    for name in names:
        try:
            found[name] = why_not_exported(name, scratch)
        except Exception as error:
            wrong[name] = f"{type(error).__name__}: {error}"
        for path in (*scratch.glob(f"{name}-*.bundle"), scratch / name):
            shutil.rmtree(path)
    return found, wrong


def record(report: Path, host: str, *names: str) -> None:
    os.environ["DJINN_HOST"] = host
    torch.set_num_threads(THREADS)
    djinn.enable()
    with tempfile.TemporaryDirectory() as scratch:
        report.write_text(json.dumps(why_not_exported_of(list(names), Path(scratch))))


@case
def drawn_tokens_are_the_ghost_s(scratch: Path) -> None:
    ids = zoo.words(1, 11)
    for name in NAMES:
        options = {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "repetition_penalty": 1.1}
        model = ghost(name, checkpoint(name, scratch))
        expected = said_here(model, ids, do_sample=True, **options)
        assert said(exported(name, scratch), ids, seed=5, **options) == expected, name


@case
def fast_tokens_are_the_ghost_s(scratch: Path) -> None:
    """Whose steps are computed together with those of other sessions, and long prompts in parts."""
    with loads.instead(djinn.config, "numerics", "fast-only"):
        for name in NAMES:
            model, bundle = ghost(name, checkpoint(name, scratch)), exported(name, scratch)
            programs = json.loads((bundle / "djinn.json").read_text())["programs"]
            assert "extend" in [one["phase"] for one in programs], name
            for ids in (zoo.words(1, 11), zoo.words(1, 300)):
                expected = said_here(model, ids)
                assert djinn.explain(model)["fast_nodes"] > 0
                assert said(bundle, ids, "fast-only") == expected, name


@case
def int8_tokens_are_the_ghost_s(scratch: Path) -> None:
    """Of one model, which ghosts, bundles and what djinnctl loads share."""
    with loads.instead(djinn.config, "weights", "int8"):
        for name in NAMES:
            model = ghost(name, checkpoint(name, scratch))
            with loads.instead(djinn.config, "weights", None):
                bundle = exported(name, scratch)
            held = loads.status()["models"]
            for ids in (zoo.words(1, 11), zoo.words(1, 300)):
                expected = said_here(model, ids)
                assert djinn.explain(model)["weights"] == "int8"
                assert said(bundle, ids, weights="int8") == expected, name
            listed = ",".join(str(one) for one in ids[0].tolist())
            words = ("generate", str(bundle), "--tokens", listed, "--weights", "int8")
            shown = ran("djinnctl", *words, "--max-new-tokens", str(NEW_TOKENS))
            assert [int(one) for one in shown.stdout.split()] == expected, shown.stderr
            shown = ran("djinnctl", "load", "--no-pin", "--json", "--weights", "int8", str(bundle))
            assert json.loads(shown.stdout)["items"][0]["was_resident"], shown.stderr
            assert loads.status()["models"] == held, name


@case
def int8_that_cannot_be_computed_is_refused_by_name(scratch: Path) -> None:
    ids = zoo.words(1, 11)
    bundle = exported("qwen2", scratch)
    with refusal("int8", "fast"):
        said(bundle, ids, "exact", "int8")
    with refusal("no form of weights 'int4'", "int8", kind=djinn.Error):
        said(bundle, ids, weights="int4")
    other = scratch / "reads-a-matrix.bundle"
    shutil.copytree(bundle, other)
    programs = json.loads((bundle / "djinn.json").read_text())["programs"]
    for program in programs:
        text = program["text"]
        at = next(i for i, line in enumerate(text) if "q_proj.weight" in line)
        weight = re.findall(r"%\w+", text[at] + text[at + 1])[0]
        last = max(i for i, line in enumerate(text) if " = " in line)
        text.insert(last + 1, f"%doubled = aten::mul.Tensor({weight}, 2)")
    edit(other, programs=programs)
    assert said(other, ids) == said(bundle, ids)
    with refusal("aten::mul.Tensor", "reads the weight", "q_proj.weight, which is int8"):
        said(other, ids, weights="int8")


@case
def djinnctl_and_c_give_the_same_tokens(scratch: Path) -> None:
    ids = zoo.words(1, 11)
    listed = [str(one) for one in ids[0].tolist()]
    for name in NAMES:
        bundle = exported(name, scratch)
        expected = said(bundle, ids)
        words = ("generate", str(bundle), "--tokens", ",".join(listed))
        shown = ran("djinnctl", *words, "--max-new-tokens", str(NEW_TOKENS))
        assert [int(one) for one in shown.stdout.split()] == expected, shown.stderr
        shown = ran("gen", str(bundle), str(NEW_TOKENS), *listed)
        assert [int(one) for one in shown.stdout.split()] == expected, shown.stderr


@case
def it_computes_with_the_ghost_s_weights(scratch: Path) -> None:
    for name, options in (("qwen2", {}), ("llama", {"dtype": torch.bfloat16})):
        bundle = exported(name, scratch, **options)
        model = ghost(name, checkpoint(name, scratch), **options)
        said_here(model, zoo.words(1, 11))
        before = loads.status()
        with djinn.connect() as session:
            generator = djinn.Generator(session, bundle)
            assert generator.model.was_resident
            after = loads.status()
            assert after["models"] == before["models"]
            assert after["bytes_read"] == before["bytes_read"]
        shown = ran("djinnctl", "load", "--no-pin", "--json", str(bundle))
        assert json.loads(shown.stdout)["items"][0]["was_resident"], shown.stderr


@case
def a_model_s_own_directory_may_be_moved_with_its_bundle(scratch: Path) -> None:
    home, moved = scratch / "own-home", scratch / "moved"
    shutil.copytree(checkpoint("qwen2", scratch), home)
    done = subprocess.run(
        [sys.executable, "-m", "djinn", "export", str(home)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.strip() == str(home / "djinn.json"), done.stderr
    ids = zoo.words(1, 11)
    expected = said(home, ids)
    home.rename(moved)
    assert said(moved, ids) == expected


@case
def the_tokenizer_s_files_come_along(scratch: Path) -> None:
    home, into = scratch / "with-tokenizer", scratch / "with-tokenizer.bundle"
    shutil.copytree(checkpoint("qwen2", scratch), home)
    (home / "tokenizer.json").write_text("{}")
    djinn.export(str(home), into)
    assert (into / "tokenizer.json").read_text() == "{}"
    shown = ran("djinnctl", "generate", str(into), "--prompt", "x")
    assert shown.returncode == 10
    assert "--tokens" in shown.stderr


@case
def what_is_no_program_from_its_prompt_on_is_refused(scratch: Path) -> None:
    for name in ("t5", "mamba"):
        model = ghost(name, checkpoint(name, scratch))
        with refusal("cannot be exported", "tier 2"):
            djinn.export(model, scratch / "refused")
    model = ghost("qwen2", checkpoint("qwen2", scratch))
    with refusal("it is no ghost"):
        djinn.export(model.to("cpu"), scratch / "refused")
    assert not (scratch / "refused").exists()


@case
def several_rows_are_each_what_it_is_alone(scratch: Path) -> None:
    """Whether padding would change it or not; and draws go on from row to row."""
    prompts = [zoo.words(1, length, stream=length)[0].tolist() for length in (11, 1, 20)]
    with djinn.connect() as session:
        for numerics in ("exact", "fast"):
            for name in ("qwen2", "gemma2"):
                bundle = exported(name, scratch)
                generator = djinn.Generator(session, bundle, numerics=numerics)
                alone = [generator.generate([one], max_new_tokens=7).tokens[0] for one in prompts]
                told: list[djinn.Token] = []
                made = generator.generate(prompts, max_new_tokens=7, on_token=told.append)
                assert made.tokens == alone, (name, numerics)
                by_row = told if numerics == "exact" else sorted(told, key=lambda one: one.row)
                assert [(one.row, one.index, one.token) for one in by_row] == [
                    (row, index, token)
                    for row, tokens in enumerate(alone)
                    for index, token in enumerate(tokens)
                ]
                words = [word for one in prompts for word in ("--tokens", ",".join(map(str, one)))]
                shown = ran(
                    *("djinnctl", "generate", str(bundle), "--numerics", numerics),
                    *("--max-new-tokens", "7", *words),
                )
                lines = [list(map(int, line.split())) for line in shown.stdout.splitlines()]
                assert lines == alone, shown.stderr
                drawn: dict[str, Any] = {"temperature": 1.0, "seed": 7, "max_new_tokens": 7}
                twice = generator.generate([prompts[0]] * 2, **drawn)
                first = generator.generate([prompts[0]], **drawn)
                after = {"random_offset": first.random_offset}
                second = generator.generate([prompts[0]], **drawn, **after)
                assert twice.tokens == [first.tokens[0], second.tokens[0]]
                assert twice.random_offset == second.random_offset
                assert first.tokens != second.tokens


@case
def fast_rows_are_generated_at_the_same_time(scratch: Path) -> None:
    """More of them than there are seats; all their sessions end with the call."""
    bundle = exported("qwen2", scratch)
    prompts = [zoo.words(1, 2 + row % 5, stream=row)[0].tolist() for row in range(11)]
    with running() as daemon, daemon.connect("rows") as session:
        generator = djinn.Generator(session, bundle, numerics="fast")
        options: dict[str, Any] = {"max_new_tokens": 40, "stop_tokens": []}
        alone = [generator.generate([one], **options).tokens[0] for one in prompts]
        told: list[djinn.Token] = []
        at_once: set[int] = set()

        def ours() -> int:
            return sum(one["name"] == "rows" for one in daemon.observer.sessions())

        def hear(token: djinn.Token) -> None:
            told.append(token)
            at_once.add(ours())

        assert generator.generate(prompts, on_token=hear, **options).tokens == alone
        assert 1 < max(at_once) <= 8, at_once
        for row, tokens in enumerate(alone):
            assert [one.token for one in told if one.row == row] == tokens
        wait_until(lambda: ours() == 1, "the rows' sessions end")

        few: list[djinn.Token] = []

        def give_up(token: djinn.Token) -> bool:
            few.append(token)
            return len(few) < 20

        ended = generator.generate(prompts, on_token=give_up, **options)
        assert len(few) == 20 == sum(map(len, ended.tokens))
        assert not ended.errors
        assert generator.generate(prompts[:2], **options).tokens == alone[:2]


def cancelling(daemon: Daemon, session: djinn.Session) -> Callable[[djinn.Token], None]:
    """Of three rows the second's run, or where each has a session of its own, that of one of
    these."""

    def hear(token: djinn.Token) -> None:
        if (token.row, token.index) != (1, 2):
            return
        ours = [one["id"] for one in daemon.observer.sessions() if one["name"] == "rows"]
        others = [one for one in ours if one != session.id]
        shown = ran("djinnctl", "--host", daemon.host, "cancel", (others or ours)[0])
        nothing_to_cancel = 4  # the run was faster
        assert shown.returncode in (0, nothing_to_cancel), shown.stderr

    return hear


def failing(generator: djinn.Generator, *arguments: Any, **options: Any) -> djinn.LostError:
    """A run that is to be cancelled may end before: then the next one is."""
    for _ in range(20):
        try:
            generator.generate(*arguments, **options)
        except djinn.LostError as error:
            return error
    raise AssertionError("no row has failed")


@case
def what_rows_said_is_in_the_error_of_one_that_failed(scratch: Path) -> None:
    """In turn, where the rows behind it are not begun, and at the same time, where all others end
    as they do alone."""
    bundle = exported("qwen2", scratch)
    prompts = [[5, 9, 17], [3, 44], [8]]
    # So many that the run goes on while it is cancelled.
    options: dict[str, Any] = {"max_new_tokens": 1000, "stop_tokens": []}
    for numerics in ("exact", "fast"):
        with running() as daemon, daemon.connect("rows") as session:
            generator = djinn.Generator(session, bundle, numerics=numerics)
            alone = [generator.generate([one], **options).tokens[0] for one in prompts]

            hear = cancelling(daemon, session)
            error = failing(generator, prompts, on_token=hear, **options)
            assert error.code == "cancelled"
            made = error.generated
            assert made is not None
            failed = [row for row, why in enumerate(made.errors) if why is not None]
            assert f"Row {failed[0] + 1} of 3: " in str(error)
            for row, (tokens, why) in enumerate(zip(made.tokens, made.errors, strict=True)):
                if why is None:
                    assert tokens == alone[row]
                else:
                    assert isinstance(why, djinn.LostError)
                    assert tokens == alone[row][: len(tokens)]
                    assert len(tokens) < len(alone[row])
            if numerics == "exact":
                assert failed == [1, 2]
                assert "It was not begun, for row 2 before it failed." in str(made.errors[2])
                assert not made.tokens[2]
            else:
                assert len(failed) == 1


class Alarm(Exception):
    """What a signal's handler raises."""


def ring(_number: int, _frame: FrameType | None) -> None:
    raise Alarm


@case
def rows_at_the_same_time_end_together_when_the_call_is_interrupted(scratch: Path) -> None:
    """Beside a worker that stands still, where a row alone is waited for for two seconds."""
    rows = [[5 + row, 9] for row in range(8)]
    before = signal.signal(signal.SIGALRM, ring)
    try:
        with running() as daemon, daemon.connect("rows") as session:
            generator = djinn.Generator(session, exported("qwen2", scratch), numerics="fast")
            pid = session.status()["workers"][0]["pid"]
            began: set[int] = set()
            stopped_at: list[float] = []

            def hear(token: djinn.Token) -> None:
                began.add(token.row)
                if len(began) == len(rows) and not stopped_at:
                    stopped_at.append(time.monotonic())
                    os.kill(pid, signal.SIGSTOP)
                    signal.setitimer(signal.ITIMER_REAL, 0.2)

            try:
                generator.generate(rows, max_new_tokens=1000, stop_tokens=[], on_token=hear)
                raise AssertionError("nothing ended it")
            except Alarm:
                waited_s = time.monotonic() - stopped_at[0]
            finally:
                os.kill(pid, signal.SIGCONT)
            assert len(began) == len(rows)
            assert waited_s < 8, "rows were waited for one after another"
            made = generator.generate(rows, max_new_tokens=3, stop_tokens=[])
            assert [len(tokens) for tokens in made.tokens] == [3] * len(rows)
    finally:
        signal.signal(signal.SIGALRM, before)


@case
def only_the_first_of_several_rows_is_to_begin_in_time(scratch: Path) -> None:
    """When it has been told the call has begun, whoever else may come to compute then."""
    bundle = exported("qwen2", scratch)
    rows, most = [[5, 9, 17], [3, 44]], 7
    with (
        running("--policy", "fifo") as daemon,
        daemon.connect("rows", begin_within=0.05) as session,
    ):
        generator = djinn.Generator(session, bundle)
        options: dict[str, Any] = {"max_new_tokens": most, "stop_tokens": []}
        expected = []
        for row in rows:
            alone = in_time(functools.partial(generator.generate, [row], **options))
            expected += alone.tokens

        def generate() -> list[list[int]]:
            told: list[djinn.Token] = []
            with ExitStack() as others:

                def hear(token: djinn.Token) -> None:
                    told.append(token)
                    if (token.row, token.index) == (0, most - 1):
                        others.enter_context(computing(daemon))

                try:
                    return generator.generate(rows, on_token=hear, **options).tokens
                except djinn.LimitError:
                    assert not told, "it was refused behind tokens"
                    raise

        assert in_time(generate) == expected


@case
def rows_that_are_not_padded_need_no_token_for_it(scratch: Path) -> None:
    rows = [[5, 9, 17], [3, 44]]
    with djinn.connect() as session:
        generator = djinn.Generator(session, exported("qwen2", scratch))
        made = generator.generate(rows, max_new_tokens=3, pad_token=-1)
        assert made.tokens == generator.generate(rows, max_new_tokens=3).tokens
        padded = djinn.Generator(session, checkpoint("llama", scratch))
        with refusal("pad_token"):
            padded.generate(rows, max_new_tokens=3, pad_token=-1)


@case
def a_small_weight_that_was_written_goes_along(scratch: Path) -> None:
    model = ghost("qwen2", checkpoint("qwen2", scratch))
    with torch.no_grad():
        model.model.norm.weight[::2] *= -3
    ids = zoo.words(1, 11)
    expected = said_here(model, ids)
    djinn.export(model, scratch / "written.bundle")
    assert said(scratch / "written.bundle", ids) == expected
    assert said(exported("qwen2", scratch), ids) != expected


@case
def a_bundle_that_does_not_fit_is_refused(scratch: Path) -> None:
    ids = zoo.words(1, 11)
    bundle = exported("qwen2", scratch)

    def copy(**values: Any) -> Path:
        into = scratch / "unfit.bundle"
        shutil.rmtree(into, ignore_errors=True)
        shutil.copytree(bundle, into)
        edit(into, **values)
        return into

    with refusal("version 2", "Export the model again"):
        said(copy(version=2), ids)
    with refusal("There is no /nonexistent/model.safetensors", kind=djinn.HandleError):
        said(copy(files=["/nonexistent/model.safetensors"]), ids)
    with refusal("'positions' is missing or wrong"):
        said(copy(positions=-1), ids)
    with refusal("a program has no text of one"):
        said(copy(programs=[{"phase": "decode", "from": 0, "inputs": {}, "text": ["srg 9"]}]), ids)
    other = scratch / "other" / "model.safetensors"
    other.parent.mkdir()
    shutil.copyfile(checkpoint("llama", scratch) / "model.safetensors", other)
    with refusal("have changed since it was exported", kind=djinn.Error):
        said(copy(files=[str(other)]), ids)
    shutil.copyfile(checkpoint("llama", scratch) / "config.json", other.parent / "config.json")
    with refusal("config.json has changed", kind=djinn.Error):
        said(copy(files=[str(other)]), ids)
    (copy() / "djinn.json").write_text("no JSON")
    with refusal("is not a bundle"):
        said(scratch / "unfit.bundle", ids)


@case
def a_bundle_says_what_it_does_not_do(scratch: Path) -> None:
    bundle = exported("qwen2", scratch)
    with djinn.connect() as session:
        generator = djinn.Generator(session, bundle)
        with refusal("1 to 32 prompts"):
            generator.generate([[5, 6]] * 33)
        with refusal("positions"):
            generator.generate([[5] * generator.positions])
        try:
            generator.source("decode")
        except ValueError as error:
            assert "djinn.json" in str(error)
        else:
            raise AssertionError("it has no source of a builder's")


FULL = {"every_architecture_that_has_captures": every_architecture_that_has_captures}

if __name__ == "__main__":
    if sys.argv[1] == RECORD_THEM:
        record(Path(sys.argv[2]), *sys.argv[3:])
    else:
        report, scratch, host, *names = sys.argv[1:]
        loads.main(Path(report), Path(scratch), host, names or list(CASES), CASES | FULL)
