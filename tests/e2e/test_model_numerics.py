# SPDX-License-Identifier: Apache-2.0
"""What a user says of a model's numerics with `djinnctl load` holds for programs for which nobody
else says any, in every process of theirs, as long as the model is there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import djinn
import pytest
from command_line import ctl
from private_daemon import Daemon, running

pytestmark = pytest.mark.usefixtures("served")


@pytest.fixture
def served() -> Iterator[Daemon]:
    with running() as one:
        yield one


def load(daemon: Daemon, model: Path, *words: str) -> dict[str, Any]:
    (item,) = ctl(daemon, "load", str(model), "-j", *words).items()
    return item


def shown(daemon: Daemon) -> str | None:
    (item,) = ctl(daemon, "ps", "-j").items()
    return item["numerics"]


def asked_of(daemon: Daemon) -> set[str]:
    """The numerics with which the programs that djinnd has were defined."""
    graphs = [
        ctl(daemon, "show", "--graph", one["id"], "-j").items()[0]
        for one in ctl(daemon, "programs", "-j").items()
    ]
    return {one["asked"] for one in graphs}


def generated(daemon: Daemon, model: Path, *words: str) -> set[str]:
    """What `djinnctl generate` has defined, which djinnd keeps for whoever comes next."""
    told = ctl(daemon, "generate", str(model), "--tokens", "65,66", *words)
    assert told.code == 0, told.err
    return asked_of(daemon)


def test_programs_have_the_numerics_of_their_model_where_nobody_says_others(
    served: Daemon, byte_model: Path
) -> None:
    assert load(served, byte_model, "--numerics", "fast")["numerics"] == "fast"
    assert generated(served, byte_model) == {"fast"}
    nodes = [one["fast_nodes"] for one in ctl(served, "programs", "-j").items()]
    assert nodes and all(nodes)
    assert generated(served, byte_model, "--numerics", "exact") == {"fast", "exact"}


@pytest.mark.parametrize("own", [None, "exact"])
def test_an_encoder_has_them_and_its_own_word_wins(
    served: Daemon, minilm: Path, own: str | None
) -> None:
    load(served, minilm, "--numerics", "fast-only")
    with served.connect("encodes") as session:
        encoder = djinn.Encoder(session, minilm, numerics=own)
        encoder.embed([[101, 7592, 102]])
        assert asked_of(served) == {own or "fast-only"}


def test_the_model_wins_over_what_djinnd_is_configured_to(byte_model: Path) -> None:
    with running("--numerics", "fast") as daemon:
        load(daemon, byte_model, "--numerics", "exact")
        with daemon.connect("generates") as session:
            djinn.Generator(session, byte_model).generate([[65, 66]], max_new_tokens=2)
            assert asked_of(daemon) == {"exact"}


def test_the_last_word_holds_and_an_open_without_one_changes_none(
    served: Daemon, byte_model: Path
) -> None:
    assert load(served, byte_model)["numerics"] is None
    assert shown(served) is None
    assert load(served, byte_model, "--numerics", "fast")["numerics"] == "fast"
    assert load(served, byte_model)["numerics"] == "fast"
    with served.connect("opens") as session:
        session.load(byte_model)
        assert shown(served) == "fast"
    assert load(served, byte_model, "--numerics", "exact")["numerics"] == "exact"
    assert shown(served) == "exact"
    assert generated(served, byte_model) == {"exact"}


def test_they_are_told_where_models_are(served: Daemon, byte_model: Path) -> None:
    model = load(served, byte_model)["id"]
    assert "NUMERICS" not in ctl(served, "ps").text()
    load(served, byte_model, "--numerics", "fast-only")
    head, row = ctl(served, "ps").table()
    assert (head[-1], row[-1]) == ("NUMERICS", "fast-only")
    assert ["NUMERICS", "fast-only"] in ctl(served, "show", model).table()
    (item,) = ctl(served, "show", model, "-j").items()
    assert item["numerics"] == "fast-only"


def test_they_outlive_a_worker_and_end_with_the_model(served: Daemon, byte_model: Path) -> None:
    model = load(served, byte_model, "--numerics", "fast")["id"]
    generated(served, byte_model)
    served.kill_worker()
    assert shown(served) == "fast"
    assert generated(served, byte_model) == {"fast"}
    assert ctl(served, "evict", "--force", model).code == 0
    assert load(served, byte_model)["numerics"] == "fast", "it came back from disk"
    assert ctl(served, "unload", model).code == 0
    assert load(served, byte_model)["numerics"] is None


def test_exact_numerics_of_weights_in_int8_are_refused_before_anything_is_read(
    served: Daemon, byte_model: Path
) -> None:
    before = served.status()
    refused = ctl(served, "load", str(byte_model), "--weights", "int8", "--numerics", "exact")
    assert refused.code != 0
    assert "Ask for the numerics fast" in refused.err
    assert served.status()["bytes_read"] == before["bytes_read"]
    assert ctl(served, "ps", "-j").items() == []
    both = load(served, byte_model, "--weights", "int8", "--numerics", "fast-only")
    assert both["numerics"] == "fast-only"
    assert generated(served, byte_model, "--weights", "int8") == {"fast-only"}
