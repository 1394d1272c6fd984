"""How the project's figures look: their style, and one colour for one thing in all of them.

    with new_figure(Path("a.png"), 7, 2) as figure:  # inches
        figure.subplots().plot([1, 2], color=BLUE)

The colours are those of Okabe and Ito (2008), which colour-blind readers can tell apart. What
goes over the network is also hatched, for print. What belongs together shares a colour:
gradients and what sums them, parameters and what gathers them, the optimizer and its state.
Importing this file prepares matplotlib, which is imported only after it. It raises UserError if
matplotlib is not installed.
"""

import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.common.errors import UserError, first_line

os.environ["MPLBACKEND"] = "agg"  # a notebook's shows figures, and may not be installed
logging.getLogger("matplotlib").setLevel(logging.ERROR)
try:
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
except (ImportError, OSError) as problem:
    raise UserError(
        f"figures are drawn with matplotlib, which cannot be imported "
        f"({first_line(problem)}): pip install matplotlib"
    ) from None
matplotlib.rcdefaults()  # not the user's own, which may need LaTeX

BLUE = "#0072B2"
SKY = "#56B4E9"
GREEN = "#009E73"
ORANGE = "#E69F00"
YELLOW = "#F0E442"
VERMILION = "#D55E00"
GREY = "#999999"
PALE = "#E5E5E5"

# A training step: the activity in step.csv, its colour and its hatching.
STEP = {
    "batch": (GREY, ""),
    "forward": (SKY, ""),
    "backward": (BLUE, ""),
    "optimizer": (GREEN, ""),
    "exposed": ("white", ""),
    "waiting": (PALE, ""),
    "all-gather": (YELLOW, "...."),
    "reduce-scatter": (ORANGE, r"\\\\\\"),
    "all-reduce": (ORANGE, "//////"),
}
# Memory: the part in profile.json, and its colour.
MEMORY = {
    "parameters": YELLOW,
    "gradients": ORANGE,
    "optimizer_state": GREEN,
    "activations": SKY,
    "all_else": PALE,
}
# matplotlib takes each character from the first of these that is installed and has it. The
# first comes with matplotlib; Linux has those of Noto, and macOS and Windows have the others.
FONTS = [
    "DejaVu Sans",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans Devanagari",
    "Noto Sans Bengali",
    "Noto Sans Tamil",
    "Noto Sans Telugu",
    "Noto Sans Gujarati",
    "Noto Sans Thai",
    "Noto Sans Khmer",
    "Noto Sans Myanmar",
    "Noto Sans Ethiopic",
    "WenQuanYi Zen Hei",
    "Arial Unicode MS",
    "Microsoft YaHei",
    "Malgun Gothic",
    "Nirmala UI",
    "Leelawadee UI",
]
MAX_MISSING_SHOWN = 10  # characters that a warning names
STYLE = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": FONTS,
    "font.size": 8,
    "grid.color": "0.9",
    "hatch.linewidth": 0.4,
    "legend.frameon": False,
    "lines.linewidth": 1,
    "lines.markersize": 3,
    "text.parse_math": False,
}
LEGEND_PLACE = "outside lower center"


@contextmanager
def new_figure(
    path: Path, width: float, height: float, follow_link: bool = False
) -> Iterator[Figure]:
    """Gives the block a figure of this size, in inches, and then writes it to a file.

    follow_link: whether a link, such as /dev/stdout, stands for what it leads to. Otherwise it
    is replaced: in the folder of a run it may come from other people.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure((width, height), dpi=300, layout="constrained")
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() and not follow_link:
            path.unlink()
        save(figure, path)


def save(figure: Figure, path: Path) -> None:
    """Writes a figure to a file, as .pdf, .svg, or else PNG.

    If no font has a character, a box stands for it, and a warning says so.
    """
    ending = path.suffix.lower().removeprefix(".")
    file_format = ending if ending in ("pdf", "svg") else "png"
    missing = set()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.savefig(path, format=file_format)
    for warning in caught:
        glyph = re.match(r"Glyph (\d+) .* missing from font", str(warning.message))
        if glyph is None:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
        elif chr(int(glyph[1])).isprintable():
            missing.add(chr(int(glyph[1])))
    if missing:
        some = " ".join(sorted(missing)[:MAX_MISSING_SHOWN])
        print(
            f"warning: {path}: boxes stand for {some}; apt install fonts-noto-cjk (Chinese, "
            f"Japanese, Korean) or fonts-noto-core, and delete {matplotlib.get_cachedir()}, "
            f"matplotlib's list of fonts",
            file=sys.stderr,
        )


def size_of(figure: Figure) -> str:
    """Returns the size of a figure, such as "2100 x 1305 pixels"."""
    width, height = figure.canvas.get_width_height()
    return f"{width} x {height} pixels"


def draw_legend(figure: Figure, colors: dict[str, tuple[str, str]]) -> None:
    """Draws a legend of coloured areas below a figure. colors: colour and hatching by label."""
    areas = [
        Patch(facecolor=color, hatch=hatch, edgecolor="black", linewidth=0.3, label=label)
        for label, (color, hatch) in colors.items()
    ]
    figure.legend(handles=areas, loc=LEGEND_PLACE, ncols=5, handlelength=2.5)
