# SPDX-License-Identifier: Apache-2.0
"""Every key of a config.json: what the native builders compute with it is what transformers
computes, or they refuse it by its name."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import djinn
import numpy as np
import pytest
import torch
from command_line import ctl
from private_daemon import Daemon
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

VOCABULARY = 96
PROMPT = [5, 71, 23, 9, 64, 33, 2, 80, 17, 41, 11]
TOKENS = 24

LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 40,
    "initializer_range": 0.3,
}


@pytest.fixture(scope="module")
def shared(daemon: Daemon) -> Iterator[djinn.Session]:
    with daemon.connect("configs") as session:
        yield session


def write(path: Path, config: LlamaConfig | BertConfig, dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    cls = LlamaForCausalLM if isinstance(config, LlamaConfig) else BertModel
    model = cls(config)
    with torch.no_grad():  # biases and norms, which begin as zeros and ones
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.normal_(0.5, 0.3)
    model.to(dtype).save_pretrained(path)


def change(path: Path, **values: Any) -> None:
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def expect_transformers_logits(session: djinn.Session, path: Path) -> None:
    """Of a prefill with a mask over nothing, and of greedy tokens behind it."""
    reference = LlamaForCausalLM.from_pretrained(path).eval()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        generator = djinn.Generator(session, path)
        program = session.define(generator.source("prefill", all_logits=True), generator.model)
        ids = np.array([PROMPT])
        with generator.sequence(rows=1, capacity=len(PROMPT)) as sequence:
            ours = program(
                input_ids=ids, position_ids=np.arange(len(PROMPT))[None], sequence=sequence
            )["logits"]
        expected = reference(torch.from_numpy(ids)).logits.contiguous()
        assert ours.tobytes() == expected.view(torch.uint8).numpy().tobytes()
        out = reference.generate(
            torch.from_numpy(ids),
            do_sample=False,
            num_beams=1,
            repetition_penalty=1.0,
            use_cache=True,
            output_hidden_states=False,
            return_dict_in_generate=False,
            max_new_tokens=TOKENS,
            min_new_tokens=TOKENS,
            pad_token_id=0,
        )
        tokens = generator.generate([PROMPT], max_new_tokens=TOKENS, stop_tokens=[]).tokens
        assert tokens == [out[0, len(PROMPT) :].tolist()]


def expect_transformers_states(session: djinn.Session, path: Path) -> None:
    reference = BertModel.from_pretrained(path).eval()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        ours = djinn.Encoder(session, path).encode(np.array([PROMPT]))
        expected = reference(torch.tensor([PROMPT])).last_hidden_state.contiguous()
    assert ours.tobytes() == expected.view(torch.uint8).numpy().tobytes()


# What transformers is told when it makes a model, each with another value than its default.
LLAMA_COMPUTED: list[dict[str, Any]] = [
    {},
    {"attention_bias": True},
    {"mlp_bias": True},
    {"head_dim": 16},
    {"num_key_value_heads": 1},
    {"num_key_value_heads": None},
    {"rms_norm_eps": 0.1},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
    {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
    {"tie_word_embeddings": True},
    {"max_position_embeddings": 40},
    {"pretraining_tp": 2},
    {"attention_dropout": 0.5},
    {"use_cache": False},
    {"chunk_size_feed_forward": 3},
    {"output_hidden_states": True},
    {"id2label": {0: "a", 1: "b", 2: "c"}},
    {"problem_type": "regression"},
    {"pad_token_id": 7},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("values", LLAMA_COMPUTED, ids=str)
def test_a_llama_computes_with_each_key_as_transformers_does(
    shared: djinn.Session, tmp_path: Path, values: dict[str, Any], dtype: torch.dtype
) -> None:
    write(tmp_path, LlamaConfig(**(LLAMA | values)), dtype)
    expect_transformers_logits(shared, tmp_path)


# What stands in files of older versions, and of other people, written into config.json.
@pytest.mark.parametrize(
    "values",
    [
        {"rope_parameters": None, "rope_theta": 50.0},
        {"rope_parameters": None, "rope_theta": 50.0, "rope_scaling": None},
        {"rope_parameters": None, "rope_scaling": {"type": "default", "rope_theta": 50.0}},
        {"rope_scaling": {"rope_type": "default", "rope_theta": 50.0}},
        {"rope_theta": 50.0, "rope_scaling": {"rope_type": "default"}},
        {"rope_parameters": {}, "rope_theta": 50.0},
        {"rope_parameters": {"rope_theta": 50.0, "factor": 4.0}},
        {"partial_rotary_factor": 0.5},
        {"original_max_position_embeddings": 16},
        {"sliding_window": None, "layer_types": ["full_attention", "full_attention"]},
        {"tie_word_embeddings": True},
        {"attn_implementation": "sdpa"},
        {"layer_norm_eps": 0.5},
        {"is_decoder": True, "add_cross_attention": True},
        {"torchscript": True},
        {"gradient_checkpointing": True},
        {"temperature": 0.3, "top_k": 2, "do_sample": True},
        {"model_max_length": 4, "max_sequence_length": 4},
        {"hidden_activation": "gelu", "embedding_multiplier": 3.0, "logit_scale": 2.0},
    ],
    ids=str,
)
def test_a_llama_takes_other_keys_as_transformers_does(
    shared: djinn.Session, tmp_path: Path, values: dict[str, Any]
) -> None:
    write(tmp_path, LlamaConfig(**LLAMA), torch.float32)
    change(tmp_path, **values)
    expect_transformers_logits(shared, tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "gelu"),
        ("hidden_act", "relu"),
        ("sliding_window", 4),
        ("attention_chunk_size", 4),
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("num_kv_shared_layers", 1),
        ("is_causal", False),
        ("rope_parameters", {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}),
        ("rope_parameters", {"type": "linear", "rope_theta": 1e4, "factor": 2.0}),
        ("rope_scaling", {"type": "dynamic", "factor": 2.0}),
        ("rope_scaling", {"rope_type": "yarn", "factor": 2.0}),
        ("rope_scaling", {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}),
        ("rope_scaling", {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}),
        ("quantization_config", {"quant_method": "bitsandbytes", "load_in_4bit": True}),
        ("compression_config", {"quant_method": "compressed-tensors"}),
        ("attn_implementation", "eager"),
        ("output_attentions", True),
        ("is_encoder_decoder", True),
        ("per_layer_config", {"0": {"rms_norm_eps": 0.5}}),
        ("transformers_weights", "other.safetensors"),
        ("fusion_config", {"patch_embeddings": True}),
        ("text_config", {"hidden_size": 8}),
        ("dtype", "bfloat16"),
        ("dtype", "float16"),
        ("attention_bias", "yes"),
        ("mlp_bias", 1),
    ],
)
def test_a_llama_refuses_what_it_does_not_compute_by_its_name(
    shared: djinn.Session, tmp_path: Path, key: str, value: Any
) -> None:
    write(tmp_path, LlamaConfig(**LLAMA), torch.float32)
    djinn.Generator(shared, tmp_path)
    change(tmp_path, **{key: value})
    with pytest.raises(djinn.Error, match=key):
        djinn.Generator(shared, tmp_path)


def test_a_head_that_is_not_there_and_not_tied_is_refused(
    shared: djinn.Session, tmp_path: Path
) -> None:
    write(tmp_path, LlamaConfig(**LLAMA, tie_word_embeddings=True), torch.float32)
    change(tmp_path, tie_word_embeddings=False)
    with pytest.raises(djinn.Error, match="tie_word_embeddings"):
        djinn.Generator(shared, tmp_path)


BERT_COMPUTED: list[dict[str, Any]] = [
    {},
    {"layer_norm_eps": 0.1},
    {"type_vocab_size": 5},
    {"num_attention_heads": 2},
    {"max_position_embeddings": 12},
    {"pad_token_id": 7},
    {"hidden_dropout_prob": 0.5},
    {"attention_probs_dropout_prob": 0.5},
    {"classifier_dropout": 0.5},
    {"tie_word_embeddings": False},
    {"use_cache": False},
    {"output_hidden_states": True},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("values", BERT_COMPUTED, ids=str)
def test_a_bert_computes_with_each_key_as_transformers_does(
    shared: djinn.Session, tmp_path: Path, values: dict[str, Any], dtype: torch.dtype
) -> None:
    write(tmp_path, BertConfig(**(BERT | values)), dtype)
    expect_transformers_states(shared, tmp_path)


@pytest.mark.parametrize(
    "values",
    [
        {"position_embedding_type": "absolute"},
        {"gradient_checkpointing": True},
        {"pooler_fc_size": 3, "pooler_type": "first_token_transform", "directionality": "bidi"},
        {"rms_norm_eps": 0.5, "sliding_window": 2, "rope_theta": 3.0, "attention_bias": False},
        {"embedding_size": 8},
        {"is_causal": False},
    ],
    ids=str,
)
def test_a_bert_takes_other_keys_as_transformers_does(
    shared: djinn.Session, tmp_path: Path, values: dict[str, Any]
) -> None:
    write(tmp_path, BertConfig(**BERT), torch.float32)
    change(tmp_path, **values)
    expect_transformers_states(shared, tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "gelu_new"),
        ("hidden_act", "relu"),
        ("position_embedding_type", "relative_key"),
        ("is_causal", True),
        ("is_decoder", True),
        ("add_cross_attention", True),
        ("chunk_size_feed_forward", 4),
        ("quantization_config", {"quant_method": "bitsandbytes", "load_in_8bit": True}),
        ("attn_implementation", "eager"),
        ("output_attentions", True),
        ("dtype", "float16"),
    ],
)
def test_a_bert_refuses_what_it_does_not_compute_by_its_name(
    shared: djinn.Session, tmp_path: Path, key: str, value: Any
) -> None:
    write(tmp_path, BertConfig(**BERT), torch.float32)
    djinn.Encoder(shared, tmp_path)
    change(tmp_path, **{key: value})
    with pytest.raises(djinn.Error, match=key):
        djinn.Encoder(shared, tmp_path)


@pytest.mark.parametrize(("config", "opens"), [(LLAMA, djinn.Generator), (BERT, djinn.Encoder)])
def test_what_transformers_writes_is_known_and_anything_else_is_told(
    shared: djinn.Session, tmp_path: Path, config: dict[str, Any], opens: Any
) -> None:
    cls = LlamaConfig if config is LLAMA else BertConfig
    write(tmp_path, cls(**config), torch.float32)
    every = cls(**config).to_dict()  # the keys that it leaves out of files, too
    change(tmp_path, **{key: every[key] for key in every if key != "dtype"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opens(shared, tmp_path)
    change(tmp_path, zeta=1)
    with pytest.warns(UserWarning, match="zeta"):
        opens(shared, tmp_path)


def test_djinnctl_tells_of_unknown_keys_unless_it_is_quiet(
    daemon: Daemon, tmp_path: Path, byte_model: Path
) -> None:
    for file in byte_model.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    change(tmp_path, zeta=1)
    arguments = ["generate", str(tmp_path), "--prompt", "The", "--max-new-tokens", "4"]
    loud = ctl(daemon, *arguments)
    quiet = ctl(daemon, "--quiet", *arguments)
    assert "zeta" in loud.err
    assert quiet.err == ""
    assert loud.out == quiet.out != b""
