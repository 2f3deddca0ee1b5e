# SPDX-License-Identifier: Apache-2.0
"""Programs of ghosts that are fast: near PyTorch's results, said as what they are; exact stays the
default, with the CPU's bits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import djinn
import forked
import llama
import pytest
import torch
import transformers
from alone import run_alone
from command_line import ctl
from llama import GREEDY, on_device, prompt
from private_daemon import BIN, Daemon, running

pytestmark = pytest.mark.usefixtures("enabled")


@pytest.fixture
def numerics() -> Iterator[Any]:
    before = djinn.config.numerics
    yield djinn.config
    djinn.config.numerics = before


def fast_nodes(daemon: Daemon) -> int:
    return sum(one["fast_nodes"] for one in ctl(daemon, "programs", "-j").items())


def logits_of(ghost: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Of a call that is replayed: the first one of its kind runs operator by operator."""
    for _ in range(2):
        logits = ghost(**on_device(inputs), use_cache=False).logits.cpu()
    assert djinn.explain(ghost)["tier"] == 1
    return logits


def test_a_generation_is_fast_where_that_is_asked_for(
    local: Any, ghost: Any, numerics: Any, device_daemon: Daemon
) -> None:
    inputs = prompt(2, 9)
    expected = local.generate(**inputs, **GREEDY)
    before = fast_nodes(device_daemon)
    assert torch.equal(ghost.generate(**on_device(inputs), **GREEDY).cpu(), expected)
    assert fast_nodes(device_daemon) == before, "exact is the default"
    numerics.numerics = "fast"
    found = ghost.generate(**on_device(inputs), **GREEDY)
    assert djinn.explain(ghost)["tier"] == 2
    assert fast_nodes(device_daemon) > before
    assert torch.equal(found.cpu(), expected), "sums that differ in their last bits"


def test_what_is_fast_is_near_and_what_is_exact_has_the_cpus_bits_again(
    local: Any, ghost: Any, numerics: Any
) -> None:
    inputs = prompt(2, 8)
    expected = local(**inputs, use_cache=False).logits
    for wanted in ("fast", "exact", "fast", "exact"):
        numerics.numerics = wanted
        found = logits_of(ghost, inputs)
        if wanted == "fast":
            assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
        else:
            assert torch.equal(found, expected), wanted


def test_a_row_is_what_it_is_alone(numerics: Any, tmp_path: Path) -> None:
    """The row contract, through a whole model: 32 rows are what our kernels take. It is wide enough
    for PyTorch's own products to depend on how many rows there are."""
    wide = {"hidden_size": 512, "intermediate_size": 1376}
    ghost = transformers.AutoModelForCausalLM.from_pretrained(llama.save(tmp_path, 3, **wide))
    numerics.numerics = "fast"
    inputs = prompt(32, 1)
    together = logits_of(ghost, inputs)
    for row in range(32):
        alone = logits_of(ghost, {name: one[row : row + 1] for name, one in inputs.items()})
        assert torch.equal(alone.view(torch.int32), together[row : row + 1].view(torch.int32)), row


def test_there_are_no_other_numerics(numerics: Any) -> None:
    for name in ("quick", ""):
        told = f'is "exact", "fast", "fast-only" or None, not {name!r}'
        with pytest.raises(ValueError, match=told):
            numerics.numerics = name
    assert "numerics=None" in repr(djinn.config)


def test_it_is_told_what_is_fast_and_what_stays_exact_and_why(
    checkpoint: Path, numerics: Any
) -> None:
    ghost = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    assert djinn.explain(ghost)["numerics"] == []
    ghost.generate(**on_device(prompt(1, 9)), **GREEDY)
    told = djinn.explain(ghost)
    assert (told["numerics"], told["programs"], told["fast_nodes"]) == (["exact"], 2, 0)
    assert told["left_exact"] == {}
    numerics.numerics = "fast"
    ghost.generate(**on_device(prompt(1, 9)), **GREEDY)
    told = djinn.explain(ghost)
    assert (told["numerics"], told["programs"]) == (["exact", "fast"], 4)
    assert told["fast_nodes"] > 20
    layers = ghost.config.num_hidden_layers
    assert told["left_exact"]["attend: it is a prompt's"] == layers
    assert all(": " in reason and nodes > 0 for reason, nodes in told["left_exact"].items())


def test_who_wants_no_other_form_than_the_fast_one_gets_an_error(
    checkpoint: Path, numerics: Any
) -> None:
    """Products in float64 stay PyTorch's."""
    ghost = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16)
    numerics.numerics = "fast-only"
    ghost.generate(**on_device(prompt(1, 9)), **GREEDY)
    told = djinn.explain(ghost)
    assert (told["tier"], told["numerics"]) == (2, ["fast-only"])
    inputs = on_device(prompt(4, 9))
    ghost(**inputs, use_cache=False)
    wide = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float64)
    with pytest.raises(djinn.RequestError, match=r"fast-only.*dtype has no kernel") as refused:
        wide(**inputs, use_cache=False)
    assert refused.value.code == "unsupported"
    numerics.numerics = "fast"
    for _ in range(2):
        wide(**inputs, use_cache=False)
    assert djinn.explain(wide)["tier"] == 1


def test_who_wants_fast_alone_has_it_from_the_first_call_on(
    local: Any, ghost: Any, numerics: Any
) -> None:
    inputs = prompt(2, 8)
    expected = local(**inputs, use_cache=False).logits
    numerics.numerics = "fast-only"
    first = ghost(**on_device(inputs), use_cache=False).logits.cpu()
    told = djinn.explain(ghost)
    assert (told["tier"], told["numerics"]) == (1, ["fast-only"])
    assert told["fast_nodes"] > 0
    assert (first - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert torch.equal(ghost(**on_device(inputs), use_cache=False).logits.cpu(), first)


def mpt(directory: Path) -> Path:
    """It generates without a cache, which is operator by operator."""
    sizes = {"d_model": 32, "n_layers": 1, "n_heads": 4, "max_seq_len": 64, "expansion_ratio": 2}
    config = transformers.MptConfig(**sizes, vocab_size=llama.VOCABULARY)
    transformers.MptForCausalLM(config).save_pretrained(directory)
    return directory


def t5(directory: Path) -> Path:
    """Its prompt is operator by operator, and djinnd takes over behind it."""
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}
    config = transformers.T5Config(**sizes, vocab_size=llama.VOCABULARY, decoder_start_token_id=0)
    transformers.T5ForConditionalGeneration(config).save_pretrained(directory)
    return directory


@pytest.mark.parametrize(
    ("save", "kind", "tier", "why"),
    [
        (mpt, "AutoModelForCausalLM", 0, "it is to generate without a cache"),
        (t5, "AutoModelForSeq2SeqLM", 2, "it is an encoder-decoder"),
    ],
)
def test_no_generation_is_exact_unsaid_where_fast_alone_is_wanted(
    tmp_path: Path, numerics: Any, stats: Any, save: Any, kind: str, tier: int, why: str
) -> None:
    ghost = getattr(transformers, kind).from_pretrained(save(tmp_path))
    inputs = on_device(prompt(1, 9))
    numerics.numerics = "fast-only"
    before = stats()["operators"]
    with pytest.raises(djinn.RequestError, match=f"fast-only.*is exact: {why}") as refused:
        ghost.generate(**inputs, **GREEDY)
    assert refused.value.code == "unsupported"
    assert 'djinn.config.numerics = "fast"' in str(refused.value)
    assert stats()["operators"] == before, "nothing of the model was computed so"
    numerics.numerics = "fast"
    ghost.generate(**inputs, **GREEDY)
    assert djinn.explain(ghost)["tier"] == tier, djinn.explain(ghost)


def test_a_call_that_is_no_program_is_refused_where_fast_alone_is_wanted(
    ghost: Any, numerics: Any
) -> None:
    inputs = on_device(prompt(1, 9))
    numerics.numerics = "fast-only"
    with pytest.raises(djinn.RequestError, match=r"fast-only.*it returns a DynamicCache"):
        ghost(**inputs)
    ghost.train()
    with pytest.raises(djinn.RequestError, match=r"fast-only.*it is in training mode"):
        ghost(**inputs, use_cache=False)
    numerics.numerics = "fast"
    ghost(**inputs)
    assert djinn.explain(ghost)["tier"] == 0


def test_a_model_that_is_gone_says_that_and_nothing_of_numerics(checkpoint: Path) -> None:
    with running() as daemon:
        source = GONE.format(checkpoint=checkpoint, djinnctl=BIN / "djinnctl")
        assert run_alone(daemon, source) == "LostError\n"


GONE = """
import subprocess
import djinn.torch, torch, transformers
djinn.enable()
djinn.config.numerics = "fast-only"
ghost = transformers.AutoModelForCausalLM.from_pretrained("{checkpoint}")
ids = torch.arange(3, 9)[None].to(ghost.device)
with djinn.connect(observer=True) as observer:
    (own,) = [one["id"] for one in observer.sessions() if one["granted_bytes"]]
subprocess.run(["{djinnctl}", "terminate", own], check=True, capture_output=True)
try:
    ghost(torch.arange(3, 9)[None], use_cache=False)
except djinn.Error as error:
    print(type(error).__name__)
"""


def test_the_daemon_says_how_ghosts_compute_that_choose_nothing(
    checkpoint: Path, tmp_path: Path
) -> None:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    with running("--numerics", "fast") as daemon:
        told = forked.run(str(script), str(checkpoint), DJINN_HOST=daemon.host)
    assert told.stdout.split() == ["fast", "exact"], told.stderr
    with running("--numerics", "fast-only") as daemon:
        assert run_alone(daemon, FAST_ONLY.format(checkpoint=checkpoint)) == "refused\n"


def test_a_model_says_how_its_ghosts_compute_that_choose_nothing(
    checkpoint: Path, tmp_path: Path
) -> None:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    for configured, said in (("exact", "fast"), ("fast", "exact")):
        with running("--numerics", configured) as daemon:
            assert ctl(daemon, "load", str(checkpoint), "--numerics", said).code == 0
            told = forked.run(str(script), str(checkpoint), DJINN_HOST=daemon.host)
            assert len(ctl(daemon, "ps", "-j").items()) == 1, "and it is the ghosts' model"
        assert told.stdout.split() == [said, "exact"], told.stderr
    with running() as daemon:
        assert ctl(daemon, "load", str(checkpoint), "--numerics", "fast-only").code == 0
        assert run_alone(daemon, FAST_ONLY.format(checkpoint=checkpoint)) == "refused\n"


FAST_ONLY = """
import djinn.torch, torch, transformers
djinn.enable()
ghost = transformers.AutoModelForCausalLM.from_pretrained("{checkpoint}")
ids = torch.arange(3, 9)[None].to(ghost.device)
ghost(ids, use_cache=False)
assert djinn.explain(ghost)["numerics"] == ["fast-only"], djinn.explain(ghost)
try:
    ghost(ids)
except djinn.RequestError:
    print("refused")
djinn.config.numerics = "exact"
ghost(ids)
"""


CHILD = """
import sys
import djinn.torch, torch, transformers
djinn.enable()
for wanted in (None, "exact"):
    djinn.config.numerics = wanted
    ghost = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
    ids = torch.arange(3, 9)[None].to(ghost.device)
    ghost.generate(ids, do_sample=False, max_new_tokens=4)
    (said,) = djinn.explain(ghost)["numerics"]
    assert (djinn.explain(ghost)["fast_nodes"] > 0) == (said == "fast")
    print(said)
"""


def test_a_programs_graph_is_shown_as_it_is_run(
    checkpoint: Path, numerics: Any, device_daemon: Daemon
) -> None:
    ghost = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    numerics.numerics = "fast"
    ghost.generate(**on_device(prompt(1, 9)), **GREEDY)
    programs = ctl(device_daemon, "programs", "-j").items()
    fast = next(one for one in programs if one["fast_nodes"] and one["workload"] == "decode step")
    (graph,) = ctl(device_daemon, "show", "--graph", fast["id"], "-j").items()
    assert graph["asked"] in ("fast", "fast-only")
    assert graph["text"].count("djinn::attend(") == ghost.config.num_hidden_layers
    made = {one["name"]: one["made"] for one in graph["passes"]}
    assert made["attend"] == ghost.config.num_hidden_layers
    text = ctl(device_daemon, "show", "--graph", fast["id"]).text()
    assert text.startswith(f"# Fast: {fast['fast_nodes']} of its {graph['nodes']} nodes")
    assert "# attend: " in text
    assert graph["text"].strip() in text
    (model,) = {one["model"] for one in programs if one["id"] == fast["id"]}
    ended = ctl(device_daemon, "show", "--graph", model)
    assert ended.code == 2
    assert "This is a model" in ended.err
