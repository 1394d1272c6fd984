"""A picture of the memory of training: what takes it, counted, and what the formula says."""

import json
from pathlib import Path

from support.common.errors import UserError
from support.common.palette import MEMORY
from support.profiling.step_picture import title


def read(folder: Path) -> tuple[str, dict]:
    """Title of a run in logs/RUN, and the memory that --profile has counted. Raises UserError."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        memory = json.loads((folder / "profile.json").read_text(encoding="utf-8"))["memory"]
        return title(config), {
            how: {part: int(memory[how].get(part, 0)) for part in MEMORY}
            for how in ("counted", "formula")
        }
    except FileNotFoundError as problem:
        raise UserError(f"{problem.filename} is missing: train with --profile") from problem
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise UserError(f"{folder}: not what --profile leaves ({problem!r})") from problem


def draw(runs: list[tuple[str, dict]], path: Path) -> None:
    """Draws two bars for each run, to one scale, into a PNG file: counted, and by the formula.

    runs: title of each, and bytes: {"counted": {part: bytes}, "formula": {part: bytes}}.
    """
    import matplotlib  # only here: training does without
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    size = 7, 0.9 + 0.6 * len(runs)  # inches
    most = max(sum(parts.values()) for _, memory in runs for parts in memory.values()) / 1e6
    with matplotlib.rc_context({"font.size": 8, "text.parse_math": False}):
        figure = Figure(size, dpi=300, layout="constrained")
        axes = figure.subplots()
        for place, (_, memory) in enumerate(runs):
            for y, how in ((place, "counted"), (place + 0.36, "formula")):
                left = 0.0
                for part, size in memory[how].items():
                    width = size / 1e6
                    axes.barh(
                        y,
                        width,
                        0.34,
                        left,
                        align="edge",
                        color=MEMORY[part],
                        edgecolor="black",
                        linewidth=0.2,
                    )
                    if width > 0.012 * most * len(text := f"{width:,.0f}"):
                        axes.text(
                            left + width / 2,
                            y + 0.17,
                            text,
                            fontsize=6,
                            ha="center",
                            va="center_baseline",
                        )
                    left += width
                axes.text(
                    left + 0.008 * most,
                    y + 0.17,
                    f"{how}: {left:,.0f} MB",
                    fontsize=6,
                    va="center_baseline",
                )
            axes.text(0, place - 0.05, runs[place][0], fontsize=7)
        axes.set(
            xlabel="memory of the largest process (MB)",
            xlim=(0, 1.18 * most),
            ylim=(len(runs) - 0.2, -0.3),
            yticks=[],
        )
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(
            handles=[
                Patch(
                    facecolor=colour,
                    edgecolor="black",
                    linewidth=0.3,
                    label=part.replace("_", " "),
                )
                for part, colour in MEMORY.items()
            ],
            loc="outside lower center",
            ncols=5,
            frameon=False,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="png")
