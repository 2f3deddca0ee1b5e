# SPDX-License-Identifier: Apache-2.0
"""A process that records, flushes, reads and holds many tensors of the device until it is killed.
It says each line before it goes on."""

import sys

import djinn.torch
import torch

DEVICE = djinn.torch.device


def main() -> None:
    held = [torch.arange(10_000.0).to(DEVICE)]
    for step in range(100_000):
        value = held[step % len(held)]
        for _ in range(20):
            value = value * 0.5 + 1
        held.append(value)
        held = held[-50:]
        print(f"recorded {step}", flush=True)
        djinn.torch._device.flush()
        print(f"flushed {step}", flush=True)
        if step % 3 == 0:
            value.sum().item()
            print(f"read {step}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
