# SPDX-License-Identifier: Apache-2.0
"""The zoo has models of everything that transformers' Auto classes load, and each of them has a row
of the matrix. Nothing is computed."""

import json
from pathlib import Path

import pytest
import zoo
from transformers.models.auto import modeling_auto

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "docs" / "models.json"
CAPTURES = ROOT / "tests" / "data" / "captures"


def classes_of(mapping: str) -> set[str]:
    """Some types of models have several."""
    classes: set[str] = set()
    for named in getattr(modeling_auto, mapping).values():
        classes |= {named} if isinstance(named, str) else set(named)
    return classes


MAPPINGS = [
    name
    for name in vars(modeling_auto)
    if name.startswith("MODEL_") and name.endswith("MAPPING_NAMES") and classes_of(name)
]


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_the_zoo_has_a_model_of_each_mapping(mapping: str) -> None:
    assert classes_of(mapping) & {entry.model for entry in zoo.ENTRIES}


def test_models_of_the_zoo_run_their_loop_in_djinnd_but_these() -> None:
    """Of those that were written by hand. MODELS.md has the reasons, and what the others do."""
    rows = json.loads(RECORD.read_text())["rows"]
    generating = [one.name for one in zoo.ENTRIES if one.generates and not one.by_names]
    lower = {name for name in generating if rows[name]["tier"] < 2}
    assert len(generating) == 47 and lower == {"blenderbot", "mpt"}


def test_each_model_that_runs_its_loop_in_djinnd_has_captures() -> None:
    rows = json.loads(RECORD.read_text())["rows"]
    in_djinnd = {name for name, row in rows.items() if row["tier"] == 2}
    captured = {path.name.removesuffix(".decode.srg") for path in CAPTURES.glob("*.decode.srg")}
    assert captured == in_djinnd


def test_the_matrix_has_a_row_of_each_model() -> None:
    assert set(json.loads(RECORD.read_text())["rows"]) == set(zoo.NAMES)
