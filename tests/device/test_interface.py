# SPDX-License-Identifier: Apache-2.0
"""The published interface of Djinn, as it stands in its paper's examples."""

import copy
import pydoc
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import djinn
import forked
import pytest
import torch
import transformers
from private_daemon import Daemon
from twins import DEVICE, expect_equal

Stats = Callable[[], dict[str, Any]]


@pytest.fixture(scope="module")
def local() -> Any:
    config = transformers.BertConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=64,
    )
    torch.manual_seed(3)
    return transformers.BertModel(config).eval().requires_grad_(False)


def test_help_begins_with_what_a_program_calls() -> None:
    shown = pydoc.plain(pydoc.render_doc(djinn))
    for name in ("enable", "disable", "explain", "config", "device", "capture", "get_profiler"):
        assert re.search(rf"^ +{name}\b", shown[: shown.index("PACKAGE CONTENTS")], re.M), name


def test_a_misspelt_name_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(AttributeError, match=r"'keepalive'. Did you mean 'keep_alive'\?"):
        djinn.config.keepalive = 3
    with pytest.raises(AttributeError, match=r"'fallbak'. Did you mean 'fallback'\?"):
        _ = djinn.config.fallbak
    with pytest.raises(AttributeError, match=r"'enabel'. Did you mean 'enable'\?"):
        djinn.enabel()


def test_a_time_that_is_no_number_is_an_error_that_says_what_it_is() -> None:
    with pytest.raises(TypeError, match="keep_alive is a number of seconds"):
        djinn.config.keep_alive = "x"


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(784, 64)
        self.second = torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def test_a_model_that_was_moved_takes_inputs_of_the_cpu(local: Any, stats: Stats) -> None:
    model = copy.deepcopy(local).to(DEVICE)
    inputs = {"input_ids": torch.tensor([[1, 2, 3]])}
    expect_equal(local(**inputs).last_hidden_state, model(**inputs).last_hidden_state)
    assert stats()["mixed"] > 0, "the operands that crossed are counted"


def test_a_random_tensor_is_made_on_the_device() -> None:
    x = torch.randn(32, 784, device="remote_accelerator:0")
    assert x.device == djinn.device(0) and x.shape == (32, 784)
    assert 0.9 < x.std().item() < 1.1


def test_inside_of_capture_tensors_are_of_the_device() -> None:
    with djinn.capture():
        model = Mlp()
        x = torch.randn(32, 784)
        y = model(x)
    assert {p.device for p in model.parameters()} == {djinn.device(0)} == {x.device}
    found = y.cpu()
    here = copy.deepcopy(model).cpu()
    expect_equal(here(x.cpu()).detach(), found.detach())
    assert torch.ones(1).device.type == "cpu", "outside it is as before"


def test_a_chunk_that_is_pulled_crosses_alone(stats: Stats) -> None:
    x = torch.arange(1000 * 8, dtype=torch.float32).reshape(1000, 8).to(DEVICE) * 2
    chunks = x.split(300)
    assert torch.equal(chunks[0].cpu(), torch.arange(2400.0).reshape(300, 8) * 2)
    assert stats()["bytes_down"] == 300 * 8 * 4


def test_the_profiler_tells_times_and_the_share_of_known_shapes() -> None:
    profiler = djinn.get_profiler()
    profiler.reset()
    x = torch.ones(4, 4, device=DEVICE)
    for _ in range(10):
        x = x @ x
    x.cpu()
    told = profiler.get_stats()
    assert told["operators_recorded"] >= 10
    assert min(told["capture_ms"], told["schedule_ms"], told["execution_ms"]) > 0
    assert 0.5 < told["cache_hit_rate"] <= 1


def test_debug_levels_say_more_and_more(capfd: pytest.CaptureFixture[str]) -> None:
    said = []
    for level in ("off", "interception", "shape_inference", "execution"):
        djinn.set_debug_level(level)
        (torch.ones(2, 3, device=DEVICE) + 1).cpu()
        said.append(capfd.readouterr().err)
    djinn.set_debug_level("off")
    assert said[0] == ""
    assert "aten::add" in said[1] and "gives" not in said[1]
    assert "gives Float[2, 3]" in said[2] and "a run of" not in said[2]
    assert "a run of" in said[3]
    with pytest.raises(ValueError, match="one of off, interception"):
        djinn.set_debug_level("loud")  # type: ignore[arg-type]


# --- what is found by looking ---------------------------------------------------------------------


def test_the_names_that_need_pytorch_are_found_too() -> None:
    for name in ("config", "device", "disable", "enable", "explain", "connect", "Encoder"):
        assert name in dir(djinn) and getattr(djinn, name) is not None
    assert not {"importlib", "Any", "TYPE_CHECKING"} & set(dir(djinn))


def test_the_version_is_that_of_the_programs() -> None:
    shown = subprocess.run(["djinnctl", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["djinnctl", djinn.__version__]
    assert "__version__" in dir(djinn)


ASKED = """
import torch, djinn.torch

print(torch.remote_accelerator.is_available())
try:
    torch.remote_accelerator.memory_summary()
except RuntimeError as error:
    print(error)
"""


def test_whether_a_djinnd_answers_is_told(device_daemon: Daemon, tmp_path: Path) -> None:
    def asked(host: str) -> list[str]:
        return forked.run("-c", ASKED, DJINN_HOST=host).stdout.splitlines()

    assert asked(device_daemon.host) == ["True"]
    false, why = asked(f"unix:{tmp_path}/none.sock")
    assert false == "False"
    assert "No djinnd answers" in why


def test_the_settings_show_what_is_chosen() -> None:
    before = djinn.config.keep_alive
    djinn.config.keep_alive = 60
    try:
        assert "keep_alive=60" in repr(djinn.config) and "fallback='error'" in repr(djinn.config)
    finally:
        djinn.config.keep_alive = before


def test_what_is_no_model_has_nothing_to_explain() -> None:
    with pytest.raises(TypeError, match="given a model, or a pipeline that has one, not int"):
        djinn.explain(3)


def test_what_is_synchronized_is_done(device_daemon: Daemon) -> None:
    def steps() -> int:
        with device_daemon.connect("looks", observer=True) as session:
            return sum(one["steps"] for one in session.sessions() if one["name"] != "looks")

    x = torch.ones(1500, 1500, device=DEVICE)
    for synchronize in (torch.remote_accelerator.synchronize, torch.accelerator.synchronize):
        torch.remote_accelerator.synchronize()
        before = steps()
        kept = x @ x
        synchronize()
        assert steps() > before
        del kept
