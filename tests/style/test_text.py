# SPDX-License-Identifier: Apache-2.0
"""What no file may say. `style: REASON` in a comment on the same line is an exception, in sight."""

import re

import measure
import pytest
from repo import CODE, CPP, HEADERS, ROOT, expect_none, files, files_with, folder_of, text_of

EXCEPTION = re.compile(r"(//|#) style: \S")
COLUMNS_MAX = 100
FUNCTION_LINES_MAX = 70
SPDX = re.compile(r"(?://|#|/\*) SPDX-License-Identifier: Apache-2\.0(?: \*/)?")

FORBIDDEN_IN_CPP = {
    "text is made with fmt": r"\b(f|s|d|v|vf|vs|sn|vsn)?printf\s*\(|\bputs\s*\(",
    "no iostreams": r"#\s*include\s*<(iostream|sstream|fstream|iomanip)>|\bstd::(cout|cerr|clog)\b",
    "randomness is seeded (kernel/base/random.h)": r"\bs?rand\s*\(|\bstd::random_device\b",
    "no shell": r"\b(system|popen)\s*\(",
    "bounded copies only": r"\b(strcpy|strcat|gets|strtok|strncpy|alloca)\s*\(",
    "numbers are parsed with from_chars": r"\b(atoi|atol|atoll|atof|sscanf)\s*\(",
    "names are qualified": r"\busing\s+namespace\b",
    "ownership is a type": r"\b(malloc|calloc|realloc)\s*\(",
}
SLEEP = r"\bsleep_for\b|\bsleep_until\b|\bu?sleep\s*\(|\bnanosleep\s*\(|\btime\.sleep\b"
TODO = r"\b(TODO|FIXME|XXX)\b(?!\([a-z-]+\): \S)"


def without_comments_and_strings(text: str) -> str:
    """The same number of lines, with comments and literals blanked out."""
    pattern = r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"'
    return re.sub(pattern, blank, text, flags=re.DOTALL)


def blank(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")


def places(path: str, pattern: str, text: str | None = None) -> list[str]:
    original = text_of(path).splitlines()
    lines = (text_of(path) if text is None else text).splitlines()
    found = [i for i, line in enumerate(lines) if re.search(pattern, line)]
    return [f"{path}:{i + 1}: {original[i]}" for i in found if not EXCEPTION.search(original[i])]


def is_test(path: str) -> bool:
    return path.startswith("tests/") or "_test." in path or "/test_" in path


@pytest.mark.parametrize("rule", FORBIDDEN_IN_CPP)
def test_cpp(rule: str) -> None:
    found = []
    for path in files_with(*CPP):
        # an include names its file in <>, so it survives the blanking
        text = without_comments_and_strings(text_of(path))
        found += places(path, FORBIDDEN_IN_CPP[rule], text)
    expect_none(found, rule)


COMPUTES_ON_A_DEVICE = ("kernel/base", "kernel/exec", "kernel/exec/cuda", "kernel/executor")


def test_only_what_computes_on_a_device_looks_behind_its_addresses() -> None:
    found = []
    for path in files_with(*CPP):
        is_of_device = folder_of(path) in COMPUTES_ON_A_DEVICE
        if not is_of_device and not is_test(path):
            found += places(path, r"\bon_host\s*\(")
    expect_none(found, "have bytes of a device copied (kernel/base/device_address.h)")


def test_tests_wait_for_a_condition_and_never_for_a_time() -> None:
    tests = [f for f in files_with(*CODE) if is_test(f) and not f.startswith("tests/style/")]
    expect_none([place for path in tests for place in places(path, SLEEP)])


def test_who_makes_text_with_fmt_includes_it() -> None:
    """Precompiled headers hide that one does not, and only the tsan preset goes without them."""
    fmt = re.compile(r"\bfmt::")
    users = [f for f in files_with(*CPP) if fmt.search(without_comments_and_strings(text_of(f)))]
    expect_none([f for f in users if "#include <fmt/" not in text_of(f)])


def test_headers_are_included_once() -> None:
    headers = [f for f in files_with(*HEADERS) if "#pragma once" not in text_of(f)]
    c_headers = [f for f in headers if "#ifndef" not in text_of(f)]
    expect_none(c_headers)


def licensed(path: str) -> bool:
    """Whether the file's licence stands in its first line, or in its second after a `#!`."""
    head = [line for line in text_of(path).splitlines()[:2] if not line.startswith("#!")]
    return not text_of(path).strip() or bool(head and SPDX.fullmatch(head[0]))


def test_each_source_names_its_licence() -> None:
    scripts = [f for f in files() if text_of(f).startswith("#!")]
    sources = {*files_with(*CODE, ".pyi", "CMakeLists.txt"), *scripts}
    expect_none([f for f in sorted(sources) if not licensed(f)], f"{SPDX.pattern} comes first")


def test_headers_open_with_their_nouns() -> None:
    bodies = {f: SPDX.sub("", text_of(f), count=1).lstrip() for f in files_with(*HEADERS)}
    expect_none([f for f, body in bodies.items() if not body.startswith(("//", "/*"))])


def test_locks_of_the_python_package_may_be_taken_twice() -> None:
    """By a signal's handler, or a destructor, that comes while its own thread has them."""
    ours = [path for path in files_with(".py") if path.startswith("python/djinn/")]
    assert ours
    plain = r"\bthreading\.(Lock|Semaphore|BoundedSemaphore)\(|\bimport .*\bLock\b"
    expect_none([place for path in ours for place in places(path, plain)])


def test_a_todo_has_a_type_and_a_reason() -> None:
    code = [f for f in files_with(*CODE, "CMakeLists.txt") if not f.startswith("tests/style/")]
    expect_none([place for path in code for place in places(path, TODO)])


def test_lines_have_at_most_100_columns() -> None:
    code = files_with(*CODE, "CMakeLists.txt", "dev")
    expect_none([place for path in code for place in places(path, rf"^.{{{COLUMNS_MAX + 1}}}")])


def test_functions_have_at_most_70_lines() -> None:
    found = []
    for path in measure.sources():
        for head, lines in measure.functions(text_of(path)):
            found += [f"{path}: {lines} lines: {head}"] if lines > FUNCTION_LINES_MAX else []
    expect_none(found)


def test_documents_have_at_most_120_columns() -> None:
    """But for rows of tables, and what stands for the eye: a longer line makes a wall of a diff."""
    found = []
    for path in files_with(".md"):
        lines = re.sub(r"^```.*?^```", blank, text_of(path), flags=re.DOTALL | re.MULTILINE)
        found += places(path, r"^(?!\|).{121}", lines)
    expect_none(found)


def test_no_file_names_a_path_of_one_machine() -> None:
    pattern = "|".join(rf"(?<![\w.-])/{top}/" for top in ("work", "root", r"home/\w+"))
    text_files = [f for f in files() if b"\0" not in (ROOT / f).read_bytes()[:4096]]
    expect_none([place for path in text_files for place in places(path, pattern)])


def test_links_in_documents_lead_to_files() -> None:
    broken = []
    for path in files_with(".md"):
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text_of(path)):
            if "://" not in target and not (ROOT / path).parent.joinpath(target).exists():
                broken.append(f"{path}: {target}")
    expect_none(broken)


def test_tables_in_documents_are_whole() -> None:
    """A blank line ends a table: what stands below it is shown as text with bars."""
    found = []
    for path in files_with(".md"):
        lines = ["", *text_of(path).splitlines(), ""]
        for number, line in enumerate(lines):
            begins = line.startswith("|") and not lines[number - 1].startswith("|")
            if begins and not re.match(r"\|[ :|-]+\|$", lines[number + 1]):
                found.append(f"{path}:{number}: {line}")
    expect_none(found)


def test_each_verb_of_djinnctl_that_a_text_names_exists() -> None:
    added = "".join(text_of(f) for f in files_with(".cc") if f.startswith("djinnctl/verb_"))
    verbs = set(re.findall(r'(?:\.verb\(|\badd\(line, )"([a-z-]+)"', added))
    quoted = r"(?:[`'*]|See |[$] )djinnctl(?: -[\w=-]+)* ([a-z][a-z-]*)"
    named = rf"{quoted}|[(]djinnctl ([a-z-]+)[,)]"
    assert {"ps", "unpin"} <= verbs
    unknown = [
        f"{path}: djinnctl {verb}"
        for path in files()
        if not path.endswith("_a_verb_that_is_none.session")
        for verb in map("".join, re.findall(named, text_of(path)))
        if verb not in verbs
    ]
    expect_none(unknown, f"There are {', '.join(sorted(verbs))}")
