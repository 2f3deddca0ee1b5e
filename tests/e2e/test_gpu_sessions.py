# SPDX-License-Identifier: Apache-2.0
"""Sessions on a GPU, with fakes for the driver and for CUDA's runtime: the worker's calls are real,
and nothing is computed. Copies are made: so a weight, a ref and what is cloned of them have their
true bytes, and these are what is asked for here. All else that a kernel would have computed is
0xA5."""

import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import djinn
import numpy as np
import pytest
from command_line import ctl, events_of
from private_daemon import BIN, Daemon, children_named, running, wait_until
from safetensors.numpy import save_file

FAKES = BIN.parent / "fake_cuda"
RUNTIME = [
    FAKES / "runtime" / f"{name}.so.13" for name in ("libcudart", "libcublas", "libcublasLt")
]
WORKER = "djinn-cuda-work"  # as the kernel cuts its name
MIB = 1 << 20

GET = """srg 1 "get"
weight %a "a" : float32[512, 300]
weight %b "b" : float32[700]
%x = aten::t(%a)
%y = aten::clone(%x)
%z = aten::clone(%b)
output %x
output %y
output %z
"""
COPY = """srg 1 "copy"
symbol n 1..1048576
input %x : float32[n]
%y = aten::clone(%x)
output %y
"""
WRITE = """srg 1 "write"
input %x : float32[1000]
input %y : float32[1000]
%z = aten::copy_(%x, %y)
output %z
"""
ADD = """srg 1 "add"
input %x : float32[8]
%y = aten::add.Tensor(%x, %x)
output %y
"""
APPEND = """srg 1 "append"
symbol t 1..64 tokens
symbol past 0..1024 past
symbol cap 128..8192 capacity
sequence %k key 0 : float32[1, 1, cap, 64]
input %n : float32[1, 1, t, 64]
%z = djinn::kv_append(%k, %n, past)
%v = aten::slice.Tensor(%z, 2, 0, past + t, 1)
%y = aten::clone(%v)
output %y
"""
REFUSED = ADD.replace("aten::add.Tensor(%x, %x)", "aten::cumsum(%x, 0)")

pytestmark = [
    pytest.mark.skipif(
        not (BIN / "djinn-cuda-worker").exists() or not all(map(Path.exists, RUNTIME)),
        reason="the fakes of a GPU are not built, or PyTorch is without CUDA",
    ),
    pytest.mark.ci,
]


def program_on_fakes(folder: Path) -> Path:
    """The worker with the fake runtime under it. Nobody else has that. What the file `once` says
    fails in the next one that starts."""
    script = folder / "worker"
    settings = {
        "LD_PRELOAD": " ".join(map(str, RUNTIME)),
        "LD_LIBRARY_PATH": str(FAKES / "runtime"),
        "DJINN_FAKE_RUNTIME_LOG": str(folder / "calls"),
    }
    words = " ".join(f"{name}={shlex.quote(value)}" for name, value in settings.items())
    program = shlex.quote(str(BIN / "djinn-cuda-worker"))
    once = shlex.quote(str(folder / "once"))
    fault = f"fault=$(cat {once} 2>/dev/null); rm -f {once}"
    script.write_text(
        f'#!/bin/sh\n{fault}\nexport DJINN_FAKE_RUNTIME="$fault"\n{words} exec {program} "$@"\n'
    )
    script.chmod(0o755)
    return script


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(FAKES))
    monkeypatch.setenv("DJINN_FAKE_CUDA", "memory=4G")
    monkeypatch.setenv("DJINN_FAKE_NVML", "driver=580.7")
    worker = program_on_fakes(tmp_path)
    with running("--devices", "cuda:0", "--cuda-worker", str(worker)) as daemon:
        wait_until(lambda: gpu_of(daemon)["state"] == "ready", "the GPU is ready")
        yield daemon


@pytest.fixture
def weights(tmp_path: Path) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(3)
    made = {name: generator.random(sizes, np.float32) for name, sizes in SIZES.items()}
    save_file(made, tmp_path / "model.safetensors")
    return made


SIZES = {"a": (512, 300), "b": (700,)}


def gpu_of(daemon: Daemon) -> dict[str, Any]:
    (_, gpu) = ctl(daemon, "devices", "-j").items()
    return gpu


def lanes_of(daemon: Daemon) -> dict[str, Any]:
    pools = [one for one in ctl(daemon, "mem", "-j").items() if one["device"] == "cuda:0"]
    (lanes,) = [one for one in pools if one["pool"] == "lanes"]
    return lanes


def workers(daemon: Daemon) -> list[int]:
    return children_named(daemon.process.pid, WORKER)


def kill_worker(daemon: Daemon) -> int:
    (worker,) = workers(daemon)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: worker not in workers(daemon), "the worker is gone")
    return worker


def memory_held_by(process: int) -> list[Path]:
    """The fake driver's, by the descriptors that hold it."""
    held = Path(f"/proc/{process}/fd")
    return [fd for fd in held.iterdir() if "fake-cuda" in os.readlink(fd)]


def expect_weights(got: dict[str, Any], weights: dict[str, np.ndarray]) -> None:
    assert got["x"].tobytes() == got["y"].tobytes() == weights["a"].T.tobytes()
    assert got["z"].tobytes() == weights["b"].tobytes()


def test_a_worker_is_started_for_who_names_a_gpu_and_for_nobody_else(gpu: Daemon) -> None:
    with gpu.connect("host") as host:
        host.run_once(ADD, x=np.ones(8, np.float32))
        assert workers(gpu) == []
        assert gpu_of(gpu)["used_bytes"] == 0
        with gpu.connect("gpu", device="cuda:0") as session:
            assert len(workers(gpu)) == 1
            assert gpu_of(gpu)["lanes"] == 1
            with pytest.raises(djinn.Error, match="cumsum is not offered on a GPU"):
                session.run_once(REFUSED, x=np.ones(8, np.float32))
            y = session.run_once(ADD, x=np.ones(8, np.float32))["y"]
            assert y.tobytes() != np.full(8, 2, np.float32).tobytes(), "no processor computed it"
        (y,) = host.run_once(ADD, x=np.ones(8, np.float32)).values()
        assert y.tobytes() == np.full(8, 2, np.float32).tobytes()


def test_what_goes_to_a_gpu_comes_back_and_is_accounted_there(gpu: Daemon) -> None:
    numbers = np.random.default_rng(1).random(MIB // 2, np.float32)
    with gpu.connect("gpu", device="cuda:0") as session:
        program = session.define(COPY)
        for size in (1, 1000, MIB // 2):
            y = program(x=numbers[:size])["y"]
            assert y.tobytes() == numbers[:size].tobytes()
        kept = session.put(numbers)
        copied = program(x=kept, outputs="ref")["y"]
        assert copied.numpy().tobytes() == numbers.tobytes()
        (own,) = [one for one in gpu.observer.sessions() if one["name"] == "gpu"]
        assert own["granted_bytes"] >= 2 * numbers.nbytes
        assert gpu_of(gpu)["used_bytes"] >= own["granted_bytes"]
    wait_until(lambda: ctl(gpu, "gc").code == 0 and not workers(gpu), "its worker is gone")
    wait_until(lambda: gpu_of(gpu)["used_bytes"] == 0, "all is free again")


def test_a_model_is_opened_on_a_gpu_by_way_of_a_copy(
    gpu: Daemon, weights: dict[str, np.ndarray], tmp_path: Path
) -> None:
    with gpu.connect("gpu", device="cuda:0") as session:
        model = session.load(tmp_path / "model.safetensors")
        (report,) = ctl(gpu, "ps", "-j").items()
        assert report["copies"] == ["cuda:0"]
        expect_weights(session.define(GET, model)(), weights)
        uploaded = gpu_of(gpu)["uploaded_bytes"]
        with gpu.connect("other", device="cuda:0") as other, gpu.connect("host") as host:
            for one in (other, host):
                model = one.load(tmp_path / "model.safetensors")
                expect_weights(one.define(GET, model)(), weights)
        assert gpu_of(gpu)["uploaded_bytes"] == uploaded, "one copy is for all"


KILLS = [5, pytest.param(100, marks=pytest.mark.full)]


@pytest.mark.parametrize("kills", KILLS)
def test_a_killed_worker_costs_a_pause_and_no_byte_is_read_or_uploaded_again(
    gpu: Daemon, weights: dict[str, np.ndarray], tmp_path: Path, kills: int
) -> None:
    numbers = np.random.default_rng(2).random(1000, np.float32)
    with gpu.connect("gpu", device="cuda:0") as session:
        program = session.define(GET, session.load(tmp_path / "model.safetensors"))
        write = session.define(WRITE)
        kept = session.put(np.zeros(1000, np.float32))
        expect_weights(program(), weights)
        read, uploaded = gpu.status()["bytes_read"], gpu_of(gpu)["uploaded_bytes"]
        for i in range(kills):
            before = kill_worker(gpu)
            if i == 2:
                write(x=kept, y=numbers)
            expect_weights(program(), weights)
            assert kept.numpy().tobytes() == (numbers if i >= 2 else 0 * numbers).tobytes()
            assert workers(gpu) not in ([], [before])
        assert (gpu.status()["bytes_read"], gpu_of(gpu)["uploaded_bytes"]) == (read, uploaded)


@pytest.mark.parametrize("kills", KILLS)
def test_who_wants_a_copy_while_a_mover_starts_waits_and_no_file_is_read_for_it(
    gpu: Daemon, weights: dict[str, np.ndarray], tmp_path: Path, kills: int
) -> None:
    with gpu.connect("gpu", device="cuda:0") as session:
        model = session.load(tmp_path / "model.safetensors")
        program = session.define(GET, model)
        expect_weights(program(), weights)
        read, (worker,) = gpu.status()["bytes_read"], workers(gpu)
        for _ in range(kills):
            dropped = ctl(gpu, "evict", model.id, "--to", "host", "--force")
            assert dropped.code == 0, dropped.err
            (mover,) = children_named(gpu.process.pid, "djinn-mover")
            os.kill(mover, signal.SIGKILL)
            expect_weights(program(), weights)
        assert gpu.status()["bytes_read"] == read
        assert workers(gpu) == [worker]


def test_a_copy_that_is_dropped_comes_back_with_the_next_run(
    gpu: Daemon, weights: dict[str, np.ndarray], tmp_path: Path
) -> None:
    with gpu.connect("gpu", device="cuda:0") as session:
        model = session.load(tmp_path / "model.safetensors")
        program = session.define(GET, model)
        expect_weights(program(), weights)
        read = gpu.status()["bytes_read"]
        for to in ("host", "disk"):
            dropped = ctl(gpu, "evict", model.id, "--to", to, "--force")
            assert dropped.code == 0, dropped.err
            (report,) = ctl(gpu, "ps", "-j").items()
            assert not report["copies"]
            expect_weights(program(), weights)
            assert (gpu.status()["bytes_read"] > read) == (to == "disk")
        (report,) = ctl(gpu, "ps", "-j").items()
        assert report["copies"] == ["cuda:0"]


def test_a_copy_that_somebody_wrote_to_is_made_anew_and_never_under_who_maps_it(
    gpu: Daemon, weights: dict[str, np.ndarray], tmp_path: Path
) -> None:
    with gpu.connect("gpu", device="cuda:0") as session:
        (tmp_path / "config.json").write_text("{}")
        program = session.define(GET, session.load(tmp_path))
        expect_weights(program(), weights)
        (worker,) = workers(gpu)
        fds = [os.open(path, os.O_RDWR) for path in memory_held_by(gpu.process.pid)]
        for fd in fds:
            os.pwrite(fd, b"!", 4099)
        before = [os.pread(fd, MIB, 0) for fd in fds]
        (placed,) = ctl(gpu, "load", str(tmp_path), "--device", "cuda:0", "-j").items()
        assert placed["uploaded_bytes"] == placed["bytes"]
        assert len(events_of(gpu, "copy-differed")) == 1
        expect_weights(program(), weights)
        assert workers(gpu) == [worker], "it let go, and has the next one"
        assert [os.pread(fd, MIB, 0) for fd in fds] == before, "nobody zeroed what it mapped"
        for fd in fds:
            os.close(fd)


# Which of a worker's waits are before djinnd knows it differs, and on a busy machine deaths add up.
@pytest.mark.full
def test_a_gpu_that_fails_in_a_step_ends_its_worker_and_the_step_is_done_again(
    gpu: Daemon, tmp_path: Path
) -> None:
    numbers = np.random.default_rng(4).random(1000, np.float32)
    with gpu.connect("gpu", device="cuda:0") as session:
        program = session.define(COPY)
        first = program(x=numbers, outputs="ref")["y"]
        waits = (tmp_path / "calls").read_text().count("cudaStreamSynchronize")
        assert waits > 1
        for wait in range(2, waits + 1):  # a worker waits once before djinnd knows it
            once = tmp_path / "once"
            once.write_text(f"cudaStreamSynchronize@{wait}=ILLEGAL_ADDRESS")
            before = kill_worker(gpu)
            again = program(x=numbers, outputs="ref")["y"]
            assert not once.exists()
            assert again.numpy().tobytes() == first.numpy().tobytes() == numbers.tobytes()
            assert workers(gpu) not in ([], [before])
        # In a step, or before djinnd knew it: how often it waits until then differs.
        failed = ("The GPU has failed, and this process can use it no more", "before it was needed")
        log = gpu.log.read_text()
        assert any(text in log for text in failed), log


def test_a_sequence_group_has_the_memory_of_its_capacity_there(gpu: Daemon) -> None:
    keys = np.random.default_rng(5).random((1, 1, 4, 64), np.float32)
    with gpu.connect("gpu", device="cuda:0") as session:
        append = session.define(APPEND)
        used = gpu_of(gpu)["used_bytes"]
        with session.sequence(1, 1, 1, 64, "float32", 4096) as group:
            capacity_bytes = 2 * 64 * 4 * 4096
            assert gpu_of(gpu)["used_bytes"] - used >= capacity_bytes
            for past in (0, 4, 8):
                got = append(n=keys + past, sequence=group, outputs="ref")["y"].numpy()
                expected = np.concatenate([keys + i for i in range(0, past + 4, 4)], axis=2)
                assert got.tobytes() == expected.tobytes()
                kill_worker(gpu)
        with pytest.raises(djinn.Error):
            session.sequence(1, 64, 32, 128, "float32", 1 << 16)


def test_what_a_worker_has_taken_of_a_gpu_by_itself_is_its_user_s_and_goes_with_it(
    gpu: Daemon,
) -> None:
    with gpu.connect("gpu", device="cuda:0"):
        wait_until(lambda: lanes_of(gpu)["reserved_bytes"] >= 48 * MIB, "its base is told")
        assert lanes_of(gpu)["evictable_bytes"] == 0, "a session needs it"
        assert gpu_of(gpu)["used_bytes"] >= 48 * MIB
    wait_until(lambda: lanes_of(gpu)["evictable_bytes"] >= 48 * MIB, "it serves nobody")
    kill_worker(gpu)
    wait_until(lambda: gpu_of(gpu)["used_bytes"] == 0, "it had all of that")


@pytest.fixture
def small_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Daemon]:
    """Of so many MiB."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(FAKES))
    monkeypatch.setenv("DJINN_FAKE_CUDA", "memory=4G")
    monkeypatch.setenv("DJINN_FAKE_NVML", "driver=580.7")
    options = ["--devices", "cuda:0", "--device-limit", f"cuda:0={request.param}MiB"]
    with running(*options, "--cuda-worker", str(program_on_fakes(tmp_path))) as daemon:
        wait_until(lambda: gpu_of(daemon)["state"] == "ready", "the GPU is ready")
        yield daemon


@pytest.mark.parametrize("small_gpu", [130], indirect=True)
def test_refs_that_one_session_has_let_go_of_give_way_to_another_s(small_gpu: Daemon) -> None:
    numbers = np.random.default_rng(6).random(12 * MIB, np.float32)  # 48 MiB
    with small_gpu.connect("a", device="cuda:0") as a, small_gpu.connect("b", device="cuda:0") as b:
        first = a.put(numbers)
        assert first.numpy().tobytes() == numbers.tobytes()
        first.release()
        kept = b.put(numbers)
        assert kept.numpy().tobytes() == numbers.tobytes()
        again = a.put(numbers[: 2 * MIB])
        assert again.numpy().tobytes() == numbers[: 2 * MIB].tobytes()


@pytest.mark.parametrize("small_gpu", [80], indirect=True)
def test_a_worker_that_serves_nobody_gives_way_to_a_model_there_and_the_next_comes(
    small_gpu: Daemon, weights: dict[str, np.ndarray], tmp_path: Path
) -> None:
    with small_gpu.connect("gpu", device="cuda:0") as session:
        session.put(np.ones(MIB, np.float32))
    (worker,) = workers(small_gpu)
    large = tmp_path / "large"
    large.mkdir()
    (large / "config.json").write_text("{}")
    save_file({"a": np.ones(10 * MIB, np.float32)}, large / "model.safetensors")
    placed = ctl(small_gpu, "load", str(large), "--device", "cuda:0")
    assert placed.code == 0, placed.err
    assert worker not in workers(small_gpu)
    assert ctl(small_gpu, "unpin", str(large)).code == 0
    with small_gpu.connect("gpu", device="cuda:0") as session:
        program = session.define(GET, session.load(tmp_path / "model.safetensors"))
        expect_weights(program(), weights)


@pytest.mark.parametrize("small_gpu", [40], indirect=True)
def test_where_there_is_no_memory_for_a_worker_its_session_ends_and_says_so(
    small_gpu: Daemon,
) -> None:
    with (
        pytest.raises(djinn.Error, match="takes for itself") as ended,
        small_gpu.connect("gpu", device="cuda:0") as session,
    ):
        session.run_once(ADD, x=np.ones(8, np.float32))
    assert ended.value.code == "out_of_memory"
    wait_until(lambda: not workers(small_gpu), "its worker is gone")
    with small_gpu.connect("host") as host:
        host.run_once(ADD, x=np.ones(8, np.float32))


def test_a_worker_that_opens_another_gpu_than_djinnd_has_is_not_used_and_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(FAKES))
    monkeypatch.setenv("DJINN_FAKE_NVML", "driver=580.7")
    worker = program_on_fakes(tmp_path)
    other = "export DJINN_FAKE_CUDA=uuid=00112233445566778899aabbccddeeff"
    worker.write_text(worker.read_text().replace("#!/bin/sh", f"#!/bin/sh\n{other}"))
    with running("--devices", "cuda:0", "--cuda-worker", str(worker)) as daemon:
        wait_until(lambda: gpu_of(daemon)["state"] == "ready", "the GPU is ready")
        with pytest.raises(djinn.Error, match="by its UUID") as refused:
            daemon.connect("gpu", device="cuda:0")
        assert refused.value.code == "worker_lost"
        log = daemon.log.read_text()
        assert "it did not find its device" in log
        assert "GPU-00112233-4455-6677-8899-aabbccddeeff here" in log


def test_without_the_library_of_gpus_a_session_is_told_that_no_worker_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(FAKES))
    monkeypatch.setenv("DJINN_FAKE_NVML", "driver=580.7")
    worker = program_on_fakes(tmp_path)
    worker.write_text("#!/bin/sh\nexit 1\n")
    with running("--devices", "cuda:0", "--cuda-worker", str(worker)) as daemon:
        wait_until(lambda: gpu_of(daemon)["state"] == "ready", "the GPU is ready")
        with pytest.raises(djinn.Error) as refused:
            daemon.connect("gpu", device="cuda:0")
        assert refused.value.code == "worker_lost"
        with daemon.connect("host") as host:
            host.run_once(ADD, x=np.ones(8, np.float32))
