# SPDX-License-Identifier: Apache-2.0
"""The manual agrees with the programs, and is clean troff."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from private_daemon import BIN, ROOT

PAGES = {page.name.removesuffix(".scd"): page for page in (ROOT / "man").glob("*.scd")}


def said(*command: str) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60, stdin=subprocess.DEVNULL
    ).stdout


def section(page: str, heading: str) -> str:
    text = PAGES[page].read_text()
    return text.split(f"\n# {heading}\n", 1)[1].split("\n# ", 1)[0]


def terms(page: str, heading: str) -> list[str]:
    """Lines that say what the indented text after them is about."""
    return re.findall(r"^(\*.*)\n\t", section(page, heading), re.MULTILINE)


def options_in(text: str) -> set[str]:
    return set(re.findall(r"--[a-z][a-z-]+", text))


def test_the_configurations_manual_has_each_key_and_what_reloads(tmp_path: Path) -> None:
    shown = said(str(BIN / "djinnd"), "--show-config", "--root", str(tmp_path))
    keys = dict(line.split("  # ")[0].split(" = ", 1) for line in shown.splitlines())
    text = section("djinnd.conf.5", "SETTINGS")
    assert terms("djinnd.conf.5", "SETTINGS") == [f"*{key}*" for key in keys]
    for entry in text.split("\n*")[1:]:
        key = entry.split("*", 1)[0]
        words = " ".join(entry.split())
        assert re.search(f'Default: "?{re.escape(keys[key])}', words), key
        reloads = re.search(
            rf'Setting{{"{re.escape(key)}".*?(true|false),\s*set_',
            (ROOT / "daemon/djinnd/host/config.cc").read_text(),
            re.DOTALL,
        )
        assert reloads is not None, key
        assert words.endswith("Reloads.") == (reloads[1] == "true"), key


def test_the_configurations_manual_has_each_key_of_a_section() -> None:
    code = (ROOT / "daemon/djinnd/host/config.cc").read_text()
    keys = re.findall(r'QuotaSetting{"(\w+)"', code)
    assert keys and terms("djinnd.conf.5", "USERS AND GROUPS") == [f"*{key}*" for key in keys]


def test_the_configurations_examples_are_accepted(tmp_path: Path) -> None:
    examples = re.findall(r"```\n(.*?)```", section("djinnd.conf.5", "EXAMPLES"), re.DOTALL)
    path = tmp_path / "etc/djinn/djinnd.conf"
    path.parent.mkdir(parents=True)
    assert examples
    for example in examples:
        path.write_text(example)
        said(str(BIN / "djinnd"), "--check-config", "--root", str(tmp_path))


def test_djinnds_manual_has_its_options() -> None:
    help_text = said(str(BIN / "djinnd"), "--help")
    in_manual = options_in("\n".join(terms("djinnd.8", "OPTIONS")))
    assert in_manual == options_in(help_text)


def test_djinnds_help_has_one_word_for_each_value() -> None:
    lines = [line for line in said(str(BIN / "djinnd"), "--help").splitlines() if "--" in line]
    shown = [line for line in lines if line.startswith("  -")]
    assert len(shown) > 15
    for line in shown:
        assert re.match(r"  (-\w,)?--[a-z-]+(,--[a-z-]+)?( [A-Z]+)?(  |$)", line), line
        assert "TEXT" not in line, line


def test_djinnctls_manual_has_its_verbs_and_options() -> None:
    help_text = said(str(BIN / "djinnctl"), "--help")
    options, verbs = help_text.split("Verbs:")
    listed = re.findall(r"^  ([a-z]+) ", verbs, re.MULTILINE)
    described = terms("djinnctl.1", "VERBS")
    # Of a verb with verbs of its own each has an entry.
    assert set(re.findall(r"(?:^|, )\*([a-z]+)", "\n".join(described), re.M)) == set(listed)
    in_manual = options_in("\n".join(terms("djinnctl.1", "OPTIONS")))
    assert in_manual == options_in(options)


def own_options(verb: str, *inner: str) -> set[str]:
    return options_in(said(str(BIN / "djinnctl"), verb, *inner, "--help")) - {"--help"}


def test_djinnctls_manual_has_the_options_of_each_verb() -> None:
    entries = re.split(r"\n(?=\*[a-z])", section("djinnctl.1", "VERBS").strip())
    for entry in entries:
        for words in re.findall(r"(?:^|, )\*([a-z ]+)\*", entry.strip().splitlines()[0]):
            assert options_in(entry) == own_options(*words.split()), words


def test_djinnctls_manual_has_its_exit_codes() -> None:
    code = (ROOT / "djinnctl/exit_code.h").read_text()
    assert terms("djinnctl.1", "EXIT STATUS") == [
        f"*{number}*" for number in re.findall(r"^  k\w+ = (\d+),", code, re.MULTILINE)
    ]


# --- libdjinn-client

HEADER = (ROOT / "libdjinn-client/abi/djinn.h").read_text()
LIBRARY_PAGES = [name for name in PAGES if name.endswith(".3") and name != "djinn.hpp.3"]


def without_comments(code: str) -> str:
    return re.sub(r"/\*.*?\*/", "", code, flags=re.DOTALL)


def one_line(code: str) -> str:
    return re.sub(r"\s*([(),*])\s*", r"\1", " ".join(code.split()))


def names_of(page: str) -> list[str]:
    return " ".join(section(page, "NAME").split()).split(" - ")[0].split(", ")


def test_each_function_of_djinn_h_stands_in_one_page_as_it_is_declared() -> None:
    declared = re.findall(r"^DJINN_API ([^;]*);", without_comments(HEADER), re.MULTILINE)
    assert len(declared) > 20
    callback = re.findall(r"typedef int \(\*[^;]*;", HEADER)
    expected = sorted(one_line(code) for code in [*declared, *(c[:-1] for c in callback)])
    shown = []
    for page in LIBRARY_PAGES:
        code = section(page, "SYNOPSIS").split("```")[1].replace("#include <djinn.h>", "")
        prototypes = [one_line(one) for one in code.split(";") if one.strip()]
        shown += prototypes
        functions = re.findall(r"\b(djinn_\w+)\(", "\n".join(prototypes))
        if page != "libdjinn-client.3":
            assert names_of(page) == functions, page
    assert sorted(shown) == expected


def test_each_field_that_djinn_h_has_is_explained() -> None:
    for body, name in re.findall(
        r"typedef struct djinn_\w+ \{(.*?)\} (djinn_\w+);", without_comments(HEADER), re.DOTALL
    ):
        (page,) = [page for page in LIBRARY_PAGES if f"\n## {name}\n" in PAGES[page].read_text()]
        text = PAGES[page].read_text().split(f"\n## {name}\n", 1)[1]
        text = re.split(r"\n##? ", text)[0]
        fields = re.findall(r"(\w+)(?:\[\w+\])?;", body)
        explained = re.findall(r"\*(\w+)\*", "\n".join(re.findall(r"^(\*.*)\n\t", text, re.M)))
        assert sorted(explained) == sorted(set(fields) - {"reserved"}), name


def test_each_code_and_dtype_of_djinn_h_is_explained() -> None:
    enumerators = re.findall(r"^  (DJINN_\w+) = (\d+)", HEADER, re.MULTILINE)
    codes = [f"*{name}* ({number})" for name, number in enumerators if int(number) >= 100]
    assert terms("djinn_code_name.3", "DESCRIPTION")[2:] == codes
    pages = "".join(PAGES[page].read_text() for page in LIBRARY_PAGES)
    for name, _ in enumerators:
        assert re.search(rf"\b{name}\b", pages), name


def test_each_class_of_djinn_hpp_is_explained_with_what_it_has() -> None:
    code = (ROOT / "libdjinn-client/abi/djinn.hpp").read_text()
    page = PAGES["djinn.hpp.3"].read_text()
    classes = re.findall(r"^class (\w+).*?^};", code, re.MULTILINE | re.DOTALL)
    assert len(classes) > 4
    for name in classes:
        public = (
            code.split(f"\nclass {name} ", 1)[1].split(" public:\n", 1)[1].split(" private:", 1)[0]
        )
        has = set(re.findall(r"^  (?![/~ ])[^=(\n]*?(\w+)\(", public, re.MULTILINE))
        begin = "*djinn::Error*" if name == "Error" else f"## djinn::{name}\n"
        told = re.split(r"\n##? ", page.split(begin, 1)[1])[0]
        explained = set(re.findall(r"\*(\w+)\*\((?!3\))", told))
        assert explained - {"Error"} == has - {"Error"}, name


# --- what make_manual.py takes from the code

needs_scdoc = pytest.mark.skipif(
    shutil.which("scdoc") is None, reason="scdoc is not installed: there is no manual"
)


@needs_scdoc
def test_the_page_about_graphs_lists_what_may_run(tmp_path: Path) -> None:
    said(sys.executable, str(ROOT / "tools/make_manual.py"), str(tmp_path))
    page = (tmp_path / "djinn-srg.7").read_text().split(".SH ALLOWED OPERATORS", 1)[1]
    page = page.replace(r"\&", "")  # which some scdocs put before dots
    listed = re.findall(r"\w+::[\w.]+", page)
    table = re.findall(
        r'^    "([^"]+)",$', (ROOT / "kernel/srg/allowed.cc").read_text(), re.MULTILINE
    )
    assert listed == table and len(table) > 900


def test_the_page_about_graphs_knows_the_words_of_the_parser() -> None:
    grammar = section("djinn-srg.7", "GRAMMAR")
    parser = (ROOT / "kernel/srg/text_parse.cc").read_text()
    words = set(re.findall(r'(?:word|field|text) == "(\w+)"|_word\("(\w+)"\)', parser))
    assert len(words) > 20
    for word in {one or other for one, other in words}:
        assert re.search(rf"\b{word}\b", grammar), word


@needs_scdoc
def test_djinnds_manual_lists_its_metrics(tmp_path: Path) -> None:
    said(sys.executable, str(ROOT / "tools/make_manual.py"), str(tmp_path))
    page = (tmp_path / "djinnd.8").read_text().split(".SH LIST OF METRICS", 1)[1]
    listed = set(re.findall(r"^\\fB(djinn_\w+)", page.split(".SH ", 1)[0], re.MULTILINE))
    code = (ROOT / "daemon/djinnd/metrics/metrics_text.cc").read_text()
    assert listed == set(re.findall(r'"(djinn_\w+)"', code)) and len(listed) > 50


# --- all pages


def test_pages_name_themselves_and_each_other() -> None:
    for page, path in PAGES.items():
        name, number = page.rsplit(".", 1)
        assert path.read_text().startswith(f"{name.upper()}({number})\n"), page
        assert names_of(page)[0] == name
        for other, section_number in re.findall(
            r"\*((?:lib)?djinn[\w.-]*)\*\((\d)\)", path.read_text()
        ):
            further = [n for p in PAGES if p.endswith(f".{section_number}") for n in names_of(p)]
            assert other in further, f"{page} names {other}({section_number})"
        keys = terms("djinnd.conf.5", "SETTINGS")
        groups = "|".join({key.strip("*").split(".")[0] for key in keys})
        for key in re.findall(rf"\*(?:{groups})\.\w+\*", path.read_text()):
            assert key in keys, f"{page} names {key}"


def test_no_sentence_breaks_where_a_list_would_begin() -> None:
    """scdoc takes a line that begins so for an item; the pages have no lists."""
    for page, path in PAGES.items():
        text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
        assert re.findall(r"^\t*[-.] .*", text, re.MULTILINE) == [], page


def test_no_line_ends_with_a_name_that_breaks_it() -> None:
    """scdoc takes the ++ of C++ for a line break where a line ends with it."""
    for page, path in PAGES.items():
        assert re.findall(r".*\b[Cg]\+\+$", path.read_text(), re.MULTILINE) == [], page


@pytest.mark.skipif(
    any(shutil.which(program) is None for program in ("scdoc", "man", "mandoc")),
    reason="scdoc, man and mandoc are not all installed",
)
def test_pages_are_clean_troff(tmp_path: Path) -> None:
    said(sys.executable, str(ROOT / "tools/make_manual.py"), str(tmp_path))
    aliases = {page for page in tmp_path.iterdir() if page.read_text().startswith(".so ")}
    assert {page.name for page in tmp_path.iterdir()} - {page.name for page in aliases} == set(
        PAGES
    )
    for page in aliases:
        number, target = page.read_text().strip().removeprefix(".so man").split("/")
        assert page.stem in names_of(target)
        assert page.name.endswith(f".{number}") and target.endswith(f".{number}")
    for page in set(tmp_path.iterdir()) - aliases:
        for check in (
            ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", str(page)],
            ["mandoc", "-Tlint", str(page)],
        ):
            found = subprocess.run(check, capture_output=True, text=True, timeout=60)
            complaints = found.stderr if check[0] == "man" else found.stdout + found.stderr
            assert complaints == "", page.name
        indexed = said("lexgrog", str(page))  # what apropos and whatis find
        assert re.findall(r'"(\S+) - ', indexed) == names_of(page.name)
