# SPDX-License-Identifier: Apache-2.0
"""Random programs over tensors: integers of every width, booleans, and some float data that makes
an integer unknown to the client. The same seed makes the same program on any device."""

import random
from collections.abc import Iterator

import torch

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
TENSORS_MAX = 14


class Program:
    """Steps on a pool of tensors, each [4, 6] or a view or reduction of one."""

    def __init__(self, seed: int, device: str) -> None:
        self.random = random.Random(seed)
        self.device = device
        self.pool: list[torch.Tensor] = []
        self.created: list[torch.Tensor] = []  # whose strides are the same everywhere
        self.create()
        self.create()

    def create(self) -> None:
        r = self.random
        kind = r.randrange(6)
        values = [r.randrange(-40, 40) for _ in range(24)]
        if kind == 0:
            made = torch.tensor(values, device=self.device).view(4, 6)
        elif kind == 1:
            made = torch.arange(24, device=self.device).reshape(4, 6) % r.randrange(2, 9)
        elif kind == 2:
            made = torch.full((4, 6), values[0], device=self.device, dtype=r.choice(INTEGERS[:3]))
        elif kind == 3:
            made = torch.tensor(values, dtype=torch.float32).view(4, 6).to(self.device) / 8
        elif kind == 4:
            made = torch.tensor(values).view(4, 6).to(r.choice(INTEGERS)).to(self.device)
        else:
            made = torch.zeros(4, 6, dtype=r.choice(INTEGERS), device=self.device)
        self.keep(made)
        self.created = [*self.created[-3:], made]

    def keep(self, tensor: torch.Tensor) -> None:
        if len(self.pool) == TENSORS_MAX:
            self.pool.pop(self.random.randrange(TENSORS_MAX))
        self.pool.append(tensor)

    def any(self) -> torch.Tensor:
        return self.random.choice(self.pool)

    def view(self) -> torch.Tensor:
        """Of one in the pool: often itself, else a part of it."""
        a, r = self.any(), self.random
        if a.dim() == 0 or r.random() < 0.4:
            return a
        d = r.randrange(a.dim())
        size = a.size(d)
        start = r.randrange(size)
        kind = r.randrange(5)
        if kind == 0:
            return a.select(d, start)
        if kind == 1:
            return a.narrow(d, start, r.randrange(1, size - start + 1))
        if kind == 2:
            return a.transpose(0, d)
        if kind == 3:
            return r.choice(self.created).view(torch.uint8)
        return a[tuple([slice(None)] * d + [slice(start, None, 2)])]

    def compute(self) -> None:
        a, r = self.view(), self.random
        number = r.randrange(1, 6)
        kind = r.randrange(14)
        if kind == 0:
            made = a + number
        elif kind == 1:
            made = a * a
        elif kind == 2:
            made = a > number
        elif kind == 3:
            made = a.to(r.choice((*INTEGERS, torch.bool, torch.float32)))
        elif kind == 4:
            made = torch.where(a > number, a, torch.zeros_like(a))
        elif kind == 5:
            made = a.sum() if r.random() < 0.5 or a.dim() == 0 else a.sum(0)
        elif kind == 6:
            made = a.amax() if a.numel() else a
        elif kind == 7 and a.dim() > 0:
            made = torch.cat([a, a], 0)[: a.size(0)]
        elif kind == 8 and a.dim() > 0:
            made = a.cumsum(0)
        elif kind == 9 and a.dim() > 0:
            made = a.index_select(0, torch.tensor([0] * a.size(0), device=self.device))
        elif kind == 10 and a.dim() > 0:
            made = a.flip(0)
        elif kind == 11 and a.dtype not in (torch.float32, torch.bool):
            made = a // number
        elif kind == 12 and a.dim() > 0:
            made = a.argsort(stable=True)
        else:
            made = a.clone()
        self.keep(made)

    def write(self) -> None:
        a, r = self.view(), self.random
        number = r.randrange(1, 6)
        kind = r.randrange(8)
        if kind == 0:
            a.fill_(number)
        elif kind == 1 and a.dtype != torch.bool:
            a.add_(number)
        elif kind == 2 and a.dtype != torch.bool:
            a.mul_(number)
        elif kind == 3:
            a.zero_()
        elif kind == 4:
            a.masked_fill_(a > number, number)
        elif kind == 5:
            source = self.any()
            if source.shape == a.shape and source.dtype != torch.float32:
                a.copy_(source.clone())
        elif kind == 6:
            a.copy_(torch.full(a.shape, number))
        elif a.dim() > 0:
            a[r.randrange(a.size(0))] = number

    def add_view(self) -> None:
        self.keep(self.view())

    def run(self, steps: int) -> Iterator[torch.Tensor]:
        """Yields what somebody looks at: a few values on the way, then all."""
        actions = (self.create, self.compute, self.compute, self.write, self.write, self.add_view)
        for _ in range(steps):
            self.random.choice(actions)()
            if self.random.random() < 0.15:
                yield self.any().cpu()
        yield from (tensor.cpu() for tensor in self.pool)
