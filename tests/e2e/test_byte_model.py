# SPDX-License-Identifier: Apache-2.0
"""models/bytes keeps its promises: at most 8 MB, and what its README says of held-out text."""

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest
from transformers import LlamaForCausalLM

BYTES_MAX = 8_000_000
BITS_PER_BYTE_MAX = 2.4
TOLERANCE = 0.005  # bits per byte; processors differ by 1e-7, as do counts of threads
SAMPLED_ONE_IN = 8  # documents
# Bytes and bits per byte of these. Whoever trains the model anew measures them, as the README's.
SAMPLES = {"jargon-text": (7811, 1.977), "debian-handbook": (4372, 1.773)}
SOURCES = tuple(SAMPLES)


@pytest.fixture
def train(byte_model: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """models/bytes/train.py, whose `bits` made the figures that the README has."""
    monkeypatch.syspath_prepend(str(byte_model))
    return importlib.import_module("train")


def documented(byte_model: Path, source: str) -> tuple[int, float]:
    """Held-out bytes and bits per byte, from the README's table."""
    row = rf"^\| {source} \| ([\d,]+) \| ([\d.]+) \|$"
    found = re.search(row, (byte_model / "README.md").read_text(), re.MULTILINE)
    assert found, f"no row for {source}"
    return int(found[1].replace(",", "")), float(found[2])


def test_it_is_at_most_8_megabytes_of_safetensors(byte_model: Path) -> None:
    assert sum(file.stat().st_size for file in byte_model.glob("*.safetensors")) <= BYTES_MAX


def test_the_documented_loss_is_low_enough(byte_model: Path) -> None:
    for source in (*SOURCES, "both"):
        assert documented(byte_model, source)[1] <= BITS_PER_BYTE_MAX


def held_out(train: ModuleType, source: str) -> list[str]:
    """The documents of a Debian package that the model has never seen."""
    corpus = importlib.import_module("corpus")
    path, read = {
        "jargon-text": (corpus.JARGON, corpus.jargon_file),
        "debian-handbook": (corpus.HANDBOOK, corpus.handbook),
    }[source]
    if not path.exists():
        pytest.skip(f"the held-out text is absent: apt-get install {source}")
    return read().held_out


def bits_per_byte(byte_model: Path, train: ModuleType, documents: list[str]) -> float:
    model = LlamaForCausalLM.from_pretrained(byte_model).eval()
    size = sum(len(text.encode()) for text in documents)
    return train.bits(model, train.token_stream(documents)) / size


@pytest.mark.parametrize("source", SOURCES)
def test_a_sample_of_the_held_out_text_costs_the_recorded_bits(
    byte_model: Path, train: ModuleType, source: str
) -> None:
    sample = held_out(train, source)[::SAMPLED_ONE_IN]
    size, expected = SAMPLES[source]
    assert sum(len(text.encode()) for text in sample) == size
    assert bits_per_byte(byte_model, train, sample) == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.full
@pytest.mark.parametrize("source", SOURCES)
def test_the_held_out_text_costs_the_documented_bits(
    byte_model: Path, train: ModuleType, source: str
) -> None:
    documents = held_out(train, source)
    size, expected = documented(byte_model, source)
    assert sum(len(text.encode()) for text in documents) == size
    assert bits_per_byte(byte_model, train, documents) == pytest.approx(expected, abs=TOLERANCE)
