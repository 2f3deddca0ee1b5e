# SPDX-License-Identifier: Apache-2.0
"""What a program may choose about ghosts: `djinn.config`."""

from typing import Any, Literal

import torch

from djinn.errors import unknown
from djinn.session import deadline_ms, milliseconds

from . import _device

Fallback = Literal["error", "local"]
FALLBACKS = ("error", "local")
Weights = Literal["int8"]
WEIGHTS = ("int8",)
Numerics = Literal["exact", "fast", "fast-only"]
NUMERICS = ("exact", "fast", "fast-only")
ServiceClass = Literal["interactive", "normal", "batch", "idle"]
SERVICE_CLASSES = ("interactive", "normal", "batch", "idle")
FIELDS = (
    "intercept_huggingface",
    "fallback",
    "keep_alive",
    "numerics",
    "begin_within",
    "service_class",
    "weights",
    "allow_untested_transformers",
)


class Config:
    """The settings of this process: `intercept_huggingface`, `fallback`, `keep_alive`,
    `numerics`, `begin_within`, `service_class`, `weights`, `allow_untested_transformers`. A
    misspelt name is an error."""

    __slots__ = (
        "_begin_within",
        "_fallback",
        "_keep_alive",
        "_numerics",
        "_service_class",
        "_weights",
        "allow_untested_transformers",
    )

    def __init__(self) -> None:
        self._fallback: Fallback = "error"
        self._keep_alive: float | None = None
        self._numerics: Numerics | None = None
        self._begin_within: float | None = None
        self._service_class: ServiceClass = "normal"
        self._weights: Weights | None = None
        # Patch a transformers that nobody tried this with.
        self.allow_untested_transformers = False

    def __setattr__(self, name: str, value: object) -> None:
        if name not in FIELDS and name not in self.__slots__:
            raise AttributeError(unknown(f"djinn.config has no setting {name!r}", name, FIELDS))
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(unknown(f"djinn.config has no setting {name!r}", name, FIELDS))

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={getattr(self, name)!r}' for name in FIELDS)})"

    @property
    def intercept_huggingface(self) -> bool:
        """Whether `from_pretrained` gives ghosts; setting it is `djinn.enable()` or `disable()`."""
        from . import huggingface

        return huggingface.is_enabled()

    @intercept_huggingface.setter
    def intercept_huggingface(self, wanted: bool) -> None:
        from . import huggingface

        huggingface.enable() if wanted else huggingface.disable()

    @property
    def fallback(self) -> Fallback:
        """What happens when djinnd cannot take a model: "error", or "local", which loads it into
        this process if an audit of its memory allows that."""
        return self._fallback

    @fallback.setter
    def fallback(self, wanted: Fallback) -> None:
        if wanted not in FALLBACKS:
            raise ValueError(f'djinn.config.fallback is "error" or "local", not {wanted!r}.')
        self._fallback = wanted

    @property
    def keep_alive(self) -> float | None:
        """How many seconds a ghost's weights stay after the last process has left them (math.inf:
        for ever); None: as djinnd is configured. Of models that are loaded from now on."""
        return self._keep_alive

    @keep_alive.setter
    def keep_alive(self, wanted: float | None) -> None:
        milliseconds(wanted, "keep_alive")
        self._keep_alive = wanted

    @property
    def numerics(self) -> Numerics | None:
        """How the programs of ghosts compute: "exact", with PyTorch's own kernels and its bits;
        "fast", with djinnd's own where they fit; "fast-only", where a model without such a form, or
        of which a product with a weight has none, is an error; None: as its user has said of the
        model (`djinnctl load --numerics`), or else as djinnd is configured (lane.numerics), exact
        unless they say otherwise. Of calls from now on. Operators that run one by one are exact,
        but for those that read a weight in int8, so a call of a model that goes so is an error,
        too, with "fast-only"."""
        return self._numerics

    @numerics.setter
    def numerics(self, wanted: Numerics | None) -> None:
        if wanted is not None and wanted not in NUMERICS:
            raise ValueError(
                f'djinn.config.numerics is "exact", "fast", "fast-only" or None, not {wanted!r}.'
            )
        self._numerics = wanted

    @property
    def begin_within(self) -> float | None:
        """How many seconds a ghost's generation may wait for its turn. One that djinnd expects to
        wait longer raises a `LimitError` at once, whose code is "queue_full", and one whose turn
        comes later, then: nothing of it was done. None: it waits. Of calls of `generate` from now
        on whose loop over tokens runs in djinnd (tier 2)."""
        return self._begin_within

    @begin_within.setter
    def begin_within(self, wanted: float | None) -> None:
        deadline_ms(wanted, "begin_within")
        self._begin_within = wanted

    @property
    def service_class(self) -> ServiceClass:
        """What this process's ghosts get of a busy lane beside the user's other sessions:
        "interactive" twice as much as "normal", and that twice as much as "batch"; "idle" only what
        none of them can use. Of the session with djinnd, for its life: it begins with the first
        model or tensor there. A change after that is a `RequestError`, until the session ends."""
        return self._service_class

    @service_class.setter
    def service_class(self, wanted: ServiceClass) -> None:
        if wanted not in SERVICE_CLASSES:
            raise ValueError(
                'djinn.config.service_class is "interactive", "normal", "batch" or "idle", '
                f"not {wanted!r}."
            )
        _device.set_service_class(wanted)
        self._service_class = wanted

    @property
    def weights(self) -> Weights | None:
        """The form of ghosts' weights: "int8", in which 32 elements of a row of a matrix are int8
        and a scale, computed with djinnd's own kernels, so that `numerics` may not be "exact";
        None: as the files have them. Of models that are loaded from now on."""
        return self._weights

    @weights.setter
    def weights(self, wanted: Weights | None) -> None:
        if wanted is not None and wanted not in WEIGHTS:
            raise ValueError(f'djinn.config.weights is "int8" or None, not {wanted!r}.')
        self._weights = wanted


config = Config()


def device(index: int = 0) -> torch.device:
    """The daemon as a PyTorch device. There is one, so far."""
    if not isinstance(index, int):
        raise TypeError(f"djinn.device() is given a number, and 0 is the only one, not {index!r}.")
    if index != 0:
        raise ValueError(f"djinnd is one device, number 0; there is no number {index}.")
    return torch.device("remote_accelerator", index)
