# SPDX-License-Identifier: Apache-2.0
"""djinn-torch-cuda, which `./dev deb --cuda` makes for one machine: which libraries it has, under
which licence each is, and that the worker finds them."""

import dataclasses
import filecmp
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import make_bundle
import make_packages
import pytest
from private_daemon import BIN, ROOT
from test_packages import extracted, field, files, lintian, named, need, need_a_build, said

PACKAGE = make_packages.CUDA_PACKAGE
FIRST = "libtorch_cuda.so"
TABLE = make_packages.cuda_libraries()
# Those that libcudnn.so.9 opens by name as it needs them.
PARTS_OF_CUDNN = "nvidia/cudnn/lib/libcudnn_*.so.9"


def wheels() -> Path:
    if why := make_packages.missing_for_cuda():
        pytest.skip(why)
    return make_bundle.torch().parent


def of_djinn_torch() -> set[str]:
    """By name. CMake says which."""
    text = (ROOT / "cmake/DjinnTorch.cmake").read_text()
    named = re.findall(r"(?:torch|nvidia)/\S+\.so[.\d]*", text)
    return {Path(path).name for path in named} | {"libgomp.so.1"}


def test_the_table_has_what_libtorchs_part_for_gpus_needs_and_nothing_else() -> None:
    site = wheels()
    there = [*site.glob("torch/lib/*.so*"), *site.glob("nvidia/*/lib/*.so*")]
    places = {path.name: path for path in there}
    waiting, found = [FIRST, *(path.name for path in site.glob(PARTS_OF_CUDNN))], set()
    while waiting:
        name = waiting.pop()
        if name in found or name in of_djinn_torch() or name not in places:
            continue  # in djinn-torch, or Debian's
        found.add(name)
        waiting += make_bundle.needed(places[name])
    assert {"libc10.so", "libtorch_cpu.so", "libcudart.so.13"} < of_djinn_torch()
    assert sorted(one.path for one in TABLE) == sorted(
        str(places[name].relative_to(site)) for name in found
    )
    # NVIDIA's driver is opened at run time, if it is there.
    assert [name for name in found if "libcuda.so.1" in make_bundle.needed(places[name])] == []


def test_each_library_is_of_the_wheel_that_the_table_says() -> None:
    site = wheels()
    for one in TABLE:
        (metadata,) = site.glob(f"{one.wheel.replace('-', '_')}-*.dist-info")
        assert re.search(rf"^{re.escape(one.path)},", (metadata / "RECORD").read_text(), re.M), one
        texts = [metadata / one.text, metadata / "licenses" / one.text]
        assert [text for text in texts if text.is_file()], one


def test_the_wheels_are_pinned_and_each_has_a_part_in_it() -> None:
    def pinned(name: str) -> set[str]:
        text = (ROOT / f"tools/requirements-{name}.txt").read_text()
        return set(re.findall(r"^([\w-]+)==", text, re.MULTILINE))

    assert {one.wheel for one in TABLE} == pinned("cuda") | {"torch"}
    assert "torch" in pinned("run")


def test_the_copyright_names_each_library_and_has_its_licence() -> None:
    copyright = (make_packages.DEBIAN / "copyright").read_text()
    stanza = copyright[copyright.index("\nFiles: packaging/cuda_libraries.txt\n") :]
    stanza = stanza[: stanza.index("\n\n")]
    (licences,) = re.findall(r"^License: (.*)$", stanza, re.MULTILINE)
    assert set(licences.split(" and ")) == {one.licence for one in TABLE}
    for one in TABLE:
        assert Path(one.path).name in re.split(r"[\s(),]+", stanza), one
        assert f"\nLicense: {one.licence}\n" in copyright, one


def test_the_package_is_made_where_somebody_asks_for_it_and_nowhere_else() -> None:
    control = (make_packages.DEBIAN / "control").read_text()
    (stanza,) = re.findall(rf"^Package: {PACKAGE}\n(?:.+\n)+", control, re.MULTILINE)
    assert "Build-Profiles: <pkg.djinnd.cuda>\n" in stanza
    assert PACKAGE not in make_packages.PACKAGES
    assert make_packages.settings(make_packages.QUICK, False)["DEB_BUILD_PROFILES"] == ""


def test_a_wheel_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(make_packages, "TREE", tmp_path)
    assert "nvidia-nccl-cu13" in (make_packages.missing_for_cuda() or "")
    site = tmp_path / ".venv/lib/python3.11/site-packages"
    for one in TABLE:
        (site / one.path).parent.mkdir(parents=True, exist_ok=True)
        (site / one.path).touch()
    assert make_packages.missing_for_cuda() is None
    (site / TABLE[0].path).unlink()
    assert f".venv has no {TABLE[0].wheel} (" in (make_packages.missing_for_cuda() or "")


# --- the package itself ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    packages: dict[str, Path]
    root: Path  # with djinnd, djinn-torch and it, as they would be installed

    def listed(self) -> list[str]:
        return [path for path in files(self.packages[PACKAGE]) if not path.endswith("/")]


@pytest.fixture(scope="module")
def made() -> Iterator[Made]:
    need_a_build()
    wheels()
    if not (BIN / "djinn-cuda-worker").exists():
        pytest.skip("djinn-cuda-worker not built")
    with tempfile.TemporaryDirectory(dir=ROOT / "build", prefix="deb-cuda.") as folder:
        work, root = Path(folder) / "work", Path(folder) / "root"
        job = dataclasses.replace(make_packages.QUICK, work=work, cuda=True)
        packages = named(make_packages.build(job))
        root.mkdir()
        for name in ("djinnd", "djinn-torch", PACKAGE):
            extracted(packages[name], root)
        yield Made(packages, root)


@pytest.mark.full
def test_it_has_the_worker_and_the_tables_libraries_byte_for_byte(made: Made) -> None:
    site = wheels()
    (directory,) = made.root.glob("usr/lib/*/djinn/torch")
    for one in TABLE:
        assert filecmp.cmp(directory / Path(one.path).name, site / one.path, shallow=False), one
    programs = [path for path in made.listed() if "/usr/share/" not in path]
    libraries = [f"./{(directory / Path(one.path).name).relative_to(made.root)}" for one in TABLE]
    own = [f"./usr/libexec/djinn/{name}" for name in ("djinn-cuda-worker", "kernels.fatbin")]
    assert sorted(programs) == sorted([*libraries, *own])


@pytest.mark.full
def test_its_licences_are_in_it(made: Made) -> None:
    documents = made.root / "usr/share/doc" / PACKAGE
    assert (
        documents / "cuda_libraries.txt"
    ).read_text() == make_packages.CUDA_LIBRARIES.read_text()
    texts = {path.name for path in (documents / "licences").iterdir()}
    assert texts == {one.wheel for one in TABLE}
    copyright = (documents / "copyright").read_text()
    assert copyright == (make_packages.DEBIAN / "copyright").read_text()


@pytest.mark.full
def test_all_that_it_needs_is_in_our_packages_or_debians(made: Made) -> None:
    """Nothing comes from where it was made. This machine need not have a driver."""
    (directory,) = made.root.glob("usr/lib/*/djinn/torch")
    worker = made.root / "usr/libexec/djinn/djinn-cuda-worker"
    carried = {path.name for path in directory.iterdir()}
    for program in (worker, directory / FIRST, *directory.glob("libcudnn_*")):
        told = said("ldd", str(program))
        assert "not found" not in told, (program, told)
        for name, place in re.findall(r"(\S+) => (\S+)", told):
            assert (name in carried) == Path(place).is_relative_to(made.root), (program, name)
    assert "starts it" in said(str(worker), "--help")
    depends = field(made.packages[PACKAGE], "Depends")
    assert "djinn-cuda (= " in depends and "djinn-torch (>= " in depends
    assert not re.search(r"nvidia|libcud|nccl", depends)


@pytest.mark.full
def test_lintian_has_nothing_to_say_of_it(made: Made) -> None:
    """It reads gigabytes."""
    need("lintian")
    uncompressed = ("uses-no-compression-for-control-tarball,uses-no-compression-for-data-tarball",)
    lintian([made.packages[PACKAGE]], "--suppress-tags", *uncompressed, limit_s=1800)
