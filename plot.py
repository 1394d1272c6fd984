"""Plots runs: losses and metrics, and the effect of processes, batch size, lr and delay.

    python plot.py logs/multi30k                 # one run: logs/multi30k/curves.png …
    python plot.py logs/a logs/b logs/c          # several: logs/curves.png, runs.csv …
    python plot.py --out FOLDER logs/runs.csv    # a study: a table with a row per run
    python plot.py --steps logs/a logs/b         # with --profile: step.png, memory.png

curves.png shows the losses (the training loss as a running mean) and the task's metrics
over steps and over time. A single run of a classifier also gets a confusion.png. Runs
that differ in the number of processes are compared in scaling.png, in the batch size in
batch_size.png, in the learning rate in learning_rate.png, and in the delay in delay.png.
There a line joins runs that differ in no other setting but length, --warmup, --tensor and
seed or, if there are none, runs of one script, study and --accumulate; a point is the
median of equal runs.
"""

import csv
import math
import sys
from pathlib import Path
from typing import Any

from support.common.errors import UserError, exit_on_user_error, make_parser, run_main
from support.common.text_table import aligned

with exit_on_user_error():  # where matplotlib is not installed
    from support.common.figures import LEGEND_PLACE, new_figure, size_of

import matplotlib
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator

from support.classification.confusion_plot import draw_confusion
from support.profiling.profile_plots import draw_profiles, read_profile
from support.studies import runs_table
from support.studies.runs_table import IDEAL, POSITIVE, Lines, Row, metric_columns
from support.training.settings import ALL_FLAGS

AXES = {
    "step": "steps",
    "minutes": "time (minutes)",
    "processes": "processes",
    "batch_tokens": "batch size",
    "lr": "peak learning rate",
    "delay_ms": "delay (ms)",
    "tokens_per_second": "tokens/s",
    "samples_per_second": "examples/s",
    "epoch_seconds": "an epoch (seconds)",
    "speed_up": "speed-up",
    "efficiency": "efficiency (%)",
    "loss": "loss",
    "train_loss": "training loss",
    "valid_loss": "validation loss",
}
FROM_0 = {"tokens_per_second", "samples_per_second", "epoch_seconds"}  # but not over processes
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)))
MARKERS = "os^Dv<>PX"  # with the dashes: 36 different pairs

DEFAULTS = {name: field.default for name, field in ALL_FLAGS.items()}

Panel = tuple[str, str, Lines]  # x, y, the lines


# --- What to draw


def find_figures(runs: list[Row], curves: dict[str, list[Row]]) -> dict[str, list[Panel]]:
    """Returns the panels of each figure that the runs allow, by the name of its file.

    curves: of the runs that have one, by the runs' names.
    """
    metrics = metric_columns(runs, "valid")
    losses = ["loss"] if len(curves) == 1 else ["train_loss", "valid_loss"]
    speed = runs_table.speed_column(runs)
    speeds = [speed]
    # With fewer, this panel would show other runs than the panel beside it.
    if len(runs_table.measured(runs, "epoch_seconds")) == len(runs):
        speeds.append("epoch_seconds")
    figures = {
        "curves.png": [
            (x, y, runs_table.curve_lines(curves, x, y))
            for y in [*losses, *metrics]
            for x in ("step", "minutes")
        ]
    }
    # The x of each comparison, and the y of its panels.
    comparisons = {
        "scaling.png": ("processes", [*speeds, "speed_up", "efficiency"]),
        "batch_size.png": ("batch_tokens", ["valid_loss", *metrics, speed]),
        "learning_rate.png": ("lr", ["train_loss", "valid_loss", *metrics]),
        "delay.png": ("delay_ms", speeds),
    }
    sizes_and_rates = {(run["batch_tokens"], run["lr"]) for run in runs}
    sizes = {size for size, _ in sizes_and_rates}
    if 1 < len(sizes) == len(sizes_and_rates):  # each size has its rate: the same figure
        del comparisons["learning_rate.png"]
    for file, (x, ys) in comparisons.items():
        figures[file] = [(x, y, runs_table.compare(runs, x, y)) for y in ys]
    drawn = {
        file: [(x, y, lines) for x, y, lines in panels if lines]
        for file, panels in figures.items()
    }
    return {file: panels for file, panels in drawn.items() if panels}


def metric_name(column: str) -> str:
    """Returns the name to show of a metric: BLEU for valid_bleu, accuracy for test_accuracy."""
    name = column.partition("_")[2].replace("_", " ")
    if name == "chrf":
        return "chrF"
    return name.upper() if len(name) < 5 else name


# --- Drawing


def draw_lines(axes: Axes, lines: Lines, labels: list[str]) -> None:
    """Draws lines, each in the style that belongs to its label's place among all `labels`."""
    for i, label in enumerate(labels):
        # A line without points is plotted, too: the legend has the lines of the first panel.
        points = lines.get(label, {})
        markers_per_line = 10 if len(labels) < 10 else 4
        every = max(1, len(points) // markers_per_line)
        style: dict[str, Any] = {
            "color": matplotlib.colormaps["cividis"](0.75 * i / max(1, len(labels) - 1)),
            "linestyle": DASHES[i % len(DASHES)],
            "marker": MARKERS[i % len(MARKERS)],
            "markevery": (i % every, every),
        }
        if label.startswith(IDEAL):
            style = {"color": "0.6", "zorder": 1}
        axes.plot(list(points), list(points.values()), **style)


def set_scales(
    axes: Axes, x: str, y: str, lines: Lines, loss_unit: str, batch_unit: str = ""
) -> None:
    """Sets the labels, scales and ticks of the axes.

    Quantities in POSITIVE are logarithmic, but those in FROM_0 only over processes.
    """
    log_x = x in POSITIVE
    log_y = y in POSITIVE and (y not in FROM_0 or x == "processes")
    y_label = AXES.get(y) or f"{metric_name(y)} (validation)"
    if y not in AXES and x not in ("step", "minutes"):
        y_label = f"best {y_label}"
    if y.endswith("loss"):
        y_label += f" ({loss_unit})"
    x_label = AXES[x]
    if x == "batch_tokens" and batch_unit:
        x_label += f" ({batch_unit})"
    axes.set(xlabel=x_label, ylabel=y_label)
    if y in FROM_0 | {"efficiency"} and not log_y:
        axes.set_ylim(0, 1.08 * max(max(points.values()) for points in lines.values()))
    axes.locator_params(nbins=5, steps=(1, 2, 5, 10))  # round numbers
    if log_x:
        axes.set_xscale("log")
        values = sorted({value for points in lines.values() for value in points})
        axes.xaxis.set_major_locator(FixedLocator(values, nbins=5))
    elif x == "step":
        axes.locator_params(axis="x", integer=True)
    if log_y:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        axes.locator_params(axis="y", subs=ticks_for(high / low))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.10g}")
    axes.minorticks_off()
    axes.grid(True)


def ticks_for(ratio: float) -> tuple[float, ...]:
    """Returns the ticks in each decade of a logarithmic axis whose ends have this ratio."""
    if ratio < 20:
        return (1, 1.5, 2, 3, 4, 5, 7)
    if ratio < 200:
        return (1, 2, 5)
    return (1,)


def draw_figure(panels: list[Panel], path: Path, loss_unit: str, batch_unit: str) -> None:
    """Draws panels into a PNG file, with one legend below all of them."""
    labels = list(dict.fromkeys(label for _, _, lines in panels for label in lines))
    over_both = len({x for x, _, _ in panels}) == 2  # over steps, and beside it over time
    columns = 2
    if not over_both:
        columns = max(n for n in (1, 2, 3) if len(panels) % n == 0)
    rows = len(panels) // columns
    width = min(7, 3.5 * columns)  # inches
    legend_entry = 0.6 + 0.055 * max(map(len, labels))
    legend_columns = max(1, min(len(labels), int(width / legend_entry)))
    height = 2.1 * rows + 0.15 * math.ceil(len(labels) / legend_columns)
    with new_figure(path, width, height) as figure:
        share = "col" if over_both else "none"
        grid = figure.subplots(rows, columns, sharex=share, squeeze=False)
        for axes, (x, y, lines) in zip(grid.flat, panels):
            draw_lines(axes, lines, labels)
            set_scales(axes, x, y, lines, loss_unit, batch_unit)
            if over_both:
                axes.label_outer()
        handles = grid[0, 0].lines
        names = [
            label if len(label) < 60 else f"{label[:28]}…{label[-28:]}" for label in labels
        ]
        style = {"loc": LEGEND_PLACE, "fontsize": 7, "handlelength": 3}
        figure.legend(handles, names, ncols=legend_columns, **style)
    print(f"{path}: {size_of(figure)}")


# --- The table in the terminal


def is_shown(test: str, valid_metrics: list[str]) -> bool:
    """Returns whether the table has a metric of the test set. runs.csv has all of them."""
    return test == "test_chrf" or test.replace("test", "valid", 1) in valid_metrics


def show_table(runs: list[Row]) -> None:
    """Prints settings, speed and metrics of the runs."""
    speed = runs_table.speed_column(runs)
    speed_digits = ",.0f" if speed == "tokens_per_second" else ",.1f"
    columns = [
        ("processes", "processes", "g"),
        ("batch size", "batch_tokens", ",.0f"),
        ("lr", "lr", "g"),
    ]
    for title, name in (("accumulate", "accumulate"), ("delay (ms)", "delay_ms")):
        if len({run[name] for run in runs}) > 1:
            columns.append((title, name, "g"))
    columns += [("epoch (s)", "epoch_seconds", ",.1f"), (AXES[speed], speed, speed_digits)]
    metrics = metric_columns(runs, "valid")
    tested = [name for name in metric_columns(runs, "test") if is_shown(name, metrics)]
    for title, names in (("best valid", metrics), ("test", tested)):
        for name in names:
            digits = ".1f" if name.endswith(("bleu", "chrf")) else ".4f"
            columns.append((f"{title} {metric_name(name)}", name, digits))
    rows = [["run", *(title for title, _, _ in columns)]]
    for run in runs:
        cells = [f"{run[name]:{digits}}" for _, name, digits in columns]
        rows.append([run["run"], *("-" if cell == "nan" else cell for cell in cells)])
    print("", *aligned(rows), sep="\n")


# --- The script


def read_sources(sources: list[Path]) -> tuple[list[Row], dict[str, list[Row]], dict]:
    """Returns the table of all runs, the curves of those in folders, and a summary of one.

    Raises UserError.
    """
    runs: list[Row] = []
    curves: dict[str, list[Row]] = {}
    summary: dict = {}
    for path in dict.fromkeys(sources):
        table = path / "runs.csv"
        if table.is_file() and not (path / "config.json").is_file():
            raise UserError(f"{path} is the folder of a study: pass its table, {table}")
        try:
            if path.is_file():
                runs += runs_table.read_study(path)
                continue
            names = [known["run"] for known in runs]
            run, curve, summary = runs_table.read_run(path, names, DEFAULTS)
        except runs_table.NothingLoggedError as problem:
            if len(sources) == 1:
                raise UserError(f"{path}: {problem}") from problem
            print(f"warning: {path} is left out: {problem}", file=sys.stderr)
            continue
        except (ValueError, TypeError, KeyError, AttributeError, csv.Error) as error:
            raise UserError(f"{path}: not a run or a study, or cut short ({error})") from error
        runs.append(run)
        curves[run["run"]] = curve
    if not runs:
        raise UserError("none of the runs has logged a loss")
    return runs, curves, summary


def main() -> None:
    parser = make_parser(__doc__, "SOURCE ...")
    add = parser.add_argument
    add("source", nargs="+", type=Path, metavar="SOURCE", help="a run's folder, a study's .csv")
    add("--out", type=Path, help="folder for figures (default: a single run's own, else logs)")
    add("--steps", action="store_true", help="plot a step and the memory of each run")
    args = parser.parse_args()
    alone = len(args.source) == 1 and args.source[0].is_dir()
    out = args.out or (args.source[0] if alone else Path("logs"))
    if args.steps:
        draw_profiles([read_profile(folder) for folder in args.source], out)
        print(f"{out}: step.png, memory.png")
        return
    runs, curves, summary = read_sources(args.source)
    figures = find_figures(runs, curves)
    if not figures:
        raise UserError(
            f"{args.source[0]}: no two runs differ in processes, batch size, lr or delay"
        )
    # Only a translator's loss is known to be a mean over tokens.
    loss_unit = "nats/token" if runs_table.all_translate(runs) else "nats"
    for name, panels in figures.items():
        draw_figure(panels, out / name, loss_unit, runs_table.batch_unit(runs))
    if len(runs) == 1 and "confusion" in summary:
        draw_confusion(summary["confusion"], summary["classes"], out / "confusion.png")
    if curves and len(runs) > 1:
        runs_table.write_study(runs, out / "runs.csv")
        print(f"\n{out / 'runs.csv'}: {len(runs)} runs")
    show_table(runs)


if __name__ == "__main__":
    run_main(main)
