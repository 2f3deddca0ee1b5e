# SPDX-License-Identifier: Apache-2.0
"""Model directories that lie are refused by a clear error, at once; nothing of them is built."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import djinn
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

VOCABULARY = 64


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=40,
    )
    BertModel(config).save_pretrained(tmp_path)
    return tmp_path


def change(directory: Path, **values: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(djinn.Error) as caught:
        act()
    return str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_fifo_in_the_place_of_a_file_is_named_and_nobody_waits(
    session: djinn.Session, llama: Path, name: str
) -> None:
    (llama / name).unlink()
    os.mkfifo(llama / name)
    assert name in refused(lambda: djinn.Generator(session, llama))
    assert name in refused(lambda: session.load(llama))
    assert name in refused(lambda: session.load(llama / name))


@pytest.mark.parametrize(
    "values",
    [
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": 3},
        {"num_hidden_layers": 1},
        {"num_hidden_layers": 0},
        {"hidden_size": 0},
        {"hidden_size": 64},
        {"intermediate_size": 49},
        {"vocab_size": VOCABULARY + 1},
        {"vocab_size": 2**40},
        {"num_attention_heads": 8},
        {"num_key_value_heads": 4},
        {"head_dim": 16},
        {"max_position_embeddings": -1},
        {"max_position_embeddings": 0},
        {"rms_norm_eps": -1.0},
        {"rms_norm_eps": "1e-6"},
        {"attention_bias": "no"},
        {"hidden_act": 1},
        {"rope_parameters": [10000.0]},
        {"eos_token_id": "2"},
        {"eos_token_id": [2, None]},
        {"bos_token_id": {"id": 1}},
    ],
    ids=str,
)
def test_what_the_tensors_of_a_llama_or_its_code_contradict_is_refused(
    session: djinn.Session, llama: Path, values: dict[str, Any]
) -> None:
    djinn.Generator(session, llama)
    change(llama, **values)
    assert "config.json" in refused(lambda: djinn.Generator(session, llama))


@pytest.mark.parametrize(
    "values",
    [
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": 3},
        {"num_hidden_layers": 1},
        {"hidden_size": 64},
        {"vocab_size": VOCABULARY - 1},
        {"max_position_embeddings": 41},
        {"type_vocab_size": 3},
    ],
    ids=str,
)
def test_sizes_that_the_tensors_of_a_bert_have_not_are_refused(
    session: djinn.Session, bert: Path, values: dict[str, int]
) -> None:
    djinn.Encoder(session, bert)
    change(bert, **values)
    assert "config.json" in refused(lambda: djinn.Encoder(session, bert))


@pytest.mark.parametrize("token", [VOCABULARY, -1, 2**31 - 1, -(2**31)])
def test_a_token_outside_the_vocabulary_is_refused(
    session: djinn.Session, llama: Path, token: int
) -> None:
    generator = djinn.Generator(session, llama)
    assert str(token) in refused(lambda: generator.generate([[1, token]], max_new_tokens=2))
    assert "pad_token" in refused(
        lambda: generator.generate([[1], [1, 2]], max_new_tokens=2, pad_token=token)
    )
    last = VOCABULARY - 1
    assert generator.generate([[0, last], [1]], max_new_tokens=1, pad_token=last).tokens


def test_more_stop_tokens_than_a_run_knows_are_told_with_their_number(
    session: djinn.Session, llama: Path
) -> None:
    generator = djinn.Generator(session, llama)
    assert generator.generate([[1]], max_new_tokens=1, stop_tokens=list(range(16))).tokens
    message = refused(
        lambda: generator.generate([[1]], max_new_tokens=1, stop_tokens=list(range(17)))
    )
    assert "17" in message
    assert "stop_tokens" in message


def test_a_tensor_s_name_does_not_steer_a_terminal(session: djinn.Session, tmp_path: Path) -> None:
    path = tmp_path / "escape.safetensors"
    save_file({"w\x1b[31m": np.zeros(4, np.float32)}, path)
    message = refused(lambda: session.load(path))
    assert "control characters" in message
    assert "\x1b" not in message


@pytest.mark.parametrize("key", ["model_type", "hidden_act"])
def test_a_name_in_a_configuration_does_not_steer_a_terminal(
    session: djinn.Session, llama: Path, key: str
) -> None:
    change(llama, **{key: "w\x1b[31m"})
    message = refused(lambda: djinn.Generator(session, llama))
    assert key in message
    assert "\x1b" not in message


def test_a_directory_s_name_does_not_steer_a_terminal(session: djinn.Session, llama: Path) -> None:
    odd = llama.parent / "red\x1b[31m\n"
    llama.rename(odd)
    model = session.load(odd)
    (label,) = (one["label"] for one in session.models() if one["id"] == model.id)
    assert label.isprintable()
