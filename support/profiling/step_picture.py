"""A picture of a step of training: what each process does, and what goes over the network."""

import json
import math
from collections import defaultdict
from pathlib import Path

from support.common.errors import UserError
from support.common.palette import STEP
from support.profiling.spans import Span, read_step

WORDS = {
    "batch": "next batch",
    "optimizer": "clipping, optimizer",
    "exposed": "waits for exchange",
    "waiting": "waits for others",
}
LANES = {"computing": (0, 0.5), "network": (0.5, 0.3)}  # of a process's 1: where from, how high
MOST = 8  # processes that are drawn


def read(folder: Path) -> tuple[str, list[Span]]:
    """Title and spans of the step that --profile has left in logs/RUN. Raises UserError."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        step, spans = read_step(folder / "step.csv")
        return f"{title(config)}: step {step}", spans
    except FileNotFoundError as problem:
        raise UserError(f"{problem.filename} is missing: train with --profile") from problem
    except (ValueError, KeyError, TypeError, IndexError) as problem:
        raise UserError(
            f"{folder}: not a step that --profile has recorded ({problem!r})"
        ) from problem


def title(config: dict) -> str:
    """What a run is called in a picture: its page, its processes, and the flags that matter."""
    flags, n = config["flags"], config["world_size"]
    words = [f"train_{config['mode']}.py", f"{n} process{'es' * (n > 1)}"]
    for name, usual in (
        ("accumulate", 1),
        ("delay_ms", 0),
        ("replicas", 1),
        ("recompute", False),
    ):
        if (value := flags.get(name, usual)) != usual:
            words.append(f"--{name.replace('_', '-')}" + f" {value:g}" * (value is not True))
    return ", ".join(words)


def draw(steps: list[tuple[str, list[Span]]], path: Path) -> None:
    """Draws steps below each other, to one scale of time, into a PNG file.

    steps: title and spans of each; of many processes the first 8 are drawn.
    """
    import matplotlib  # only here: training does without
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    shown = [[span for span in spans if span.process < MOST] for _, spans in steps]
    ends = [1000 * max(span.start + span.seconds for span in spans) for spans in shown]
    inch = max(ends) / 5.9  # milliseconds that an inch shows
    used = {span.what for spans in shown for span in spans}
    heights = [
        max(span.process for span in spans)
        + (2.6 if upright(named(spans, inch), inch) else 1.5)
        for spans in shown
    ]
    size = 7, 0.75 + 0.5 * sum(heights) + 0.2 * len(steps)
    with matplotlib.rc_context(
        {"font.size": 8, "hatch.linewidth": 0.4, "text.parse_math": False}
    ):
        figure = Figure(size, dpi=300, layout="constrained")
        grid = figure.subplots(len(steps), sharex=True, squeeze=False, height_ratios=heights)
        for axes, (name, _), spans, end, height in zip(grid[:, 0], steps, shown, ends, heights):
            axes.set_title(f"{name}, {end:,.0f} ms", loc="left", fontsize=8)
            draw_lanes(axes, spans, inch)
            draw_names(axes, named(spans, inch), inch)
            axes.set_ylim(height - 0.2, -0.2)
        grid[-1, 0].set(xlabel="time (ms)", xlim=(0, max(ends)))
        figure.legend(
            handles=[
                Patch(
                    facecolor=colour,
                    hatch=hatch,
                    edgecolor="black",
                    linewidth=0.3,
                    label=WORDS.get(what, what),
                )
                for what, (colour, hatch) in STEP.items()
                if what in used
            ],
            loc="outside lower center",
            ncols=5,
            frameon=False,
            handlelength=2.5,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="png")


def draw_lanes(axes, spans: list[Span], inch: float) -> None:
    """Draws what each process computes, and below it what it exchanges."""
    bars = defaultdict(list)
    for span in spans:
        start, width = 1000 * span.start, 1000 * span.seconds
        bars[span.process, span.lane, span.what].append((start, width))
        text = WORDS.get(span.what, span.what)
        if (
            span.lane == "computing"
            and span.what != "exposed"
            and 0.05 * len(text) < width / inch
        ):
            axes.text(
                start + width / 2,
                span.process + 0.25,
                text,
                fontsize=6,
                ha="center",
                va="center",
                color="white" if span.what == "backward" else "black",
            )
    for (process, lane, what), places in bars.items():
        (colour, hatch), (top, height) = STEP[what], LANES[lane]
        axes.broken_barh(
            places,
            (process + top, height),
            facecolor=colour,
            hatch=hatch,
            edgecolor="black",
            linewidth=0.2,
        )
    rows = [
        (process, lane)
        for process in sorted({span.process for span in spans})
        for lane in LANES
    ]
    axes.set_yticks(
        [process + LANES[lane][0] + LANES[lane][1] / 2 for process, lane in rows],
        [
            f"process {process}  {lane}" if lane == "computing" else lane
            for process, lane in rows
        ],
    )
    axes.tick_params(axis="y", length=0, labelsize=6)
    axes.spines[["top", "right", "left"]].set_visible(False)


def draw_names(axes, names: list[Span], inch: float) -> None:
    """Writes under the lowest lane what is exchanged: it is the same in all processes."""
    standing = upright(names, inch)
    for span in names:
        text = (" " if standing else "\n").join(filter(None, (span.of, written(span.bytes))))
        axes.text(
            1000 * (span.start + span.seconds / 2),
            span.process + 0.87,
            text,
            fontsize=5,
            ha="center",
            va="top",
            rotation=90 * standing,
        )


def named(spans: list[Span], inch: float) -> list[Span]:
    """The exchanges that get a name: the large ones of the last process, where there is room."""
    last = [
        span
        for span in spans
        if span.lane == "network"
        and span.what != "waiting"
        and span.process == spans[-1].process
    ]
    largest = max((span.bytes for span in last), default=0)
    found, latest = [], -math.inf
    for span in last:
        place = 1000 * (span.start + span.seconds / 2) / inch
        if span.bytes > 0.01 * largest and place - latest > 0.08:
            found.append(span)
            latest = place
    return found


def upright(names: list[Span], inch: float) -> bool:
    """Whether names have to stand, as they would touch if they lay."""
    places = [1000 * (span.start + span.seconds / 2) / inch for span in names]
    return any(b - a < 0.36 for a, b in zip(places, places[1:]))


def written(size: int) -> str:
    """A number of bytes, as people write it."""
    return f"{size / 1e6:.1f} MB" if size >= 50_000 else f"{size / 1e3:.1f} kB"
