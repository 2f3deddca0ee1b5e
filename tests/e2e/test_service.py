# SPDX-License-Identifier: Apache-2.0
"""djinnd as systemd starts it: with a socket that listens already, a place to say how it goes, its
configuration, and what the djinnd before it left."""

import fcntl
import os
import re
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import djinn
import numpy as np
import pytest
from command_line import Ended, ctl, events_of, wait_until_hashed
from private_daemon import BIN, DEADLINE_S, wait_until
from safetensors.numpy import save_file
from systemd_double import Systemd, write_config

DOUBLE = """srg 1 "double"
weight %w "w" : float32[3, 1000]
%y = aten::add.Tensor(%w, %w)
output %y
"""
SEALED = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
WEIGHTS = np.arange(3000, dtype=np.float32).reshape(3, 1000)


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.safetensors"
    save_file({"w": WEIGHTS}, path)
    return path


# --- sockets


def test_an_activated_socket_is_served_and_outlives_the_daemon(systemd: Systemd) -> None:
    systemd.start("--user", "--threads", "1")
    assert "STATUS=0 sessions, 0 models" in systemd.hear("READY=1")
    with systemd.connect(observer=True) as session:
        assert session.status()["sessions"] == 1
        systemd.hear("STATUS=1 session,")
    assert systemd.stop() == 0
    assert any(said.startswith("STOPPING=1") for said in systemd.last_words)
    assert (systemd.directory / "djinnd.sock").exists()  # systemd's, for the next start
    assert not (systemd.directory / "djinn").exists()


def test_a_socket_of_another_kind_is_refused(tmp_path: Path) -> None:
    double = Systemd(tmp_path, socket.SOCK_STREAM)
    try:
        double.start("--user")
        assert "ListenSequentialPacket" in double.stderr_line("djinnd: systemd")
        assert double.process is not None
        assert double.process.wait(DEADLINE_S) == 1
    finally:
        double.close()


# --- configuration


def test_a_reload_takes_up_a_good_configuration_and_leaves_a_bad_one(systemd: Systemd) -> None:
    root = systemd.directory
    write_config(root, "lane.threads = 1\n")
    systemd.start("--root", str(root))
    systemd.hear("READY=1")
    for text, outcome in (
        ('lane.threads = 2\nmemory.session_quota = "1GiB"', "the configuration is reloaded"),
        ("memory.session_quota = 1.5", "the configuration is as it was"),
        ('memory.session_quota = "2GiB"', "the configuration is reloaded"),
    ):
        write_config(root, text)
        assert systemd.process is not None
        systemd.process.send_signal(signal.SIGHUP)
        systemd.hear("RELOADING=1")
        systemd.hear("READY=1")
        systemd.stderr_line(outcome)
    assert systemd.stop() == 0


def reload(systemd: Systemd, text: str) -> None:
    write_config(systemd.directory, text)
    assert systemd.process is not None
    systemd.process.send_signal(signal.SIGHUP)
    systemd.hear("RELOADING=1")
    systemd.hear("READY=1")


def test_a_reloaded_quota_holds_for_sessions_that_are_there(systemd: Systemd) -> None:
    write_config(systemd.directory, 'memory.session_quota = "32MiB"\n')
    systemd.start("--root", str(systemd.directory), "--threads", "1")
    systemd.hear("READY=1")
    piece = np.zeros(8 << 20, np.uint8)
    with systemd.connect(staging_bytes=16 << 20) as session:
        kept = [session.put(piece)]
        reload(systemd, 'memory.session_quota = "16MiB"\n')
        with pytest.raises(djinn.Error, match="quota"):
            session.put(piece)
        reload(systemd, 'memory.session_quota = "64MiB"\n')
        kept.append(session.put(piece))
        assert len(kept) == 2


def test_a_setting_that_is_written_no_more_is_as_if_it_never_was(systemd: Systemd) -> None:
    write_config(systemd.directory, 'memory.session_quota = "1MiB"\n')
    systemd.start("--root", str(systemd.directory), "--threads", "1")
    systemd.hear("READY=1")
    reload(systemd, "")
    with systemd.connect(staging_bytes=16 << 20) as session:
        session.put(np.zeros(8 << 20, np.uint8))


def test_the_command_line_wins_at_a_reload_too(systemd: Systemd) -> None:
    options = ("--threads", "1", "--session-quota", str(32 << 20))
    systemd.start("--root", str(systemd.directory), *options)
    systemd.hear("READY=1")
    reload(systemd, 'memory.session_quota = "1MiB"\n')
    with systemd.connect(staging_bytes=16 << 20) as session:
        session.put(np.zeros(8 << 20, np.uint8))


def check(root: Path, option: str) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "djinnd"), option, "--root", str(root)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)


def test_the_configuration_can_be_checked_and_shown(tmp_path: Path) -> None:
    path = write_config(tmp_path, "[lane]\nthreads = 7\nspeed = 9\n")
    found = check(tmp_path, "--show-config")
    assert found.returncode == 0
    assert f"lane.threads = 7  # {path}:2\n" in found.stdout
    assert found.stderr == f"djinnd: {path}:3: warning: lane.speed is no key; it is ignored\n"
    write_config(tmp_path, "[lane]\nthreads = 0\n")
    wrong = check(tmp_path, "--check-config")
    assert wrong.returncode == 1
    assert f"{path}:2: error: lane.threads: write a number from 1 to 1024" in wrong.stderr
    assert check(tmp_path, "--threads=1").returncode == 1


def test_a_misspelt_key_fails_a_check_and_a_reload_and_a_start_tells_of_it(
    systemd: Systemd,
) -> None:
    root = systemd.directory
    path = write_config(root, '[memory]\nsesion_quota = "16MiB"\n')
    wrong = check(root, "--check-config")
    advice = "memory.sesion_quota is no key; did you mean memory.session_quota?"
    assert (wrong.returncode, wrong.stderr) == (1, f"djinnd: {path}:2: error: {advice}\n")
    systemd.start("--root", str(root), "--threads", "1")
    systemd.hear("READY=1")
    systemd.stderr_line("warning: memory.sesion_quota is no key; it is ignored")
    (event,) = events_of(systemd, "config-ignored")
    assert event["reason"].startswith(f"{path}:2: warning: memory.sesion_quota is no key")
    assert "warning: memory.sesion_quota is no key" in ctl(systemd, "config", "show").err
    reload(systemd, '[memory]\npin_qota = "1MiB"\nsession_quota = "16MiB"\n')
    refused = events_of(systemd, "config-refused")
    assert refused[0]["reason"].endswith("is no key; did you mean memory.pin_quota?")
    in_force = {one["key"]: one["in_force"] for one in shown_config(systemd)}
    assert in_force["memory.session_quota"] == "4GiB"


def shown_config(systemd: Systemd, *options: str) -> list[dict[str, Any]]:
    return ctl(systemd, "config", "show", "-j", *options).items()


def test_the_configuration_shown_is_that_of_the_djinnd_that_answers(
    systemd: Systemd, tmp_path: Path
) -> None:
    root = systemd.directory
    write_config(root, 'memory.limit = "64MiB"\n')
    systemd.start("--root", str(root), "--threads", "1")
    systemd.hear("READY=1")
    (limit,) = [one for one in shown_config(systemd) if one["key"] == "memory.limit"]
    assert (limit["value"], limit["in_force"]) == ("64MiB", "64MiB")
    assert limit["origin"].startswith(str(root.resolve()))
    other = tmp_path / "other"
    write_config(other, 'memory.limit = "128MiB"\n')
    ended = ctl(systemd, "config", "show", "--root", str(other))
    assert ["memory.limit", "128MiB"] in ended.table()
    assert f"reads other files than these, those under '{root.resolve()}'" in ended.err
    nowhere = ctl(systemd, "config", "show", "--root", str(tmp_path / "nope"))
    assert nowhere.code == 10
    assert f"{tmp_path}/nope: error: there is no such directory" in nowhere.err


def test_a_directory_for_spilled_groups_that_cannot_be_is_told_at_the_start(
    systemd: Systemd,
) -> None:
    (systemd.directory / "file").touch()
    spilled = systemd.directory / "file/spilled"
    systemd.start("--user", "--threads", "1", "--spill-directory", str(spilled))
    systemd.hear("READY=1")
    why = f"make {spilled}, memory.spill_directory: Not a directory"
    line = systemd.stderr_line("no sequence group can go to disk").rstrip()
    assert line.endswith(
        f'let djinnd write to memory.spill_directory, or set it to "" for none: {why}'
    )
    (event,) = events_of(systemd, "spill-unavailable")
    assert event["reason"] == why
    assert f"impossible: {why}" in ctl(systemd, "status").out.decode()
    (item,) = ctl(systemd, "status", "-j").items()
    assert item["spill_fault"] == why


def test_where_nobody_wants_a_directory_for_spilled_groups_nothing_is_told(
    systemd: Systemd,
) -> None:
    systemd.start("--user", "--threads", "1", "--spill-directory", "")
    systemd.hear("READY=1")
    assert "impossible" not in ctl(systemd, "status").out.decode()
    assert events_of(systemd, "spill-unavailable") == []


@pytest.mark.parametrize(
    ("option", "wrong", "next_step"),
    [
        ("--memory", "64MIB", "write bytes like 12GiB, or a share like 80%"),
        ("--memory", "512MB", "units are KiB, MiB, GiB and TiB"),
        ("--memory", "64", "write at least 1MiB; 64 is 64 bytes, and not 64GiB"),
        ("--session-quota", "much", "write bytes like 4GiB"),
        ("--keep-alive", "never", "write a time like 5min, 0, or forever"),
        ("--keep-alive", "5", "write a time like 5min, 0, or forever"),
        ("--keep-alive-ms", "never", "write a time like 300000, 0, or forever"),
        ("--spill-after", "60000", "write a time"),
        ("--hang-timeout", "1000", "write a time from 100ms to 60min"),
        ("--hang-timeout-ms", "5", "write a time from 100 to 3600000"),
        ("--devices", "cuda", "write GPUs like cuda:0,cuda:1, up to cuda:15"),
        ("--devices", "", "write GPUs like cuda:0,cuda:1, up to cuda:15"),
        ("--policy", "quick", "write fair or fifo"),
        ("--threads", "0", 'write a number from 1 to 1024, or "all cores"'),
        ("--numerics", "", "write exact, fast or fast-only"),
        ("--spill-directory", "here", 'write a path like /var/cache/djinn, or "" for none'),
    ],
)
def test_options_take_what_the_file_takes_and_errors_show_it_as_a_shell_does(
    option: str, wrong: str, next_step: str
) -> None:
    command = [str(BIN / "djinnd"), "--user", option, wrong]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 2
    assert f"{option}: " in done.stderr
    assert next_step in done.stderr and len(done.stderr) < 400


def test_amounts_with_units_are_taken_from_the_command_line(systemd: Systemd) -> None:
    amounts = ("--memory", "64MiB", "--keep-alive", "2min", "--drain-timeout-ms", "50")
    systemd.start("--user", "--threads", "1", *amounts)
    systemd.hear("READY=1")
    assert "1 thread a lane, 64.0 MiB" in systemd.stderr_line("serves one user")
    with systemd.connect(observer=True) as session:
        assert session.status()["memory_total_bytes"] == 64 << 20


def test_the_first_line_says_where_clients_find_it(tmp_path: Path) -> None:
    """Who chose the directory has to set DJINN_HOST; a path from the directory itself is none."""
    command = [str(BIN / "djinnd"), "--user", "--runtime-dir", "./here"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as djinnd:
        assert djinnd.stderr is not None
        line = next(line for line in djinnd.stderr if "serves" in line)
        djinnd.terminate()
    assert f" serves one user at {tmp_path}/here/djinnd.sock: " in line


def test_what_is_written_and_not_in_force_is_marked(systemd: Systemd) -> None:
    root = systemd.directory
    write_config(root, 'memory.limit = "64MiB"\n')
    systemd.start("--root", str(root), "--keep-alive", "5min")
    systemd.hear("READY=1")

    def shown() -> Ended:
        return ctl(systemd, "config", "show", "--root", str(root))

    assert ["memory.limit", "64MiB"] in shown().table()
    assert shown().err == ""
    write_config(root, 'memory.limit = "1GiB"\nmemory.session_quota = "32MiB"\n')
    assert ["memory.limit", "1GiB", "64MiB"] in shown().table()
    assert ["memory.session_quota", "32MiB", "4GiB"] in shown().table()
    assert "not in force before djinnd reloads: memory.session_quota\n" in shown().err
    assert "not in force before djinnd starts anew: memory.limit\n" in shown().err
    reload(systemd, 'memory.limit = "1GiB"\nmemory.session_quota = "32MiB"\n')
    systemd.stderr_line("memory.limit takes effect at the next start")
    assert b"memory.limit takes effect at the next start" in ctl(systemd, "events", "-n", "99").out
    assert ["memory.limit", "1GiB", "64MiB"] in shown().table()
    assert ["memory.session_quota", "32MiB", "32MiB"] in shown().table()
    items = {
        one["key"]: one["in_force"]
        for one in ctl(systemd, "config", "show", "--root", str(root), "-j").items()
    }
    assert (items["memory.limit"], items["memory.session_quota"]) == ("64MiB", "32MiB")


def test_another_device_has_the_limit_that_is_written_for_it(systemd: Systemd) -> None:
    root = systemd.directory
    write_config(root, '[device."fake:0"]\nlimit = "25%"\n[device."fake:1"]\nlimit = "8MiB"\n')
    device = ["--test-device-bytes", str(64 << 20)]
    worker = ["--test-device-worker", str(BIN / "djinnd-fake-worker-test")]
    systemd.start("--root", str(root), "--threads", "1", "--memory", "128MiB", *device, *worker)
    systemd.hear("READY=1")
    devices = ctl(systemd, "devices", "-j").items()
    limits = {one["device"]: one["total_bytes"] for one in devices}
    assert limits == {"cpu:0": 128 << 20, "fake:0": (64 << 20) // 100 * 25}
    (event,) = events_of(systemd, "config-ignored")
    assert event["reason"].startswith("device.fake:1.limit is ignored")
    reload(systemd, '[device."fake:0"]\nlimit = "50%"\n')
    systemd.stderr_line("device.fake:0.limit takes effect at the next start")
    shown = ctl(systemd, "config", "show", "--root", str(root))
    assert ["device.fake:0.limit", "50%", "25%"] in shown.table()
    (pending,) = [line for line in shown.err.splitlines() if "starts anew" in line]
    assert "device.fake:0.limit" in pending and "fake:1" not in pending


def test_a_limit_of_a_device_of_another_kind_is_told_alike_at_a_start_and_a_reload(
    systemd: Systemd,
) -> None:
    root = systemd.directory
    text = '[device."tpu:0"]\nlimit = "1GiB"\n'
    path = write_config(root, text)
    ignored = "device.tpu:0.limit is ignored: djinnd grants no memory of such a device"
    told = f"{path}:2: warning: {ignored}"
    checked = check(root, "--check-config")
    assert (checked.returncode, told in checked.stderr) == (0, True), checked.stderr
    systemd.start("--root", str(root), "--threads", "1")
    systemd.hear("READY=1")
    (at_start,) = events_of(systemd, "config-ignored")
    assert at_start["reason"].startswith(told)
    reload(systemd, text)
    (_, at_reload) = events_of(systemd, "config-ignored")
    assert at_reload["reason"] == at_start["reason"]
    assert events_of(systemd, "config-refused") == []


def test_settings_that_will_hardly_do_what_was_meant_are_told(systemd: Systemd) -> None:
    root = systemd.directory
    (root / "file").touch()
    nowhere = root / "file/spilled"
    text = f'memory.limit = "999TiB"\nmemory.spill_directory = "{nowhere}"\n'
    path = write_config(root, text)
    checked = check(root, "--check-config")
    limit = "memory.limit is 999TiB, and the machine has "
    place = f"memory.spill_directory is {nowhere}, where no file can be made"
    assert checked.returncode == 0
    assert f"{path}:1: warning: {limit}" in checked.stderr
    assert f"{path}:2: warning: {place}" in checked.stderr
    write_config(root, 'memory.limit = "64MiB"\n')
    systemd.start("--root", str(root), "--threads", "1", "--admin-group", "nobodys")
    systemd.hear("READY=1")
    (group,) = events_of(systemd, "config-warning")
    assert group["reason"].startswith("--admin-group names 'nobodys', and there is no such group")
    assert "only root is an administrator" in group["reason"]
    reload(systemd, text)
    told = [event["reason"] for event in events_of(systemd, "config-warning")[1:]]
    assert len(told) == 2
    assert any(one.startswith(limit) for one in told)
    assert any(place in one for one in told)


def test_a_limit_beyond_the_machine_is_told_at_the_start(systemd: Systemd) -> None:
    systemd.start("--user", "--threads", "1", "--memory", "999TiB")
    systemd.hear("READY=1")
    line = systemd.stderr_line("--memory is 999TiB, and the machine has ")
    assert "Write less than the machine has, or a share like 80%." in line


def test_what_users_may_have_is_shown_as_it_is_in_force(systemd: Systemd) -> None:
    root = systemd.directory
    write_config(root, '[user.root]\nmemory_quota = "64MiB"\nsessions_max = 2\n')
    systemd.start("--root", str(root), "--threads", "1")
    systemd.hear("READY=1")
    write_config(root, '[user.root]\nmemory_quota = "32MiB"\n')
    shown = ctl(systemd, "config", "show", "--root", str(root))
    assert ["user.root.memory_quota", "32MiB", "64MiB"] in shown.table()
    assert ["user.root.sessions_max", "-", "2"] in shown.table()


def test_what_is_in_force_is_shown_while_the_files_are_wrong(systemd: Systemd) -> None:
    root = systemd.directory
    write_config(root, 'memory.limit = "64MiB"\n')
    systemd.start("--root", str(root), "--threads", "1")
    systemd.hear("READY=1")
    write_config(root, 'memory.limit = "much"\n')
    ended = ctl(systemd, "config", "show", "--root", str(root))
    assert ended.code == 10
    assert ["memory.limit", "-", "64MiB"] in [
        line.split() for line in ended.out.decode().splitlines()
    ]
    assert "error: memory.limit" in ended.err
    assert "the one that runs has not taken it up" in ended.err


def test_a_djinnd_of_one_user_is_not_shown_as_configured(systemd: Systemd) -> None:
    root = systemd.directory
    write_config(root, 'memory.limit = "64MiB"\n')
    systemd.start("--user", "--threads", "1")
    systemd.hear("READY=1")
    ended = ctl(systemd, "config", "show", "--root", str(root))
    assert "serves one user and reads no files" in ended.err


# --- peers that do not read


def test_a_systemd_and_a_log_that_nobody_reads_delay_nobody(
    systemd: Systemd, tmp_path: Path
) -> None:
    """systemd's socket has room for some ten messages here, and a pipe for 64 KiB."""
    reading, systemd.stderr = os.pipe()
    os.set_blocking(systemd.stderr, False)
    while True:
        try:
            os.write(systemd.stderr, b"." * 4096)
        except BlockingIOError:
            break
    os.set_blocking(systemd.stderr, True)
    metrics = systemd.listen_for_metrics()
    systemd.start("--user", "--threads", "1")
    os.close(systemd.stderr)
    for number in range(20):
        path = tmp_path / f"{number}.safetensors"
        save_file({"w": WEIGHTS}, path)
        use(systemd, path)

    def scraped() -> str:
        with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=DEADLINE_S) as answer:
            return str(answer.read().decode())

    def lost() -> int:
        (lines,) = re.findall(r"^djinn_log_lines_lost_total (\d+)", scraped(), re.MULTILINE)
        return int(lines)

    # A busy djinnd tells what it knew a moment before.
    wait_until(lambda: lost() > 20, "lines are lost")
    assert "djinn_notify_messages_lost_total 0" in scraped()
    # Whoever reads again hears all that must not be lost, and how much else was.
    systemd.hear("READY=1")
    systemd.hear_until(lambda: len(models_kept(systemd)) == 20)
    heard = os.read(reading, 1 << 20)  # it is empty now, but for what is written meanwhile
    assert len(heard) > 4096
    with systemd.connect():
        assert b"lines are missing here: nobody read them" in heard + os.read(reading, 4096)
    os.close(reading)


# --- survival


def use(systemd: Systemd, path: Path) -> int:
    """Loads the model, pinned, runs it, and gives the bytes that this djinnd has read in all."""
    with systemd.connect() as session:
        model = session.load(path, pin=True)
        (found,) = session.define(DOUBLE, model)().values()
        assert np.array_equal(found, 2 * WEIGHTS)
        read = session.status()["bytes_read"]
        assert isinstance(read, int)
        return read


def three_models(directory: Path) -> list[Path]:
    """Of the same bytes; models of different files all the same."""
    paths = [directory / f"{name}.safetensors" for name in "abc"]
    for path in paths:
        save_file({"w": WEIGHTS}, path)
    return paths


def on_a_block_device(path: Path) -> bool:
    kind = os.stat(path).st_dev >> 8
    return kind != 0


def parts(systemd: Systemd, part: str) -> list[str]:
    return [name for name in systemd.store if f".{part}." in name]


def models_kept(systemd: Systemd) -> set[str]:
    """By their names' beginnings: a record's successor comes before the record goes, so that a
    model may have two."""
    return {name.partition(".record.")[0] for name in parts(systemd, "record")}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_models_outlive_the_daemon_and_nothing_is_read_again(
    systemd: Systemd, model_file: Path, how: signal.Signals
) -> None:
    if not on_a_block_device(model_file):
        pytest.skip("temporary files lie on no block device; then models are told by content only")
    systemd.start("--user", "--threads", "1")
    assert use(systemd, model_file) >= WEIGHTS.nbytes
    systemd.hear_until(lambda: bool(parts(systemd, "record")))
    for _ in range(3):
        systemd.stop(how)
        systemd.start("--user", "--threads", "1")
        systemd.stderr_line("is resident again")
        assert use(systemd, model_file) == 0
    assert len(parts(systemd, "file")) == 1 and len(parts(systemd, "manifest")) == 1


def test_models_stay_in_the_store_while_the_next_daemon_takes_them_back(
    systemd: Systemd, tmp_path: Path
) -> None:
    """It may die at any moment of its start."""
    paths = three_models(tmp_path)
    systemd.start("--user", "--threads", "1")
    for path in paths:
        use(systemd, path)
    wait_until_hashed(systemd)
    systemd.stop()
    before = {name for name in systemd.store if ".record." not in name}
    systemd.forgotten.clear()
    systemd.start("--user", "--threads", "1")
    for _ in paths:
        systemd.stderr_line("is resident again")
    systemd.stop()
    assert before
    assert before.isdisjoint(systemd.forgotten)


def test_a_model_that_was_unloaded_is_kept_no_longer(systemd: Systemd, model_file: Path) -> None:
    systemd.start("--user", "--threads", "1")
    with systemd.connect() as session:
        model = session.load(model_file, pin=True)
        systemd.hear_until(lambda: bool(parts(systemd, "record")))
        model.close()
        session.unload(model)
        systemd.hear_until(lambda: not systemd.store)


def of_one_model(systemd: Systemd) -> int:
    """How many descriptors a model of one file has in the store."""
    return 4 if parts(systemd, "file") else 3


def test_models_that_fit_the_store_are_kept_whole_and_others_not_at_all(
    systemd: Systemd, tmp_path: Path
) -> None:
    paths = three_models(tmp_path)
    if not on_a_block_device(paths[0]):
        pytest.skip("temporary files lie on no block device; then models are told by content only")
    systemd.store_max = 11  # two models of four descriptors, and one that comes before one goes
    systemd.start("--user", "--threads", "1")
    for path in paths:
        assert use(systemd, path) > 0
    last = max(ctl(systemd, "ps", "-j").items(), key=lambda item: item["loaded"])["id"]
    told = systemd.stderr_line("would not outlive a restart")
    assert f"model {last}" in told and "needs 4 descriptors, and 8 of the 11" in told
    (event,) = events_of(systemd, "model-not-kept")
    assert event["model"] == last
    for _ in range(2):
        systemd.stop()  # which says all that is left to say
        assert (len(systemd.store), systemd.turned_away) == (8, [])
        systemd.start("--user", "--threads", "1")
        assert use(systemd, paths[0]) == 0 == use(systemd, paths[1])
        assert use(systemd, paths[2]) >= WEIGHTS.nbytes
    with systemd.connect() as session:  # room is used as soon as there is some
        wait_until(lambda: not any(one["leases"] for one in session.models()), "nobody has one")
        gone = session.load(paths[0])
        gone.close()
        session.unload(gone)
        kept = models_kept(systemd)
        systemd.hear_until(lambda: not models_kept(systemd) <= kept)
    systemd.stop()
    assert (len(systemd.store), systemd.turned_away) == (8, [])


def test_a_store_that_became_smaller_loses_whole_models(systemd: Systemd, tmp_path: Path) -> None:
    paths = three_models(tmp_path)
    systemd.start("--user", "--threads", "1")
    for path in paths:
        use(systemd, path)
    systemd.hear_until(lambda: len(models_kept(systemd)) == 3)
    systemd.stop(signal.SIGKILL)
    systemd.store_max = 2 * of_one_model(systemd) + 1
    systemd.start("--user", "--threads", "1")
    systemd.hear("READY=1")
    with systemd.connect(observer=True) as session:
        assert len(session.models()) == 3  # they are there now
    systemd.hear_until(lambda: len(systemd.store) == 2 * of_one_model(systemd))
    assert len(models_kept(systemd)) == 2 == len(parts(systemd, "manifest"))
    assert systemd.turned_away == []


def spoil(systemd: Systemd, fault: str) -> None:
    if fault not in ("other kind", "garbage"):
        for name in parts(systemd, fault):
            systemd.forget(name)
        return
    for record in parts(systemd, "record"):
        systemd.forget(record)
        memfd = os.memfd_create("record", os.MFD_ALLOW_SEALING)
        os.write(memfd, b"not a record")
        if fault == "garbage":
            fcntl.fcntl(memfd, fcntl.F_ADD_SEALS, SEALED)
        systemd.store[record] = memfd


@pytest.mark.parametrize("fault", ["manifest", "extent", "file", "record", "other kind", "garbage"])
def test_what_is_incomplete_or_strange_is_given_up_whole(
    systemd: Systemd, model_file: Path, fault: str
) -> None:
    systemd.start("--user", "--threads", "1")
    use(systemd, model_file)
    systemd.hear_until(lambda: bool(parts(systemd, "record")))
    systemd.stop(signal.SIGKILL)
    if not parts(systemd, fault) and fault == "file":
        pytest.skip("temporary files lie on no block device, whose descriptors are not kept")
    spoil(systemd, fault)
    systemd.start("--user", "--threads", "1")
    systemd.hear("READY=1")
    with systemd.connect(observer=True) as session:
        assert session.models() == []
    assert not systemd.store
    assert use(systemd, model_file) >= WEIGHTS.nbytes  # and a later one is kept again
    systemd.hear_until(lambda: bool(parts(systemd, "record")))
