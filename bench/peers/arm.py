# SPDX-License-Identifier: Apache-2.0
"""An arm of peers_bench.py: a process that generates with one program's model when it is told to.

It stands in that program's own environment, so it imports nothing of this tree but its own folder.
A line on its input is a request, and one on its output the answer, both in JSON.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

PAIRS, SECONDS = 25, 1.0  # of a short and a long generation, until either is reached
SHORT, LONG = 8, 40  # tokens of two generations: their difference is the loop alone

# Greedy tokens that follow on a prompt's.
Generate = Callable[[list[int], int], list[int]]
# Of the model in a directory: "bfloat16" or "float32", and how many threads.
Open = Callable[[str, str, int], Generate]


def seconds_of(f: Callable[[], Any]) -> float:
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def token_seconds(generate: Generate, prompt: list[int]) -> float:
    """A difference of medians: one of single runs is noise where a token takes microseconds."""
    short: list[float] = []
    long: list[float] = []
    while not long or (len(long) < PAIRS and sum(long) < SECONDS):
        short.append(seconds_of(lambda: generate(prompt, SHORT)))
        long.append(seconds_of(lambda: generate(prompt, LONG)))
    return (statistics.median(long) - statistics.median(short)) / (LONG - SHORT)


def serve(open_model: Open) -> None:
    """What a program has to say for itself goes to the terminal, not among the answers."""
    answers = sys.stdout
    sys.stdout = sys.stderr
    directory, dtype, threads = sys.argv[1:]
    generate = open_model(directory, dtype, int(threads))
    for line in sys.stdin:
        asked = json.loads(line)
        prompt = asked["prompt"]
        if "tokens" in asked:
            answer: Any = generate(prompt, asked["tokens"])
        else:
            answer = token_seconds(generate, prompt)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
