# SPDX-License-Identifier: Apache-2.0
"""Tensors of the device behave as those of the CPU: arithmetic, copies, printing, saving, modes."""

import copy
import io
import re

import pytest
import torch
from torch import nn
from twins import DEVICE, expect_equal, integers, numbers, same


def test_in_place_operators() -> None:
    def run(device: str) -> object:
        a, b = numbers(device, 4, 5), numbers(device, 4, 5)
        a.add_(b).mul_(2).clamp_(min=-1).sub_(b[0]).div_(3).neg_().exp_().sigmoid_()
        a.masked_fill_(b > 0, 3.0).addmm_(b, numbers(device, 5, 5)).lerp_(b, 0.3).fill_diagonal_(7)
        a += 1
        a -= b
        a *= 2
        a /= 3
        a //= 2
        a %= 5
        a.t().add_(1).relu_()
        i, j = integers(device, 4, 5), integers(device, 4, 5)
        i &= j
        i |= 3
        i ^= j
        i <<= 1
        i >>= 1
        i.scatter_(1, j.abs() % 5, i.clone())
        i.index_add_(0, torch.tensor([0, 1], device=device), j[:2])
        i.index_fill_(0, torch.tensor([2], device=device), 9)
        return a, i, i << 2, i >> j.abs()

    same(run)


def test_what_a_mask_without_true_selects() -> None:
    """Tensors without elements, made by operators of a run that is over."""

    def run(device: str) -> object:
        a, none = numbers(device, 3, 4, 5), integers(device, 3, 4) > 99
        selected = a[none] @ numbers(device, 5, 5)
        a[none] += selected
        return a, selected, selected.view(torch.int32), torch.cat([selected, a[0]])

    same(run)


def test_copies_between_devices_and_dtypes() -> None:
    def run(device: str) -> object:
        a = torch.zeros(4, 5, device=device)
        a.copy_(numbers("cpu", 4, 5))
        a[1:3].copy_(numbers("cpu", 2, 5))
        a[:, ::2].copy_(numbers("cpu", 4, 3, dtype=torch.float64))
        wide = torch.zeros(4, 5, dtype=torch.float64, device=device)
        wide.copy_(a)
        local = torch.zeros(4, 5, dtype=torch.int32)
        local.copy_(wide * 3)
        turned = torch.zeros(5, 4, device=device).t()
        turned.copy_(numbers("cpu", 5))
        part = torch.zeros(4, 5)
        part[1:].copy_(a[1:])
        kinds = [torch.bfloat16, torch.float16, torch.int8, torch.bool, torch.complex64]
        return (
            a,
            wide,
            local,
            turned,
            part,
            [a.to(kind) for kind in kinds],
            a.to("cpu", torch.double),
        )

    same(run)


def test_large_tensors_cross_in_parts() -> None:
    def run(device: str) -> object:
        a = numbers("cpu", 3000, 1500).to(device)
        return a, a.t()[5:9], a.t().contiguous(), a.sum()

    same(run)


def test_reading_a_chunk_moves_its_bytes_only(stats) -> None:  # noqa: ANN001
    x = numbers(DEVICE, 1000, 64)
    chunks = (x * 2).split(300)
    before = stats()["bytes_down"]
    expect_equal(numbers("cpu", 1000, 64)[:300] * 2, chunks[0].cpu())
    assert stats()["bytes_down"] - before == 300 * 64 * 4


def test_numbers_promote_as_on_the_cpu() -> None:
    def run(device: str) -> object:
        a, i = numbers(device, 3), integers(device, 3)
        b, one = i > 0, torch.tensor
        wide = one(2.5, device=device, dtype=torch.float64)
        return (
            a + 1,
            a + True,
            i + 1,
            i + 1.5,
            b + 1,
            b + 1.5,
            i / 2,
            i // 2,
            2**a,
            i**2,
            1 / a,
            1 - i,
            a + one(1.5, dtype=torch.float64),
            i + one(1.5),
            i + one(2, dtype=torch.int8),
            one(3.0) + i,
            a.half() + one(2.0, dtype=torch.float64),
            b & True,
            b | one(False),
            i == 1,
            i > 1.5,
            torch.maximum(i, one(2)),
            torch.where(b, a, 0.0),
            torch.where(b, 1, i),
            torch.where(b, 1.0, 2.0),
            torch.full_like(i, 2.7),
            a.half() * 3.1,
            a.bfloat16() + 1e-3,
            i + 2**40,
            torch.add(i, i, alpha=2),
            i.to(torch.int8) + 100,
            a.double() + 0.1,
            a + wide,
            i + wide,
            a.half() + wide,
            torch.arange(i[0].abs()),
        )

    same(run)


def test_operands_on_the_cpu_are_uploaded_and_counted(stats) -> None:  # noqa: ANN001
    def run(device: str) -> object:
        a, b = numbers(device, 3, 4), numbers("cpu", 3, 4)
        rows = torch.tensor([1, 2])
        looked_up = nn.functional.embedding(rows, a)
        return a + b, b + a, torch.cat([a, b]), torch.where(b > 0, a, b), a @ b.t(), looked_up

    same(run)
    assert stats()["mixed"] == 7
    torch.ones(3, device=DEVICE).add_(2).sum().item()
    assert stats()["mixed"] == 7, "numbers are no operands"


def test_operands_on_the_cpu_keep_their_layout() -> None:
    def run(device: str) -> object:
        one = torch.tensor(1.0).to(device)
        rows = numbers("cpu", 6, 4)
        layouts = [
            rows.t(),
            rows[:, None].expand(6, 3, 4),
            rows[::2, 1:],
            rows.t()[1:],
            numbers("cpu", 2, 3, 4, 5).to(memory_format=torch.channels_last),
            numbers("cpu", 3, 4, dtype=torch.complex64).conj().t(),
            rows[:0],
        ]
        results = [operand * one for operand in layouts]
        return results, [result.stride() for result in results]

    same(run)


def test_branches_and_numbers_of_values() -> None:
    def run(device: str) -> object:
        a, path = numbers(device, 5), []
        while a.max() < 10:
            a = a * 2
            path.append(bool(a.sum() > 0))
        return (
            path,
            a,
            a.equal(a.clone()),
            torch.allclose(a, a + 1e-9),
            torch.equal(a, a * 2),
            (a == a).all().item(),
            3 in integers(device, 9),
            torch.is_nonzero(a.sum()),
            f"{a[0]:.3f}",
            a.tolist(),
            int(a[0] * 10),
            len(a),
            [float(item) for item in a],
        )

    same(run)


def test_printing() -> None:
    def run(device: str) -> object:
        tensors = [
            numbers(device, 3, 4),
            integers(device, 3),
            torch.zeros((), device=device),
            torch.empty(0, device=device),
            numbers(device, 2, 2) > 0,
            nn.Parameter(numbers(device, 2)),
            numbers(device, 3).to(torch.complex64),
            numbers(device, 40, 40),
        ]
        # Where a line breaks follows the device's name.
        return [
            re.sub(r"\s*(device='[^']*',?)?\s*", "", repr(one)).replace(",)", ")")
            for one in tensors
        ]

    same(run)


def test_empty_tensors() -> None:
    def run(device: str) -> object:
        a = torch.empty(0, 5, device=device)
        return (
            a.sum(),
            a @ numbers(device, 5, 3),
            torch.cat([a, numbers(device, 2, 5)]),
            a.max(1),
            a.cpu(),
            a.t().contiguous(),
            torch.zeros(0, device=device).tolist(),
            torch.ones(3, 0, device=device).sum(1),
            integers(device, 0),
        )

    same(run)


def test_sorting_reducing_and_searching() -> None:
    def run(device: str) -> object:
        a = numbers(device, 6, 7)
        return (
            a.topk(3),
            a.sort(),
            a.sort(dim=0, descending=True, stable=True),
            a.argsort(),
            a.kthvalue(2),
            a.median(1),
            a.mode(1),
            a.max(),
            a.min(1),
            a.argmax(1),
            a.cummax(1),
            a.cumsum(0),
            a.cumprod(1),
            a.quantile(0.3),
            a.std(),
            a.var(1),
            a.norm(),
            a.logsumexp(1),
            a.prod(1),
            a.any(),
            a.all(1),
            a.amax((0, 1)),
            a.aminmax(),
            a.msort(),
            torch.searchsorted(a.sort()[0], a),
            torch.histc(a, 5),
            a.diff(),
            a.flip(0),
            a.roll(2, 1),
            a.rot90(),
        )

    same(run)


def test_einsum_products_and_transforms() -> None:
    def run(device: str) -> object:
        a, b, square = numbers(device, 3, 4, 5), numbers(device, 3, 5, 2), numbers(device, 4, 4)
        positive = square @ square.t() + 4 * torch.eye(4, device=device)
        return (
            torch.einsum("bij,bjk->bik", a, b),
            torch.einsum("bij->j", a),
            torch.einsum("ii->i", square),
            torch.tensordot(a, b, dims=([2], [1])),
            torch.kron(square, square),
            torch.outer(square[0], square[1]),
            torch.linalg.inv(positive),
            torch.linalg.cholesky(positive),
            torch.linalg.solve(positive, square),
            torch.linalg.qr(square),
            torch.tril(square),
            torch.cdist(a, a),
            a.matmul(numbers(device, 5)),
            torch.fft.fft(a),
            torch.fft.irfft(torch.fft.rfft(a)),
            torch.fft.fft2(a),
            torch.fft.fftshift(a),
            torch.stft(
                numbers(device, 64), 16, return_complex=True, window=torch.ones(16, device=device)
            ),
        )

    same(run)


@pytest.mark.parametrize("count", [3, 200])
def test_foreach_of_few_and_many(count: int) -> None:
    def run(device: str) -> object:
        ones = [numbers(device, 3) for _ in range(count)]
        others = [numbers(device, 3) + i for i in range(count)]
        torch._foreach_add_(ones, others, alpha=2)
        torch._foreach_mul_(ones, [1 + i / 8 for i in range(count)])
        torch._foreach_addcdiv_(ones, others, others, value=0.1)
        sums, norms = torch._foreach_add(ones, others), torch._foreach_norm(ones)
        torch._foreach_copy_(others, ones)
        torch._foreach_zero_(ones[: count // 2])
        return ones, others, sums, norms

    same(run)


def test_vmap_and_functional_derivatives() -> None:
    def run(device: str) -> object:
        a = numbers(device, 4, 5)
        return (
            torch.vmap(lambda x, y: (x * y).sum() + x.max())(a, a),
            torch.vmap(torch.mm)(numbers(device, 3, 4, 5), numbers(device, 3, 5, 2)),
            torch.func.grad(lambda x: (x**2).sum())(a),
            torch.func.jacrev(lambda x: x.sin())(numbers(device, 4)),
            torch.vmap(torch.func.grad(lambda x: (x.sin() * x).sum()))(a),
        )

    same(run)


def test_the_default_device_and_its_context() -> None:
    # PyTorch notes its factories once: if that was during a load, with transformers' stand-ins.
    torch.utils._device._device_constructors.cache_clear()

    def run(device: str) -> object:
        with torch.device(device):
            made = [
                torch.arange(5),
                torch.zeros(3),
                torch.tensor([1, 2]),
                torch.eye(3),
                torch.linspace(0, 1, 5),
            ]
            made += [torch.full((2,), 3), torch.as_tensor([1.0, 2]), nn.LayerNorm(2).weight]
        torch.set_default_device(device)
        try:
            made.append(torch.ones(2) * 2)
        finally:
            torch.set_default_device(None)
        assert all(tensor.device == torch.device(device) for tensor in made)
        return made

    same(run)


def test_inference_mode_and_no_grad() -> None:
    def run(device: str) -> object:
        weight = numbers(device, 3).requires_grad_()
        with torch.no_grad():
            a = weight * 2
        with torch.inference_mode():
            b = weight + a
            b[1:].mul_(2)
        assert not a.requires_grad and b.is_inference()
        with pytest.raises(RuntimeError, match=r"[Ii]nference"):
            b.add_(1)
        return a, b, b + 1, a._version

    same(run)


def test_deep_copies_keep_what_they_share() -> None:
    def run(device: str) -> object:
        a = numbers(device, 4, 5)
        other, row = copy.deepcopy((a, a[1]))
        other.add_(1)
        return a, other, row, copy.copy(a)

    same(run)


def test_saved_tensors_are_loaded_where_they_are_wanted() -> None:
    def run(device: str) -> object:
        a, file = numbers("cpu", 4, 5), io.BytesIO()
        torch.save([a, a[1], a.t()], file)
        file.seek(0)
        back = torch.load(file, weights_only=True, map_location=device)
        assert all(tensor.device == torch.device(device) for tensor in back)
        back[0][1] = 7
        return back, [tensor.stride() for tensor in back]

    same(run)


def test_generators_of_the_device_have_seeds_and_states() -> None:
    generator = torch.Generator(device=DEVICE).manual_seed(3)
    other = torch.Generator(device=DEVICE)
    other.set_state(generator.get_state())
    assert generator.device == torch.device(DEVICE)
    assert generator.initial_seed() == other.initial_seed() == 3
    drawn = [torch.randn(5, device=DEVICE, generator=one) for one in (generator, other)]
    expect_equal(drawn[0].cpu(), drawn[1].cpu())


def test_normal_numbers_are_drawn_about_tensors_of_means_and_deviations() -> None:
    means, deviations = torch.tensor([[-5.0], [5.0]]), torch.tensor([2.0, 0.0, 0.5])

    def draw(seed: int) -> torch.Tensor:
        generator = torch.Generator(DEVICE).manual_seed(seed)
        wide = means.to(DEVICE)[:, :, None].expand(2, 3, 4000)
        return torch.normal(wide, deviations.to(DEVICE)[:, None], generator=generator).cpu()

    drawn = draw(1)
    expect_equal(drawn, draw(1))
    assert not torch.equal(drawn, draw(2))
    assert (drawn.mean(2) - means).abs().max() < 0.2
    assert (drawn.std(2) - deviations).abs().max() < 0.2
    mean, deviation = means.to(DEVICE), deviations.to(DEVICE)
    assert (torch.normal(mean, 0.0).cpu() == means).all()
    assert torch.normal(3.0, deviation)[1].item() == 3.0
    with pytest.raises(RuntimeError, match="std >= 0"):
        torch.normal(mean, mean)
    one = torch.distributions.Normal(mean[0], deviation[0])
    assert one.sample().device == torch.device(DEVICE)


@pytest.mark.parametrize("where", [[1, 3], [-2, 9], [], 4])
@pytest.mark.parametrize("dim", [0, 1])
def test_a_split_is_told_by_a_tensor_here_or_there(where: list[int] | int, dim: int) -> None:
    places = torch.tensor(where, dtype=torch.int64)
    parts = numbers("cpu", 6, 5).tensor_split(places, dim)
    for device in ("cpu", DEVICE):
        expect_equal(parts, numbers(DEVICE, 6, 5).tensor_split(places.to(device), dim))


def test_gradients_pass_a_split_that_a_tensor_tells() -> None:
    def gradient(device: str) -> torch.Tensor | None:
        x = numbers(device, 6).requires_grad_()
        x.tensor_split(torch.tensor([2, 3]).to(device))[1].sum().backward()
        return x.grad

    same(gradient)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("learns", [False, True])
def test_attention_broadcasts_a_query_of_fewer_dimensions(is_causal: bool, learns: bool) -> None:
    def attend(device: str) -> list[torch.Tensor]:
        query = numbers(device, 4, 3, 8).requires_grad_(learns)
        key, value = numbers(device, 2, 4, 6, 8), numbers(device, 2, 4, 6, 9)
        found = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
        return [found, *(torch.autograd.grad(found.sum(), query) if learns else ())]

    same(attend)


@pytest.mark.parametrize("training", [False, True])
def test_statistics_of_a_batch_norm_are_those_of_the_cpu_and_empty_outside_of_training(
    training: bool,
) -> None:
    def normalize(device: str) -> list[object]:
        x = numbers(device, 2, 3, 4)
        one, mean, variance = (numbers(device, 3).abs() for _ in range(3))
        given = (x, one, one, mean, variance)
        ops = torch.ops.aten
        rest = (0.1, 1e-5)
        results = [
            ops._native_batch_norm_legit_functional(*given, training, *rest),
            ops._native_batch_norm_legit_no_training(*given, *rest),
            ops._native_batch_norm_legit(*given, training, *rest),
        ]
        return [*results, mean, variance]

    same(normalize)
