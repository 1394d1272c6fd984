"""A plot of the memory that training takes: what was counted, and what the formula says."""

import json
from pathlib import Path

from support.common.errors import UserError
from support.common.figures import load_matplotlib, save
from support.common.palette import MEMORY
from support.profiling.step_plot import describe_run

BAR_HEIGHT = 0.34  # a run has two bars, and takes 1
CHARACTER = 0.012  # the width of a digit, as a share of the largest bar

Memory = dict[str, dict[str, int]]  # {"counted" or "formula": {part: bytes}}


def read_memory(folder: Path) -> tuple[str, Memory]:
    """Returns the title of the run in logs/RUN and the memory that --profile counted.

    Raises UserError.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        content = json.loads((folder / "profile.json").read_text(encoding="utf-8"))["memory"]
        memory = {
            source: {part: int(content[source].get(part, 0)) for part in MEMORY}
            for source in ("counted", "formula")
        }
        return describe_run(config), memory
    except FileNotFoundError as error:
        raise UserError(f"{error.filename} is missing: train with --profile") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder}: not a profile that --profile wrote ({error!r})") from error


def draw_memory(runs: list[tuple[str, Memory]], path: Path) -> None:
    """Draws two bars for each run, counted and by the formula, to one scale, into a PNG file.

    runs: the title and the memory of each.
    """
    matplotlib = load_matplotlib("--profile")
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    totals = [sum(parts.values()) / 1e6 for _, memory in runs for parts in memory.values()]
    scale = max(totals)  # megabytes
    inches = (7, 0.9 + 0.6 * len(runs))
    with matplotlib.rc_context({"font.size": 8, "text.parse_math": False}):
        figure = Figure(inches, dpi=300, layout="constrained")
        axes = figure.subplots()
        for place, (title, memory) in enumerate(runs):
            axes.text(0, place - 0.05, title, fontsize=7)
            draw_bar(axes, place, "counted", memory["counted"], scale)
            draw_bar(axes, place + 0.36, "formula", memory["formula"], scale)
        axes.set(
            xlabel="memory of the largest process (MB)",
            xlim=(0, 1.18 * scale),
            ylim=(len(runs) - 0.2, -0.3),
            yticks=[],
        )
        axes.spines[["top", "right"]].set_visible(False)
        handles = [
            Patch(facecolor=color, edgecolor="black", linewidth=0.3, label=label_of(part))
            for part, color in MEMORY.items()
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        save(figure, path)


def draw_bar(axes, y: float, source: str, parts: dict[str, int], scale: float) -> None:
    """Draws the parts of a memory side by side, with their sizes where there is room."""
    middle = y + BAR_HEIGHT / 2
    left = 0.0
    for part, size in parts.items():
        width = size / 1e6
        axes.barh(
            y,
            width,
            BAR_HEIGHT,
            left,
            align="edge",
            color=MEMORY[part],
            edgecolor="black",
            linewidth=0.2,
        )
        text = f"{width:,.0f}"
        if width > CHARACTER * scale * len(text):
            center = left + width / 2
            axes.text(center, middle, text, fontsize=6, ha="center", va="center_baseline")
        left += width
    text = f"{source}: {left:,.0f} MB"
    axes.text(left + 0.008 * scale, middle, text, fontsize=6, va="center_baseline")


def label_of(part: str) -> str:
    """Returns "optimizer state" for optimizer_state."""
    return part.replace("_", " ")
