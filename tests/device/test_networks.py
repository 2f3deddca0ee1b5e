# SPDX-License-Identifier: Apache-2.0
"""Networks that PyTorch computes with operators of their own: recurrent ones and the fast path of
transformer encoders."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from twins import DEVICE, numbers, same

RECURRENT: dict[str, Callable[[], nn.Module]] = {
    "LSTM": lambda: nn.LSTM(6, 8),
    "LSTM of two layers, both directions, batch first": lambda: nn.LSTM(
        6, 8, 2, bidirectional=True, batch_first=True
    ),
    "LSTM without biases": lambda: nn.LSTM(6, 8, bias=False),
    "GRU": lambda: nn.GRU(6, 8),
    "GRU of two layers, both directions, batch first": lambda: nn.GRU(
        6, 8, 2, bidirectional=True, batch_first=True
    ),
    "RNN": lambda: nn.RNN(6, 8, 2),
    "RNN of relu, both directions": lambda: nn.RNN(6, 8, nonlinearity="relu", bidirectional=True),
}
PROJECTED = {"LSTM with projections": lambda: nn.LSTM(6, 8, 2, proj_size=4)}


def made(name: str, device: str) -> nn.Module:
    torch.manual_seed(5)
    return (RECURRENT | PROJECTED)[name]().to(device)


@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_network_has_the_bits_of_the_cpu(name: str) -> None:
    def run(device: str) -> object:
        network = made(name, device).eval().requires_grad_(False)  # else the CPU folds otherwise
        with torch.no_grad():
            first, state = network(numbers(device, 3, 5, 6))
            again, last = network(numbers(device, 3, 5, 6) * 0.5, state)
        return first, again, last

    same(run)


def test_it_is_one_operator(stats) -> None:  # noqa: ANN001
    network = made("LSTM", DEVICE).eval()
    x = numbers(DEVICE, 50, 2, 6)
    with torch.no_grad():
        network(x)
        before = stats()["recorded"]
        network(x)
    assert stats()["recorded"] - before < 8


@pytest.mark.parametrize("name", RECURRENT | PROJECTED)
def test_a_recurrent_network_trains_with_the_bits_of_the_cpu(name: str) -> None:
    """Those of PyTorch's own steps: for an LSTM on the CPU oneDNN takes others."""

    def run(device: str) -> object:
        network = made(name, device).train()
        steps = torch.optim.SGD(network.parameters(), 0.1)
        losses = []
        for _ in range(3):
            steps.zero_grad()
            output, state = network(numbers(device, 3, 5, 6))
            hidden = state[0] if isinstance(state, tuple) else state
            loss = output.square().mean() + hidden.sum() * 0.1
            loss.backward()
            steps.step()
            losses.append(loss.item())
        return losses, [p.grad for p in network.parameters()], network.state_dict()

    own_steps = isinstance(made(name, "cpu"), nn.LSTM)
    with torch.backends.mkldnn.flags(enabled=False) if own_steps else nullcontext():
        same(run)


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("gradient", [False, True])
def test_a_cell_alone_has_the_bits_of_the_cpu(cell: type[nn.Module], gradient: bool) -> None:
    def run(device: str) -> object:
        torch.manual_seed(5)
        one = cell(6, 8).to(device).requires_grad_(gradient)
        with torch.set_grad_enabled(gradient):
            state = one(numbers(device, 3, 6))
            state = one(numbers(device, 3, 6) * 0.5, state)
        hidden = state[0] if isinstance(state, tuple) else state
        if gradient:
            hidden.square().mean().backward()
        return state, [p.grad for p in one.parameters() if gradient]

    same(run)


def test_an_lstm_in_training_is_near_to_what_onednn_makes_of_it() -> None:
    def run(device: str) -> list[torch.Tensor]:
        network = made("LSTM of two layers, both directions, batch first", device).train()
        network(numbers(device, 3, 5, 6))[0].square().mean().backward()
        return [p.grad.cpu() for p in network.parameters()]

    for here, there in zip(run("cpu"), run(DEVICE), strict=True):
        torch.testing.assert_close(there, here, rtol=1e-5, atol=1e-7)


def test_dropout_between_layers_is_drawn() -> None:
    torch.manual_seed(5)
    network = nn.GRU(6, 8, 2, dropout=0.5).to(DEVICE).train()
    with torch.no_grad():
        first, second = (network(numbers(DEVICE, 3, 5, 6))[0].cpu() for _ in range(2))
    assert not torch.equal(first, second)


def encoder(device: str, **options: bool) -> nn.TransformerEncoder:
    torch.manual_seed(7)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(device)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("mask", ["none", "causal", "padding", "both"])
def test_the_fast_path_of_an_encoder_has_the_bits_of_the_cpu(mask: str, norm_first: bool) -> None:
    def run(device: str) -> object:
        model = encoder(device, norm_first=norm_first).eval()
        causal = nn.Transformer.generate_square_subsequent_mask(5, device=device)
        padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]).to(device)
        with torch.no_grad():
            return model(
                numbers(device, 2, 5, 16),
                mask=causal if mask in ("causal", "both") else None,
                src_key_padding_mask=padding if mask in ("padding", "both") else None,
            )

    same(run)


def test_an_encoder_trains_with_the_bits_of_the_cpu() -> None:
    def run(device: str) -> object:
        model = encoder(device).train()
        steps = torch.optim.SGD(model.parameters(), 0.1)
        losses = []
        for _ in range(3):
            steps.zero_grad()
            loss = model(numbers(device, 2, 5, 16)).square().mean()
            loss.backward()
            steps.step()
            losses.append(loss.item())
        return losses, model.state_dict()

    same(run)


@pytest.mark.parametrize("weights", ["none", "averaged", "of each head"])
def test_attention_of_its_own_has_the_bits_of_the_cpu(weights: str) -> None:
    def run(device: str) -> object:
        torch.manual_seed(9)
        attention = nn.MultiheadAttention(16, 4, batch_first=True).to(device).eval()
        x = numbers(device, 2, 5, 16)
        with torch.no_grad():
            return attention(
                x,
                x,
                x,
                need_weights=weights != "none",
                average_attn_weights=weights == "averaged",
            )

    same(run)


DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PRODUCTS = {  # by what the groups share out; their rows begin at multiples of 16 bytes
    "rows": ((16, 24), (3, 24, 8), [4, 4, 16]),
    "columns": ((3, 8, 24), (24, 16), [4, 4, 16]),
    "what is summed over": ((8, 16), (16, 24), [4, 4, 16]),
    "nothing": ((3, 8, 16), (3, 16, 24), None),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shared", PRODUCTS)
def test_a_grouped_product_has_the_bits_of_the_cpu(shared: str, dtype: torch.dtype) -> None:
    a, b, ends = PRODUCTS[shared]

    def run(device: str) -> object:
        offsets = None
        if ends is not None:
            offsets = torch.tensor(ends, dtype=torch.int32, device=device)
        left, right = (numbers(device, *sizes, dtype=dtype) for sizes in (a, b))
        return nn.functional.grouped_mm(left, right, offs=offsets)

    same(run)


def test_rows_that_no_group_has_are_refused() -> None:
    offsets = torch.tensor([4, 4, 8], dtype=torch.int32, device=DEVICE)
    product = torch._grouped_mm(numbers(DEVICE, 12, 16), numbers(DEVICE, 3, 16, 8), offs=offsets)
    with pytest.raises(RuntimeError, match=r"_grouped_mm.*ascend to 12"):
        product.cpu()


@pytest.mark.parametrize("dtype", (torch.int32, torch.int64, torch.uint8), ids=str)
def test_integers_are_counted_in_bins_as_floats_are(dtype: torch.dtype) -> None:
    """As accelerators do, and the CPU does not: it is given the same numbers as floats."""
    values = torch.tensor([0, 3, 3, 1, 7, 9, 6, 3], dtype=dtype)
    expected = torch.histc(values.float(), bins=8, min=0, max=7)
    found = torch.histc(values.to(DEVICE), bins=8, min=0, max=7)
    assert found.dtype == dtype
    assert found.tolist() == expected.tolist()
