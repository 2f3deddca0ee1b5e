# SPDX-License-Identifier: Apache-2.0
"""The text the byte model learns: two Debian packages, as documents of prose.

Nouns: a *document* is one entry of the Jargon File's lexicon, or one section of either book; a
paragraph of prose is one line of it. *Held out* are whole chapters: the letters W to Z of the
lexicon, and the handbook from chapter 16 to its end. They are not trained on.
"""

import gzip
import re
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

JARGON = Path("/usr/share/doc/jargon-text/jargon.txt.gz")
HANDBOOK = Path("/usr/share/doc/debian-handbook/html/en-US")

HEADINGS = {"h1", "h2", "h3"}
BLOCKS = HEADINGS | {"h4", "h5", "p", "div", "li", "dt", "dd", "tr", "table", "ul", "ol", "dl"}
SKIPPED_IDS = {"banner", "title"}
SKIPPED_CLASSES = {"docnav", "docnav top", "toc"}


@dataclass
class Split:
    """Documents of one source, in reading order."""

    name: str
    train: list[str]
    held_out: list[str]


def load_corpus() -> list[Split]:
    """Reads both packages where apt-get puts them; FileNotFoundError says which one is missing."""
    for path in (JARGON, HANDBOOK):
        if not path.exists():
            raise FileNotFoundError(f"{path}: apt-get install jargon-text debian-handbook")
    return [jargon_file(), handbook()]


def jargon_file() -> Split:
    """The book without its tables of contents; the lexicon's last letters are held out."""
    text = gzip.decompress(JARGON.read_bytes()).decode().replace("\N{NO-BREAK SPACE}", " ")
    text = re.sub(r"^[\u2500-\u257f].*\n", "", text, flags=re.MULTILINE)  # the table of revisions
    # A part's heading stands at the left margin, a letter's two columns in, an entry of a table
    # of contents three.
    essays = text[text.index("\nChapter 1. ") + 1 : text.index("\nGlossary\n")]
    lexicon, appendices = text[text.index("\n  0\n") :].split("\nAppendix A. ", 1)
    known, held_out = lexicon.split("\n  W\n", 1)
    train = _entries(essays) + _lexicon(known) + _entries("Appendix A. " + appendices)
    return Split("jargon-text", train, _lexicon(held_out))


def _lexicon(text: str) -> list[str]:
    """Entries only: each letter begins with a list of its head words, which no reader misses."""
    return [entry for entry in _entries(text.split("Part III. ")[0]) if entry.startswith(":")]


def _entries(text: str) -> list[str]:
    documents: list[list[str]] = []
    for block in re.split(r"\n\s*\n", text):
        opens = re.match(r"   :\S|\S", block) is not None
        if opens or not documents:
            documents.append([])
        if len(block.strip()) > 1:  # a letter alone only divides the lexicon
            documents[-1].append(_unwrap(block.strip("\n")))
    return ["\n\n".join(paragraphs) for paragraphs in documents if paragraphs]


def _unwrap(block: str) -> str:
    """Joins the lines of prose; leaves verse, diagrams and tables as they stand."""
    lines = block.split("\n")
    prose = all(len(line) > 50 for line in lines[:-1]) and not any("   " in x[6:] for x in lines)
    if prose:
        return " ".join(line.strip() for line in lines)
    return "\n".join(line.removeprefix("   ").rstrip() for line in lines)


def handbook() -> Split:
    """The pages in the order their `next` links give, cut into sections at their headings."""
    train: list[str] = []
    held_out: list[str] = []
    target, page = train, "preface.html"
    while page:
        source = (HANDBOOK / page).read_text()
        if page == "conclusion.html":
            target = held_out
        target.extend(_sections(source))
        following = re.search(r'rel="next" href="([^"#]+)', source)
        page = following.group(1) if following else ""
    return Split("debian-handbook", train, held_out)


def _sections(source: str) -> list[str]:
    reader = _PageReader()
    reader.feed(source[source.index("<body") :])
    reader.close()
    reader.end_paragraph()
    return ["\n\n".join(section) for section in reader.documents if len(section) > 1]


class _PageReader(HTMLParser):
    """Collects paragraphs; navigation and tables of contents are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.documents: list[list[str]] = [[]]
        self._words: list[str] = []
        self._bullet = ""
        self._verbatim = False
        self._skipping: list[str] = []  # open elements inside a skipped one

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        skipped = named.get("id") in SKIPPED_IDS or named.get("class") in SKIPPED_CLASSES
        if self._skipping or skipped:
            self._skipping.append(tag)
            return
        if tag in BLOCKS or tag == "pre":
            self.end_paragraph()
        if tag in HEADINGS:
            self.documents.append([])
        if tag == "li":
            self._bullet = "• "
        if tag == "pre":
            self._verbatim = True

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An empty element has no text."""

    def handle_endtag(self, tag: str) -> None:
        if self._skipping:
            self._skipping.pop()
            return
        if tag in BLOCKS or tag == "pre":
            self.end_paragraph()

    def handle_data(self, data: str) -> None:
        if not self._skipping:
            self._words.append(data)

    def end_paragraph(self) -> None:
        text = "".join(self._words).replace("\N{NO-BREAK SPACE}", " ")
        text = text.strip("\n") if self._verbatim else self._bullet + " ".join(text.split())
        if text.removeprefix("• ").strip():
            self.documents[-1].append(text)
            self._bullet = ""
        self._words = []
        self._verbatim = False
