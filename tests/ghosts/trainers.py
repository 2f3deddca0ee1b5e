# SPDX-License-Identifier: Apache-2.0
"""Ghosts that are trained: by transformers' Trainer, by accelerate and by loops, each a function,
done with a local model and with a ghost of it where the two can be compared: the results are the
same bits. All run in one process of their own, as those of loads.py.

    trainers.py REPORT SCRATCH HOST [NAME...]    runs them; writes {name: None or what went wrong}
"""

import contextlib
import copy
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import accelerate
import djinn
import loads
import torch
import transformers
import users
import zoo
from loads import DEVICE, Case, checkpoint, ids, on_device, refusal, same_weights
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

CASES: dict[str, Case] = {}
STEPS, HALF = 6, 3


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


# --- helpers --------------------------------------------------------------------------------------


def fresh(
    name: str, scratch: Path, auto: Any = transformers.AutoModelForCausalLM, **options: Any
) -> PreTrainedModel:
    """As a program loads it: nothing is said about gradients. Where weights begin decides on bits,
    so those of a local one are copied to where PyTorch would allocate them."""
    model = auto.from_pretrained(checkpoint(name, scratch), **options)
    if model.device.type == "cpu":
        for one in loads.tensors(model).values():
            one.data = one.data.clone()
    return model


def examples(count: int = 16) -> list[dict[str, torch.Tensor]]:
    rows = [(torch.arange(8) * 5 + 7 * number) % zoo.VOCABULARY for number in range(count)]
    return [{"input_ids": row, "labels": row} for row in rows]


def arguments(scratch: Path, **options: Any) -> TrainingArguments:
    return TrainingArguments(
        **{
            **{"output_dir": str(scratch), "max_steps": STEPS, "save_steps": HALF},
            **{"logging_steps": 1, "per_device_train_batch_size": 4, "learning_rate": 1e-2},
            **{"report_to": [], "disable_tqdm": True, "optim": "adamw_torch"},
            **options,
        }
    )


def losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def train(model: PreTrainedModel, scratch: Path, **options: Any) -> Trainer:
    trainer = Trainer(model=model, args=arguments(scratch, **options), train_dataset=examples())
    trainer.train()
    return trainer


class StopsHalfway(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step == HALF


def loss_of(model: torch.nn.Module) -> torch.Tensor:
    given = ids.to(next(model.parameters()).device)
    return model(input_ids=given, labels=given, use_cache=False).loss


# --- Trainer --------------------------------------------------------------------------------------


@case
def the_real_trainer_trains_a_ghost_where_it_is(scratch: Path) -> None:
    for optimizer in ("adamw_torch", "sgd"):
        one, other = fresh("llama", scratch, djinn=False), fresh("llama", scratch)
        runs = [
            train(one, scratch / "cpu", use_cpu=True, optim=optimizer),
            train(other, scratch / "ghost", optim=optimizer),
        ]
        assert runs[0].args.device == torch.device("cpu")
        assert runs[1].args.device == djinn.device() and on_device(other)
        assert losses(runs[0]) == losses(runs[1]) and len(losses(runs[1])) == STEPS
        same_weights(one, other)
        saved = fresh_from(scratch / "ghost" / f"checkpoint-{STEPS}")
        same_weights(one, saved)


def fresh_from(directory: Path) -> PreTrainedModel:
    return transformers.AutoModelForCausalLM.from_pretrained(directory, djinn=False)


@case
def a_run_that_was_stopped_is_resumed_as_if_it_had_not_been(scratch: Path) -> None:
    """With dropout, whose draws go on where they were."""
    whole = fresh("gpt2", scratch)
    assert whole.config.resid_pdrop > 0
    expected = train(whole, scratch / "whole")
    first = Trainer(
        model=fresh("gpt2", scratch),
        args=arguments(scratch / "halves"),
        train_dataset=examples(),
        callbacks=[StopsHalfway()],
    )
    first.train()
    assert first.state.global_step == HALF
    torch.manual_seed(99)
    second = Trainer(
        model=fresh("gpt2", scratch),
        args=arguments(scratch / "halves"),
        train_dataset=examples(),
    )
    second.train(resume_from_checkpoint=str(scratch / "halves" / f"checkpoint-{HALF}"))
    assert on_device(second.model)
    assert losses(second) == losses(expected)
    same_weights(whole, second.model)


@case
def checkpoints_are_as_the_cpus(scratch: Path) -> None:
    """And a run goes on from one on the other side."""
    one, other = fresh("llama", scratch, djinn=False), fresh("llama", scratch)
    train(one, scratch / "cpu", use_cpu=True)
    train(other, scratch / "ghost")
    written = []
    for name in ("cpu", "ghost"):
        half = scratch / name / f"checkpoint-{HALF}"
        written.append(torch.load(half / "optimizer.pt", weights_only=True))
    for a, b in zip(*(saved["state"].values() for saved in written), strict=True):
        assert b["exp_avg"].device.type == "cpu"
        assert all(torch.equal(a[name], b[name]) for name in a)
    across = Trainer(
        model=fresh("llama", scratch),
        args=arguments(scratch / "ghost"),
        train_dataset=examples(),
    )
    across.train(resume_from_checkpoint=str(scratch / "cpu" / f"checkpoint-{HALF}"))
    same_weights(one, across.model)


@case
def fused_optimizers_have_the_bits_of_the_plain_ones(scratch: Path) -> None:
    """Trainer's default is AdamW in its fused form."""
    plain, fused = fresh("llama", scratch), fresh("llama", scratch)
    runs = [
        train(plain, scratch / "plain", optim="adamw_torch"),
        train(fused, scratch / "fused", optim="adamw_torch_fused"),
    ]
    assert losses(runs[0]) == losses(runs[1])
    same_weights(plain, fused)
    for options in ({"amsgrad": True}, {"maximize": True}, {"weight_decay": 0.0}):
        for kind in (torch.optim.Adam, torch.optim.AdamW):
            found = []
            for is_fused in (False, True):
                layer = torch.nn.Linear(5, 3)
                layer.load_state_dict({"weight": torch.ones(3, 5), "bias": torch.ones(3)})
                layer.to(DEVICE)
                steps = kind(layer.parameters(), fused=is_fused, foreach=False, **options)
                for number in range(3):
                    steps.zero_grad()
                    layer(torch.arange(5.0).to(DEVICE) + number).square().sum().backward()
                    steps.step()
                found.append(layer.weight.cpu())
            assert torch.equal(*found), (kind, options)


@case
def mixed_precision_trains_as_on_the_cpu(scratch: Path) -> None:
    one, other = fresh("llama", scratch, djinn=False), fresh("llama", scratch)
    runs = [
        train(one, scratch / "cpu", use_cpu=True, bf16=True),
        train(other, scratch / "ghost", bf16=True),
    ]
    assert losses(runs[0]) == losses(runs[1])
    same_weights(one, other)


@case
def evaluation_and_prediction_are_those_of_the_cpu(scratch: Path) -> None:
    found = []
    for name, options in (("cpu", {"djinn": False}), ("ghost", {})):
        trainer = Trainer(
            model=fresh("llama", scratch, **options).requires_grad_(False),
            args=arguments(scratch / name, use_cpu=bool(options)),
            eval_dataset=examples(),
        )
        predicted = trainer.predict(examples(4))
        found.append((trainer.evaluate()["eval_loss"], predicted.predictions.tolist()))
    assert found[0] == found[1]


@case
def trainer_moves_nothing_that_its_program_placed(scratch: Path) -> None:
    with refusal("Trainer would carry this model out of djinnd", "use_cpu", 'model.to("cpu")'):
        train(fresh("llama", scratch), scratch / "out", use_cpu=True)
    here = fresh("llama", scratch, djinn=False)
    with refusal("Trainer would carry this model", "to djinnd", "use_cpu=True", "djinn.device()"):
        train(here, scratch / "out")
    with refusal("Accelerator would carry", "Accelerator(cpu=True)"):
        accelerate.Accelerator().prepare(here)
    moved = train(here.to(djinn.device()), scratch / "out")
    assert on_device(here) and losses(moved)
    djinn.disable()
    assert arguments(scratch / "out").device == torch.device("cpu")


@case
def what_a_program_froze_stays_frozen(scratch: Path) -> None:
    found = []
    for options in ({"djinn": False}, {}):
        model = fresh("llama", scratch, **options)
        before = model.model.embed_tokens.weight.detach().cpu().clone()
        for one in model.model.parameters():
            one.requires_grad = False
        train(model, scratch / str(len(found)), use_cpu=bool(options))
        assert torch.equal(model.model.embed_tokens.weight.cpu(), before)
        assert [name for name, one in model.named_parameters() if one.requires_grad] == [
            "lm_head.weight"
        ]
        found.append(model)
    same_weights(*found)


@case
def a_new_head_is_trained_with_the_rest(scratch: Path) -> None:
    auto = transformers.AutoModelForSequenceClassification
    found = []
    for options in ({"djinn": False}, {}):
        torch.manual_seed(4)  # new weights are drawn as in a local load
        model = fresh("llama", scratch, auto, num_labels=2, **options)
        model.config.pad_token_id = zoo.PAD
        assert all(one.requires_grad for one in model.parameters())
        rows = [
            {"input_ids": one["input_ids"], "labels": n % 2} for n, one in enumerate(examples())
        ]
        before = model.score.weight.detach().cpu().clone()
        run = Trainer(
            model=model,
            args=arguments(scratch / str(len(found)), use_cpu=bool(options)),
            train_dataset=rows,
        )
        run.train()
        assert not torch.equal(model.score.weight.cpu(), before)
        found.append((losses(run), model))
    assert found[0][0] == found[1][0]
    same_weights(found[0][1], found[1][1])


@case
def an_adapter_is_trained_alone(scratch: Path) -> None:
    import peft

    found = []
    for options in ({"djinn": False}, {}):
        base = fresh("llama", scratch, **options)
        torch.manual_seed(4)
        config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        model = peft.get_peft_model(base, config)
        run = train(model, scratch / str(len(found)), use_cpu=bool(options))
        wanting = {name for name, one in model.named_parameters() if one.requires_grad}
        assert wanting and all("lora_" in name for name in wanting)
        found.append((losses(run), model))
    assert on_device(found[1][1])
    assert found[0][0] == found[1][0]
    same_weights(found[0][1], found[1][1])


# --- accelerate -----------------------------------------------------------------------------------


def batches() -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(examples(), batch_size=4)


def loop(accelerator: Any, model: Any, steps: Any, loader: Any) -> Iterator[float]:
    model.train()
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            steps.step()
            steps.zero_grad()
        yield loss.item()


@case
def accelerate_trains_saves_and_goes_on(scratch: Path) -> None:
    found = []
    for name, options in (("llama", {"djinn": False}), ("llama", {}), ("gpt2", {})):
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = accelerate.Accelerator(cpu=bool(options))
        model = fresh(name, scratch, **options)
        assert accelerator.device == model.device
        steps = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
        model, steps, loader = accelerator.prepare(model, steps, batches())
        told = list(loop(accelerator, model, steps, loader))
        accelerator.save_state(scratch / f"state{len(found)}")
        has_generator = (scratch / f"state{len(found)}" / "djinn_rng_state.pth").exists()
        assert has_generator == on_device(model), "a run on the CPU draws nothing there"
        after = list(loop(accelerator, model, steps, loader))
        weights = {key: one.cpu().clone() for key, one in model.state_dict().items()}
        accelerator.load_state(scratch / f"state{len(found)}")
        assert list(loop(accelerator, model, steps, loader)) == after
        assert all(torch.equal(one.cpu(), weights[key]) for key, one in model.state_dict().items())
        found.append((told, after, weights))
    assert found[0][:2] == found[1][:2]
    assert all(torch.equal(found[1][2][key], one) for key, one in found[0][2].items())


# --- loops, and when there are gradients ----------------------------------------------------------


@case
def parameters_ask_for_gradients_as_those_of_a_local_model(scratch: Path) -> None:
    for name in ("llama", "t5", "vit"):
        auto = getattr(transformers, zoo.entry(name).auto)
        one, other = fresh(name, scratch, auto, djinn=False), fresh(name, scratch, auto)
        wanted = {key: tensor.requires_grad for key, tensor in one.named_parameters()}
        assert wanted == {key: tensor.requires_grad for key, tensor in other.named_parameters()}
        assert not other.training


@case
def a_call_that_nobody_trains_keeps_nothing_and_is_replayed(scratch: Path) -> None:
    model = fresh("llama", scratch)
    for one in (model, copy.deepcopy(model)):
        for wanted in (0, 1, 1):
            loss = loss_of(one)
            assert loss.grad_fn is None and djinn.explain(one)["tier"] == wanted
    assert all(one.requires_grad for one in model.parameters())
    for function in (
        torch.Tensor.backward,
        lambda loss: torch.autograd.grad(loss, model.lm_head.weight),
    ):
        try:
            function(loss_of(model))
        except RuntimeError as error:
            assert "does not require grad" in str(error)
            assert "model.train()" in str(error) and "requires_grad_(True)" in str(error)
        else:
            raise AssertionError("a backward pass without a gradient")


@case
def whoever_trains_says_so_in_one_of_these_ways(scratch: Path) -> None:
    expected = fresh("llama", scratch, djinn=False)
    loss_of(expected).backward()

    def freezes(model: Any) -> None:
        model.model.requires_grad_(False)

    ways = {
        "train": lambda model: model.train(),
        "train inside of another": lambda model: torch.nn.Sequential(model).train(),
        "train and eval": lambda model: model.train().eval(),
        "a part that is a model": lambda model: model.model.train(),
        "requires_grad_": lambda model: model.requires_grad_(True),
        "optimizer": lambda model: torch.optim.SGD(model.lm_head.parameters()),
        "frozen": freezes,
    }
    for way, say in ways.items():
        for model in (fresh("llama", scratch), copy.deepcopy(fresh("llama", scratch))):
            kept = say(model)
            loss_of(model).backward()
            gradient = model.lm_head.weight.grad
            assert gradient is not None, way
            assert torch.equal(gradient.cpu(), expected.lm_head.weight.grad), way
            assert (model.model.embed_tokens.weight.grad is None) == (way == "frozen"), way
            del kept


@case
def a_loop_of_ones_own_saves_and_goes_on(scratch: Path) -> None:
    """By torch.save of what it has, and on either side."""

    def step(model: Any, steps: Any, batch: Any) -> float:
        loss = model(**{name: one.to(model.device) for name, one in batch.items()}).loss
        loss.backward()
        steps.step()
        steps.zero_grad()
        return float(loss.item())

    def begun(**options: Any) -> tuple[Any, Any]:
        model = fresh("llama", scratch, **options).train()
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)

    first, second = list(batches())[:2]
    told = []
    for number, options in enumerate(({"djinn": False}, {})):
        model, steps = begun(**options)
        told.append([step(model, steps, first)])
        state = {"model": model.state_dict(), "opt": steps.state_dict(), "step": 1}
        torch.save(state, scratch / f"own{number}.pt")
        told[-1] += [step(model, steps, second), step(model, steps, first)]
    assert told[0] == told[1]
    for number in range(2):
        for options in ({"djinn": False}, {}):
            model, steps = begun(**options)
            kept = torch.load(scratch / f"own{number}.pt", map_location=model.device)
            assert kept["step"] == 1
            model.load_state_dict(kept["model"])
            steps.load_state_dict(kept["opt"])
            assert [step(model, steps, second), step(model, steps, first)] == told[0][1:]


@case
def a_gradient_of_the_input_is_given_without_training(scratch: Path) -> None:
    found = []
    for options in ({"djinn": False}, {}):
        model = fresh("llama", scratch, **options)
        with torch.no_grad():
            given = model.get_input_embeddings()(ids.to(model.device))
        given.requires_grad_(True)
        model(inputs_embeds=given).logits.square().sum().backward()
        found.append(given.grad.cpu())
    assert torch.equal(*found)


@case
def a_model_that_was_moved_trains(scratch: Path) -> None:
    one, other = fresh("llama", scratch, djinn=False), fresh("llama", scratch, djinn=False)
    other.to(DEVICE)
    for model in (one, other):
        loss_of(model).backward()
    assert torch.equal(one.lm_head.weight.grad, other.lm_head.weight.grad.cpu())
    back = fresh("llama", scratch).to("cpu")
    loss_of(back).backward()
    assert torch.equal(one.lm_head.weight.grad, back.lm_head.weight.grad)


class Gives(torch.utils.data.Dataset):
    """A dataset of whatever a function makes."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> Any:
        return self.make()


@case
def a_tensor_of_the_device_in_a_forked_worker_is_said_at_once(scratch: Path) -> None:
    del scratch
    held = torch.ones(3).to(DEVICE)
    held.sum().item()  # there is a session, which no child has
    makes = {
        "of the parent": lambda: held,
        "in a structure": lambda: {"a": [held]},
        "computed": lambda: held + 1,
        "read": lambda: held.cpu(),
        "made": lambda: torch.ones(3, device=DEVICE),
    }
    for name, make in makes.items():
        for options in ({}, {"batch_size": None}):
            loader = torch.utils.data.DataLoader(Gives(make), num_workers=1, timeout=60, **options)
            words = ("CPU", "num_workers=0")
            with loads.watchdog(), refusal(*words, kind=RuntimeError) as said:
                list(loader)
            assert "djinn" in said[0], (name, said)
    with loads.watchdog():
        found = list(torch.utils.data.DataLoader(Gives(lambda: torch.ones(2)), num_workers=1))
        assert len(found) == 4
        assert len(list(torch.utils.data.DataLoader(Gives(lambda: held + 1)))) == 4


# --- the page -------------------------------------------------------------------------------------


def recipes() -> list[str]:
    page = (Path(__file__).resolve().parents[2] / "docs" / "GHOSTS.md").read_text()
    (section,) = re.findall(r"^## Recipes\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    return re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


@case
def the_recipes_of_the_page_run(scratch: Path) -> None:
    directory = scratch / "named"
    fresh("llama", scratch, djinn=False).save_pretrained(directory)
    users.word_tokenizer().save_pretrained(directory)
    names = {"path": str(directory), "loader": batches(), "dataset": examples()}
    assert len(recipes()) == 8
    with contextlib.chdir(directory):
        for recipe in recipes():
            print(recipe)
            exec(recipe, names)
        assert (directory / "adapter" / "adapter_model.safetensors").exists()
        assert (directory / "tuned" / "model.safetensors").exists()


# --- random numbers -------------------------------------------------------------------------------


def drawn(seed: int, device: str) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.rand(64, device=device).cpu()


@case
def the_device_draws_its_own_numbers_from_the_same_seed(scratch: Path) -> None:
    del scratch
    assert torch.equal(drawn(7, DEVICE), drawn(7, DEVICE))
    assert not torch.equal(drawn(7, DEVICE), drawn(8, DEVICE))
    assert not torch.equal(drawn(7, DEVICE), drawn(7, "cpu"))
    # Neither generator moves the other.
    torch.manual_seed(7)
    torch.rand(5, device=DEVICE)
    assert torch.equal(torch.rand(64), drawn(7, "cpu"))
    torch.manual_seed(7)
    torch.rand(5)
    assert torch.equal(torch.rand(64, device=DEVICE).cpu(), drawn(7, DEVICE))
    # How many are drawn in one call decides, and not what was recorded with it.
    torch.manual_seed(7)
    parts = torch.cat([torch.rand(16, device=DEVICE) for _ in range(4)]).cpu()
    torch.manual_seed(7)
    again = []
    for _ in range(4):
        again.append(torch.rand(16, device=DEVICE).cpu())
    assert torch.equal(torch.cat(again), parts)
    state = torch.remote_accelerator.get_rng_state()  # type: ignore[attr-defined]
    after = torch.rand(9, device=DEVICE).cpu()
    torch.remote_accelerator.set_rng_state(state)  # type: ignore[attr-defined]
    assert torch.equal(torch.rand(9, device=DEVICE).cpu(), after)
    own = torch.Generator(DEVICE).manual_seed(7)
    torch.manual_seed(7)
    assert torch.equal(
        torch.rand(64, device=DEVICE, generator=own).cpu(), torch.rand(64, device=DEVICE).cpu()
    )


if __name__ == "__main__":
    loads.main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4:], CASES)
