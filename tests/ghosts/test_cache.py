# SPDX-License-Identifier: Apache-2.0
"""A ghost's own cache: appended in place, and the same bits as transformers' own.

The cases are in caches.py, and run in one process, because a process has one device.
"""

import cases
import pytest
import torch

pytest.importorskip("djinn.torch", exc_type=ImportError)

LIMIT_S = 240.0
SHAPES = ((1, 4, 2, 16), (3, 4, 4, 16), (2, 12, 12, 64), (1, 14, 2, 64), (3, 6, 3, 20))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> cases.Outcomes:
    return cases.outcomes_of("caches.py", tmp_path_factory.mktemp("cases"), LIMIT_S)


@pytest.mark.ci
@pytest.mark.parametrize("name", cases.names_in("caches.py"))
def test_that(outcomes: cases.Outcomes, name: str) -> None:
    cases.expect_passed(outcomes, name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_has_the_same_bits_on_slots_and_on_repeated_contiguous_keys(
    dtype: torch.dtype, shape: tuple[int, int, int, int]
) -> None:
    """PyTorch's own kernels: what the layout of slots, and leaving out repeat_kv, rests on."""
    rows, heads, shared, dim = shape
    noise = torch.Generator().manual_seed(0)
    attend = torch.nn.functional.scaled_dot_product_attention
    for capacity, length, tokens in ((64, 1, 1), (64, 33, 1), (64, 17, 3), (600, 513, 1)):
        keys, values = (
            torch.randn(capacity, rows, shared, dim, generator=noise).to(dtype)[:length]
            for _ in range(2)
        )
        query = torch.randn(rows, tokens, heads, dim, generator=noise).to(dtype).transpose(1, 2)
        slots = [one.permute(1, 2, 0, 3) for one in (keys, values)]
        repeated = [one.contiguous().repeat_interleave(heads // shared, dim=1) for one in slots]
        mask = torch.ones(rows, 1, tokens, length, dtype=torch.bool).tril(length - tokens)
        mask[0, :, :, : length // 3] = False
        for masked in (None, mask):
            whole = attend(query, *repeated, attn_mask=masked)
            there = attend(query, *slots, attn_mask=masked, enable_gqa=heads > shared)
            assert torch.equal(whole, there), (capacity, length, tokens, masked is None)
