# SPDX-License-Identifier: Apache-2.0
"""The Debian packages: what is in them, and what their scripts do. tests/boot installs them."""

import dataclasses
import importlib.metadata
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import make_packages
import pytest
import tree
from private_daemon import BIN, ROOT

DEBIAN = make_packages.DEBIAN
# Of the package that Debian has under this name.
TAKEN = re.compile(r"/s?bin/djinn$|/man/man\d/djinn\.\d")
HEAVY = re.compile(r"lib(torch|c10|gomp|cuda|cudart|cupti|nvidia)|djinn-torch")
UNITS = "./lib/systemd/system/"  # where Debian 12's helpers look; not in /usr
TORCH = "djinn-torch"


def said(*command: str, limit_s: int = 300) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=limit_s, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def need(*tools: str) -> None:
    absent = [tool for tool in tools if shutil.which(tool) is None]
    if absent:
        pytest.skip(f"{', '.join(absent)} not installed")


def named(packages: list[Path]) -> dict[str, Path]:
    return {path.name.split("_")[0]: path for path in packages}


def need_tools() -> None:
    if why := make_packages.missing():
        pytest.skip(why)


def need_a_build() -> None:
    need_tools()
    installed = ("djinnd", "djinnctl", "djinn-loader", "djinn-worker", "djinn-mover")
    installed += ("djinn-gate", "djinn-gate-ca", "djinn-reach")
    if absent := [name for name in installed if not (BIN / name).exists()]:
        pytest.skip(f"{', '.join(absent)} not built")


@pytest.fixture(scope="session")
def packages() -> dict[str, Path]:
    need_a_build()
    return named(make_packages.build(make_packages.QUICK))


def files(package: Path) -> list[str]:
    listed = said("dpkg-deb", "--contents", str(package))
    return [line.split()[5] for line in listed.splitlines()]


def field(package: Path, name: str) -> str:
    return said("dpkg-deb", "--field", str(package), name).strip()


def script(package: Path, name: str, folder: Path) -> str:
    said("dpkg-deb", "--control", str(package), str(folder))
    return (folder / name).read_text()


def extracted(package: Path, folder: Path) -> Path:
    said("dpkg-deb", "--extract", str(package), str(folder))
    return folder


@pytest.mark.ci
def test_there_are_these_packages_and_none_takes_a_name_of_debians_djinn(
    packages: dict[str, Path],
) -> None:
    assert sorted(packages) == sorted(make_packages.PACKAGES)
    for package in packages.values():
        assert [path for path in files(package) if TAKEN.search(path)] == []


@pytest.mark.ci
def test_units_are_where_the_package_enables_and_starts_them(
    packages: dict[str, Path], tmp_path: Path
) -> None:
    units = {path.removeprefix(UNITS) for path in files(packages["djinnd"]) if UNITS in path}
    assert units - {""} == {path.name for path in (ROOT / "packaging/systemd").glob("djinnd*.*")}
    # It runs djinnctl.
    assert f"{UNITS}djinn-load@.service" in files(packages["djinnctl"])
    postinst = script(packages["djinnd"], "postinst", tmp_path)
    users = postinst.index("systemd-sysusers")
    for unit in ("djinnd.socket", "djinnd.service"):
        assert f"deb-systemd-helper enable '{unit}'" in postinst
    assert users < postinst.index("deb-systemd-invoke start 'djinnd.socket'")
    assert "deb-systemd-invoke $_dh_action 'djinnd.service' >" in postinst


@pytest.mark.ci
def test_the_configurations_directory_is_roots(packages: dict[str, Path], tmp_path: Path) -> None:
    listed = said("dpkg-deb", "--contents", str(packages["djinnd"])).splitlines()
    owners = {line.split()[5]: line.split()[:2] for line in listed}
    for directory in ("./etc/djinn/", "./etc/djinn/djinnd.conf.d/"):
        assert owners[directory] == ["drwxr-xr-x", "root/root"]
    assert "ConfigurationDirectory" not in (ROOT / "packaging/systemd/djinnd.service").read_text()
    # Of an earlier version's it becomes root's, before djinnd is started.
    postinst = script(packages["djinnd"], "postinst", tmp_path)
    assert postinst.index("chown root:root /etc/djinn") < postinst.index("deb-systemd-invoke")


@pytest.mark.ci
def test_the_bus_knows_who_may_be_the_manager_before_djinnd_asks(
    packages: dict[str, Path], tmp_path: Path
) -> None:
    postinst = script(packages["djinnd"], "postinst", tmp_path)
    user, bus = postinst.index("systemd-sysusers djinn.conf"), postinst.index("ReloadConfig")
    assert user < bus < postinst.index("deb-systemd-invoke")


@pytest.mark.ci
def test_the_hosts_huge_pages_are_allowed_before_djinnd_loads_anything(
    packages: dict[str, Path], tmp_path: Path
) -> None:
    assert "./usr/lib/tmpfiles.d/djinn.conf" in files(packages["djinnd"])
    postinst = script(packages["djinnd"], "postinst", tmp_path)
    (line,) = re.findall(r"systemd-tmpfiles .*--create djinn\.conf.*", postinst)
    assert line.endswith("|| true")
    assert postinst.index(line) < postinst.index("deb-systemd-invoke")


@pytest.mark.ci
def test_no_script_stops_the_socket_or_the_service_in_an_upgrade(
    packages: dict[str, Path], tmp_path: Path
) -> None:
    """systemd drops the descriptors that it keeps when the service stops, as with its socket."""
    postinst = script(packages["djinnd"], "postinst", tmp_path)
    prerm = (tmp_path / "prerm").read_text()
    assert not (tmp_path / "preinst").exists()
    acts = re.findall(r"deb-systemd-invoke (.*?) >", postinst)
    assert sorted(acts) == ["$_dh_action 'djinnd.service'", "start 'djinnd.socket'"]
    for block in re.findall(r"^if .*?^fi$", prerm, re.MULTILINE | re.DOTALL):
        assert '[ "$1" = remove ]' in block.splitlines()[0]


@pytest.mark.ci
@pytest.mark.parametrize("name", ["djinnctl", "libdjinn-client1", "python3-djinn"])
def test_clients_need_neither_libtorch_nor_cuda(
    packages: dict[str, Path], name: str, tmp_path: Path
) -> None:
    assert not HEAVY.search(field(packages[name], "Depends"))
    for path in extracted(packages[name], tmp_path).rglob("*"):
        # The device is the one that goes into a process with PyTorch in it.
        if path.is_file() and not path.name.startswith("_device."):
            with path.open("rb") as start:
                is_program = start.read(4) == b"\x7fELF"
            if is_program:
                assert not HEAVY.search(said("readelf", "--dynamic", str(path))), path.name


@pytest.mark.ci
def test_what_gpus_need_is_in_a_package_of_its_own_and_nothing_of_nvidias(
    packages: dict[str, Path], tmp_path: Path
) -> None:
    mine = {path for path in files(packages["djinn-cuda"]) if not path.endswith("/")}
    mover = "./usr/libexec/djinn/djinn-mover"
    drop_in = f"{UNITS}djinnd.service.d/cuda.conf"
    assert {path for path in mine if "/doc/" not in path} == {mover, drop_in}
    others = [files(package) for name, package in packages.items() if name != "djinn-cuda"]
    assert [path for listed in others for path in listed if path in (mover, drop_in)] == []
    root = extracted(packages["djinn-cuda"], tmp_path)
    assert not HEAVY.search(said("readelf", "--dynamic", str(root / mover)))
    assert not HEAVY.search(field(packages["djinn-cuda"], "Depends"))


@pytest.mark.ci
def test_the_worker_finds_its_libtorch_beside_it(packages: dict[str, Path], tmp_path: Path) -> None:
    """Wherever the packages lie."""
    extracted(packages["djinnd"], tmp_path)
    extracted(packages[TORCH], tmp_path)
    worker = tmp_path / "usr/libexec/djinn/djinn-worker"
    found = dict(re.findall(r"(\S+) => (\S+)", said("ldd", str(worker))))
    ours = [name for name, path in found.items() if Path(path).is_relative_to(tmp_path)]
    in_package = {Path(path).name for path in files(packages[TORCH]) if "/djinn/torch/lib" in path}
    assert set(ours) == in_package
    assert "starts it" in said(str(worker), "--help")


@pytest.mark.ci
def test_lintian_has_nothing_to_say(packages: dict[str, Path]) -> None:
    need("lintian")
    changing = [package for name, package in packages.items() if name != TORCH]
    uncompressed = ("uses-no-compression-for-control-tarball,uses-no-compression-for-data-tarball",)
    lintian(changing, "--suppress-tags", *uncompressed)


def lintian(packages: list[Path], *more: str, limit_s: int = 300) -> None:
    options = ("--fail-on", "error,warning", "--display-level", ">=warning", "--allow-root")
    said("lintian", *options, "--no-cfg", *more, *map(str, packages), limit_s=limit_s)


# Libraries whose headers bring code along, by how they are included.
HEADERS = {
    **{"CLI/": "CLI11", "nlohmann/": "JSON for Modern C++", "toml++": "toml++", "fmt/": "fmt"},
    **{"capnp/": "Cap'n Proto", "kj/": "Cap'n Proto", "prometheus/": "prometheus-cpp"},
    **{"pybind11/": "pybind11", "xxhash": "xxHash"},
    **{"ATen/": "PyTorch", "c10/": "PyTorch", "torch/": "PyTorch"},
}
# The system's, which are linked with: Depends names their packages.
SYSTEM = re.compile(r"[a-z0-9_]+(\.h|\.hpp)?|(linux|sys|asm|systemd|openssl|arpa|netinet)/.*")
# CPython's, which are declarations but for a few lines, and what tests alone have.
LOADED_BY = ("Python.h", "gtest/", "gmock/", "benchmark/", "cublasLt.h", "sanitizer/")


def test_the_copyright_names_whose_code_the_programs_have() -> None:
    copyright = (DEBIAN / "copyright").read_text()
    included = set()
    for name in tree.files():
        if name.endswith((".cc", ".h", ".hpp", ".c")):
            text = (ROOT / name).read_text()
            included |= set(re.findall(r"^\s*#\s*include\s+<([^>]+)>", text, re.MULTILINE))
    others = {one for one in included if not one.startswith((*HEADERS, *LOADED_BY))}
    assert [one for one in others if not SYSTEM.fullmatch(one)] == []
    assert [name for name in HEADERS.values() if f"({name})" not in copyright] == []


@pytest.mark.ci
def test_the_copyright_names_each_library_that_is_carried(packages: dict[str, Path]) -> None:
    copyright = (DEBIAN / "copyright").read_text()
    carried = {Path(path).name for path in files(packages[TORCH]) if re.search(r"\.so(\.|$)", path)}
    assert carried and [name for name in sorted(carried) if name not in copyright] == []


@pytest.mark.ci
@pytest.mark.parametrize("name", make_packages.PACKAGES)
def test_each_package_carries_the_licence(
    packages: dict[str, Path], name: str, tmp_path: Path
) -> None:
    root = extracted(packages[name], tmp_path)
    found = (root / "usr/share/doc" / name / "copyright").read_text()
    assert found == (DEBIAN / "copyright").read_text()


@pytest.mark.ci
def test_documents_that_errors_name_are_there_to_be_read(packages: dict[str, Path]) -> None:
    for name in ("EXACT.md", "GHOSTS.md", "SECURITY.md"):
        assert f"./usr/share/doc/python3-djinn/{name}" in files(packages["python3-djinn"])
    assert "./usr/share/doc/djinnd/SECURITY.md" in files(packages["djinnd"])


def test_errors_name_a_document_that_a_package_has() -> None:
    code = (ROOT / "python/djinn/torch/notice.py").read_text()
    (place,) = re.findall(r"/usr/share/doc/python3-djinn/(\S+)", code)
    listed = (DEBIAN / "python3-djinn.docs").read_text().split()
    assert f"docs/{place}" in listed
    assert all((ROOT / name).is_file() for name in listed)


@pytest.mark.ci
def test_the_librarys_symbols_are_the_listed_ones(
    packages: dict[str, Path], tmp_path: Path
) -> None:
    root = extracted(packages["libdjinn-client1"], tmp_path / "root")
    (tmp_path / "debian").mkdir()
    shutil.copy(DEBIAN / "control", tmp_path / "debian")
    shutil.copy(DEBIAN / "changelog", tmp_path / "debian")
    listed = (DEBIAN / "libdjinn-client1.symbols").read_text()

    def check(symbols: str) -> int:
        (tmp_path / "symbols").write_text(symbols)
        command = ["dpkg-gensymbols", "-c4", "-plibdjinn-client1", f"-P{root}", "-Isymbols", "-O"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60).returncode

    assert check(listed) == 0
    assert check(re.sub(r" djinn_close.*\n", "", listed)) != 0


def test_versions_agree() -> None:
    (version,) = re.findall(r"project\(djinnd VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())
    assert f"djinnd ({version})" in (DEBIAN / "changelog").read_text().splitlines()[0]
    pinned = (ROOT / "tools/requirements-run.txt").read_text()
    (torch,) = re.findall(r"^torch==(\S+)", pinned, re.MULTILINE)
    assert pytorch()["PYTORCH"] == torch
    assert f"torch=={torch}" in (DEBIAN / "python3-djinn.README.Debian").read_text()


def pytorch() -> dict:
    """djinn.torch.versions, without djinn.torch, which imports PyTorch."""
    code = (ROOT / "python/djinn/torch/versions.py").read_text()
    names: dict = {}
    exec(code, names)
    return names


@pytest.mark.parametrize("found", ["2.10.0", "2.11.1", None])
def test_another_pytorch_is_refused_with_the_way_out(
    found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(ImportError, match="pip install torch==") as refused:
        pytorch()["check_pytorch"]()
    assert (found or "there is none") in str(refused.value)


@pytest.mark.parametrize("found", ["2.11.0", "2.11.0+cpu"])
def test_the_right_pytorch_is_taken(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: found)
    pytorch()["check_pytorch"]()


def test_the_example_configuration_has_every_setting_and_is_accepted(tmp_path: Path) -> None:
    shown = said(str(BIN / "djinnd"), "--show-config", "--root", str(tmp_path))
    keys = [line.split(" = ")[0] for line in shown.splitlines()]
    example = (ROOT / "packaging/djinnd.conf").read_text()
    table, found = "", []
    for line in example.splitlines():
        if heading := re.fullmatch(r"\[(\w+)\]", line):
            table = f"{heading[1]}."
        elif setting := re.match(r"# (\w+) = ", line):
            found.append(f"{table}{setting[1]}")
    assert sorted(found) == sorted(keys)
    # What is commented out is what holds.
    standards = dict(re.findall(r"^(\S+) = (.*)  # standard$", shown, re.MULTILINE))
    values = dict(zip(found, re.findall(r'^# \w+ = "(.*)"', example, re.MULTILINE), strict=True))
    differing = {key for key in keys if values[key] != standards[key]}
    assert differing == {"memory.spill_directory"}  # where systemd made the cache directory
    path = tmp_path / "etc/djinn/djinnd.conf"
    path.parent.mkdir(parents=True)
    path.write_text(re.sub(r"^# (\w+ = )", r"\1", example, flags=re.MULTILINE))
    said(str(BIN / "djinnd"), "--check-config", "--root", str(tmp_path))


@pytest.fixture(scope="session")
def released() -> Path:
    """The folder of the packages that people get."""
    need_tools()
    make_packages.build(make_packages.RELEASE)
    return make_packages.RELEASE.out


@pytest.mark.full
def test_the_released_packages_are_clean(released: Path) -> None:
    need("lintian")
    # What is packed again only when it has changed is not in the list of changes.
    kinds = ("*.changes", "*.dsc", f"{TORCH}_*.deb")
    lintian([path for kind in kinds for path in released.glob(kind)])


@pytest.mark.full
def test_no_program_says_where_it_was_built(released: Path, tmp_path: Path) -> None:
    """Nor does its debug information: neither the folder nor that of the virtual environment."""
    places = {os.fsencode(place) for place in (ROOT, (ROOT / ".venv").resolve())}
    sections = ("-p.rodata", "-p.debug_str", "-p.debug_line_str")
    looked_at = 0
    for package in sorted(released.glob("*.deb")):
        if package.name.startswith(TORCH):  # PyTorch's own, as PyTorch released them
            continue
        for path in extracted(package, tmp_path / package.stem).rglob("*"):
            if not path.is_file() or path.is_symlink():
                continue
            content = path.read_bytes()
            if content.startswith(b"\x7fELF"):
                read = ["readelf", "--decompress", *sections, str(path)]
                content += subprocess.run(read, capture_output=True, timeout=60).stdout
                looked_at += 1
            assert [place for place in places if place in content] == [], path
    assert looked_at > 10


@pytest.mark.full
def test_two_builds_are_the_same_bytes() -> None:
    """In another folder, at another time, under another locale and time zone, with another
    configuration of ccache, which therefore has nothing for the second one: it compiles all."""
    need_tools()
    plain = dataclasses.replace(make_packages.RELEASE, compression="none", out_name="plain")
    first = named(make_packages.build(plain))
    other = {"LC_ALL": "C.UTF-8", "TZ": "Asia/Tokyo"}
    other |= {"CCACHE_BASEDIR": "/", "CCACHE_NOHASHDIR": "1"}
    with tempfile.TemporaryDirectory(dir=ROOT / "build", prefix="deb-again.") as folder:
        again = dataclasses.replace(plain, work=Path(folder), environment=tuple(other.items()))
        second = named(make_packages.build(again))
        assert first.keys() == second.keys()
        assert [n for n in first if first[n].read_bytes() != second[n].read_bytes()] == []
