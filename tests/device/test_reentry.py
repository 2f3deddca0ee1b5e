# SPDX-License-Identifier: Apache-2.0
"""Code of the user's that is called in the middle of something uses the device as anywhere else:
it neither hangs nor sees other values, and what called it ends as it would have."""

import faulthandler
import gc
import io
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import djinn
import pytest
import torch
import transformers
from djinn.torch import notice, replay, state
from llama import GREEDY
from private_daemon import own_pids
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.generation.streamers import BaseStreamer

LONG = 1000  # tokens of a generation that is under way when something is done beside it
HUNG_S = 120  # then the process ends, and tells where each thread was
IDS = torch.tensor([[5, 3, 60, 7]])

pytestmark = pytest.mark.usefixtures("enabled")

Act = Callable[[], None]


@pytest.fixture(scope="module")
def expected(local: Any) -> torch.Tensor:
    return local.generate(IDS, **GREEDY)


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    faulthandler.dump_traceback_later(HUNG_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def generated(ghost: Any, tokens: int = 24, **options: Any) -> torch.Tensor:
    lengths = {"max_new_tokens": tokens, "min_new_tokens": tokens}
    return ghost.generate(IDS.to(ghost.device), **(GREEDY | lengths), **options).cpu()


def drawn_in_djinnd() -> int:
    """Tokens of this process's session."""
    with djinn.connect(observer=True) as session:
        own = [one for one in session.sessions() if one["pid"] in own_pids()]
    return sum(one["tokens"] for one in own)


# --- kinds of use: each checks what it gets -------------------------------------------------------


USES = ["read", "compute", "repr", "item", "upload", "forward", "generate", "load", "loss"]
USES += ["save", "memory"]
FEW = ["compute", "forward", "loss"]  # of what is called between operators, in many ways


@pytest.fixture(params=USES)
def act(
    request: Any, device: torch.device, ghost: Any, local: Any, checkpoint: Path, expected: Any
) -> Act:
    x = torch.arange(4.0).to(device)

    def forward() -> None:
        with torch.no_grad():
            assert torch.equal(ghost(IDS.to(device)).logits.cpu(), local(IDS).logits)

    def save() -> None:
        file = io.BytesIO()
        torch.save({"x": x, "y": x + 1}, file)
        file.seek(0)
        found = torch.load(file, map_location="cpu")
        assert torch.equal(found["y"], found["x"] + 1)

    def memory() -> None:
        torch.remote_accelerator.empty_cache()
        assert "in all" in torch.remote_accelerator.memory_summary()
        assert torch.remote_accelerator.memory_allocated() > 0

    def loss() -> None:
        with torch.enable_grad():
            w = torch.ones(4, device=device, requires_grad=True)
            (w * x).sum().backward()
        assert w.grad.tolist() == [0, 1, 2, 3]

    def read() -> None:
        assert x.cpu().tolist() == [0, 1, 2, 3]

    def compute() -> None:
        assert torch.equal((x + 1).cpu(), torch.arange(4.0) + 1)

    def show() -> None:
        assert "[0., 1., 2., 3.]" in repr(x)

    def item() -> None:
        assert (x * x).sum().item() == 14

    def upload() -> None:
        assert torch.ones(3).to(device).tolist() == [1, 1, 1]

    def generate() -> None:
        assert torch.equal(generated(ghost), expected)

    def load() -> None:
        again = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
        assert torch.equal(again.lm_head.weight, ghost.lm_head.weight)

    uses = {"read": read, "compute": compute, "repr": show, "item": item, "upload": upload}
    uses |= {"forward": forward, "generate": generate, "load": load, "loss": loss}
    return (uses | {"save": save, "memory": memory})[request.param]


def once(act: Act) -> tuple[Act, list[str]]:
    """The act at the first call alone: it may come back to where it was called from."""
    calls: list[str] = []

    def first() -> None:
        if not calls:
            calls.append("called")
            act()
            calls.append("done")

    return first, calls


# --- in the middle of a generation ----------------------------------------------------------------


class Streamer(BaseStreamer):
    """Calls something for each token."""

    def __init__(self, call: Callable[[int], None]) -> None:
        self.call, self.seen = call, list[int]()

    def put(self, value: torch.Tensor) -> None:
        for token in value.flatten().tolist():
            self.seen.append(token)
            if len(self.seen) > IDS.numel():
                self.call(token)

    def end(self) -> None:
        pass


def new_streamer(call: Callable[[int], None]) -> Streamer:
    """Of a class of its own: of none that has waited, which would have its loop in Python."""
    return type("New", (Streamer,), {})(call)


def test_a_streamer(ghost: Any, act: Act, expected: torch.Tensor) -> None:
    streamer = Streamer(lambda _: act())
    assert torch.equal(generated(ghost, streamer=streamer), expected)
    assert streamer.seen == expected.flatten().tolist()


def test_a_streamer_that_waited_for_the_loop_s_end_is_called_between_forwards_from_then_on(
    ghost: Any, device: torch.device, expected: torch.Tensor
) -> None:
    class Reads(Streamer):
        pass

    class Counts(Streamer):
        pass

    x = torch.arange(4.0).to(device)
    long = generated(ghost, LONG)
    for tier in (2, 1):
        streamer = Reads(lambda token: (x + token).tolist())
        assert torch.equal(generated(ghost, LONG, streamer=streamer), long)
        assert djinn.explain(ghost)["tier"] == tier
    assert "Reads" in djinn.explain(ghost)["why"]
    assert torch.equal(generated(ghost, streamer=Counts(lambda _: None)), expected)
    assert djinn.explain(ghost)["tier"] == 2


def test_a_streamer_that_waited_for_room_behind_the_loop_has_waited(
    ghost: Any, device: torch.device
) -> None:
    """More is handed over in the middle of the loop than there is room for."""
    x, long = torch.arange(4.0).to(device), generated(ghost, LONG)
    full = iter(range(256))

    def hand_over(_: int) -> None:
        for _ in full:
            x.add_(1)
            djinn.torch._device.flush()

    kind = type("Floods", (Streamer,), {})
    for tier in (2, 1):
        assert torch.equal(generated(ghost, LONG, streamer=kind(hand_over)), long)
        assert djinn.explain(ghost)["tier"] == tier
    assert "Floods" in djinn.explain(ghost)["why"]
    assert x.tolist() == [256, 257, 258, 259]


def test_a_thread_beside_a_streamer(ghost: Any, act: Act, expected: torch.Tensor) -> None:
    began, failures = threading.Event(), list[BaseException]()

    def beside() -> None:
        began.wait()
        try:
            act()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=beside)
    thread.start()
    tokens = generated(ghost, streamer=Streamer(lambda _: began.set()))
    thread.join()
    assert failures == [] and torch.equal(tokens, expected)


def test_threads_that_generate_with_streamers_that_compute(
    ghost: Any, device: torch.device, expected: torch.Tensor
) -> None:
    x = torch.arange(4.0).to(device)
    tokens = dict[int, torch.Tensor]()

    def generate(number: int) -> None:
        streamer = Streamer(lambda token: (x + token).tolist())
        tokens[number] = generated(ghost, streamer=streamer)

    threads = [threading.Thread(target=generate, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tokens) == 3 and all(torch.equal(one, expected) for one in tokens.values())


class Failing(Exception):
    pass


def test_what_a_streamer_raises_ends_the_loop(ghost: Any, expected: torch.Tensor) -> None:
    def fail(token: int) -> None:
        raise Failing

    streamer = new_streamer(fail)
    before = drawn_in_djinnd()
    with pytest.raises(Failing):
        generated(ghost, LONG, streamer=streamer)
    assert len(streamer.seen) == IDS.numel() + 1
    assert drawn_in_djinnd() - before < LONG
    assert torch.equal(generated(ghost), expected)


def test_what_a_streamer_raises_ends_the_loop_although_another_thread_has_no_room_to_go_on(
    ghost: Any, device: torch.device, expected: torch.Tensor
) -> None:
    """More than fits into the session's memory is handed over behind the generation."""
    large = torch.arange(16e6)
    sums = list[float]()
    beside = threading.Thread(target=lambda: sums.append((large.to(device) + 1).sum().item()))

    def fail_later(token: int) -> None:
        if beside.ident is None:
            beside.start()
        if len(streamer.seen) > IDS.numel() + 10:
            raise Failing

    streamer = new_streamer(fail_later)
    before = drawn_in_djinnd()
    with pytest.raises(Failing):
        generated(ghost, LONG, streamer=streamer)
    assert drawn_in_djinnd() - before < LONG
    beside.join()
    assert sums == [(large + 1).sum().item()]
    assert torch.equal(generated(ghost), expected)


def test_a_streamer_that_drops_a_cache_waits_for_nothing(ghost: Any) -> None:
    def cached() -> Any:
        cache = transformers.DynamicCache()
        generated(ghost, past_key_values=cache)
        return cache

    held = [cached()]

    def drop(token: int) -> None:
        if held:
            held.clear()
            gc.collect()

    streamer = new_streamer(drop)
    for _ in range(2):
        generated(ghost, LONG, streamer=streamer)
        assert djinn.explain(ghost)["tier"] == 2


def test_what_a_streamer_draws_are_not_the_loop_s_numbers(ghost: Any, device: Any) -> None:
    def tokens(act: Callable[[int], None]) -> torch.Tensor:
        torch.manual_seed(3)
        options = {"do_sample": True, "max_new_tokens": 24, "min_new_tokens": 24, "pad_token_id": 0}
        return ghost.generate(IDS.to(device), streamer=new_streamer(act), **options).cpu()

    drawn = list[torch.Tensor]()
    assert torch.equal(
        tokens(lambda _: drawn.append(torch.rand(4, device=device))), tokens(lambda _: None)
    )
    torch.manual_seed(3)
    first = torch.rand(4, device=device)
    assert not any(torch.equal(one, first) for one in drawn)
    assert len({tuple(one.tolist()) for one in drawn}) == len(drawn)


def test_who_reads_a_value_is_not_passed_by_ever_new_generations(
    ghost: Any, device: torch.device
) -> None:
    """Each of two threads begins a generation before the other's has ended."""
    x = torch.arange(4.0).to(device)
    begun, read = list[int](), threading.Event()
    both = threading.Barrier(3)

    def generate() -> None:
        both.wait()
        while not read.is_set() and len(begun) < 200:
            begun.append(1)
            generated(ghost, streamer=new_streamer(lambda _: None))

    threads = [threading.Thread(target=generate) for _ in range(2)]
    for thread in threads:
        thread.start()
    both.wait()
    for _ in range(5):
        before = len(begun)
        assert (x + 1).tolist() == [1, 2, 3, 4]
        assert len(begun) - before < 20
    read.set()
    for thread in threads:
        thread.join()


def test_a_signal_s_handler_that_raises_ends_the_loop(ghost: Any, expected: torch.Tensor) -> None:
    def fail(number: int, frame: Any) -> None:
        raise Failing

    before = signal.signal(signal.SIGUSR1, fail)
    main = threading.main_thread().ident
    assert main is not None
    try:
        # The thread waits in djinnd's library when it comes, or is about to.
        killer = threading.Thread(target=lambda: signal.pthread_kill(main, signal.SIGUSR1))
        with pytest.raises(Failing):
            generated(ghost, streamer=Streamer(lambda _: killer.ident or killer.start()))
            killer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert torch.equal(generated(ghost), expected)


def test_a_signal_s_handler(ghost: Any, act: Act, expected: torch.Tensor) -> None:
    first, calls = once(act)
    before = signal.signal(signal.SIGUSR1, lambda number, frame: first())
    main = threading.main_thread().ident
    assert main is not None
    try:
        killer = threading.Thread(target=lambda: signal.pthread_kill(main, signal.SIGUSR1))
        tokens = generated(ghost, streamer=Streamer(lambda _: killer.ident or killer.start()))
        killer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert calls == ["called", "done"] and torch.equal(tokens, expected)


def at_each_line(functions: Sequence[Callable[..., Any]], act: Act, work: Act) -> int:
    """Does the work as often as it has lines in these functions, each time with the act before
    another one, where a signal's handler may come. Gives how often."""
    codes = {function.__code__ for function in functions}
    chosen = passed = 0

    def at_line(frame: Any, event: str, _arg: Any) -> Any:
        nonlocal passed
        if frame.f_code not in codes:
            return None
        if event == "line":
            passed += 1
            if passed == chosen:
                act()
        return at_line

    before = sys.gettrace()
    while passed >= chosen:
        chosen, passed = chosen + 1, 0
        sys.settrace(at_line)
        try:
            work()
        finally:
            sys.settrace(before)
    return chosen - 1


def test_a_signal_s_handler_that_tells_what_is_being_told() -> None:
    said = count()

    def tell() -> None:
        number = next(said)
        kinds = [f"{'ab'[i]} sentence of a kind " + "x" * number for i in range(2)]

        def tell_all() -> None:
            for kind in kinds:
                notice.once(kind)

        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            handler.append(tell_all)
            notice.once(kinds[0])
        texts = [str(one.message) for one in told]
        assert len(texts) == len(set(texts)), "a sentence is told once"

    handler: list[Act] = []
    assert at_each_line([notice.once], lambda: handler.pop()(), tell) > 3


def test_a_signal_s_handler_amid_what_is_known_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "KEYS_MAX", 3)
    monkeypatch.setattr(replay, "PROGRAMS_MAX", 2)
    replays: dict[Any, Any] = {}
    keys = count()

    def call(key: int) -> None:
        seen = replay._seen(replays, key)
        seen.programs.append(None)
        replay._make_room(replays, seen)

    def handle() -> None:
        for _ in range(3):
            call(next(keys))

    def work() -> None:
        for _ in range(3):
            call(next(keys))
        last = next(keys)
        call(last)
        call(last)
        assert len(replays) <= replay.KEYS_MAX

    assert at_each_line([replay._seen, replay._make_room], handle, work) > 20


def test_a_destructor(ghost: Any, act: Act, expected: torch.Tensor) -> None:
    first, calls = once(act)

    class Dying:
        def __del__(self) -> None:
            first()

    held = [Dying()]
    tokens = generated(ghost, streamer=Streamer(lambda _: held.clear()))
    assert calls == ["called", "done"] and torch.equal(tokens, expected)


def test_a_finalizer(ghost: Any, act: Act, expected: torch.Tensor) -> None:
    first, calls = once(act)

    class Dying:
        pass

    held = [Dying()]
    weakref.finalize(held[0], first)
    tokens = generated(ghost, streamer=Streamer(lambda _: held.clear()))
    assert calls == ["called", "done"] and torch.equal(tokens, expected)


def test_a_callback_of_the_garbage_collector(ghost: Any, act: Act, expected: torch.Tensor) -> None:
    """Of a collection between two tokens. What is raised in one is only printed."""
    first, calls = once(act)

    def call(phase: str, details: dict[str, int]) -> None:
        first()

    def collect(_: int) -> None:
        gc.callbacks.append(call)
        try:
            gc.collect(0)
        finally:
            gc.callbacks.remove(call)

    tokens = generated(ghost, streamer=Streamer(collect))
    assert calls == ["called", "done"] and torch.equal(tokens, expected)


def test_no_collection_falls_into_a_capture(ghost: Any) -> None:
    """What it calls would be captured as if the model's code had."""
    captures: list[bool] = []

    def call(phase: str, details: dict[str, int]) -> None:
        captures.append(getattr(state._thread, "captures", False))

    kept = gc.get_threshold()
    gc.callbacks.append(call)
    gc.set_threshold(1)
    try:
        for _ in range(3):  # of a size that nobody has used: the second one is captured
            ghost(torch.ones((3, 11), dtype=torch.int64, device=ghost.device))
    finally:
        gc.set_threshold(*kept)
        gc.callbacks.remove(call)
    assert captures and not any(captures)
    assert gc.isenabled()


def test_a_logits_processor(ghost: Any, act: Act, expected: torch.Tensor) -> None:
    class Processor(transformers.LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            first()
            return scores

    first, calls = once(act)
    assert torch.equal(generated(ghost, logits_processor=[Processor()]), expected)
    assert calls == ["called", "done"]


def test_a_stopping_criterion(ghost: Any, act: Act, expected: torch.Tensor) -> None:
    class Criterion(transformers.StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> Any:
            first()
            return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    first, calls = once(act)
    assert torch.equal(generated(ghost, stopping_criteria=[Criterion()]), expected)
    assert calls == ["called", "done"]


# --- in the middle of a call ----------------------------------------------------------------------


@pytest.mark.parametrize("which", ["register_forward_hook", "register_forward_pre_hook"])
def test_a_forward_hook(ghost: Any, local: Any, act: Act, which: str) -> None:
    first, calls = once(act)
    handle = getattr(ghost.model.layers[1], which)(lambda *_: first())
    logits = ghost(IDS.to(ghost.device)).logits
    handle.remove()
    assert calls == ["called", "done"]
    assert torch.equal(logits.cpu(), local(IDS).logits)


class Linear(torch.nn.Linear):
    """Small whole numbers, on the device."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(2, 2, bias=False)
        with torch.no_grad():
            self.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        self.to(device)


@pytest.mark.parametrize("which", ["full_backward_hook", "full_backward_pre_hook"])
def test_a_module_s_backward_hook(device: torch.device, act: Act, which: str) -> None:
    first, calls = once(act)
    linear = Linear(device)
    getattr(linear, f"register_{which}")(lambda *_: first())
    x = torch.ones(1, 2).to(device).requires_grad_()
    linear(x).sum().backward()
    assert calls == ["called", "done"]
    assert (x.grad.tolist(), linear.weight.grad.tolist()) == ([[4, 6]], [[1, 1], [1, 1]])


def test_a_hook_after_a_gradient_was_accumulated(device: torch.device, act: Act) -> None:
    first, calls = once(act)
    linear = Linear(device)
    linear.weight.register_post_accumulate_grad_hook(lambda _: first())
    for _ in range(2):
        linear(torch.ones(1, 2).to(device)).sum().backward()
    assert calls == ["called", "done"] and linear.weight.grad.tolist() == [[2, 2], [2, 2]]


@pytest.mark.parametrize("which", ["step_pre_hook", "step_post_hook", "closure"])
def test_an_optimizer_s_hook(device: torch.device, act: Act, which: str) -> None:
    first, calls = once(act)
    linear = Linear(device)
    optimizer = torch.optim.SGD(linear.parameters(), lr=1.0)

    def closure() -> torch.Tensor:
        if which == "closure":
            first()
        optimizer.zero_grad()
        loss = linear(torch.ones(1, 2).to(device)).sum()
        loss.backward()
        return loss

    if which != "closure":
        getattr(optimizer, f"register_{which}")(lambda *_: first())
    assert optimizer.step(closure).item() == 10
    assert calls == ["called", "done"] and linear.weight.tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize("act", FEW, indirect=True)
@pytest.mark.parametrize("kind", ["module", "optimizer"])
@pytest.mark.parametrize("which", ["pre", "post", "load_pre", "load_post"])
def test_a_hook_of_a_state_dict(device: torch.device, act: Act, kind: str, which: str) -> None:
    first, calls = once(act)
    linear = Linear(device)
    of: Any = linear
    if kind == "optimizer":
        of = torch.optim.SGD(linear.parameters(), lr=0.5, momentum=0.5)
        linear(torch.ones(1, 2).to(device)).sum().backward()
        of.step()
    name = {"load_pre": "load_state_dict_pre_hook", "load_post": "load_state_dict_post_hook"}
    getattr(of, "register_" + name.get(which, f"state_dict_{which}_hook"))(lambda *_: first())
    before = linear.weight.tolist()
    of.load_state_dict(of.state_dict())
    assert calls == ["called", "done"] and linear.weight.tolist() == before


def test_the_showing_of_a_warning(device: torch.device, act: Act, monkeypatch: Any) -> None:
    """PyTorch's own warning, from the middle of a function of its in C++."""
    first, calls = once(act)
    x = torch.arange(3.0).to(device).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", lambda *_, **__: first())
        y = x * 2
        assert y.grad is None
    assert calls == ["called", "done"] and y.tolist() == [0, 2, 4]


@pytest.mark.parametrize("event", ["call", "return", "c_call", "c_return"])
def test_a_profiler(ghost: Any, act: Act, expected: torch.Tensor, event: str) -> None:
    """At the first event of the device's own files, during a generation."""
    first, calls = once(act)
    own = str(Path(djinn.__file__).parent)

    def profile(frame: Any, what: str, argument: Any) -> None:
        if what == event and frame.f_code.co_filename.startswith(own):
            first()

    sys.setprofile(profile)
    try:
        tokens = generated(ghost)
    finally:
        sys.setprofile(None)
    assert calls == ["called", "done"] and torch.equal(tokens, expected)


def test_torch_function(device: torch.device, act: Act) -> None:
    first, calls = once(act)

    class Mode(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            first()
            return function(*args, **(kwargs or {}))

    with Mode():
        result = torch.arange(3.0).to(device) + 1
    assert calls == ["called", "done"] and result.tolist() == [1, 2, 3]


# Below a mode there is no autograd.
@pytest.mark.parametrize("act", [use for use in USES if use != "loss"], indirect=True)
def test_torch_dispatch(device: torch.device, act: Act) -> None:
    first, calls = once(act)

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            first()
            return function(*args, **(kwargs or {}))

    x = torch.arange(3).to(device)
    with Mode():
        result = x + x
    assert calls == ["called", "done"] and result.tolist() == [0, 2, 4]


@pytest.mark.parametrize("which", ["tensor", "node", "pack", "unpack", "function"])
def test_autograd_hooks(device: torch.device, act: Act, which: str) -> None:
    first, calls = once(act)

    def call(value: Any) -> Any:
        first()
        return value

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
            context.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(context: Any, *grads: torch.Tensor) -> torch.Tensor:
            if which == "function":
                first()
            (x,) = context.saved_tensors
            return 2 * x * grads[0]

    x = torch.arange(3.0).to(device).requires_grad_()
    packed = call if which == "pack" else lambda value: value
    unpacked = call if which == "unpack" else lambda value: value
    with torch.autograd.graph.saved_tensors_hooks(packed, unpacked):
        y = Square.apply(x) * x
    if which == "tensor":
        y.register_hook(lambda _: first())
    if which == "node":
        y.grad_fn.register_hook(lambda *_: first())
    y.sum().backward()
    assert calls == ["called", "done"] and x.grad.tolist() == [0, 3, 12]


# --- TorchScript ----------------------------------------------------------------------------------


class Logits(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> Any:
        return self.model(ids, use_cache=False, return_dict=False)[0]


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_traced_ghost_gives_what_the_ghost_gives(ghost: Any) -> None:
    ids = IDS.to(ghost.device)
    traced = torch.jit.trace(Logits(ghost), (ids,))
    for _ in range(2):
        assert torch.equal(traced(ids).cpu(), ghost(ids).logits.cpu())


def test_torchscript_s_lists_of_indices_are_indices(device: torch.device) -> None:
    @torch.jit.script
    def pick(table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return table[:, rows]

    table, rows = torch.arange(12).reshape(3, 4), torch.tensor([0, 2])
    assert torch.equal(pick(table.to(device), rows.to(device)).cpu(), table[:, rows])
