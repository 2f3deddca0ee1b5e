# SPDX-License-Identifier: Apache-2.0
"""Gradients and training: bit for bit what the CPU gives."""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from private_daemon import Daemon
from torch import nn
from twins import DEVICE, expect_equal, numbers, same

STEPS = 20


def n(*sizes: int) -> torch.Tensor:
    return numbers("cpu", *sizes)


IDS = torch.tensor([[1, 2], [1, 0]])
CLASSES = torch.tensor([0, 1, 2, 3, 4, 0])
COLUMNS = torch.tensor([[0, 1]] * 4)
SEEN = torch.ones(5, 5, dtype=torch.bool).tril()
HEADS = (n(2, 4, 5, 8), n(2, 4, 5, 8) * 2, n(2, 4, 5, 8) + 1)
sdpa = F.scaled_dot_product_attention

CASES: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "linear": (F.linear, (n(3, 4), n(5, 4), n(5))),
    "linear of three dimensions": (F.linear, (n(2, 3, 4), n(5, 4), n(5))),
    "linear without bias": (F.linear, (n(2, 3, 4), n(5, 4))),
    "linear of a transposed input": (
        lambda a, w, b: F.linear(a.transpose(0, 1), w, b),
        (n(2, 3, 4), n(5, 4), n(5)),
    ),
    "matmul": (torch.matmul, (n(3, 4), n(4, 5))),
    "matmul of batches": (torch.matmul, (n(2, 2, 3, 4), n(2, 4, 5))),
    "matmul folded": (torch.matmul, (n(2, 3, 4), n(4, 5))),
    "matmul of a vector": (torch.matmul, (n(3, 4), n(4))),
    "baddbmm": (torch.baddbmm, (n(2, 3, 5), n(2, 3, 4), n(2, 4, 5))),
    "einsum": (lambda a, b: torch.einsum("ij,kj->ik", a, b), (n(4, 6), n(3, 6))),
    "layer_norm": (lambda a, w, b: F.layer_norm(a, (6,), w, b), (n(3, 4, 6), n(6), n(6))),
    "rms_norm": (lambda a, w: F.rms_norm(a, (6,), w), (n(3, 4, 6), n(6))),
    "group_norm": (lambda a, w, b: F.group_norm(a, 2, w, b), (n(5, 4, 3), n(4), n(4))),
    "group_norm of a smaller input": (
        lambda a, w, b: F.group_norm(a.bfloat16(), 2, w, b).float(),
        (n(5, 4, 3), n(4), n(4)),
    ),
    "instance_norm": (lambda a: F.instance_norm(a), (n(5, 4, 3, 2),)),
    "batch_norm of channels last": (
        lambda a, w, b: F.batch_norm(
            a.contiguous(memory_format=torch.channels_last), None, None, w, b, training=True
        ),
        (n(5, 3, 4, 2), n(3), n(3)),
    ),
    "adaptive_avg_pool2d": (lambda a: F.adaptive_avg_pool2d(a, 2), (n(2, 3, 8, 8),)),
    "grid_sample": (
        lambda a, g: F.grid_sample(a, g.tanh(), align_corners=False),
        (n(2, 3, 4, 4), n(2, 3, 5, 2)),
    ),
    "batch_norm": (
        lambda a, w, b: F.batch_norm(a, None, None, w, b, training=True),
        (n(5, 3, 4), n(3), n(3)),
    ),
    "attention": (sdpa, HEADS),
    "causal attention": (lambda q, k, v: sdpa(q, k, v, is_causal=True), HEADS),
    "masked attention": (sdpa, (*HEADS, SEEN)),
    "grouped attention": (
        lambda q, k, v: sdpa(q, k, v, enable_gqa=True),
        (n(2, 4, 5, 8), n(2, 2, 5, 8) * 2, n(2, 2, 5, 8) + 1),
    ),
    "embedding": (lambda w, i: F.embedding(i, w), (n(7, 4), IDS)),
    "embedding with padding": (lambda w, i: F.embedding(i, w, padding_idx=1), (n(7, 4), IDS)),
    "conv1d": (F.conv1d, (n(2, 3, 9), n(4, 3, 3), n(4))),
    "conv2d": (F.conv2d, (n(2, 3, 8, 8), n(4, 3, 3, 3), n(4))),
    "conv2d without bias": (F.conv2d, (n(2, 3, 8, 8), n(4, 3, 3, 3))),
    "conv2d of a fixed weight": (
        lambda a: F.conv2d(a, numbers(a.device, 4, 3, 3, 3)),
        (n(2, 3, 8, 8),),
    ),
    "conv2d of a fixed input": (
        lambda w: F.conv2d(numbers(w.device, 2, 3, 8, 8), w),
        (n(4, 3, 3, 3),),
    ),
    "conv2d in groups": (
        lambda a, w: F.conv2d(a, w, groups=3, padding=1, stride=2),
        (n(2, 3, 8, 8), n(3, 1, 3, 3)),
    ),
    "conv_transpose2d": (F.conv_transpose2d, (n(2, 3, 5, 5), n(3, 4, 3, 3), n(4))),
    "cross_entropy": (F.cross_entropy, (n(6, 5), CLASSES)),
    "cross_entropy smoothed": (
        lambda a, y: F.cross_entropy(a, y, ignore_index=1, label_smoothing=0.1),
        (n(6, 5), CLASSES),
    ),
    "mse_loss": (F.mse_loss, (n(6, 5), n(6, 5) * 2)),
    "binary cross entropy": (
        lambda a, b: F.binary_cross_entropy_with_logits(a, b.sigmoid()),
        (n(6, 5), n(6, 5) * 2),
    ),
    "max_pool2d": (lambda a: F.max_pool2d(a, 2), (n(2, 3, 6, 6),)),
    "interpolate": (
        lambda a: F.interpolate(a, scale_factor=2, mode="bilinear"),
        (n(2, 3, 4, 4),),
    ),
    "rows": (lambda a: a[[0, 2], 1:], (n(4, 6),)),
    "mask": (lambda a: a[a > 0], (n(4, 6),)),
    "where": (lambda a, b: torch.where(a > b, a, b), (n(4, 6), n(4, 6) * 2)),
    "gather": (lambda a, i: a.gather(1, i), (n(4, 6), COLUMNS)),
    "sort": (lambda a: a.sort(1)[0], (n(4, 6),)),
    "views": (lambda a: a.view(2, 12).t().reshape(-1)[::3].unsqueeze(0).expand(3, 8), (n(4, 6),)),
    "in place": (lambda a: a.clone().mul_(2).relu_() * 3, (n(4, 6),)),
    "to the CPU and back": (lambda a: a.cpu().to(a.device) * 2, (n(4, 6),)),
    "through other dtypes": (lambda a: a.double().bfloat16().float(), (n(4, 6),)),
}
ACTIVATIONS = "relu gelu silu softplus elu leaky_relu hardswish mish tanh sigmoid logsigmoid glu"
CASES |= {name: (getattr(F, name), (n(4, 6),)) for name in ACTIVATIONS.split()}


@pytest.mark.parametrize("case", CASES)
def test_gradients_have_the_bits_of_the_cpu(case: str) -> None:
    f, arguments = CASES[case]

    def run(device: str) -> object:
        leaves = [argument.clone().to(device) for argument in arguments]
        floats = [leaf.requires_grad_() for leaf in leaves if leaf.is_floating_point()]
        result = f(*leaves)
        loss = (result * result.detach().cos()).sum() if result.dim() else result
        return result, torch.autograd.grad(loss, floats)

    same(run)


# What comes after an operator, and so how the gradient lies that it is given.
FOLLOWERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "expanded": torch.sum,
    "turned": lambda t: (t.transpose(0, -1).contiguous() * 2).cos().sum(),
    "a slice": lambda t: torch.cat([t, t * 2], -1).cos().sum(),
    "swapped": lambda t: (t.unsqueeze(-1).transpose(0, 1).contiguous() * 2).cos().sum(),
}


@pytest.mark.parametrize("case", CASES)
def test_a_gradient_may_lie_as_it_likes(case: str) -> None:
    f, arguments = CASES[case]

    def run(device: str) -> object:
        gradients = []
        for follow in FOLLOWERS.values():
            leaves = [argument.clone().to(device) for argument in arguments]
            floats = [leaf.requires_grad_() for leaf in leaves if leaf.is_floating_point()]
            result = f(*leaves)
            gradients.append(
                torch.autograd.grad(follow(result if result.dim() else result[None]), floats)
            )
        return gradients

    same(run)


def test_a_group_norm_of_channels_last_trains_nearly_as_on_the_cpu(device: torch.device) -> None:
    def run(where: torch.device | str) -> tuple[torch.Tensor, ...]:
        a = n(5, 4, 3, 2).to(where).requires_grad_()
        w, b = n(4).to(where).requires_grad_(), n(4).to(where).requires_grad_()
        result = F.group_norm(a.contiguous(memory_format=torch.channels_last), 2, w, b)
        loss = (result * result.detach().cos()).sum()
        return result.detach().cpu(), *(g.cpu() for g in torch.autograd.grad(loss, (a, w, b)))

    here, there = run("cpu"), run(device)
    assert torch.equal(here[0], there[0])
    torch.testing.assert_close(there[1:], here[1:], rtol=0, atol=1e-6)


def test_second_derivatives_custom_functions_and_checkpoints() -> None:
    class Exponential(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(a)
            return a.exp()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * ctx.saved_tensors[0]

    def run(device: str) -> object:
        a = numbers(device, 4).requires_grad_()
        (first,) = torch.autograd.grad((a**3).sum(), a, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), a)
        (own,) = torch.autograd.grad(Exponential.apply(a).sum(), a)
        torch.manual_seed(1)
        layer = nn.Linear(4, 4).to(device)
        torch.utils.checkpoint.checkpoint(layer, a, use_reentrant=False).sum().backward()
        return first, second, own, a.grad, layer.weight.grad

    same(run)


def test_batch_norm_trains_keeps_its_statistics_and_evaluates() -> None:
    def run(device: str) -> object:
        layer, x = nn.BatchNorm2d(5).to(device), numbers(device, 2, 5, 4, 4).requires_grad_()
        trained = layer(x)
        trained.square().sum().backward()
        evaluated = layer.eval()(x)
        evaluated.square().sum().backward()
        return trained, evaluated, x.grad, layer.weight.grad, list(layer.state_dict().values())

    same(run)


def test_hooks_see_tensors_of_the_device_and_change_them() -> None:
    def run(device: str) -> object:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).to(device)
        seen: list[torch.Tensor] = []

        def double(_: nn.Module, __: object, output: torch.Tensor) -> torch.Tensor:
            assert output.device == torch.device(device)
            seen.append(output.clone())
            return output * 2

        model[0].register_forward_hook(double)
        model[2].register_forward_pre_hook(lambda _, inputs: (inputs[0] + 1,))
        model[2].register_full_backward_hook(lambda _, __, gradients: seen.append(gradients[0]))
        output = model(numbers(device, 5, 3))
        output.sum().backward()
        return output, seen, [p.grad for p in model.parameters()]

    same(run)


# --- training


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 4))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=40,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=32,
        )
    )


def classify(model: nn.Module, device: str, step: int) -> torch.Tensor:
    x = (n(16, 8) * (1 + step / 100)).to(device)
    return F.cross_entropy(model(x), (torch.arange(16) % 4).to(device))


def imitate(model: nn.Module, device: str, step: int) -> torch.Tensor:
    x = (n(2, 6, 16) * (1 + step / 100)).to(device)
    return F.mse_loss(model(x), x.roll(1, 1))


def predict(model: nn.Module, device: str, step: int) -> torch.Tensor:
    ids = ((torch.arange(24).view(2, 12) * 7 + step) % 40).to(device)
    return model(input_ids=ids, labels=ids).loss


MODELS = {"mlp": (mlp, classify), "encoder": (encoder, imitate), "llama": (llama, predict)}
OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 1e-2),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_twenty_training_steps_give_the_losses_and_weights_of_the_cpu(
    model: str, optimizer: str
) -> None:
    make, loss_of = MODELS[model]

    def run(device: str) -> object:
        torch.manual_seed(3)
        trained = make().to(device)
        steps = OPTIMIZERS[optimizer](trained.parameters())
        losses = []
        for step in range(STEPS):
            steps.zero_grad()
            loss = loss_of(trained, device, step)
            loss.backward()
            nn.utils.clip_grad_norm_(trained.parameters(), 5.0)
            steps.step()
            losses.append(loss.detach())
        values = [loss.item() for loss in losses]
        assert values[-1] < values[0]
        return values, list(trained.state_dict().values())

    same(run)


def test_autocast_casts_what_it_casts_on_the_cpu() -> None:
    def run(device: str) -> object:
        kind = torch.device(device).type
        a, w, q = numbers(device, 3, 4), numbers(device, 5, 4), numbers(device, 1, 2, 3, 4)
        bias, classes = numbers(device, 5), torch.tensor([0, 1, 2], device=device)
        with torch.autocast(kind):
            assert torch.get_autocast_dtype(kind) == torch.bfloat16
            y = F.linear(a, w)
            made = [
                y,
                a @ w.t(),
                y.softmax(-1),
                F.layer_norm(y, (5,)),
                F.conv1d(q[0], numbers(device, 2, 3, 3)),
                sdpa(q, q, q),
                F.cross_entropy(y, classes),
                y.sum(),
                y + a[:, :1],
                y.exp(),
                y.norm(),
                F.mse_loss(y, y * 2),
                torch.cat([y, a], 1),
                F.gelu(y),
                y.pow(2),
                y.prod(1),
                torch.bmm(a[None], w.t()[None]),
                y.cumsum(1),
                torch.einsum("ij,kj->ik", a, w),
                torch.addmm(bias, a, w.t()),
                torch.stack([y, y.float()]),
            ]
            with torch.autocast(kind, enabled=False):
                made.append(a @ w.t())
        return made

    same(run)


def test_training_under_autocast() -> None:
    def run(device: str) -> object:
        torch.manual_seed(3)
        model = mlp().to(device)
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
            loss = classify(model, device, 0)
        loss.backward()
        return loss, [p.grad for p in model.parameters()]

    same(run)


# --- modules


def test_moving_a_module_keeps_tied_weights_tied_and_parameters_themselves() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5, 4)
            self.head = nn.Linear(4, 5, bias=False)
            self.head.weight = self.embedding.weight

        def is_tied(self) -> bool:
            return self.head.weight is self.embedding.weight

    def run(device: str) -> object:
        torch.manual_seed(1)
        model = Tied()
        weight = model.head.weight
        model.to(device)
        assert model.head.weight is weight and weight.device == torch.device(device)
        with torch.no_grad():
            model.embedding.weight.add_(1)
        wide, back = copy_of(model).to(torch.float64), copy_of(model).to("cpu")
        assert model.is_tied() and wide.is_tied() and back.is_tied()
        return model.head.weight, wide.head.weight, back.head.weight

    def copy_of(model: nn.Module) -> nn.Module:
        import copy

        return copy.deepcopy(model)

    same(run)


def test_modules_that_stay_on_the_cpu_are_as_without_the_device() -> None:
    assert not torch.__future__.get_swap_module_params_on_conversion()
    model = nn.Linear(3, 3)
    seen, alias = weakref.ref(model.weight), model.weight.data
    model(torch.ones(1, 3)).sum().backward()
    model.half()
    assert model.weight is seen() and model.weight.dtype == torch.float16
    assert alias.dtype == torch.float32


def test_a_module_that_is_watched_moves_there_and_back() -> None:
    def run(device: str) -> object:
        torch.manual_seed(2)
        model = nn.Linear(3, 3)
        watching = weakref.ref(model.weight)
        loss = model(torch.ones(2, 3)).sum()
        loss.backward()
        model.to(device)
        assert model.weight.grad is not None and model.weight.grad.device == torch.device(device)
        model(torch.ones(2, 3, device=device)).sum().backward()
        there = model.weight.grad.clone()
        model.double().cpu()
        assert model.weight is watching() and model.weight.grad.device.type == "cpu"
        assert model.to("meta").weight.is_meta
        return there, model.bias.grad.shape

    same(run)


def test_state_dicts_are_saved_and_loaded() -> None:
    import io

    def run(device: str) -> object:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)).to(device)
        kept, file = {k: v.clone() for k, v in model.state_dict().items()}, io.BytesIO()
        torch.save(model.state_dict(), file)
        with torch.no_grad():
            model[0].weight.zero_()
        model.load_state_dict(kept)
        file.seek(0)
        loaded = torch.load(file, weights_only=True)
        other = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
        other.load_state_dict(loaded)
        assert all(tensor.device.type == "cpu" for tensor in other.state_dict().values())
        return model.state_dict(), loaded, other.state_dict(), model.eval()(numbers(device, 3, 4))

    same(run)


def test_a_loss_stays_recorded_until_it_is_read(stats) -> None:  # noqa: ANN001
    model = mlp().to(DEVICE)
    steps = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):
        steps.zero_grad()
        loss = classify(model, DEVICE, step)
        loss.backward()
        steps.step()
    assert stats()["reads"] == 0
    loss.item()
    assert stats()["reads"] == 1
    expect_equal(loss.cpu(), loss.cpu())


def test_what_an_optimizer_s_first_step_makes_is_computed_once(device_daemon: Daemon) -> None:
    """Its state is new memory, many times what the session had until now."""
    torch.zeros(1, device=DEVICE).cpu()  # so there is a worker
    before = device_daemon.worker()["runs_repeated"]
    twins = [[torch.zeros(512, 384, device=where) for _ in range(20)] for where in ("cpu", DEVICE)]
    for tensors in twins:
        for tensor in tensors:
            tensor.grad = torch.ones_like(tensor)
        optimizer = torch.optim.AdamW(tensors, lr=1e-3)
        for _ in range(2):
            optimizer.step()
    for plain, ours in zip(*twins, strict=True):
        expect_equal(plain, ours)
    assert device_daemon.worker()["runs_repeated"] == before


@pytest.mark.parametrize("foreach", [False, True])
def test_an_optimizer_s_step_is_cut_so_that_little_is_saved_of_it(
    device_daemon: Daemon, foreach: bool
) -> None:
    """Of what it writes in place the former bytes are kept until the run is done; and what it
    computes for one parameter goes before it begins with the next."""
    mib = 1 << 20
    count, size = 14, 4 * mib  # the state is twice as large, and all of it is written
    twins = [[numbers(where, 1024, 1024) for _ in range(count)] for where in ("cpu", DEVICE)]
    before = device_daemon.status()["memory_sessions_bytes"]
    for tensors in twins:
        optimizer = torch.optim.AdamW(tensors, lr=1e-2, foreach=foreach)
        for step in range(3):
            for tensor in tensors:
                tensor.grad = torch.full_like(tensor, step - 1.5)
            optimizer.step()
    for plain, ours in zip(*twins, strict=True):
        expect_equal(plain, ours)
    grown = device_daemon.status()["memory_sessions_bytes"] - before
    assert grown <= 4 * count * size + 64 * mib, f"{grown / mib} MiB"


def test_a_gradient_comes_back_whatever_its_optimizer_writes(stats) -> None:  # noqa: ANN001
    """AdamW's numbers are others with each step, so what it computes crosses anew. Where it writes
    much, the gradient's computation has a run of its own, which is a program once it was seen often
    enough."""
    programs: list[int] = []

    def run(device: str) -> object:
        torch.manual_seed(2)
        layers = [nn.Linear(1024, 1024, bias=False) for _ in range(4)]  # 16 MiB, and twice as state
        model = nn.Sequential(*layers).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
        losses = []
        for _ in range(6):
            before = stats()["program_runs"]
            loss = model(numbers(device, 4, 1024)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            programs.append(stats()["program_runs"] - before)
        return losses, model.state_dict()

    same(run)
    assert programs[-3:] == [1, 1, 1], programs
