"""A plot of a training step: what each process does, and what goes over the network."""

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from support.common.errors import UserError
from support.common.figures import load_matplotlib, save
from support.common.palette import STEP
from support.profiling.spans import Span, read_spans

LABELS = {
    "batch": "next batch",
    "optimizer": "clipping, optimizer",
    "exposed": "waits for exchange",
    "waiting": "waits for others",
}
MAX_PROCESSES = 8  # that are drawn
FLAGS_IN_TITLE = {"accumulate": 1, "delay_ms": 0, "replicas": 1, "recompute": False}
# In inches:
PLOT_WIDTH = 5.9
CHARACTER = 0.05  # the width of a letter
MIN_TURNED = 0.08  # between labels that are turned by 90 degrees
MIN_UPRIGHT = 0.36  # between labels that are not


class Lane(NamedTuple):
    """Where a lane is; a process takes 1 from its top."""

    top: float
    height: float


LANES = {"computing": Lane(0, 0.5), "network": Lane(0.5, 0.3)}


def read_step(folder: Path) -> tuple[str, list[Span]]:
    """Returns the title and the spans of the step that --profile left in logs/RUN.

    Raises UserError.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        step, spans = read_spans(folder / "step.csv")
        return f"{describe_run(config)}: step {step}", spans
    except FileNotFoundError as error:
        raise UserError(f"{error.filename} is missing: train with --profile") from error
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UserError(f"{folder}: not a step that --profile wrote ({error!r})") from error


def describe_run(config: dict) -> str:
    """Returns the title of a run: its script, its processes, and the flags that matter here."""
    count = config["world_size"]
    processes = "1 process" if count == 1 else f"{count} processes"
    words = [f"train_{config['mode']}.py", processes]
    for name, default in FLAGS_IN_TITLE.items():
        value = config["flags"].get(name, default)
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value != default:
            words.append(f"{option} {value:g}")
    return ", ".join(words)


def draw_steps(steps: list[tuple[str, list[Span]]], path: Path) -> None:
    """Draws steps below each other, all to one scale of time, into a PNG file.

    steps: the title and the spans of each. Of many processes the first 8 are drawn.
    """
    matplotlib = load_matplotlib("--profile")
    from matplotlib.figure import Figure

    drawn = [
        (title, [span for span in spans if span.process < MAX_PROCESSES])
        for title, spans in steps
    ]
    durations = [1000 * max(span.start + span.seconds for span in spans) for _, spans in drawn]
    inch = max(durations) / PLOT_WIDTH  # in milliseconds
    heights = [height_of(spans, inch) for _, spans in drawn]
    inches = (7, 0.75 + 0.5 * sum(heights) + 0.2 * len(drawn))
    style: dict[Any, Any] = {"font.size": 8, "hatch.linewidth": 0.4, "text.parse_math": False}
    with matplotlib.rc_context(style):
        figure = Figure(inches, dpi=300, layout="constrained")
        grid = figure.subplots(len(drawn), sharex=True, squeeze=False, height_ratios=heights)
        for axes, (title, spans), duration, height in zip(
            grid[:, 0], drawn, durations, heights
        ):
            axes.set_title(f"{title}, {duration:,.0f} ms", loc="left", fontsize=8)
            draw_lanes(axes, spans)
            write_activities(axes, spans, inch)
            label_exchanges(axes, spans, inch)
            axes.set_ylim(height - 0.2, -0.2)
        grid[-1, 0].set(xlabel="time (ms)", xlim=(0, max(durations)))
        draw_legend(figure, {span.activity for _, spans in drawn for span in spans})
        path.parent.mkdir(parents=True, exist_ok=True)
        save(figure, path)


def height_of(spans: list[Span], inch: float) -> float:
    """Returns the height of a step, in processes, with the labels of its exchanges."""
    last_process = max(span.process for span in spans)
    room_for_labels = 2.6 if are_turned(labelled_exchanges(spans, inch), inch) else 1.5
    return last_process + room_for_labels


def draw_lanes(axes, spans: list[Span]) -> None:
    """Draws what each process computes, and below it what it exchanges."""
    bars = defaultdict(list)
    for span in spans:
        bar = (1000 * span.start, 1000 * span.seconds)
        bars[span.process, span.lane, span.activity].append(bar)
    for (process, name, activity), starts_and_widths in bars.items():
        color, hatch = STEP[activity]
        lane = LANES[name]
        axes.broken_barh(
            starts_and_widths,
            (process + lane.top, lane.height),
            facecolor=color,
            hatch=hatch,
            edgecolor="black",
            linewidth=0.2,
        )
    places = []
    labels = []
    for process in sorted({span.process for span in spans}):
        for name, lane in LANES.items():
            places.append(process + lane.top + lane.height / 2)
            label = f"process {process}  {name}" if name == "computing" else name
            labels.append(label)
    axes.set_yticks(places, labels)
    axes.tick_params(axis="y", length=0, labelsize=6)
    axes.spines[["top", "right", "left"]].set_visible(False)


def write_activities(axes, spans: list[Span], inch: float) -> None:
    """Writes into the computing lane what a process does, where there is room."""
    for span in spans:
        text = LABELS.get(span.activity, span.activity)
        has_room = CHARACTER * len(text) < 1000 * span.seconds / inch
        if span.lane == "computing" and span.activity != "exposed" and has_room:
            axes.text(
                middle(span),
                span.process + 0.25,
                text,
                fontsize=6,
                ha="center",
                va="center",
                color="white" if span.activity == "backward" else "black",
            )


def label_exchanges(axes, spans: list[Span], inch: float) -> None:
    """Labels what is exchanged below the lowest lane, since it is the same in all processes."""
    labelled = labelled_exchanges(spans, inch)
    turned = are_turned(labelled, inch)
    for span in labelled:
        text = format_bytes(span.bytes)
        if span.unit:
            separator = " " if turned else "\n"
            text = span.unit + separator + text
        axes.text(
            middle(span),
            span.process + 0.87,
            text,
            fontsize=5,
            ha="center",
            va="top",
            rotation=90 if turned else 0,
        )


def labelled_exchanges(spans: list[Span], inch: float) -> list[Span]:
    """Returns the exchanges to label: large ones of the last process, where there is room."""
    exchanges = [
        span
        for span in spans
        if span.lane == "network"
        and span.activity != "waiting"
        and span.process == spans[-1].process
    ]
    largest = max((span.bytes for span in exchanges), default=0)
    labelled = []
    previous = -math.inf
    for span in exchanges:
        place = middle(span) / inch
        if span.bytes > 0.01 * largest and place - previous > MIN_TURNED:
            labelled.append(span)
            previous = place
    return labelled


def are_turned(labelled: list[Span], inch: float) -> bool:
    """Returns whether labels have to be turned by 90 degrees in order not to overlap."""
    places = [middle(span) / inch for span in labelled]
    return any(right - left < MIN_UPRIGHT for left, right in zip(places, places[1:]))


def middle(span: Span) -> float:
    """Returns the middle of a span, in milliseconds."""
    return 1000 * (span.start + span.seconds / 2)


def draw_legend(figure, activities: set[str]) -> None:
    """Draws the legend of these activities, in the order of the palette."""
    from matplotlib.patches import Patch

    handles = [
        Patch(
            facecolor=color,
            hatch=hatch,
            edgecolor="black",
            linewidth=0.3,
            label=LABELS.get(activity, activity),
        )
        for activity, (color, hatch) in STEP.items()
        if activity in activities
    ]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=5,
        frameon=False,
        handlelength=2.5,
    )


def format_bytes(size: int) -> str:
    """Returns a number of bytes in kB, or in MB from 0.05 MB on."""
    return f"{size / 1e6:.1f} MB" if size >= 50_000 else f"{size / 1e3:.1f} kB"
