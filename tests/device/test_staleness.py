# SPDX-License-Identifier: Apache-2.0
"""A call that was replayed sees every change of its model: the next has the bits of the CPU."""

import copy
import gc
import json
import pickle
import subprocess
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import djinn
import llama
import pytest
import torch
import transformers
from djinn.torch import _device, replay, state
from private_daemon import BIN, Daemon
from torch.nn.attention import SDPBackend, sdpa_kernel

VOCABULARY = llama.VOCABULARY
IDS = torch.tensor([[5, 9, 17, 3, 44, 8, 11, 23]])
DEVICE = "remote_accelerator"


pytestmark = pytest.mark.usefixtures("enabled")


@pytest.fixture
def local(checkpoint: Path) -> Any:
    """That a test may change."""
    return llama.local(checkpoint)


def logits(model: Any, ids: torch.Tensor = IDS) -> torch.Tensor:
    return model(input_ids=ids.to(model.device), use_cache=False).logits.cpu()


def tokens(model: Any) -> torch.Tensor:
    options = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    return model.generate(IDS.to(model.device), **options).cpu()


def warm(model: Any) -> None:
    for _ in range(2):
        logits(model)
    assert djinn.explain(model)["tier"] == 1, djinn.explain(model)
    for _ in range(2):
        tokens(model)
    assert djinn.explain(model)["tier"] == 2, djinn.explain(model)
    logits(model)
    assert djinn.explain(model)["tier"] == 1, "a generation drops nothing"


@dataclass
class Scale:
    by: float = 2.0


class Slotted:
    __slots__ = ("by",)

    def __init__(self) -> None:
        self.by = 2.0


class Scaled(torch.nn.Module):
    """An MLP times what it finds in five places."""

    def __init__(self, inner: torch.nn.Module, device: torch.device) -> None:
        super().__init__()
        self.inner = inner
        self.tensor = torch.tensor(1.5, device=device)
        self.held = [Scale(), {"by": 1.0}]
        self.slotted = Slotted()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        by = self.held[0].by * self.held[1]["by"] * self.slotted.by
        return self.inner(x) * self.tensor * by


def scale(model: Any) -> None:
    layer = model.model.layers[0]
    layer.mlp = Scaled(layer.mlp, model.device)


def mlp(model: Any) -> Any:
    return model.model.layers[0].mlp


def patch(module: Any) -> None:
    before = module.forward
    module.forward = lambda x: before(x) * 3.0


def negate_logits(model: Any) -> None:
    before = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        output = before(*args, **kwargs)
        output.logits = -output.logits
        return output

    model.forward = forward


def replace_activation(model: Any) -> None:
    for layer in model.model.layers:
        layer.mlp.act_fn = torch.nn.ReLU()


WRITES: dict[str, Callable[[Any], Any]] = {
    "data.mul_": lambda model: model.lm_head.weight.data.mul_(-2),
    "data.zero_": lambda model: mlp(model).down_proj.weight.data.zero_(),
    "data.copy_": lambda model: model.lm_head.weight.data.copy_(
        torch.linspace(-1, 1, VOCABULARY * 32).view(VOCABULARY, 32)
    ),
    "copy_": lambda model: model.lm_head.weight.copy_(torch.ones(VOCABULARY, 32).cumsum(0) / 9),
    "another data": lambda model: setattr(
        model.lm_head.weight, "data", -model.lm_head.weight.data.clone()
    ),
    "another module": replace_activation,
    "the forward of a module": lambda model: patch(mlp(model)),
    "the model's own forward": negate_logits,
    "a number of its configuration": lambda model: setattr(
        model.model.layers[1].input_layernorm, "variance_epsilon", 3.0
    ),
    "its attention": lambda model: model.set_attn_implementation("eager"),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_a_change_is_seen_by_the_next_forward_and_generation(
    local: Any, ghost: Any, write: Callable[[Any], Any]
) -> None:
    warm(ghost)
    for model in (local, ghost):
        with torch.no_grad():
            write(model)
    assert torch.equal(logits(ghost), logits(local))
    assert torch.equal(tokens(ghost), tokens(local))


def test_a_weight_that_is_written_again_is_seen_again(local: Any, ghost: Any) -> None:
    for factor in (2.0, -0.5, 3.0):
        warm(ghost)
        for model in (local, ghost):
            model.lm_head.weight.data.mul_(factor)
        assert torch.equal(logits(ghost), logits(local)), factor


CHANGES: dict[str, Callable[[Any], Any]] = {
    "written": lambda one: one.tensor.fill_(5.0),
    "replaced": lambda one: setattr(one, "tensor", torch.tensor(-3.0, device=one.tensor.device)),
    "a dataclass": lambda one: setattr(one.held[0], "by", 7.0),
    "a dictionary in a list": lambda one: one.held[1].update(by=-1.0),
    "a slot": lambda one: setattr(one.slotted, "by", 0.25),
    "an item": lambda one: one.held.__setitem__(0, Scale(9.0)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_a_module_holds_beside_parameters_is_seen(
    local: Any, ghost: Any, change: Callable[[Any], Any]
) -> None:
    for model in (local, ghost):
        scale(model)
    warm(ghost)
    for model in (local, ghost):
        change(mlp(model))
    assert torch.equal(logits(ghost), logits(local))
    assert torch.equal(tokens(ghost), tokens(local))


def test_a_patched_class_is_seen_and_so_is_its_repair(
    local: Any, ghost: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm(ghost)
    before, kind = logits(local), type(mlp(local))
    original = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, x: original(self, x) * 3.0)
    warm(ghost)
    patched = logits(ghost)
    assert torch.equal(patched, logits(local)) and not torch.equal(patched, before)
    monkeypatch.undo()
    assert torch.equal(logits(ghost), before)


def test_the_attention_of_one_part_is_seen() -> None:
    part = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    config = transformers.CLIPTextConfig(vocab_size=VOCABULARY, eos_token_id=1, **part)
    model = transformers.CLIPTextModel(config).eval().requires_grad_(False)
    ghost = copy.deepcopy(model).to(djinn.device(0))
    kwargs = {"input_ids": IDS}
    for _ in range(3):
        ghost(input_ids=IDS.to(ghost.device))
    for one in (model, ghost):
        one.set_attn_implementation("eager")
    expected = model(**kwargs).last_hidden_state
    assert torch.equal(ghost(input_ids=IDS.to(ghost.device)).last_hidden_state.cpu(), expected)


# --- what is around a call ------------------------------------------------------------------------


@contextmanager
def autocast() -> Iterator[None]:
    with torch.autocast("cpu", torch.bfloat16), torch.autocast(DEVICE, torch.bfloat16):
        yield


AROUND: dict[str, Callable[[], Any]] = {
    "autocast": autocast,
    "math": lambda: sdpa_kernel(SDPBackend.MATH),
    "flash": lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION),
    "inference": torch.inference_mode,
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND.keys())
@pytest.mark.parametrize("inside_first", [False, True])
def test_programs_hold_for_what_was_around_their_capture(
    local: Any, ghost: Any, around: Callable[[], Any], inside_first: bool
) -> None:
    for here in [nullcontext, around, nullcontext, around][inside_first:]:
        with here():
            expected, generated = logits(local), tokens(local)
            for _ in range(3):
                found = logits(ghost)
                assert found.dtype == expected.dtype and torch.equal(found, expected)
            assert djinn.explain(ghost)["tier"] == 1, djinn.explain(ghost)
            assert torch.equal(tokens(ghost), generated)


def test_attention_that_is_switched_off_altogether_is_refused_as_on_the_cpu(
    local: Any, ghost: Any
) -> None:
    for model in (local, ghost):
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION), pytest.raises(RuntimeError):
            logits(model)


def test_weights_that_want_gradients_leave_nothing_of_a_capture_in_the_cache_of_autocast(
    local: Any, ghost: Any
) -> None:
    ghost.requires_grad_(True)
    with autocast(), torch.no_grad():
        expected = logits(local)
        for _ in range(4):
            assert torch.equal(logits(ghost), expected)
    assert djinn.explain(ghost)["tier"] == 1, djinn.explain(ghost)


def test_a_mode_sees_every_operator_of_a_call_that_was_replayed(ghost: Any) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen += 1
            return f(*args, **(kwargs or {}))

    warm(ghost)
    with Count() as mode:
        logits(ghost)
    assert mode.seen > 20 and djinn.explain(ghost)["tier"] == 0


# --- what it costs --------------------------------------------------------------------------------


def test_an_unchanged_model_is_walked_once(ghost: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    warm(ghost)
    monkeypatch.setattr(state, "_look_anew", lambda *_: pytest.fail("it was walked again"))
    for _ in range(3):
        logits(ghost)


def test_a_number_that_is_set_anew_to_what_it_was_drops_nothing(ghost: Any) -> None:
    warm(ghost)
    norm = ghost.model.norm
    norm.variance_epsilon = float(repr(norm.variance_epsilon))
    ghost.config.hidden_size = int("32")
    logits(ghost)
    assert djinn.explain(ghost)["tier"] == 1


def test_a_watched_model_goes_with_its_last_name(checkpoint: Path) -> None:
    ghost = transformers.AutoModelForCausalLM.from_pretrained(checkpoint).eval()
    warm(ghost)
    gone = weakref.ref(ghost), weakref.ref(ghost.lm_head.weight)
    gc.disable()
    try:
        del ghost
        assert [one() for one in gone] == [None, None]
    finally:
        gc.enable()


def test_a_model_whose_capture_was_refused_goes_with_its_last_name(checkpoint: Path) -> None:
    ghost = transformers.AutoModelForCausalLM.from_pretrained(checkpoint).eval()
    with autocast():  # its keys are of another dtype than its values
        for _ in range(2):
            tokens(ghost)
            assert djinn.explain(ghost)["tier"] == 0
    gone = weakref.ref(ghost)
    del ghost
    gc.collect()
    assert gone() is None


def test_copies_and_pickles_have_nothing_of_the_watch(ghost: Any) -> None:
    warm(ghost)
    watch = ghost.__dict__[state.WATCH]
    assert copy.deepcopy(watch) is None and pickle.loads(pickle.dumps(watch)) is None
    other = copy.copy(ghost)
    assert torch.equal(logits(other), logits(ghost))
    assert copy.deepcopy(ghost).__dict__[state.WATCH] is None


def test_programs_of_a_model_are_bounded_and_the_oldest_goes_first(
    ghost: Any, local: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "PROGRAMS_MAX", 3)

    def tier(length: int) -> int:
        assert torch.equal(logits(ghost, IDS[:, :length]), logits(local, IDS[:, :length]))
        return int(djinn.explain(ghost)["tier"])

    assert [tier(n) for n in (3, 3, 4, 4, 5, 5)] == [0, 1, 0, 1, 0, 1]
    assert tier(3) == 1  # used again: 4 is the oldest now
    assert [tier(n) for n in (6, 6)] == [0, 1]
    assert [tier(n) for n in (3, 5, 6)] == [1, 1, 1]
    assert tier(4) == 0


def test_a_forward_is_recorded_when_djinnd_takes_no_more_programs(
    ghost: Any, local: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise RuntimeError("All programs that may be kept are in use.")

    monkeypatch.setattr(replay._device, "make_template", full)
    for _ in range(3):
        assert torch.equal(logits(ghost), logits(local))
    why = djinn.explain(ghost)
    assert why["tier"] == 0 and "programs that may be kept" in why["why"]


def programs(daemon: Daemon) -> dict[str, int]:
    """How many sessions use each program."""
    words = [str(BIN / "djinnctl"), "-H", daemon.host, "--json", "programs"]
    listed = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return {one["id"]: one["sessions"] for one in listed["items"]}


def test_the_programs_of_a_model_are_unused_once_it_is_gone(
    checkpoint: Path, device_daemon: Daemon
) -> None:
    before = programs(device_daemon)
    ghost = transformers.AutoModelForCausalLM.from_pretrained(checkpoint).eval()
    for name, layer in enumerate(ghost.model.layers):  # programs that no other test defines
        layer.input_layernorm.variance_epsilon = 0.125 + name
    warm(ghost)
    made = programs(device_daemon).keys() - before.keys()
    assert len(made) == 3, "a forward, and two of a generation"
    del ghost, layer
    gc.collect()
    _device.flush()
    after = programs(device_daemon)
    assert [after.get(one, 0) for one in made] == [0, 0, 0]
