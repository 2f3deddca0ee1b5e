# SPDX-License-Identifier: Apache-2.0
"""The unchanged from_pretrained: ghosts that equal local models, and what is refused.

The cases are in loads.py, and run in one process, because a process has one device.
"""

import json
import re
from pathlib import Path

import children
import djinn
import numpy
import pytest
from private_daemon import Daemon, running

pytest.importorskip("djinn.torch", exc_type=ImportError)

LIMIT_S = 240.0
GIB = 1 << 30
LARGE_BYTES = 2 * GIB
PEAK_MAX = 300 * 1024 * 1024
CASES = re.findall(r"^@case\ndef (\w+)", Path(__file__).with_name("loads.py").read_text(), re.M)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """Of every case that was reached."""
    scratch = tmp_path_factory.mktemp("loads")
    report, log = scratch / "report.json", scratch / "loads.log"
    with running() as daemon:
        arguments = (str(report), str(scratch), daemon.host)
        ended = children.python(log, LIMIT_S, "loads.py", *arguments)
        deaths = children.worker_restarts(daemon)
    found = json.loads(report.read_text()) if report.exists() else {}
    found["the process"] = ended or (f"the worker died {deaths} times" if deaths else None)
    return found


@pytest.mark.parametrize("name", ["the process", *CASES])
def test_that(outcomes: dict[str, str | None], name: str) -> None:
    assert outcomes.get(name, f"not reached: {outcomes['the process']}") is None, outcomes[name]


def test_importing_djinn_imports_no_torch(tmp_path: Path) -> None:
    script = tmp_path / "imports.py"
    script.write_text("import sys, djinn\nsys.exit('torch' in sys.modules)\n")
    assert children.python(tmp_path / "log", LIMIT_S, str(script)) is None
    assert not hasattr(djinn, "no_such_name")


def write_random_model(directory: Path, wanted: int) -> None:
    """A Llama of `wanted` bytes in bfloat16, from a block of noise that repeats, so that making it
    takes no memory either."""
    import torch
    import transformers
    from safetensors.torch import _TYPES

    config = transformers.LlamaConfig(
        **{"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 16},
        **{"num_hidden_layers": 1, "vocab_size": 8192, "tie_word_embeddings": False},
        dtype="bfloat16",
    )
    with torch.device("meta"):
        layer = transformers.LlamaForCausalLM(config).model.layers[0]
        config.num_hidden_layers = wanted // (2 * sum(p.numel() for p in layer.parameters())) + 1
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(directory)
    header: dict[str, dict[str, object]] = {}
    end = 0
    for name, tensor in model.state_dict().items():
        start, end = end, end + tensor.nbytes
        dtype = next(text for text, one in _TYPES.items() if one == tensor.dtype)
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    assert end >= wanted
    noise = numpy.random.default_rng(5).standard_normal(1 << 20, dtype=numpy.float32) * 0.02
    block = djinn.float32_to_bfloat16(noise).tobytes()
    text = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for at in range(0, end, len(block)):
            file.write(block[: end - at])


@pytest.mark.ci
def test_memory_of_the_client_does_not_depend_on_the_model(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_random_model(tmp_path, LARGE_BYTES)
    monkeypatch.setenv("DJINN_HOST", daemon.host)
    report = tmp_path / "report.json"
    arguments = ("--memory", str(report), str(tmp_path))
    assert children.python(tmp_path / "log", LIMIT_S, "loads.py", *arguments) is None
    found = json.loads(report.read_text())
    assert found["weights"] >= LARGE_BYTES and found["finite"]
    assert found["all"] < PEAK_MAX, found
