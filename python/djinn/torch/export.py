# SPDX-License-Identifier: Apache-2.0
"""A model as a bundle: what C, C++ and djinnctl need to run it in djinnd without Python.

    export(model, directory)   captures the programs of its generation, and writes
                               DIRECTORY/djinn.json

The file says which safetensors files the weights are in and how they become the model's, and has
the programs as SRG text and the small tensors that are in no file; libdjinn-client/models/bundle.h
reads it. Weights are not copied. Beside it go the model's tokenizer files.
"""

import inspect
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

import djinn
from djinn.errors import RequestError

from . import _device, capture, ghosts, huggingface, job, state
from .generation import call_of
from .sizes import size_text
from .state import NotInDaemon

FORMAT, VERSION = "djinn-bundle", 1
NAME = "djinn.json"
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("chat_template.jinja", "generation_config.json"),
)
# What a bundle may hold of tensors that are in no file; it has them in hexadecimal.
CONSTANTS_BYTES_MAX = 16 << 20
PROMPT = 4  # tokens of the generation that is looked at


def export(model: Any, directory: str | os.PathLike[str] | None = None, **options: Any) -> Path:
    """Writes what runs a model in djinnd without Python: `djinnctl generate DIRECTORY`, and
    `djinn_generator_open()` and `djinn.Generator` with that directory. Gives the file's path.

    `model` is a ghost, or what `AutoModelForCausalLM.from_pretrained` takes, with its `options`;
    `directory` is made where there is none. Without one it is the model's own, if `model` names a
    directory. The weights stay where they are, and the file names them there; with the model's own
    directory it names them relative to itself, and both may move together.

    Of several prompts a bundle generates each as it is alone. Raises RequestError for a model whose
    whole generation does not run as programs: `djinn.explain` says the same of it after a call of
    `generate()`."""
    if isinstance(model, torch.nn.Module):
        if options:
            raise TypeError(f"{', '.join(options)}: these are for a model that is yet to be loaded")
        ghost = model
    else:
        ghost = _loaded(model, options)
        if directory is None and os.path.isdir(model):
            directory = model
    if directory is None:
        raise TypeError("export() needs the directory to write to")
    bundle = _bundle_of(ghost)
    into = Path(directory)
    into.mkdir(parents=True, exist_ok=True)
    _copy_tokenizer(Path(bundle.paths[0]).parent, into)
    text = json.dumps(bundle.as_json(into), indent=1)
    draft = into / f".{NAME}.{os.getpid()}"
    draft.write_text(text + "\n")
    draft.replace(into / NAME)
    return into / NAME


@contextmanager
def _enabled() -> Iterator[None]:
    was_enabled = huggingface.is_enabled()
    huggingface.enable()
    try:
        yield
    finally:
        if not was_enabled:
            huggingface.disable()


def _loaded(name: Any, options: dict[str, Any]) -> Any:
    """By its class of models that generate, or, as models of images and sound, by its own. So are
    encoder-decoders, of which that class would take the decoder alone, without what it attends
    to."""
    found: Any = transformers.AutoModelForCausalLM
    config = transformers.AutoConfig.from_pretrained(name)
    is_other = type(config) not in found._model_mapping or config.is_encoder_decoder
    if is_other and config.architectures:
        found = getattr(transformers, config.architectures[0], found)
    with _enabled():
        return found.from_pretrained(name, **options)


@dataclass
class Bundle:
    label: str
    model_type: str
    paths: tuple[str, ...]
    plan: list[Any] | None
    stored: tuple[Any, ...]
    vocabulary: int
    positions: int
    begin_token: int
    end_tokens: list[int]
    geometry: tuple[int, int, int, int, torch.dtype] = (0, 0, 0, 0, torch.float32)
    programs: list[dict[str, Any]] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)

    def add(self, phase: str, least: int, made: capture.Recorded) -> None:
        text = capture.united_text(made)
        inputs: dict[str, int] = {}
        for name, tensor in made.recordings[0].held:
            inputs[name] = self._constant(tensor, set(inputs.values()))
        self.geometry = made.geometry
        self.programs.append(
            {
                "phase": phase,
                "from": least,
                "inputs": inputs,
                "text": text.splitlines(),
            }
        )

    def _constant(self, tensor: torch.Tensor, taken: set[int]) -> int:
        """Its number. Programs share what is alike; of one program no two inputs may be one ref."""
        kept = sum(len(one) for one in self.constants) // 2 + tensor.nbytes
        if kept > CONSTANTS_BYTES_MAX:
            raise NotInDaemon(
                f"{size_text(kept)} of what it computes with are in no file, and a bundle holds "
                f"{size_text(CONSTANTS_BYTES_MAX)} at most"
            )
        content = tensor.cpu().view(torch.uint8).numpy().tobytes().hex()
        for number, one in enumerate(self.constants):
            if one == content and number not in taken:
                return number
        self.constants.append(content)
        return len(self.constants) - 1

    def as_json(self, into: Path) -> dict[str, Any]:
        _, layers, heads, dim, dtype = self.geometry
        stored = [[name, kind, list(sizes), 0, []] for name, kind, sizes in self.stored]
        return {
            "format": FORMAT,
            "version": VERSION,
            "made_by": f"djinn {djinn.__version__}, transformers {transformers.__version__}, "
            f"torch {torch.__version__}",
            "label": self.label,
            "model_type": self.model_type,
            "files": [_relative(path, into) for path in self.paths],
            "config": self._config(),
            "as_stored": self.plan is None,
            # But for the form, which is plain.
            "weights": stored if self.plan is None else [one[:5] for one in self.plan],
            "geometry": {
                **{"layers": layers, "kv_heads": heads, "head_dim": dim},
                "dtype": str(dtype).removeprefix("torch."),
            },
            "vocabulary": self.vocabulary,
            "positions": self.positions,
            "begin_token": self.begin_token,
            "end_tokens": self.end_tokens,
            "constants": self.constants,
            "programs": self.programs,
        }

    def _config(self) -> str:
        """The config.json beside the weights, as it is; empty where there is none."""
        path = Path(self.paths[0]).parent / "config.json"
        return path.read_text() if path.is_file() else ""


def _relative(path: str, into: Path) -> str:
    """A file of the bundle's own directory by its name, another by where it is."""
    whole = os.path.abspath(path)
    home = os.path.abspath(into)
    return os.path.basename(whole) if os.path.dirname(whole) == home else whole


def _bundle_of(model: Any) -> Bundle:
    one = ghosts.ghost_of(model)
    if one is None or not huggingface.is_ghost(model):
        raise refused(model, "it is no ghost, whose weights are in djinnd")
    if one.is_int8:
        raise refused(
            model,
            "its weights are int8, which is how they were loaded; export it with "
            "djinn.config.weights = None",
        )
    if not one.model or one.converted:
        raise refused(model, "some of its weights are computed of its files' and are in none")
    try:
        with _enabled():
            kind = _kind_of(model)
        bundle = _empty(model, one)
        state.refresh(model, state.known_of(model))
        for is_prefill, least, what in capture.parts_of(kind):
            made = capture.recorded(model, what, is_prefill)
            if any(recording.model not in (0, one.model) for recording in made.recordings):
                raise NotInDaemon("it computes with weights of another model")
            bundle.add("prefill" if is_prefill else "decode", least, made)
        with suppress(NotInDaemon):  # prompts run in one pass
            bundle.add("extend", 2, capture.recorded(model, capture.extends(kind), True))
    except NotInDaemon as reason:
        raise refused(model, str(reason)) from reason
    return bundle


def _kind_of(model: Any) -> capture.Kind:
    """Of a generation of one row into an empty cache."""
    if model.config.is_encoder_decoder:  # which may want an input of another kind than tokens
        raise NotInDaemon("it is an encoder-decoder")
    ids = torch.ones(1, PROMPT, dtype=torch.int64, device=state.DEVICE)
    mask = torch.ones_like(ids)
    plain = {
        "do_sample": False,
        "num_beams": 1,
        "use_cache": True,
        "return_dict_in_generate": False,
    }
    first = next(iter(inspect.signature(model.generate).parameters.values()))
    if first.kind is not first.VAR_POSITIONAL and first.name not in ("inputs", "input_ids"):
        raise NotInDaemon(f"its generate() is given {first.name}, and not tokens alone")
    call = call_of(model, ids, attention_mask=mask, max_new_tokens=PROMPT, **plain)
    job.check_call(call)
    return job.kind_of(model, call.kwargs["past_key_values"], 1, False, False)


def _empty(model: Any, one: ghosts.Ghost) -> Bundle:
    text = model.config.get_text_config(decoder=True)
    begin, ends = (
        getattr(model.generation_config, name, None) for name in ("bos_token_id", "eos_token_id")
    )
    if not isinstance(ends, (list, tuple)):
        ends = [] if ends is None else [ends]
    return Bundle(
        _device.label_of(list(one.paths)),
        str(model.config.model_type),
        one.paths,
        one.plan,
        one.stored,
        text.vocab_size,
        job.positions_of(model),
        -1 if begin is None else int(begin),
        [int(token) for token in ends],
    )


def refused(model: Any, why: str) -> RequestError:
    return RequestError(
        *(102, "unsupported"),
        f"{type(model).__name__} cannot be exported: {why.rstrip('.')}. What runs without Python "
        "is a generation whose prompt and tokens are programs of djinnd (tier 2 of djinn.explain).",
    )


def _copy_tokenizer(home: Path, into: Path) -> None:
    if into.exists() and home.resolve() == into.resolve():
        return
    for name in TOKENIZER_FILES:
        if (home / name).is_file():
            shutil.copyfile(home / name, into / name)


__all__ = ["export"]
