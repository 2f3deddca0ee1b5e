# SPDX-License-Identifier: Apache-2.0
"""Load plans from traces: what a plan gives, piece by piece, is what the operators give."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

pytest.importorskip("djinn.torch", exc_type=ImportError)

from djinn.torch import plans

ROUNDS = 300
Traced = tuple[Any, Any]


class World:
    """Sources with known elements, and tensors made of them together with their traces."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.sources: list[torch.Tensor] = []
        self.headers: list[dict[str, tuple[str, tuple[int, ...]]]] = [{}]

    def source(self, *sizes: int) -> tuple[torch.Tensor, Any]:
        number = len(self.sources)
        tensor = torch.rand(sizes)
        self.sources.append(tensor)
        self.headers[0][str(number)] = ("float32", sizes)
        return tensor, ("source", 0, str(number))

    def tracer(self) -> plans.Tracer:
        return plans.Tracer(self.headers)

    def evaluate(self, content: plans.Content) -> torch.Tensor:
        parts = []
        for region in content.regions:
            _, name, slices, transposed = region.piece()
            part = self.sources[int(name)]
            for dimension, start, length in slices:
                part = part.narrow(dimension, start, length)
            parts.append(part.transpose(-1, -2) if transposed else part)
            assert tuple(parts[-1].shape) == region.sizes
        sizes = content.sizes()
        whole = parts[0] if len(parts) == 1 else torch.cat(parts, content.dimension)
        assert tuple(whole.shape) == sizes
        return whole.reshape(-1).to(getattr(torch, content.dtype))


def view_of(tensor: torch.Tensor) -> Any:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return (dtype, list(tensor.shape), list(tensor.stride()), tensor.storage_offset())


def operator(name: str, arguments: list[Any], operands: list[Traced], out: torch.Tensor) -> Any:
    named = [("", argument) for argument in arguments]
    dtype = str(out.dtype).removeprefix("torch.")
    return ("op", name, named, operands, list(out.shape), list(out.stride()), dtype)


def copied(tensor: torch.Tensor, what: Any, dtype: torch.dtype) -> tuple[torch.Tensor, Any]:
    """A contiguous copy, as transformers' conversions end."""
    out = tensor.to(dtype).clone(memory_format=torch.contiguous_format)
    zero = (("zero",), view_of(out))
    return out, operator("aten::copy_", [], [zero, (what, view_of(tensor))], out)


def joined(name: str, parts: Sequence[tuple[torch.Tensor, Any]], dimension: int) -> Any:
    out = getattr(torch, name)([tensor for tensor, _ in parts], dimension)
    operands = [(what, view_of(tensor)) for tensor, what in parts]
    numbers = ("tensors", list(range(len(parts))))
    return out, operator(f"aten::{name}", [numbers, dimension], operands, out)


def changed(tensor: torch.Tensor, randomly: random.Random) -> torch.Tensor:
    """A view of it."""
    dimension = randomly.randrange(tensor.dim())
    size = tensor.shape[dimension]
    kind = randomly.choice(["narrow", "transpose", "select", "unsqueeze", "chunk", "flatten"])
    if kind == "narrow":
        start = randomly.randrange(size)
        return tensor.narrow(dimension, start, randomly.randint(1, size - start))
    if kind == "transpose" and tensor.dim() > 1:
        return tensor.transpose(-1, -2)
    if kind == "select" and tensor.dim() > 2:
        return tensor.select(0, randomly.randrange(tensor.shape[0]))
    if kind == "unsqueeze" and tensor.dim() < 4:
        return tensor.unsqueeze(dimension)
    if kind == "chunk":
        return tensor.chunk(2, dimension)[-1]
    if kind == "flatten" and tensor.dim() > 1 and tensor.is_contiguous():
        return tensor.flatten(0, 1)
    return tensor


def check(world: World, tensor: torch.Tensor, what: Any) -> plans.Content:
    content = world.tracer().storage(what)
    expected = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    assert torch.equal(world.evaluate(content), expected)
    return content


@pytest.mark.parametrize("seed", range(8))
def test_what_a_plan_says_is_what_the_operators_compute(seed: int) -> None:
    world = World(seed)
    said = 0
    for _ in range(ROUNDS):
        sizes = [world.random.choice([1, 2, 3, 4, 6]) for _ in range(world.random.randint(1, 3))]
        parts = []
        for _ in range(world.random.randint(1, 3)):
            tensor, what = world.source(*sizes)
            if world.random.random() < 0.5:
                tensor = tensor.transpose(-1, -2) if len(sizes) > 1 else tensor
                tensor, what = copied(tensor, what, torch.float32)
            parts.append((tensor, what))
        name = world.random.choice(["cat", "stack"])
        tensor, what = parts[0]
        if len(parts) > 1 and len({one.shape for one, _ in parts}) == 1:
            tensor, what = joined(name, parts, world.random.randrange(len(tensor.shape)))
        for _ in range(world.random.randint(0, 3)):
            tensor = changed(tensor, world.random)
        tensor, what = copied(tensor, what, world.random.choice([torch.float32, torch.bfloat16]))
        try:
            check(world, tensor, what)
            said += 1
        except plans.Inexpressible:
            pass
    assert said > ROUNDS // 2


def test_experts_are_pieces_of_one_tensor() -> None:
    world = World()
    gate, up = ([world.source(4, 6) for _ in range(3)] for _ in range(2))
    tensor, what = joined("cat", [joined("stack", gate, 0), joined("stack", up, 0)], 1)
    content = check(world, tensor, what)
    assert len(content.regions) == 6 and content.sizes() == (24, 6)


def test_a_transposed_matrix_is_one_piece() -> None:
    world = World()
    source, what = world.source(2, 4, 6)
    content = check(world, *copied(source.transpose(1, 2), what, torch.bfloat16))
    assert [region.transposed for region in content.regions] == [True]


def test_matrices_side_by_side_are_one_piece_each() -> None:
    world = World()
    parts = [world.source(4, 6), world.source(4, 3)]
    content = check(world, *joined("cat", parts, 1))
    assert content.dimension == 1 and len(content.regions) == 2


def test_tensors_of_one_storage_have_one_content() -> None:
    world = World()
    source, what = world.source(6, 2)
    tracer = world.tracer()
    assert tracer.storage(what) is tracer.storage(what)
    assert source.chunk(3)[1].untyped_storage().data_ptr() == source.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    "why", ["cast twice", "aten::mul", "not in the files", "another dtype", "different sizes"]
)
def test_what_no_plan_says_is_told(why: str) -> None:
    world = World()
    tensor, what = world.source(4, 6)
    if why == "cast twice":
        tensor, what = copied(*copied(tensor, what, torch.bfloat16), torch.float32)
    elif why == "aten::mul":
        what = operator(why, [], [(what, view_of(tensor))], tensor)
    elif why == "not in the files":
        what = ("written",)
    elif why == "another dtype":
        tensor, what = copied(tensor.view(torch.int32), what, torch.int32)
    else:
        parts = [world.source(6), world.source(4, 6)]
        _, what = joined("cat", [parts[0], (parts[1][0].flatten(), parts[1][1])], 0)
    with pytest.raises(plans.Inexpressible, match=why):
        world.tracer().storage(what).sizes()


def test_a_plan_depends_on_contents_alone() -> None:
    world = World()
    contents = [world.tracer().storage(world.source(2, 3)[1]) for _ in range(3)]
    one, other = plans.Plan(), plans.Plan()
    for content in contents:
        one.add(content)
    for content in (*reversed(contents), contents[1]):
        other.add(content)
    assert one.for_device() == other.for_device()


def test_different_contents_have_different_names() -> None:
    world = World()
    source, what = world.source(6, 4)
    tracer = world.tracer()
    contents = [tracer.storage(what)]
    for view in (source[:3], source[3:], source.T):
        contents.append(tracer.view((what, view_of(view))))
    contents.append(contents[0].cast("bfloat16"))
    plan = plans.Plan()
    assert len({plan.add(content) for content in contents}) == len(plan.destinations) == 5


def test_what_the_files_hold_beside_is_loaded_where_it_is_little() -> None:
    world = World()
    whole = [world.source(*sizes)[1] for sizes in ((64, 4), (64, 4), (4, 4))]
    tracer = world.tracer()

    def planned(*numbers: int, dtype: str = "float32") -> list[Any]:
        plan = plans.Plan()
        for number in numbers:
            plan.add(tracer.storage(whole[number]).cast(dtype))
        plan.add_beside(world.headers)
        return plan.for_device()

    assert planned(0, 1) == planned(0, 1, 2) != planned(0)
    assert len(planned(0)) == 1, "half of the files is not little"
    assert planned(0, 1, dtype="bfloat16") == planned(0, 1, 2, dtype="bfloat16")


def test_all_tensors_as_they_are_have_their_own_names() -> None:
    world = World()
    whole = [world.source(*sizes)[1] for sizes in ((64, 4), (64, 4))]
    contents = [world.tracer().storage(what) for what in whole]

    def names(*taken: plans.Content) -> dict[str, str] | None:
        plan = plans.Plan()
        for content in taken:
            plan.add(content)
        return plan.own_names(world.headers)

    assert names(*contents) == {"0": "0", "1": "1"}
    assert names(contents[0]) is None
    assert names(contents[0], contents[1].cast("bfloat16")) is None


def test_tensors_of_two_files_have_their_own_names_unless_they_are_one() -> None:
    header = ("float32", (2, 3))
    for names, own in ((["a", "b"], {"a": "a", "1/b": "b"}), (["a", "a"], None)):
        plan = plans.Plan()
        headers = [{name: header} for name in names]
        for file, name in enumerate(names):
            plan.add(plans.tensor_of(file, name, header))
        assert plan.own_names(headers) == own
