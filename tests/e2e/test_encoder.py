# SPDX-License-Identifier: Apache-2.0
"""The encoder's bits are transformers', with the real MiniLM weights."""

from collections.abc import Iterator
from pathlib import Path

import djinn
import numpy as np
import pytest
import torch
from private_daemon import Daemon
from sentences import SENTENCES
from tokenizers import Tokenizer
from transformers import BertModel


@pytest.fixture(scope="module")
def reference(minilm: Path) -> BertModel:
    model = BertModel.from_pretrained(minilm, attn_implementation="sdpa", dtype=torch.float32)
    return model.requires_grad_(False).eval()


@pytest.fixture(scope="module")
def tokenizer(minilm: Path) -> Tokenizer:
    one = Tokenizer.from_file(str(minilm / "tokenizer.json"))
    one.no_padding()
    one.no_truncation()
    return one


@pytest.fixture(scope="module")
def encoder(daemon: Daemon, minilm: Path) -> Iterator[djinn.Encoder]:
    with daemon.connect("encoder") as session:
        yield djinn.Encoder(session, minilm)


def padded(tokenizer: Tokenizer, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
    encodings = [tokenizer.encode(sentence).ids for sentence in sentences]
    ids = np.zeros((len(encodings), max(map(len, encodings))), np.int64)
    mask = np.zeros_like(ids)
    for row, encoding in enumerate(encodings):
        ids[row, : len(encoding)] = encoding
        mask[row, : len(encoding)] = 1
    return ids, mask


def hidden_of(reference: BertModel, ids: np.ndarray, mask: np.ndarray) -> torch.Tensor:
    out = reference(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask))
    return out.last_hidden_state


def test_the_sentences_have_1_to_200_tokens(tokenizer: Tokenizer) -> None:
    lengths = [len(tokenizer.encode(sentence).ids) - 2 for sentence in SENTENCES]
    assert len(lengths) == 50
    assert min(lengths) == 1
    assert 180 <= max(lengths) <= 200
    assert len(set(lengths)) > 30


def test_the_hidden_state_of_each_sentence_is_transformers(
    encoder: djinn.Encoder, reference: BertModel, tokenizer: Tokenizer
) -> None:
    different = []
    for sentence in SENTENCES:
        ids, mask = padded(tokenizer, [sentence])
        expected = hidden_of(reference, ids, mask).numpy()
        if encoder.encode(ids).tobytes() != expected.tobytes():
            different.append((ids.shape[1], sentence))
    assert not different


@pytest.mark.parametrize(
    "rows", [2, *(pytest.param(n, marks=pytest.mark.full) for n in (3, 8)), 32]
)
def test_a_padded_batch_is_transformers_where_it_is_not_padding(
    encoder: djinn.Encoder, reference: BertModel, tokenizer: Tokenizer, rows: int
) -> None:
    for start in range(0, len(SENTENCES), rows):
        ids, mask = padded(tokenizer, list(SENTENCES[start : start + rows]))
        ours = encoder.encode(ids, mask)
        expected = hidden_of(reference, ids, mask).numpy()
        real = mask.astype(bool)
        assert ours[real].tobytes() == expected[real].tobytes(), (start, rows)


def test_embeddings_are_those_of_the_sentence_transformers_formula(
    encoder: djinn.Encoder, reference: BertModel, tokenizer: Tokenizer
) -> None:
    ids, mask = padded(tokenizer, list(SENTENCES))
    hidden = hidden_of(reference, ids, mask)
    weights = torch.from_numpy(mask).unsqueeze(-1).expand(hidden.size()).float()
    mean = (hidden * weights).sum(1) / torch.clamp(weights.sum(1), min=1e-9)
    expected = torch.nn.functional.normalize(mean, p=2, dim=1).numpy()
    ours = encoder.embed(ids, mask)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-5)


def test_an_id_outside_of_the_vocabulary_is_refused_and_harms_nothing(
    encoder: djinn.Encoder,
) -> None:
    before = encoder.embed([[101, 102]])
    with pytest.raises(djinn.Error):
        encoder.embed([[101, 40_000, 102]])
    assert encoder.embed([[101, 102]]).tobytes() == before.tobytes()


def test_two_clients_share_one_model(daemon: Daemon, minilm: Path) -> None:
    with daemon.connect("first") as first, daemon.connect("second") as second:
        mine = djinn.Encoder(first, minilm)
        before = daemon.status()
        other = djinn.Encoder(second, minilm)
        after = daemon.status()
        assert other.model.was_resident
        assert other.model.id == mine.model.id
        assert after["bytes_read"] == before["bytes_read"]
        assert after["memory_models_bytes"] == before["memory_models_bytes"]
        assert after["models"] == before["models"]
        ids = [[101, 7592, 102]]
        assert mine.encode(ids).tobytes() == other.encode(ids).tobytes()
