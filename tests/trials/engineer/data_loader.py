# SPDX-License-Identifier: Apache-2.0
"""data_loader.py: a dataset that already moves its tensors, read by worker processes."""

import djinn
import torch
from torch.utils.data import DataLoader, Dataset

djinn.enable()


class Moved(Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), index).to(djinn.device())


for batch in DataLoader(Moved(), batch_size=2, num_workers=2):
    print(batch)
