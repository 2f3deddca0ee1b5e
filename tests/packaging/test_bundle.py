# SPDX-License-Identifier: Apache-2.0
"""The bundle: what is in the folder, and that it runs where neither our tree nor Debian's libraries
are found."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import make_bundle
import pytest
from private_daemon import BIN, ROOT, THREADS, children_named, running, wait_until

NOBODY = 65534
PROMPT = ":daemon: /"
BYTE_MODEL = ROOT / "models" / "bytes"
# In the full tier it is packed as who has it sent gets it; else in a tenth of the time, and larger.
FULL = os.environ.get("DJINN_TEST_TIER") == "full"
PRESET, PACKED_BYTES_MAX = (6, make_bundle.PACKED_BYTES_MAX) if FULL else (0, 40 << 20)
# Of glibc and GCC.
HOSTS = re.compile(r"(lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)|ld-linux-x86-64)\.so\.\d")

Hidden = Callable[..., list[str]]


def done(*command: str, **options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL, **options
    )


def said(*command: str, **options: str) -> str:
    result = done(*command, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@dataclass(frozen=True)
class Bundle:
    folder: Path
    packed: Path

    def binaries(self) -> list[Path]:
        found = [*(self.folder / "bin").iterdir(), *(self.folder / "python").rglob("*.so")]
        return [path for path in found if path.name not in ("djinn-env", "kernels.fatbin")]


@pytest.fixture(scope="module")
def bundle() -> Iterator[Bundle]:
    """In another place than where it was made; every user may enter it."""
    with tempfile.TemporaryDirectory(prefix="djinn-bundle.") as directory:
        Path(directory).chmod(0o755)
        made, moved = Path(directory) / "made", Path(directory) / "moved"
        try:
            make_bundle.check_build(BIN.parent)
        except make_bundle.Refused as why:
            pytest.skip(str(why))
        packed = make_bundle.make(BIN.parent, made, PACKED_BYTES_MAX, PRESET)
        made.rename(moved)
        yield Bundle(moved, packed)


# --- what is in it --------------------------------------------------------------------------------


@pytest.mark.ci
def test_the_manifest_names_each_file_and_its_bytes(bundle: Bundle) -> None:
    said("sha256sum", "--check", "--quiet", "--strict", "MANIFEST", cwd=str(bundle.folder))
    lines = (bundle.folder / "MANIFEST").read_text().splitlines()
    named = {line.split(maxsplit=1)[1] for line in lines if not line.startswith("#")}
    files = {path for path in bundle.folder.rglob("*") if path.is_file()}
    assert named == {str(file.relative_to(bundle.folder)) for file in files} - {"MANIFEST"}


@pytest.mark.ci
def test_it_is_packed_whole(bundle: Bundle, tmp_path: Path) -> None:
    assert bundle.packed.stat().st_size <= PACKED_BYTES_MAX
    said("tar", "--extract", "--file", str(bundle.packed), "--directory", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    said("diff", "--recursive", str(tmp_path / "made"), str(bundle.folder))
    programs = [path for path in bundle.binaries() if path.parent.name == "bin"]
    for program in [*programs, bundle.folder / "bin" / "djinn-env"]:
        assert os.access(tmp_path / "made" / "bin" / program.name, os.X_OK)


@pytest.mark.ci
def test_each_library_comes_from_the_bundle_from_pytorch_or_from_gcc(bundle: Bundle) -> None:
    ours = {path.name for path in (bundle.folder / "lib").iterdir()}
    wheels = make_bundle.wheels_libraries()
    for binary in [*bundle.binaries(), *(bundle.folder / "lib").iterdir()]:
        unknown = set(make_bundle.needed(binary)) - ours - wheels
        assert [name for name in unknown if not HOSTS.fullmatch(name)] == [], binary.name


@pytest.mark.ci
def test_binaries_look_for_libraries_in_the_bundle_and_nowhere_else(bundle: Bundle) -> None:
    for binary in bundle.binaries():
        dynamic = said("readelf", "--dynamic", "--wide", str(binary))
        (path,) = re.findall(r"\((RPATH|RUNPATH)\).*\[(.*)\]", dynamic)
        place = Path(path[1].replace("$ORIGIN", str(binary.parent))).resolve()
        assert (path[0], place) == ("RPATH", bundle.folder / "lib"), binary.name


@pytest.mark.ci
def test_what_is_of_others_has_its_licence_with_it(bundle: Bundle) -> None:
    documents = bundle.folder / "share" / "doc"
    for library in (bundle.folder / "lib").iterdir():
        package = make_bundle.package_of(make_bundle.hosts_libraries()[library.name])
        assert (documents / package / "copyright").stat().st_size > 0
        assert f"\n{package} " in (documents / "packages").read_text()
    for text in documents.glob("*/copyright"):
        for name in re.findall(r"/usr/share/common-licenses/([\w.+-]*\w)", text.read_text()):
            assert (documents / "common-licenses" / name).stat().st_size > 0, text


# --- that it runs ---------------------------------------------------------------------------------


@pytest.fixture(params=[0, NOBODY], ids=["root", "nobody"])
def hidden(request: pytest.FixtureRequest, bundle: Bundle) -> Hidden:
    """Makes a command run as a user, where there are no libraries but the bundle's, and no tree."""
    if os.geteuid() != 0:
        pytest.skip("hiding libraries takes root")
    if done("unshare", "--mount", "true").returncode != 0:
        pytest.skip("hiding libraries takes a mount namespace")
    user = f"setpriv --reuid={request.param} --regid={request.param} --clear-groups"
    if done(*user.split(), "test", "-r", f"{make_bundle.torch()}/lib/libc10.so").returncode != 0:
        pytest.skip("this user may not read .venv")
    hosts = make_bundle.hosts_libraries()
    names = sorted(path.name for path in (bundle.folder / "lib").iterdir())
    steps = [f"mount --bind /dev/null {hosts[name].resolve()}" for name in names]
    steps += [f"mount -t tmpfs none {shlex.quote(str(ROOT / 'build'))}", f'exec {user} "$@"']
    script = " && ".join(steps)

    def command(*words: str) -> list[str]:
        return ["unshare", "--mount", "sh", "-c", script, "sh", *words]

    return command


def by_env(bundle: Bundle, *words: str) -> list[str]:
    return [sys.executable, str(bundle.folder / "bin" / "djinn-env"), *words]


@pytest.fixture
def runtime(hidden: Hidden) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="djinn-test.") as directory:
        Path(directory).chmod(0o777)
        yield f"{directory}/run"


def is_confined(process: int) -> bool:
    return "\nSeccomp:\t2\n" in Path(f"/proc/{process}/status").read_text()


@pytest.mark.ci
def test_djinnd_of_the_bundle_generates_as_that_of_the_build(
    bundle: Bundle, hidden: Hidden, runtime: str
) -> None:
    generate = ("generate", str(BYTE_MODEL), "--prompt", PROMPT)
    host = f"unix:{runtime}/djinnd.sock"
    ctl = str(bundle.folder / "bin" / "djinnctl")
    command = hidden(*by_env(bundle, "djinnd", "--user", "--runtime-dir", runtime))
    command += ["--threads", str(THREADS)]
    log = Path(runtime).with_name("log")
    with log.open("w") as out:
        djinnd = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        wait_until(
            lambda: (
                djinnd.poll() is not None
                or done(*hidden(ctl, "-H", host, "status")).returncode == 0
            ),
            "djinnd answers",
        )
        assert djinnd.poll() is None, log.read_text()
        told = said(*hidden(ctl, "-H", host, *generate))
        # One is this user's, and one may wait for the next user already.
        workers = children_named(djinnd.pid, "djinn-worker")
        assert any(is_confined(worker) for worker in workers)
        libraries = Path(f"/proc/{workers[0]}/maps").read_text()
    finally:
        djinnd.terminate()
        code = djinnd.wait(60)
    assert code == 0, log.read_text()
    assert f"{make_bundle.torch()}/lib/libtorch_cpu.so" in libraries
    with running() as daemon:
        assert told == said(str(BIN / "djinnctl"), "-H", daemon.host, *generate)
    assert len(told) > len(PROMPT)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("program", "test"),
    [
        ("pal-test", "host_pal.*"),
        ("exec-test", "*Layout*"),
        ("worker-test", "*Binder*"),
        # It starts djinnd, a loader and a worker, which lie beside it.
        ("djinnd-test", "Djinnd.a_second_one_in_the_same_directory_is_refused"),
    ],
)
def test_its_tests_run(bundle: Bundle, hidden: Hidden, program: str, test: str) -> None:
    told = said(*hidden(*by_env(bundle, program, f"--gtest_filter={test}")), cwd="/")
    assert re.search(r"\[  PASSED  \] [1-9]\d* test", told), told


@pytest.mark.ci
def test_its_python_package_is_its_own(bundle: Bundle, tmp_path: Path) -> None:
    code = "import djinn, djinn.torch; print(djinn.__file__)"
    told = said(*by_env(bundle, sys.executable, "-c", code), cwd=str(tmp_path))
    assert told.strip() == str(bundle.folder / "python" / "djinn" / "__init__.py")


# --- djinn-env ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Host:
    """A bundle without programs, and Python packages of the test's own: PyTorch's name, no more."""

    folder: Path

    def torch(self, version: str, *libraries: str) -> None:
        site = self.folder / "site"
        (site / "torch" / "lib").mkdir(parents=True)
        (site / "torch" / "__init__.py").write_text("raise AssertionError('it takes seconds')\n")
        for name in libraries:
            (site / "torch" / "lib" / name).touch()
        (site / f"torch-{version}.dist-info").mkdir()
        text = f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
        (site / f"torch-{version}.dist-info" / "METADATA").write_text(text)
        (site / "nvidia" / "some" / "lib").mkdir(parents=True)

    def env(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-S", str(self.folder / "bin" / "djinn-env"), *words]
        values = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(self.folder / "site"), **variables}
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=values)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "bin").mkdir()
    shutil.copy(make_bundle.SOURCES / "djinn_env.py", tmp_path / "bin" / "djinn-env")
    (tmp_path / "MANIFEST").write_text("# torch 2.11.0\n# python 3.9\n0123  README\n")
    return Host(tmp_path)


WHEEL = ("libtorch_cpu.so", "libc10.so", "libgomp.so.1")


def test_without_pytorch_nothing_is_run_and_it_says_how_to_get_it(host: Host) -> None:
    ended = host.env("echo", "ran")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"needs PyTorch 2.11.0, and {sys.executable} has none" in ended.stderr
    assert "pip install torch==2.11.0" in ended.stderr


@pytest.mark.parametrize("version", ["2.11.1", "2.1", "2.12.0+cu130"])
def test_another_pytorch_is_refused(host: Host, version: str) -> None:
    host.torch(version, *WHEEL)
    ended = host.env("echo", "ran")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"has {version}. Install it" in ended.stderr


def test_a_pytorch_without_the_libraries_is_refused(host: Host) -> None:
    host.torch("2.11.0", "libtorch_cpu.so", "libc10.so", "libgomp-0a1b.so.1")
    ended = host.env("echo", "ran")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "has no libgomp.so.1" in ended.stderr


@pytest.mark.parametrize("version", ["2.11.0", "2.11.0+cpu", "2.11.0+cu130"])
def test_pytorchs_libraries_come_first_and_what_was_set_stays(host: Host, version: str) -> None:
    host.torch(version, *WHEEL)
    ended = host.env("sh", "-c", 'echo "$LD_LIBRARY_PATH"; echo "$PATH"', LD_LIBRARY_PATH="/mine")
    torchs, nvidias = (f"{host.folder}/site/{name}/lib" for name in ("torch", "nvidia/some"))
    assert ended.stdout.splitlines() == [
        f"{torchs}:{nvidias}:/mine",
        f"{host.folder}/bin:/usr/bin:/bin",
    ], ended.stderr


def test_without_a_program_it_prints_what_a_shell_takes(host: Host) -> None:
    host.torch("2.11.0", *WHEEL)
    ended = host.env()
    program = host.folder / "bin" / "a-program"
    program.write_text("#!/bin/sh\necho $PYTHONPATH\n")
    program.chmod(0o755)
    told = said("sh", "-c", f"{ended.stdout}a-program", env={"PATH": "/usr/bin:/bin"})
    assert told == "\n", "our package, which is for another Python, is not offered to this one"
    assert "for another Python" in ended.stderr


def test_a_folder_that_was_not_copied_whole_is_refused(host: Host) -> None:
    host.torch("2.11.0", *WHEEL)
    (host.folder / "MANIFEST").unlink()
    ended = host.env("echo", "ran")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"{host.folder} is no whole bundle" in ended.stderr


def test_a_program_that_does_not_exist_is_named(host: Host) -> None:
    host.torch("2.11.0", *WHEEL)
    ended = host.env("djinnt")
    assert ended.returncode == 1
    assert ended.stderr == "djinn-env: djinnt: No such file or directory\n"


# --- what it refuses ------------------------------------------------------------------------------


def refusal(target: Path, build: Path = BIN.parent) -> str:
    with pytest.raises(make_bundle.Refused) as caught:
        make_bundle.make(build, target)
    return str(caught.value)


def test_it_writes_into_nothing_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    assert "is not empty. Name a new folder" in refusal(tmp_path / "full")
    assert "is a file. Name a folder" in refusal(tmp_path / "full" / "mine")
    (tmp_path / "new.tar.xz").touch()
    assert "new.tar.xz exists. Name another folder" in refusal(tmp_path / "new")
    assert "Make it first" in refusal(tmp_path / "none" / "new")
    assert "/sys cannot be written to" in refusal(Path("/sys/new"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "new.tar.xz"]


def test_a_folder_beside_it_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_bundle, "check_build", lambda build: None)
    monkeypatch.setattr(make_bundle, "fill", lambda build, root: (root / "program").touch())
    (tmp_path / "new.making").mkdir()
    (tmp_path / "new.making" / "mine").write_text("mine")
    make_bundle.make(tmp_path, tmp_path / "new")
    assert (tmp_path / "new.making" / "mine").read_text() == "mine"
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == ["new", "new.making", "new.tar.xz"]


def test_without_a_build_it_says_what_to_build(tmp_path: Path) -> None:
    told = refusal(tmp_path / "new", build=tmp_path / "build")
    assert "build has no djinnd, djinn-worker," in told
    assert "./dev build" in told
    assert list(tmp_path.iterdir()) == []


def test_what_is_too_large_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_bundle, "check_build", lambda build: None)
    content = os.urandom(1 << 20)
    monkeypatch.setattr(
        make_bundle, "fill", lambda build, root: (root / "program").write_bytes(content)
    )
    (tmp_path / "new").mkdir()
    with pytest.raises(make_bundle.Refused, match=r"it has 1\.0 MiB packed, and 0 are"):
        make_bundle.make(tmp_path, tmp_path / "new", packed_bytes_max=1 << 19)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    packed = make_bundle.make(tmp_path, tmp_path / "new", packed_bytes_max=2 << 20)
    assert packed == tmp_path / "new.tar.xz"
    assert (tmp_path / "new" / "program").read_bytes() == content
