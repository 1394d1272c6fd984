"""Plots of what --profile recorded: a training step, and the memory that training takes."""

import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from support.common.errors import UserError
from support.common.figures import MEMORY, STEP, draw_legend, new_figure
from support.common.files import read_json
from support.profiling.spans import Span, read_spans

LABELS = {
    "batch": "next batch",
    "optimizer": "clipping, optimizer",
    "exposed": "waits for network",
    "waiting": "waits for others",
}
MAX_RANKS = 8  # drawn of each step
TITLE_FLAGS = {"tensor": 1, "accumulate": 1, "delay_ms": 0, "replicas": 1, "recompute": False}
PLOT_WIDTH = 5.9  # inches of the steps
CHARACTER = 0.05  # the width of a letter, in inches
MIN_TURNED = 0.08  # inches between labels that are turned by 90 degrees
MIN_UPRIGHT = 0.36  # inches between labels that are not
LANES = {"computing": (0, 0.5), "network": (0.5, 0.3)}  # top and height; a rank takes 1
BAR_HEIGHT = 0.34  # of memory; a run has two bars, and takes 1
BAR_DISTANCE = 0.36  # between the tops of a run's two bars
OUTLINE = {"edgecolor": "black", "linewidth": 0.2}
DIGIT = 0.012  # the width of a digit, as a share of the largest bar


@dataclass
class Recorded:
    """What --profile recorded of a run."""

    title: str  # its script, its processes, and the flags that matter here
    step: int
    spans: list[Span]  # of the step
    memory: dict[str, dict[str, int]]  # {"counted" or "formula": {part: bytes}}


def read_profile(folder: Path) -> Recorded:
    """Returns what --profile recorded in a folder, logs/RUN. Raises UserError."""
    try:
        config = read_json(folder / "config.json")
        step, spans = read_spans(folder / "step.csv")
        profile = read_json(folder / "profile.json")
        memory = {
            source: {part: int(profile["memory"][source].get(part, 0)) for part in MEMORY}
            for source in ("counted", "formula")
        }
        return Recorded(describe_run(config), step, spans, memory)
    except FileNotFoundError as error:
        raise UserError(f"{error.filename} is missing: train with --profile") from error
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise UserError(f"{folder}: not a step that --profile wrote ({error!r})") from error


def describe_run(config: dict) -> str:
    """Returns the title of a run. config: its config.json."""
    count = config["world_size"]
    processes = "1 process" if count == 1 else f"{count} processes"
    words = [f"train_{config['mode']}.py", processes]
    for name, default in TITLE_FLAGS.items():
        value = config["flags"].get(name, default)
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value != default:
            words.append(f"{option} {value:g}")
    return ", ".join(words)


def draw_profiles(runs: list[Recorded], folder: Path) -> None:
    """Draws step.png and memory.png of these runs."""
    draw_steps(runs, folder / "step.png")
    draw_memory(runs, folder / "memory.png")


# --- A step


def draw_steps(runs: list[Recorded], path: Path) -> None:
    """Draws steps one below the other on one time scale, each with at most 8 ranks."""
    steps = [[span for span in run.spans if span.rank < MAX_RANKS] for run in runs]
    durations = [1000 * max(span.start + span.seconds for span in spans) for spans in steps]
    ms_per_inch = max(durations) / PLOT_WIDTH
    collectives = [collectives_to_label(spans, ms_per_inch) for spans in steps]
    turned = [are_turned(labelled, ms_per_inch) for labelled in collectives]
    # A rank has height 1. The labels of the collectives are below the last rank.
    heights = [
        spans[-1].rank + (2.6 if is_turned else 1.5) for spans, is_turned in zip(steps, turned)
    ]
    with new_figure(path, 7, 0.75 + 0.5 * sum(heights) + 0.2 * len(runs)) as figure:
        grid = figure.subplots(len(runs), sharex=True, squeeze=False, height_ratios=heights)
        for i, axes in enumerate(grid[:, 0]):
            title = f"{runs[i].title}: step {runs[i].step}, {durations[i]:,.0f} ms"
            axes.set_title(title, loc="left", fontsize=8)
            draw_lanes(axes, steps[i])
            write_activities(axes, steps[i], ms_per_inch)
            write_collectives(axes, collectives[i], turned[i])
            axes.set_ylim(heights[i] - 0.2, -0.2)
        grid[-1, 0].set(xlabel="time (ms)", xlim=(0, max(durations)))
        drawn = {span.activity for spans in steps for span in spans}
        colors = {LABELS.get(name, name): STEP[name] for name in STEP if name in drawn}
        draw_legend(figure, colors)


def draw_lanes(axes, spans: list[Span]) -> None:
    """Draws what each rank computes, and below it what it sends."""
    bars = defaultdict(list)
    for span in spans:
        bar = (1000 * span.start, 1000 * span.seconds)
        bars[span.rank, span.lane, span.activity].append(bar)
    for (rank, lane, activity), starts_and_widths in bars.items():
        top, height = LANES[lane]
        color, hatch = STEP[activity]
        place = (rank + top, height)
        axes.broken_barh(starts_and_widths, place, facecolor=color, hatch=hatch, **OUTLINE)
    places = []
    labels = []
    for rank in range(spans[-1].rank + 1):
        for lane, (top, height) in LANES.items():
            places.append(rank + top + height / 2)
            labels.append(f"rank {rank}  {lane}" if lane == "computing" else lane)
    axes.set_yticks(places, labels)
    axes.tick_params(axis="y", length=0, labelsize=6)
    axes.spines["left"].set_visible(False)


def write_activities(axes, spans: list[Span], ms_per_inch: float) -> None:
    """Labels the activities in the computing lane, where there is room."""
    for span in spans:
        text = LABELS.get(span.activity, span.activity)
        has_room = CHARACTER * len(text) < 1000 * span.seconds / ms_per_inch
        if span.lane == "computing" and span.activity != "exposed" and has_room:
            y = span.rank + 0.25
            color = "white" if span.activity == "backward" else "black"
            axes.text(middle(span), y, text, fontsize=6, ha="center", va="center", color=color)


def write_collectives(axes, collectives: list[Span], turned: bool) -> None:
    """Labels the collectives below the lowest lane, since all ranks send the same."""
    for span in collectives:
        text = f"{span.bytes / 1e3:.1f} kB"
        if span.bytes >= 50_000:
            text = f"{span.bytes / 1e6:.1f} MB"
        if span.unit:
            separator = " " if turned else "\n"
            text = span.unit + separator + text
        y = span.rank + 0.87
        angle = 90 if turned else 0
        axes.text(middle(span), y, text, fontsize=5, ha="center", va="top", rotation=angle)


def collectives_to_label(spans: list[Span], ms_per_inch: float) -> list[Span]:
    """Returns the collectives to label: large ones of the last rank, where there is room."""
    last = spans[-1].rank
    in_lane = [span for span in spans if (span.rank, span.lane) == (last, "network")]
    collectives = [span for span in in_lane if span.activity != "waiting"]
    largest = max((span.bytes for span in collectives), default=0)
    labelled = []
    previous = -math.inf
    for span in collectives:
        place = middle(span) / ms_per_inch
        if span.bytes > 0.01 * largest and place - previous > MIN_TURNED:
            labelled.append(span)
            previous = place
    return labelled


def are_turned(labelled: list[Span], ms_per_inch: float) -> bool:
    """Returns whether labels have to be turned by 90 degrees in order not to overlap."""
    places = [middle(span) / ms_per_inch for span in labelled]
    return any(right - left < MIN_UPRIGHT for left, right in zip(places, places[1:]))


def middle(span: Span) -> float:
    """Returns the middle of a span, in milliseconds."""
    return 1000 * (span.start + span.seconds / 2)


# --- Memory


def draw_memory(runs: list[Recorded], path: Path) -> None:
    """Draws two bars for each run, counted and by the formula, all on one scale."""
    totals = [sum(parts.values()) / 1e6 for run in runs for parts in run.memory.values()]
    scale = max(totals)  # megabytes
    with new_figure(path, 7, 0.9 + 0.6 * len(runs)) as figure:
        axes = figure.subplots()
        for place, run in enumerate(runs):
            axes.text(0, place - 0.05, run.title, fontsize=7)
            draw_bar(axes, place, "counted", run.memory["counted"], scale)
            draw_bar(axes, place + BAR_DISTANCE, "formula", run.memory["formula"], scale)
        axes.set(xlabel="memory of the largest process (MB)", xlim=(0, 1.18 * scale))
        axes.set(ylim=(len(runs) - 0.2, -0.3), yticks=[])
        colors = {part.replace("_", " "): (color, "") for part, color in MEMORY.items()}
        draw_legend(figure, colors)


def draw_bar(axes, y: float, source: str, parts: dict[str, int], scale: float) -> None:
    """Draws the parts of a process's memory side by side, in MB. parts: in bytes."""
    center_y = y + BAR_HEIGHT / 2
    left = 0.0
    for part, size in parts.items():
        width = size / 1e6
        axes.barh(y, width, BAR_HEIGHT, left, align="edge", color=MEMORY[part], **OUTLINE)
        text = f"{width:,.0f}"
        if width > DIGIT * scale * len(text):
            center_x = left + width / 2
            axes.text(center_x, center_y, text, fontsize=6, ha="center", va="center_baseline")
        left += width
    text = f"{source}: {left:,.0f} MB"
    axes.text(left + 0.008 * scale, center_y, text, fontsize=6, va="center_baseline")
