# SPDX-License-Identifier: Apache-2.0
"""Programs, run-once graphs and refs, against PyTorch."""

import copy
import gc
import os
import pickle
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import djinn
import numpy as np
import pytest
import torch
from private_daemon import Daemon, running, wait_until
from safetensors.torch import save_file
from small_graphs import DOUBLE, LINEAR, REFUSED

NONZERO = """srg 1 "nonzero"
symbol n 1..1024
input %x : float32[n]
%y = aten::nonzero(%x)
output %y
"""


@pytest.fixture
def weights(tmp_path: Path) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    tensors = {"layer.weight": torch.randn(64, 96), "layer.bias": torch.randn(64)}
    save_file(tensors, tmp_path / "layer.safetensors")
    return tensors


OTHERS = ("float16[64, 96]", "float32[96, 64]", "int64[64, 48]", "float32[10, 96]", "float32[6144]")


@pytest.mark.parametrize("other", OTHERS)
def test_a_weight_that_is_declared_otherwise_than_it_is_is_refused_and_a_view_is_not(
    daemon: Daemon, weights: dict[str, torch.Tensor], tmp_path: Path, other: str
) -> None:
    def get(declared: str) -> np.ndarray:
        graph = f'srg 1 "get"\n{declared}\n%y = aten::clone(%w)\noutput %y\n'
        y: np.ndarray = session.run_once(graph, model)["y"]
        return y

    with daemon.connect("weights") as session:
        model = session.load(tmp_path / "layer.safetensors")
        with pytest.raises(djinn.Error) as refused:
            get(f'weight %w "layer.weight" : {other}')
        assert refused.value.code == "shape_mismatch"
        assert "The weight layer.weight is float32[64, 96], and the graph says " in str(
            refused.value
        )
        assert other in str(refused.value)
        view = get(f'storage weight "layer.weight"\nview %w of $0 : {other}')
        assert weights["layer.weight"].numpy().tobytes().startswith(view.tobytes())


def expected_linear(weights: dict[str, torch.Tensor], x: np.ndarray) -> bytes:
    y = torch.nn.functional.linear(
        torch.from_numpy(x), weights["layer.weight"], weights["layer.bias"]
    )
    return y.numpy().tobytes()


@pytest.mark.parametrize("rows", [1, 7, 512])
def test_a_linear_that_runs_once_gives_pytorchs_bytes(
    session: djinn.Session, weights: dict[str, torch.Tensor], tmp_path: Path, rows: int
) -> None:
    model = session.load(tmp_path / "layer.safetensors")
    assert model.tensors["layer.weight"] == ("float32", (64, 96))
    x = np.random.default_rng(rows).standard_normal((rows, 96), np.float32)
    y = session.run_once(LINEAR.format(dtype="float32"), model, x=x)["y"]
    assert y.shape == (rows, 64)
    assert y.tobytes() == expected_linear(weights, x)


def test_a_program_gives_the_bytes_of_a_run_once_graph(
    session: djinn.Session, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    model = session.load([tmp_path / "layer.safetensors"])
    program = session.define(LINEAR.format(dtype="float32"), model)
    for rows in (1, 5, 130, 5):
        x = np.random.default_rng(rows).standard_normal((rows, 96), np.float32)
        assert program(x=x)["y"].tobytes() == expected_linear(weights, x)


def test_a_plan_that_casts_rounds_as_pytorch_does(
    session: djinn.Session, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    plan = djinn.LoadPlan(
        tuple(
            djinn.Destination(name, "bfloat16", tuple(tensor.shape), (djinn.Piece(0, name),))
            for name, tensor in weights.items()
        )
    )
    model = session.load(tmp_path / "layer.safetensors", plan)
    x = torch.randn(4, 96, dtype=torch.bfloat16)
    y = session.run_once(LINEAR.format(dtype="bfloat16"), model, x=x.view(torch.uint16).numpy())[
        "y"
    ]
    expected = torch.nn.functional.linear(x, *(w.bfloat16() for w in weights.values()))
    assert y.dtype == np.uint16
    assert y.tobytes() == expected.view(torch.uint16).numpy().tobytes()
    assert np.array_equal(djinn.bfloat16_to_float32(y), expected.float().numpy())
    assert model.id != session.load(tmp_path / "layer.safetensors").id


def test_refs_chain_runs_without_crossing(session: djinn.Session) -> None:
    program = session.define(DOUBLE)
    x = session.put(np.arange(8, dtype=np.float32))
    once = program(x=x, outputs="ref")["y"]
    twice = program(x=once, outputs="ref")["y"]
    assert np.array_equal(twice.numpy(), np.arange(8) * 4)
    once.release()
    with pytest.raises(ValueError, match="released"):
        once.numpy()
    assert np.array_equal(twice.numpy(slice(1, 7, 2)), [4, 12, 20])


def test_a_slice_of_a_ref_is_that_of_the_array(session: djinn.Session) -> None:
    array = np.random.default_rng(0).integers(0, 100, (6, 5, 4))
    ref = session.put(array)
    assert np.array_equal(ref.numpy(), array)
    assert np.array_equal(ref.numpy(-1), array[-1])
    assert np.array_equal(ref.numpy(slice(1, 5, 2), 3), array[1:5:2, 3])
    assert np.array_equal(ref.numpy(2, slice(None), slice(1, 3)), array[2, :, 1:3])
    assert ref.numpy(0, 1, 2) == array[0, 1, 2]
    assert ref.numpy(slice(3, 3)).shape == (0, 5, 4)
    with pytest.raises(IndexError):
        ref.numpy(6)


def test_what_is_larger_than_staging_comes_in_pieces(daemon: Daemon) -> None:
    with daemon.connect("small", staging_bytes=64 * 1024) as session:
        rows = [session.put(np.full(2048, i, np.float32)) for i in range(3)]
        source = """srg 1 "stack"
        input %a : float32[2048]
        input %b : float32[2048]
        input %c : float32[2048]
        %y = aten::stack([%a, %b, %c, %a, %b, %c, %a, %b, %c, %a])
        %z = aten::stack([%y, %y])
        output %z
        """
        z = session.define(source)(a=rows[0], b=rows[1], c=rows[2])["z"]
        assert z.nbytes > session.staging_bytes
        assert np.array_equal(z[0, :, 0], [0, 1, 2, 0, 1, 2, 0, 1, 2, 0])
        assert np.array_equal(z[0], z[1])
        large = np.arange(100_000, dtype=np.float32)
        ref = session.put(large)
        assert np.array_equal(ref.numpy(), large)
        assert np.array_equal(ref.numpy(slice(1, 99_000, 3)), large[1:99_000:3])
        double = session.define(DOUBLE)
        assert np.array_equal(double(x=ref)["y"], 2 * large)
        with pytest.raises(djinn.LimitError) as refused:
            double(x=large)
        assert refused.value.code == "limit_exceeded"


def test_a_put_in_parts_outlives_its_worker(daemon: Daemon) -> None:
    array = np.random.default_rng(1).integers(0, 256, 64 << 20, np.uint8)
    with daemon.connect("parts") as session, ThreadPoolExecutor(1) as pool:
        before = daemon.status()["memory_sessions_bytes"]
        worker = daemon.worker_pid()
        putting = pool.submit(session.put, array)
        grown = before + array.nbytes
        wait_until(lambda: daemon.status()["memory_sessions_bytes"] >= grown, "the first part")
        os.kill(worker, signal.SIGKILL)
        assert np.array_equal(putting.result().numpy(), array)


def test_a_put_that_fails_leaves_nothing() -> None:
    with running("--session-quota", str(64 << 20)) as daemon, daemon.connect("small") as session:
        before = daemon.status()["memory_sessions_bytes"]
        for _ in range(3):
            with pytest.raises(djinn.LimitError, match=r"memory\.session_quota"):
                session.put(np.zeros(100 << 20, np.uint8))
        assert daemon.status()["memory_sessions_bytes"] == before
        assert session.put(np.ones(3, np.float32)).numpy().tolist() == [1, 1, 1]


def test_an_output_whose_shape_nobody_knows_before_comes_back(session: djinn.Session) -> None:
    x = np.array([0, 1, 0, 2, 3], np.float32)
    assert session.run_once(NONZERO, x=x)["y"].tolist() == [[1], [3], [4]]


def test_collected_refs_give_their_memory_back(daemon: Daemon, session: djinn.Session) -> None:
    def held() -> int:
        """Of this session: those before it may be on their way out still."""
        mine = max(daemon.observer.sessions(), key=lambda one: one["started_wall_ns"])
        return int(mine["granted_bytes"])

    before = held()
    first = session.put(np.zeros(1_000_000, np.float32))
    peak = held()
    first.release()
    for _ in range(8):
        session.put(np.zeros(1_000_000, np.float32))
        gc.collect()
    assert before <= held() <= peak + 4_000_000 + 65536


def test_a_session_may_define_and_forget_programs_without_end(daemon: Daemon) -> None:
    def defined(session: djinn.Session, number: int) -> djinn.Program:
        text = f'srg 1 "p"\ninput %x : float32[{number + 1}]\n%y = aten::neg(%x)\noutput %y\n'
        return session.define(text)

    one = np.ones(1, np.float32)
    with daemon.connect("defines") as session, daemon.connect("neighbour") as neighbour:
        kept = defined(session, 0)
        restarts = daemon.worker()["restarts"]
        for number in range(1, 3001):
            x = np.ones(number + 1, np.float32)
            assert defined(session, number)(x=x)["y"][-1] == -1
            if number % 500 == 0:
                assert kept(x=one)["y"] == -1
                assert defined(neighbour, 10_000 + number) is not None
        assert daemon.worker()["restarts"] == restarts


def test_programs_that_nobody_has_any_more_are_anothers_to_define(daemon: Daemon) -> None:
    text = 'srg 1 "{}"\ninput %x : float32[1]\n%y = aten::neg(%x)\noutput %y\n'
    one = np.ones(1, np.float32)
    with daemon.connect("defines") as session, daemon.connect("neighbour") as neighbour:
        kept = [session.define(text.format(number)) for number in range(1000)]
        assert kept[999](x=one)["y"] == -1
        kept.clear()
        session.put(one).release()  # what it says of them goes with this
        others = [neighbour.define(text.format(f"of the neighbour {n}")) for n in range(1000)]
        assert others[0](x=one)["y"] == others[999](x=one)["y"] == -1


def test_a_graph_of_more_outputs_than_an_answer_holds_is_refused(session: djinn.Session) -> None:
    def graph(outputs: int) -> str:
        nodes = "".join(f"%y{i} = aten::add.Scalar(%x, {i})\n" for i in range(outputs))
        names = ", ".join(f"%y{i}" for i in range(outputs))
        return f'srg 1 "wide"\ninput %x : float32[4]\n{nodes}output {names}\n'

    with pytest.raises(djinn.LimitError, match="1000 outputs"):
        session.define(graph(1000))
    found = session.define(graph(500))(x=np.ones(4, np.float32))
    assert found["y499"].tolist() == [500] * 4


def test_programs_of_ever_new_shapes_end_no_worker(tmp_path: Path) -> None:
    """oneDNN keeps a kernel for each shape in bfloat16."""
    save_file({"w": torch.ones(128 * 128, dtype=torch.bfloat16)}, tmp_path / "w.safetensors")
    with running("--memory", "128MiB") as daemon, daemon.connect("new shapes") as session:
        model = session.load(tmp_path / "w.safetensors")
        for number in range(160):
            inputs, outputs = 1 + number % 128, 1 + number * 7 % 128
            program = session.define(
                f'srg 1 "new"\nsymbol n 1..64\nstorage weight "w"\n'
                f"view %w of $0 : bfloat16[{outputs}, {inputs}]\n"
                f"input %x : bfloat16[n, {inputs}]\n%y = aten::linear(%x, %w)\noutput %y\n",
                model,
            )
            for rows in (1, 5, 9, 17, 31, 64):
                program(x=np.zeros((rows, inputs), np.uint16))
        assert daemon.worker()["restarts"] == 0


def test_an_operator_that_is_not_offered_is_refused(session: djinn.Session) -> None:
    with pytest.raises(djinn.RequestError) as refused:
        session.define(REFUSED)
    assert "rand_like" in str(refused.value)
    x = np.ones(3, np.float32)
    with pytest.raises(djinn.RequestError):
        session.run_once(REFUSED, x=x)
    assert session.define(DOUBLE)(x=x)["y"].tolist() == [2, 2, 2]


def test_mistakes_are_named_before_anything_runs(session: djinn.Session) -> None:
    program = session.define(DOUBLE)
    with pytest.raises(TypeError, match="no input 'z'"):
        program(z=np.ones(3, np.float32))
    with pytest.raises(TypeError, match="must be float32"):
        program(x=np.ones(3))
    with pytest.raises(ValueError, match="symbol 'n'"):
        program()
    with pytest.raises(ValueError, match="shape"):
        program(x=np.ones(3, np.float32), symbols={"n": 4})
    with pytest.raises(djinn.RequestError, match="line 1"):
        session.define("not a graph")
    unknown = r'line 1:25: There are the numerics "exact", "fast" and "fast-only"'
    with pytest.raises(djinn.RequestError, match=unknown):
        session.define(DOUBLE.replace('"double"', '"double" numerics "quick"', 1))


def test_a_closed_session_says_so(daemon: Daemon) -> None:
    session = daemon.connect("closing")
    session.close()
    assert session.closed
    with pytest.raises(djinn.LostError) as gone:
        session.status()
    assert gone.value.code == "disconnected"
    with pytest.raises(djinn.HandleError) as nobody:
        djinn.connect(f"unix:{daemon.directory}/nobody.sock")
    assert nobody.value.code == "not_found"


def test_what_belongs_to_another_session_is_refused_here(
    daemon: Daemon, session: djinn.Session, byte_model: Path
) -> None:
    """Handles of two sessions look alike: taken for one of ours, it would be another tensor."""
    with daemon.connect("other") as other:
        program = session.define(DOUBLE)
        mine, ref = session.put(np.zeros(2, np.float32)), other.put(np.ones(2, np.float32))
        assert mine.handle == ref.handle
        group = djinn.Generator(other, byte_model).sequence(1, 4)
        model = other.load(byte_model)
        for use in (
            lambda: program(x=ref),
            lambda: program(x=mine, sequence=group),
            lambda: session.define(DOUBLE, model),
            lambda: session.run_once(DOUBLE, model, x=mine),
        ):
            with pytest.raises(ValueError, match="another session"):
                use()


def test_a_ref_is_not_copied_by_accident(session: djinn.Session) -> None:
    ref = session.put([1.0, 2.0])
    for copy_of in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="numpy"):
            copy_of(ref)
    assert ref.numpy().tolist() == [1.0, 2.0]


def test_arguments_that_mean_nothing_are_refused_before_anything_is_asked(
    session: djinn.Session,
) -> None:
    program = session.define(DOUBLE)
    x = np.ones(3, np.float32)
    with pytest.raises(ValueError, match="no output 'z'"):
        program(x=x, outputs={"z": "ref"})
    for wrong in ("refs", {"y": "file"}):
        with pytest.raises(ValueError, match='"array" or "ref"'):
            program(x=x, outputs=wrong)
    with pytest.raises(ValueError, match="at least one file"):
        session.load([])
    for array in (np.array([object()]), np.array(["text"]), np.array([1, 2], "datetime64[s]")):
        with pytest.raises(TypeError, match="no dtype"):
            session.put(array)
    with pytest.raises(TypeError, match="no dtype"):
        session.put(x, "float33")
    assert session.put(np.zeros(0, np.float32)).numpy().shape == (0,)


@pytest.mark.parametrize(
    ("name", "value"),
    [("OMP_PROC_BIND", "true"), ("GOMP_CPU_AFFINITY", "0"), ("OMP_PLACES", "threads")],
)
def test_a_host_that_binds_threads_to_cores_has_workers(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with running(threads=2) as host, host.connect("bound") as session:
        x = np.ones(1 << 20, np.float32)  # enough for two threads
        assert (session.run_once(DOUBLE, x=x)["y"] == 2).all()


def test_a_graph_that_says_what_a_device_says_is_refused_and_ends_no_worker(
    daemon: Daemon, session: djinn.Session
) -> None:
    session.put(np.zeros(1, np.float32)).numpy()
    before = daemon.worker()["pid"]
    for text in ("CUBLAS_STATUS_EXECUTION_FAILED", "CUDA error: CUBLAS_STATUS_INTERNAL_ERROR"):
        source = f"""srg 1 "div"
        input %x : float32[4]
        %y = aten::div.Tensor_mode(%x, %x, rounding_mode="{text}")
        output %y
        """
        with pytest.raises(djinn.Error) as refused:
            session.run_once(source, x=np.ones(4, np.float32))
        assert refused.value.code == "invalid_argument", refused.value
    assert daemon.worker()["pid"] == before
