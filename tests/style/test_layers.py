# SPDX-License-Identifier: Apache-2.0
"""The folder order is the architecture: table, README, CMakeLists.txt and #include agree."""

import re

import pytest
from repo import (
    CPP,
    ROOT,
    expect_none,
    files,
    files_with,
    folder_of,
    folders,
    parse_uses,
    short_names,
    text_of,
)

BELOW = [folder.path for folder in folders().values() if folder.uses is not None]
TEST_FILE = re.compile(r"_(test|bench|fuzz)\.cc$|_for_tests\.|/testing/")
README_LINES_MAX = 75


def uses_in_readme(folder: str) -> frozenset[str] | None:
    found = re.search(r"^Uses: (.*?)\n\n", text_of(f"{folder}/README.md"), re.MULTILINE | re.DOTALL)
    assert found, f"{folder}/README.md has no line 'Uses: ...'"
    return parse_uses(" ".join(found[1].split()).rstrip("."), short_names(list(folders())))


def cmake_calls(path: str) -> list[list[str]]:
    text = re.sub(r"#.*", "", text_of(path))
    calls = re.findall(r"(\w+)\s*\(([^()]*)\)", text)
    return [[name, *arguments.split()] for name, arguments in calls]


def libraries() -> dict[str, str]:
    """The folder of each library of ours, by its CMake name without `djinn-`."""
    found = {}
    for path in files():
        if path.endswith("CMakeLists.txt"):
            for call in cmake_calls(path):
                if call[0] == "djinn_library" or (call[0] == "add_library" and "ALIAS" not in call):
                    found[call[1].removeprefix("djinn-")] = path.removesuffix("/CMakeLists.txt")
    return found


def uses_in_call(call: list[str]) -> list[str]:
    """The libraries that a call lets something other than a test use."""
    if call[0] in ("djinn_library", "djinn_program") and "USES" in call:
        rest = call[call.index("USES") + 1 :]
        stop = [i for i, word in enumerate(rest) if word in ("LINKS", "THROWS")]
        return rest[: stop[0]] if stop else rest
    if call[0] == "target_link_libraries" and not call[1].endswith(("-test", "-bench")):
        linked = [word for word in call[2:] if word.startswith("djinn-")]
        return [word.removeprefix("djinn-") for word in linked if word != "djinn-torch"]
    return []


def uses_in_cmake(folder: str) -> frozenset[str]:
    known = libraries()
    used = {
        known.get(library, f"{library} (a library that no folder makes)")
        for path in files()
        if path.endswith("CMakeLists.txt") and folder_of(path) == folder
        for call in cmake_calls(path)
        for library in uses_in_call(call)
    }
    return frozenset(used - {folder})


def includes(path: str) -> set[str]:
    """The folders whose headers a file includes."""
    named = re.findall(r'^\s*#\s*include\s+"([^"]+)"', text_of(path), re.MULTILINE)
    found = {folder_of(name) or f"{name} (in no folder of the table)" for name in named}
    return found - {folder_of(path)}


def sources(folder: str) -> list[str]:
    return [f for f in files_with(*CPP) if folder_of(f) == folder]


@pytest.mark.parametrize("folder", BELOW)
def test_readme_says_what_the_table_says(folder: str) -> None:
    assert uses_in_readme(folder) == folders()[folder].uses


@pytest.mark.parametrize("folder", [f for f in BELOW if (ROOT / f / "CMakeLists.txt").exists()])
def test_the_build_links_what_the_table_says(folder: str) -> None:
    assert uses_in_cmake(folder) == folders()[folder].uses


@pytest.mark.parametrize("folder", BELOW)
def test_code_includes_what_the_table_says(folder: str) -> None:
    used: dict[str, list[str]] = {}
    for path in sources(folder):
        if not TEST_FILE.search(path):
            for other in includes(path):
                used.setdefault(other, []).append(path)
    expected = folders()[folder].uses or frozenset()
    extra = [f"{other}: {paths}" for other, paths in used.items() if other not in expected]
    expect_none(extra, "included, but not in the table:")
    if sources(folder):
        expect_none(sorted(expected - set(used)), "in the table, but no file includes it:")


def libraries_use(folder: str) -> frozenset[str]:
    """The folders whose libraries those of this folder link."""
    calls = cmake_calls(f"{folder}/CMakeLists.txt")
    used = [use for call in calls if call[0] == "djinn_library" for use in uses_in_call(call)]
    return frozenset(libraries()[use] for use in used)


@pytest.mark.parametrize("folder", ["daemon/djinnd", "daemon/loader", "daemon/worker"])
def test_what_only_main_includes_is_no_part_of_the_library(folder: str) -> None:
    """A library's tests do without what its program adds: the worker's without LibTorch."""
    found = [
        f"{path}: {other}"
        for path in sources(folder)
        if not TEST_FILE.search(path) and not path.endswith("/main.cc")
        for other in includes(path) - libraries_use(folder)
    ]
    expect_none(found, "included, but not linked:")


def test_every_source_file_belongs_to_a_folder_of_the_table() -> None:
    expect_none([f for f in files_with(*CPP) if folder_of(f) is None])


def test_no_cycle() -> None:
    order = list(folders())
    for folder in BELOW:
        later = [u for u in folders()[folder].uses or () if order.index(u) >= order.index(folder)]
        assert not later, f"{folder} uses what stands below it in the table"


@pytest.mark.parametrize("folder", list(folders()))
def test_each_folder_has_a_readme_of_at_most_a_page(folder: str) -> None:
    readme = ROOT / folder / "README.md"
    assert readme.exists()
    assert len(readme.read_text().splitlines()) <= README_LINES_MAX
