# SPDX-License-Identifier: Apache-2.0
"""Stopping criteria that are asked here while the loop over tokens runs in djinnd.

They look at tokens alone, which djinnd tells as they come. It is some tokens ahead when one of them
says that all rows have ended: what it made in the meantime is cropped.
"""

from typing import Any

import torch
from transformers.generation import stopping_criteria

from .state import NotInDaemon

# Criteria that look at nothing of the device.
ASKED = (stopping_criteria.StopStringCriteria, stopping_criteria.MaxTimeCriteria)


def check_ends(criteria: Any, rows: int, outlives: bool) -> None:
    """djinnd goes on with a row that ended here, and its cache would hold that."""
    strings = stopping_criteria.StopStringCriteria
    if outlives and rows > 1 and any(type(one) is strings for one in criteria):
        raise NotInDaemon("a stop string ends one of several rows, and their cache is kept")


class Rows:
    """The rows as transformers' loop has them on the CPU, token by token."""

    def __init__(self, ids: torch.Tensor, criteria: Any, pad_token: int, streamer: Any) -> None:
        self.ids = ids  # [rows, tokens]
        self._criteria = criteria if any(type(one) in ASKED for one in criteria) else None
        # A row repeats what it ended with only where transformers pads.
        self._pads = any(hasattr(one, "eos_token_id") for one in criteria)
        self._pad_token = pad_token
        self._streamer = streamer
        self._goes_on = torch.ones(len(ids), dtype=torch.bool)

    @property
    def is_asked(self) -> bool:
        """Whether they want to see each token."""
        return self._criteria is not None or self._streamer is not None

    @property
    def ended(self) -> bool:
        """Whether the criteria said so."""
        return not self._goes_on.any()

    def append(self, step: list[int]) -> bool:
        """A token of each row. Whether there may be another."""
        tokens = torch.tensor(step, device="cpu")
        if self._criteria is None:
            self._streamer.put(tokens)
            return True
        if self._pads:
            tokens = torch.where(self._goes_on, tokens, self._pad_token)
        self.ids = torch.cat([self.ids, tokens[:, None]], dim=1)
        self._goes_on &= ~self._criteria(self.ids, None)
        if self._streamer is not None:
            self._streamer.put(tokens)
        return not self.ended

    def extend(self, tokens: list[list[int]]) -> torch.Tensor:
        """All ids, with those that the loop has made."""
        if self._criteria is None:
            more = torch.tensor(tokens, dtype=self.ids.dtype, device="cpu")
            self.ids = torch.cat([self.ids, more], dim=1)
        return self.ids


__all__ = ["ASKED", "Rows", "check_ends"]
