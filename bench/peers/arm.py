# SPDX-License-Identifier: Apache-2.0
"""An arm of peers_bench.py: a process that generates with one program's model when it is told to.

It stands in that program's own environment, so it imports nothing of this tree but what needs no
package.
A line on its input is a request, and one on its output the answer, both in JSON.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from report import token_seconds_of

# Greedy tokens that follow on a prompt's.
Generate = Callable[[list[int], int], list[int]]
# Of the model in a directory: "bfloat16", "float32", or "int8", of files in bfloat16; and how many
# threads.
Open = Callable[[str, str, int], Generate]


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
            answer = token_seconds_of(lambda tokens, prompt=prompt: generate(prompt, tokens))
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
