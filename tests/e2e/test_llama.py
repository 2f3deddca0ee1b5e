# SPDX-License-Identifier: Apache-2.0
"""Llama models: logits and tokens are transformers', bit for bit and token for token."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import djinn
import numpy as np
import pytest
import torch
from private_daemon import Daemon
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

VOCABULARY = 320
PROMPT = [7, 300, 45, 2, 19, 250, 133, 8, 91, 64, 12]


@dataclass(frozen=True)
class Pair:
    """One model, here and in djinnd."""

    reference: LlamaForCausalLM
    generator: djinn.Generator
    session: djinn.Session


def test_a_text_is_no_prompt(daemon: Daemon, byte_model: Path) -> None:
    with daemon.connect("texts") as session:
        generator = djinn.Generator(session, byte_model)
        for prompts in ("The ", ["The "], [b"The "]):
            with pytest.raises(TypeError, match="tokenizer"):
                generator.generate(prompts)


def load_reference(path: Path, dtype: torch.dtype) -> LlamaForCausalLM:
    model = LlamaForCausalLM.from_pretrained(path, attn_implementation="sdpa", dtype=dtype)
    return model.requires_grad_(False).eval()


def write_random_llama(path: Path, dtype: torch.dtype, tied: bool) -> None:
    """Grouped queries, a head dimension that is not hidden / heads, weights far from zero, so that
    every token changes what follows."""
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=1024,
        initializer_range=0.15,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).to(dtype).save_pretrained(path)


@pytest.fixture(
    scope="module",
    params=[("float32", False), ("float32", True), ("bfloat16", False)],
    ids=["float32", "float32-tied", "bfloat16"],
)
def pair(
    request: pytest.FixtureRequest, daemon: Daemon, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    name, tied = request.param
    path = tmp_path_factory.mktemp("llama")
    dtype = getattr(torch, name)
    write_random_llama(path, dtype, tied)
    with daemon.connect(f"llama-{name}") as session:
        yield Pair(load_reference(path, dtype), djinn.Generator(session, path), session)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def greedy_tokens(model: LlamaForCausalLM, prompt: Sequence[int], count: int) -> list[int]:
    out = model.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=count, pad_token_id=0
    )
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("tokens", [2, 11, 64, 257])
def test_prefill_logits_are_transformers(pair: Pair, tokens: int) -> None:
    ids = np.random.default_rng(tokens).integers(0, VOCABULARY, (1, tokens))
    source = pair.generator.source("prefill", all_logits=True)
    program = pair.session.define(source, pair.generator.model)
    with pair.generator.sequence(rows=1, capacity=tokens) as sequence:
        ours = program(input_ids=ids, position_ids=np.arange(tokens)[None], sequence=sequence)[
            "logits"
        ]
    expected = pair.reference(torch.from_numpy(ids)).logits
    assert ours.shape == tuple(expected.shape)
    assert ours.tobytes() == bits(expected)


def test_256_greedy_tokens_are_transformers(pair: Pair) -> None:
    expected = greedy_tokens(pair.reference, PROMPT, 256)
    ours = pair.generator.generate([PROMPT], max_new_tokens=256, stop_tokens=[]).tokens
    assert len(set(expected)) > 20, "the model must not go round in a small circle"
    assert ours == [expected]


def test_greedy_tokens_of_one_token_prompts_are_transformers(pair: Pair) -> None:
    expected = greedy_tokens(pair.reference, [5], 64)
    assert pair.generator.generate([[5]], max_new_tokens=64, stop_tokens=[]).tokens == [expected]


def test_a_batch_padded_on_the_left_gives_transformers_tokens(pair: Pair) -> None:
    prompts = [PROMPT, PROMPT[:3], PROMPT[4:]]
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in prompts])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts])
    out = pair.reference.generate(
        ids, attention_mask=mask, do_sample=False, max_new_tokens=96, pad_token_id=0
    )
    ours = pair.generator.generate(prompts, max_new_tokens=96, stop_tokens=[], pad_token=0)
    assert ours.tokens == out[:, width:].tolist()


def test_a_batch_without_padding_gives_transformers_tokens(pair: Pair) -> None:
    prompts = [PROMPT, PROMPT[::-1]]
    out = pair.reference.generate(
        torch.tensor(prompts), do_sample=False, max_new_tokens=64, pad_token_id=0
    )
    ours = pair.generator.generate(prompts, max_new_tokens=64, stop_tokens=[])
    assert ours.tokens == out[:, len(PROMPT) :].tolist()


class Beams:
    """The same rows here, in transformers' cache, and in djinnd, in a sequence group."""

    def __init__(self, pair: Pair, sequence: djinn.SequenceGroup) -> None:
        self.reference = pair.reference
        self.sequence = sequence
        self.cache = DynamicCache(config=pair.reference.config)
        self.programs = {
            phase: pair.session.define(
                pair.generator.source(phase, all_logits=True), pair.generator.model
            )
            for phase in ("prefill", "decode")
        }

    def expect_equal_logits(self, ids: np.ndarray) -> None:
        past = self.cache.get_seq_length()
        rows, tokens = ids.shape
        ours = self.programs["prefill" if past == 0 else "decode"](
            input_ids=ids,
            position_ids=np.tile(np.arange(past, past + tokens), (rows, 1)),
            sequence=self.sequence,
        )["logits"]
        theirs = self.reference(torch.from_numpy(ids), past_key_values=self.cache).logits
        assert ours.tobytes() == bits(theirs)

    def reorder(self, rows: list[int]) -> None:
        self.sequence.reorder(rows)
        self.cache.reorder_cache(torch.tensor(rows))

    def crop(self, length: int) -> None:
        self.sequence.crop(length)
        self.cache.crop(length)


def test_rows_are_reordered_and_cropped_as_transformers_does_it(pair: Pair) -> None:
    random = np.random.default_rng(5)
    with pair.generator.sequence(rows=4, capacity=64, reorderable=True) as sequence:
        beams = Beams(pair, sequence)
        beams.expect_equal_logits(random.integers(0, VOCABULARY, (4, 9)))
        for rows in ([3, 3, 0, 1], [1, 0, 2, 3], [2, 2, 2, 2], [0, 1, 3, 2]):
            beams.reorder(rows)
            beams.expect_equal_logits(random.integers(0, VOCABULARY, (4, 1)))
        beams.crop(10)
        beams.expect_equal_logits(random.integers(0, VOCABULARY, (4, 1)))


def test_rows_that_cannot_be_reordered_say_so(pair: Pair) -> None:
    with pair.generator.sequence(rows=2, capacity=64) as sequence:
        with pytest.raises(djinn.RequestError, match="second bank"):
            sequence.reorder([1, 0])
        with pytest.raises(djinn.RequestError, match="can only shorten"):
            sequence.crop(5)
    with (
        pair.generator.sequence(rows=2, capacity=64, reorderable=True) as sequence,
        pytest.raises(djinn.RequestError, match="3 rows"),
    ):
        sequence.reorder([0, 1, 1])


def test_a_row_ends_with_its_stop_token_and_the_others_go_on(pair: Pair) -> None:
    prompts = [PROMPT, PROMPT[:3]]
    options = {"max_new_tokens": 24, "pad_token": 0}
    free = pair.generator.generate(prompts, stop_tokens=[], **options).tokens
    stop = next(token for token in free[0] if token not in free[1])
    ours = pair.generator.generate(prompts, stop_tokens=[stop], **options).tokens
    assert ours == [free[0][: free[0].index(stop) + 1], free[1]]


SAMPLING = {"temperature": 0.9, "top_k": 50, "top_p": 0.95, "repetition_penalty": 1.1}


def test_sampling_repeats_itself_with_its_seed_and_only_then(pair: Pair) -> None:
    def sample(seed: int) -> djinn.Generated:
        options = {**SAMPLING, "max_new_tokens": 64, "stop_tokens": []}
        return pair.generator.generate([PROMPT], seed=seed, **options)

    first = sample(1)
    assert sample(1) == first
    assert sample(2) != first
    assert first.random_offset == 64


def test_tokens_stream_in_order_and_a_reader_may_leave(pair: Pair) -> None:
    whole = pair.generator.generate([PROMPT], max_new_tokens=40, stop_tokens=[]).tokens[0]
    streamed = list(pair.generator.stream([PROMPT], max_new_tokens=40, stop_tokens=[]))
    assert streamed == [djinn.Token(0, index, token) for index, token in enumerate(whole)]
    stream = pair.generator.stream([PROMPT], max_new_tokens=1000, stop_tokens=[])
    assert next(stream).token == whole[0]
    stream.close()
    again = pair.generator.generate([PROMPT], max_new_tokens=40, stop_tokens=[])
    assert again.tokens == [whole]


def test_what_a_callback_raises_ends_the_generation_and_is_raised(pair: Pair) -> None:
    def stop_at_three(token: djinn.Token) -> None:
        if token.index == 3:
            raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        pair.generator.generate([PROMPT], max_new_tokens=1000, on_token=stop_at_three)


def test_a_callback_cannot_use_its_own_session(pair: Pair) -> None:
    with pytest.raises(djinn.LimitError, match="callback") as refused:
        pair.generator.generate([PROMPT], on_token=lambda _: bool(pair.session.status()))
    assert refused.value.code == "busy"


@pytest.mark.parametrize("text", [":daemon: /d", "5.2 Package", "The "])
def test_the_shipped_model_says_what_transformers_says(
    session: djinn.Session, byte_model: Path, text: str
) -> None:
    reference = load_reference(byte_model, torch.float32)
    prompt = [256, *text.encode()]
    expected = greedy_tokens(reference, prompt, 200)
    generator = djinn.Generator(session, byte_model)
    assert generator.begin_token == 256
    assert generator.generate([prompt], max_new_tokens=200).tokens == [expected]
