# SPDX-License-Identifier: Apache-2.0
"""`python3 -m djinn export MODEL [DIR]`."""

import argparse
import sys

from .errors import Error, RequestError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m djinn", description="Tools of djinn.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser(
        "export",
        help="write what runs a model without Python",
        description="Writes DIR/djinn.json, with which djinnctl generate, C and C++ run the model "
        "in djinnd without Python. The weights stay where they are.",
    )
    verb.add_argument("model", help="directory of a model, or its name on the Hugging Face Hub")
    verb.add_argument("dir", nargs="?", help="where to write it; by default the model's directory")
    given = parser.parse_args(arguments)
    try:
        from .torch.export import export

        print(export(given.model, given.dir))
    except (Error, ImportError, OSError, TypeError, ValueError) as error:
        print(f"djinn: {error}", file=sys.stderr)
        return 2 if isinstance(error, RequestError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
