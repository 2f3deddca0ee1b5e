# SPDX-License-Identifier: Apache-2.0
"""Load plans: what the loader makes of a file's tensors is what PyTorch makes of them."""

import json
from pathlib import Path

import djinn
import numpy as np
import pytest
import torch
from private_daemon import Daemon, wait_until
from safetensors.torch import save_file

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
SPECIAL = (0.0, -0.0, 1.0, -1.5, 65504.0, 65520.0, 3.4e38, 1e-8, 6e-8, 1e-40, 2.0**-24, 2.0**-25)
NONFINITE = (float("inf"), float("-inf"), float("nan"), -float("nan"))
CASTS = [
    ("float32", "bfloat16"),
    ("float32", "float16"),
    ("bfloat16", "float32"),
    ("bfloat16", "float16"),
    ("float16", "bfloat16"),
    ("float16", "float32"),
    ("float64", "float32"),
    ("float64", "bfloat16"),
    ("float32", "float64"),
]


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def every_kind_of_value(dtype: torch.dtype) -> torch.Tensor:
    """All 2^16 patterns of a 16-bit dtype; of a wider one chance patterns, with many subnormals,
    ties between two neighbours of the narrower dtypes, and what is no number."""
    width = torch.empty((), dtype=dtype).element_size()
    if width == 2:
        return torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    chance = np.random.default_rng(width).bytes(width * 50_000)
    patterns = torch.frombuffer(bytearray(chance), dtype=BITS[width]).view(dtype)
    ordinary = torch.randn(10_000, dtype=dtype)
    ties = torch.arange(0, 10_000).to(dtype) * 2.0**-10 + 1
    halves = torch.arange(0, 10_000).to(dtype) * 2.0**-26
    special = torch.tensor([*SPECIAL, *NONFINITE], dtype=dtype)
    return torch.cat([patterns, ordinary, ties, halves, -halves, special])


def loaded(session: djinn.Session, model: djinn.Model, name: str) -> tuple[bytes, tuple[int, ...]]:
    """The bytes of a weight, through a program that returns a copy of it."""
    dtype, sizes = model.tensors[name]
    text = ", ".join(map(str, sizes))
    source = f'srg 1 "get"\nweight %w "{name}" : {dtype}[{text}]\n'
    out = session.run_once(source + "%y = aten::clone(%w)\noutput %y\n", model, outputs="array")[
        "y"
    ]
    return out.tobytes(), tuple(sizes)


def check(
    session: djinn.Session, path: Path, plan: djinn.LoadPlan, expected: dict[str, torch.Tensor]
) -> djinn.Model:
    model = session.load(path, plan)
    assert set(model.tensors) == set(expected)
    for name, tensor in expected.items():
        data, sizes = loaded(session, model, name)
        assert sizes == tuple(tensor.shape), name
        if data != bits(tensor):
            show_difference(name, data, tensor)
    return model


def show_difference(name: str, data: bytes, tensor: torch.Tensor) -> None:
    width = tensor.element_size()
    ours = torch.frombuffer(bytearray(data), dtype=BITS[width])
    theirs = tensor.contiguous().view(BITS[width]).flatten()
    at = (ours != theirs).nonzero().flatten()
    first = int(at[0])
    mask = 2 ** (8 * width) - 1
    raise AssertionError(
        f"{name}: {len(at)} of {len(ours)} differ, the first at {first}: "
        f"{int(ours[first]) & mask:#x} instead of {int(theirs[first]) & mask:#x}"
    )


def destination(
    name: str, dtype: str, sizes: tuple[int, ...], *pieces: djinn.Piece, dim: int = 0
) -> djinn.Destination:
    return djinn.Destination(name, dtype, sizes, pieces, dim)


@pytest.mark.parametrize(("source", "target"), CASTS, ids=lambda name: name)
def test_a_cast_has_pytorchs_bits(
    session: djinn.Session, tmp_path: Path, source: str, target: str
) -> None:
    values = every_kind_of_value(getattr(torch, source))
    save_file({"w": values}, tmp_path / "m.safetensors")
    plan = djinn.LoadPlan((destination("w", target, tuple(values.shape), djinn.Piece(0, "w")),))
    expected = {"w": values.to(getattr(torch, target))}
    check(session, tmp_path / "m.safetensors", plan, expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64", "uint8", "bool"])
def test_a_file_without_a_plan_keeps_its_bits(
    session: djinn.Session, tmp_path: Path, dtype: str
) -> None:
    kind = getattr(torch, dtype)
    raw = torch.frombuffer(bytearray(np.random.default_rng(1).bytes(8 * 3 * 35)), dtype=torch.uint8)
    values = (raw & 1).bool() if dtype == "bool" else raw.view(kind)
    values = values[: values.numel() // 15 * 15].reshape(3, 5, -1)
    save_file(
        {"w": values.contiguous(), "scalar": torch.tensor(3).to(kind)}, tmp_path / "m.safetensors"
    )
    model = session.load(tmp_path / "m.safetensors")
    assert loaded(session, model, "w") == (bits(values), tuple(values.shape))
    assert loaded(session, model, "scalar") == (bits(torch.tensor([3]).to(kind)), ())


@pytest.fixture
def pair(tmp_path: Path) -> dict[str, torch.Tensor]:
    torch.manual_seed(4)
    tensors = {"a": torch.randn(6, 10, 4), "b": torch.randn(6, 3, 4), "c": torch.randn(7, 9)}
    save_file(tensors, tmp_path / "m.safetensors")
    return tensors


def test_slices_transposes_and_concatenations_are_pytorchs(
    session: djinn.Session, pair: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    a, b, c = pair["a"], pair["b"], pair["c"]
    cut = (djinn.Slice(0, 1, 4), djinn.Slice(1, 2, 5), djinn.Slice(2, 3, 1))
    plan = djinn.LoadPlan(
        (
            destination("cut", "float32", (4, 5, 1), djinn.Piece(0, "a", cut)),
            destination("turned", "float32", (9, 7), djinn.Piece(0, "c", transpose=True)),
            destination(
                *("turned_rest", "bfloat16", (6, 4, 3)),
                djinn.Piece(0, "b", transpose=True),
            ),
            destination(
                *("cut_then_turned", "float16", (6, 2)),
                djinn.Piece(0, "c", (djinn.Slice(0, 5, 2), djinn.Slice(1, 0, 6)), transpose=True),
            ),
            destination(
                *("joined", "float32", (6, 13, 4)),
                *(djinn.Piece(0, "a"), djinn.Piece(0, "b")),
                dim=1,
            ),
            destination(
                *("swapped", "bfloat16", (7, 9)),
                djinn.Piece(0, "c", (djinn.Slice(1, 4, 5),)),
                djinn.Piece(0, "c", (djinn.Slice(1, 0, 4),)),
                dim=1,
            ),
            destination("empty", "float32", (0, 9), djinn.Piece(0, "c", (djinn.Slice(0, 3, 0),))),
        )
    )
    expected = {
        "cut": a[1:5, 2:7, 3:4],
        "turned": c.T,
        "turned_rest": b.transpose(1, 2).bfloat16(),
        "cut_then_turned": c[5:7, :6].T.half(),
        "joined": torch.cat([a, b], 1),
        "swapped": torch.cat([c[:, 4:], c[:, :4]], 1).bfloat16(),
        "empty": c[3:3],
    }
    check(session, tmp_path / "m.safetensors", plan, expected)


def test_an_alias_is_a_second_name_of_the_same_bytes(
    session: djinn.Session, pair: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    plain = djinn.LoadPlan((destination("w", "float32", (7, 9), djinn.Piece(0, "c")),))
    tied = djinn.LoadPlan(plain.destinations, (djinn.Alias("head", "w"), djinn.Alias("tail", "w")))
    alone = session.load(tmp_path / "m.safetensors", plain)
    model = check(
        *(session, tmp_path / "m.safetensors", tied),
        {"w": pair["c"], "head": pair["c"], "tail": pair["c"]},
    )
    assert model.bytes == alone.bytes
    assert model.id != alone.id


def test_one_file_under_two_plans_is_two_models_and_under_one_plan_one(
    session: djinn.Session, daemon: Daemon, pair: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    path = tmp_path / "m.safetensors"

    def plan(dtype: str) -> djinn.LoadPlan:
        return djinn.LoadPlan((destination("w", dtype, (7, 9), djinn.Piece(0, "c")),))

    whole, half = session.load(path, plan("float32")), session.load(path, plan("bfloat16"))
    assert whole.id != half.id
    before = daemon.status()["bytes_read"]
    with daemon.connect("another") as another:
        again = another.load(path, plan("bfloat16"))
        assert again.was_resident
        assert again.id == half.id
    assert daemon.status()["bytes_read"] == before
    assert loaded(session, whole, "w")[0] == bits(pair["c"])
    assert loaded(session, half, "w")[0] == bits(pair["c"].bfloat16())


BAD_PLANS = {
    "a tensor that the file does not have": destination(
        "w", "float32", (7, 9), djinn.Piece(0, "nothing")
    ),
    "a file that was not given": destination("w", "float32", (7, 9), djinn.Piece(1, "c")),
    "other sizes": destination("w", "float32", (7, 8), djinn.Piece(0, "c")),
    "a slice that leaves the tensor": destination(
        "w", "float32", (7, 9), djinn.Piece(0, "c", (djinn.Slice(0, 1, 7),))
    ),
    "a slice of a dimension that is not there": destination(
        "w", "float32", (7, 9), djinn.Piece(0, "c", (djinn.Slice(2, 0, 7),))
    ),
    "a slice whose end overflows": destination(
        "w", "float32", (7, 9), djinn.Piece(0, "c", (djinn.Slice(0, 2**64 - 1, 8),))
    ),
    "pieces that do not fit": destination(
        "w", "float32", (14, 9), djinn.Piece(0, "c"), djinn.Piece(0, "c", transpose=True)
    ),
    "a concatenation along no dimension": destination(
        "w", "float32", (14, 9), djinn.Piece(0, "c"), djinn.Piece(0, "c"), dim=2
    ),
    "no piece": destination("w", "float32", (7, 9)),
    "a tensor larger than any memory": destination("w", "float32", (2**62, 2**62)),
}


@pytest.mark.parametrize("fault", BAD_PLANS)
def test_a_plan_that_asks_for_what_is_not_there_is_refused_and_leaves_nothing(
    session: djinn.Session,
    daemon: Daemon,
    pair: dict[str, torch.Tensor],
    tmp_path: Path,
    fault: str,
) -> None:
    before = daemon.status()
    with pytest.raises(djinn.Error) as refused:
        session.load(tmp_path / "m.safetensors", djinn.LoadPlan((BAD_PLANS[fault],)))
    assert refused.value.number // 100 in (1, 2, 3), (refused.value.code, str(refused.value))
    assert str(tmp_path) not in str(refused.value)
    after = daemon.status()
    assert (after["models"], after["memory_models_bytes"]) == (
        before["models"],
        before["memory_models_bytes"],
    )


# --- shards


@pytest.fixture
def shards(tmp_path: Path) -> dict[str, torch.Tensor]:
    """A directory like that of a large checkpoint: 130 files and their index."""
    torch.manual_seed(6)
    count = 130
    tensors, where = {}, {}
    for i in range(count):
        name = f"model-{i + 1:05}-of-{count:05}.safetensors"
        here = {f"layers.{i}.w": torch.randn(5, 7), f"layers.{i}.b": torch.randn(3).bfloat16()}
        save_file(here, tmp_path / name)
        tensors |= here
        where |= dict.fromkeys(here, name)
    index = {"metadata": {"total_size": 1}, "weight_map": where}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text("{}")
    return tensors


def test_a_sharded_directory_of_130_files_is_one_model(
    session: djinn.Session, daemon: Daemon, shards: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    descriptors = daemon.status()["descriptors"]
    model = session.load(tmp_path)
    assert set(model.tensors) == set(shards)
    for name in ("layers.0.w", "layers.63.b", "layers.64.w", "layers.128.b", "layers.129.w"):
        assert loaded(session, model, name)[0] == bits(shards[name]), name
    (report,) = (m for m in daemon.observer.models() if m["id"] == model.id)
    assert report["files"] == 130
    again = session.load(tmp_path)
    assert again.was_resident
    again.close()
    model.close()
    session.close()
    with daemon.connect("unloader", observer=True) as unloader:
        unloader.raw.unload_model(model.handle)
    wait_until(lambda: daemon.status()["descriptors"] <= descriptors, "all files are closed")


def test_a_plan_takes_tensors_from_many_files(
    session: djinn.Session, shards: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    files = sorted(tmp_path.glob("*.safetensors"))
    pieces = [djinn.Piece(i, f"layers.{i}.w") for i in range(len(files))]
    plan = djinn.LoadPlan((destination("stack", "float16", (650, 7), *pieces),))
    model = session.load(files, plan)
    expected = torch.cat([shards[f"layers.{i}.w"] for i in range(130)]).half()
    assert loaded(session, model, "stack") == (bits(expected), (650, 7))


def test_an_index_that_names_a_missing_file_or_another_directory_is_refused(
    session: djinn.Session, shards: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    names = {
        "model-00131-of-00130.safetensors": "not_found",
        "../elsewhere.safetensors": "malformed",
        "/dev/zero": "malformed",
    }
    for name, code in names.items():
        changed = {**index, "weight_map": {**index["weight_map"], "layers.7.w": name}}
        path.write_text(json.dumps(changed))
        with pytest.raises(djinn.Error) as refused:
            session.load(tmp_path)
        assert refused.value.code == code
