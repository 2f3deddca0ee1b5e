# SPDX-License-Identifier: Apache-2.0
"""Looks at the plots of bench/plot.py as a reader would: look_at_plots.py PLOT_PY FOLDER [SCALE].
Runs where matplotlib is, which need not be where the tests run. Prints as JSON, of each plot, what
stands in it, and which texts meet others or leave the figure. SCALE: of the size that plots have.
"""

import importlib.util
import itertools
import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch


def plots_of(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("plot", path)
    assert spec is not None and spec.loader is not None
    plot = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plot)
    return plot


def meet(a: Any, b: Any) -> bool:
    """By a pixel and more."""
    return min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1


def drawn_in(figure: Any) -> list[Any]:
    """Its texts, but those of marks that lie beyond an axis and are not drawn."""
    from matplotlib.text import Text

    with patch.object(Text, "draw", autospec=True, side_effect=Text.draw) as draw:
        figure.canvas.draw()
        drawn = [call.args[0] for call in draw.call_args_list]
    return [text for text in drawn if text.get_visible() and text.get_text().strip()]


def look(figure: Any) -> dict[str, Any]:
    shown = [(one.get_text().strip(), one.get_window_extent()) for one in drawn_in(figure)]
    whole = figure.bbox
    return {
        "titles": [axes.get_title(loc="left") for axes in figure.axes],
        "along": [axes.get_xlabel() for axes in figure.axes] + [figure.get_supxlabel()],
        "up": [axes.get_ylabel() for axes in figure.axes],
        "texts": [text for text, _ in shown],
        "meeting": [
            [a, b] for (a, at), (b, bt) in itertools.combinations(shown, 2) if meet(at, bt)
        ],
        "outside": [
            text
            for text, at in shown
            if at.x0 < whole.x0 or at.y0 < whole.y0 or at.x1 > whole.x1 or at.y1 > whole.y1
        ],
    }


def main() -> None:
    plot = plots_of(sys.argv[1])
    folder = Path(sys.argv[2])
    scale = float(sys.argv[3]) if len(sys.argv) > 3 else 1.0
    measured = json.loads((folder / "measured.json").read_text())
    found = {}
    for name in ("decode", "together", "gaps"):
        figure = getattr(plot, name)(measured, folder)
        if figure is not None:
            figure.set_size_inches(figure.get_size_inches() * scale)
            found[name] = look(figure)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
