# SPDX-License-Identifier: Apache-2.0
"""The programs of the zoo's ghosts as SRG text: tests/data/captures and tests/data/forwards.

    captures.written(name, daemon, scratch)     the files of one entry whose loop runs in djinnd;
                                                none: why it has no programs
    captures.forward_written(...)               likewise, of one of FORWARDS: a whole forward pass
    captures.training_written(...)              likewise, of one of TRAININGS: a loss with all its
                                                gradients, NAME.training.srg

Each entry is one model in bfloat16, which has all the casts that a forward may have, one row and no
padding: what the prompt runs (NAME.prefill.srg), and what each token after it (NAME.decode.srg). A
prompt that the model's own Python computes, with an encoder, an image, sound or by code that is no
one program, is handed over by NAME.adoption.srg instead.
Sliding windows are wider than the zoo has them: a loop runs in djinnd where all of it fits in one.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import children
import compare
import torch
import zoo
from private_daemon import ROOT, Daemon

CAPTURES = ROOT / "tests" / "data" / "captures"
FORWARD_PASSES = ROOT / "tests" / "data" / "forwards"
FORWARDS = (
    *("bert", "electra", "vit", "resnet", "convnext", "wav2vec2", "clip", "siglip"),
    *("ViTForMaskedImageModeling", "Swin2SRForImageSuperResolution", "VitMatteForImageMatting"),
)
TRAININGS = ("gpt2", "vit")
DTYPE: zoo.Dtype = "bfloat16"
NEW_TOKENS = 4
WINDOW, WINDOWS = 64, ("sliding_window", "attention_chunk_size")
LIMIT_S = 300.0


def names() -> list[str]:
    """Of the entries that may have such programs."""
    return [one.name for one in zoo.ENTRIES if one.generates]


def forward_written(name: str, daemon: Daemon, scratch: Path) -> str:
    """As written(), of a whole forward pass in float32."""
    return _by_a_fork(_write_forward, name, daemon, scratch)


def _write_forward(name: str, daemon: Daemon, scratch: Path, report: Path) -> None:
    os.environ["DJINN_HOST"] = daemon.host
    djinn = compare.import_torch_device()
    djinn.enable()
    told_of = _told_texts(in_loop=False)
    entry = zoo.entry(name)
    directory = scratch / f"{name}.model"
    zoo.make_checkpoint(name, directory)
    model = zoo.load(directory, entry)
    inputs = entry.forward_inputs(model.config, "single")
    there = {key: one.to(model.device) for key, one in inputs.items()}
    with torch.no_grad():
        for _ in range(3):
            model(**there)
    told = djinn.explain(model)
    if told["tier"] != 1:
        report.write_text(told["why"])
        return
    (FORWARD_PASSES / f"{name}.srg").write_text(told_of[0].text)
    report.write_text("")


def training_written(name: str, daemon: Daemon, scratch: Path) -> str:
    """As written(), of the forward and the backward pass of one step in float32."""
    return _by_a_fork(_write_training, name, daemon, scratch)


def _write_training(name: str, daemon: Daemon, scratch: Path, report: Path) -> None:
    os.environ["DJINN_HOST"] = daemon.host
    djinn = compare.import_torch_device()
    djinn.enable()
    from djinn.torch import _device, state

    entry = zoo.entry(name)
    directory = scratch / f"{name}.model"
    zoo.make_checkpoint(name, directory)
    model = zoo.load(directory, entry).requires_grad_(True)
    inputs = entry.forward_inputs(model.config, "one")
    there = {key: one.to(model.device) for key, one in inputs.items()}
    labels = torch.ones(1, dtype=torch.int64, device=model.device)
    # An autograd engine of another thread would not be captured.
    with state.capturing(model), torch.autograd.set_multithreading_enabled(False):
        given = {key: _device.capture_given(i, one) for i, (key, one) in enumerate(there.items())}
        loss = model.forward(**given, labels=given.get("input_ids", labels)).loss
        gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        made = [loss.detach(), *(one for one in gradients if one is not None)]
        recording = _device.capture_finish(made, False)
    text = _device.graph_text([recording], [[]], [])
    (FORWARD_PASSES / f"{name}.training.srg").write_text(text)
    report.write_text("")


def written(name: str, daemon: Daemon, scratch: Path) -> str:
    """Empty where both files were written, else why they were not. Those of before are removed."""
    for old in CAPTURES.glob(f"{name}.*.srg"):
        old.unlink()
    return _by_a_fork(_write, name, daemon, scratch)


def _by_a_fork(
    write: Callable[[str, Daemon, Path, Path], None], name: str, daemon: Daemon, scratch: Path
) -> str:
    report = scratch / f"{name}.captured"
    report.write_text("nothing was captured")
    ended = children.forked(
        scratch / f"{name}.log", LIMIT_S, lambda: write(name, daemon, scratch, report)
    )
    return ended or report.read_text()


def _write(name: str, daemon: Daemon, scratch: Path, report: Path) -> None:
    os.environ["DJINN_HOST"] = daemon.host
    djinn = compare.import_torch_device()
    djinn.enable()
    told_of, loops = _told_texts(in_loop=True), _told_loops()
    entry = zoo.entry(name)
    directory = scratch / f"{name}.model"
    zoo.make_checkpoint(name, directory)
    _widen_windows(directory / "config.json")
    model = zoo.load(directory, entry, **zoo.in_dtype(DTYPE))
    inputs = compare.fitting(entry.inputs, model, "one")
    model.generate(**inputs, do_sample=False, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS)
    told = djinn.explain(model)
    if told["tier"] != 2:
        report.write_text(told["why"])
        return
    # Programs that it was refused with came before.
    for part, template in _parts(loops[-1]).items():
        (text,) = [one.text for one in told_of if one.template is template]
        (CAPTURES / f"{name}.{part}.srg").write_text(text)
    report.write_text("")


def _parts(loop: Any) -> dict[str, Any]:
    """Its programs, by what they are for."""
    assert loop.late is None, "it outgrows a window"
    prompt = "adoption" if loop.prefill.output is type(None) else "prefill"
    return {prompt: loop.prefill.template, "decode": loop.decode.template}


def _widen_windows(path: Path) -> None:
    def widened(config: dict[str, Any]) -> dict[str, Any]:
        return {key: WINDOW if key in WINDOWS and one else one for key, one in config.items()}

    path.write_text(json.dumps(json.loads(path.read_text(), object_hook=widened)))


class Told(NamedTuple):
    template: Any
    text: str


def _told_texts(in_loop: bool) -> list[Told]:
    """Grows by each program that is defined from now on: of a loop, or of none."""
    from djinn.torch import _device

    told: list[Told] = []
    make_template = _device.make_template

    def telling(recordings: Any, points: Any, symbols: Any, numerics: str | None) -> Any:
        template = make_template(recordings, points, symbols, numerics)
        if bool(symbols) == in_loop:
            told.append(Told(template, _device.graph_text(recordings, points, symbols)))
        return template

    _device.make_template = telling
    torch.set_num_threads(1)
    return told


def _told_loops() -> list[Any]:
    """Grows by the programs of each generation that begins from now on."""
    from djinn.torch.capture import Programs

    loops: list[Any] = []
    make = Programs.__init__

    def telling(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        loops.append(self)

    Programs.__init__ = telling
    return loops
