"""Draws runs: loss, figures, and what processes, batch size, learning rate, delay change.

    python plot.py logs/multi30k                 # one run: logs/multi30k/curves.png …
    python plot.py logs/a logs/b logs/c          # several: logs/curves.png, runs.csv …
    python plot.py --out FOLDER logs/runs.csv    # a study: a table with a row a run
    python plot.py --steps logs/a logs/b         # with --profile: step.png, memory.png

curves.png has the losses (of training: a running mean) and the task's figures over steps
and over time; of one classifier there is its confusion.png. Where runs differ in them:
scaling.png (processes), batch_size.png, learning_rate.png, delay.png; a line joins runs
alike in the others, a point is their median. All have the figures that are compared.
"""

import csv
import math
import sys
from pathlib import Path

try:
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, StrMethodFormatter
except ImportError:
    print("error: there is no matplotlib to draw with: pip install matplotlib", file=sys.stderr)
    sys.exit(2)

from support.classification.confusion_plot import draw_confusion
from support.common.errors import make_parser, refuse, run_main
from support.common.text_table import aligned
from support.profiling import memory_picture, step_picture
from support.studies.runs_table import (
    POSITIVE,
    Lines,
    all_translate,
    compare,
    curves,
    figures,
    measured,
    read_run,
    read_study,
    speed,
    write_study,
)

# The x of each comparison, then the y of its panels. "valid_*": the loss and the task's figures;
# "speed": in tokens if all runs translate or one has not ended, else in examples.
PICTURES = {
    "scaling.png": ("processes", "speed", "epoch_seconds", "speed_up", "efficiency"),
    "batch_size.png": ("batch_tokens", "valid_*", "speed"),
    "learning_rate.png": ("lr", "train_loss", "valid_*"),
    "delay.png": ("delay_ms", "speed", "epoch_seconds"),
}
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
STYLE = {
    "font.size": 8,
    "legend.fontsize": 7,
    "lines.linewidth": 1,
    "lines.markersize": 3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "0.9",
    "text.parse_math": False,
}

Panel = tuple[str, str, Lines]  # x, y, the lines


def pictures(runs: list[dict]) -> dict[str, list[Panel]]:
    """What there is to draw of the runs: the panels of each picture, by its file's name."""
    logged = [run for run in runs if "curve" in run]
    own = figures(runs, "valid")
    ys = (["loss"] if len(logged) == 1 else ["train_loss", "valid_loss"]) + own
    found = {
        "curves.png": [(x, y, curves(logged, x, y)) for y in ys for x in ("step", "minutes")]
    }
    for file, (x, *names) in PICTURES.items():
        ys = []
        for name in names:
            if name == "epoch_seconds" and len(measured(runs, name)) < len(runs):
                continue  # its lines would not be the others'
            ys += {"valid_*": ["valid_loss", *own], "speed": [speed(runs)]}.get(name, [name])
        found[file] = [(x, y, compare(runs, x, y)) for y in ys]
    found = {file: [panel for panel in panels if panel[2]] for file, panels in found.items()}
    return {file: panels for file, panels in found.items() if panels}


def written(column: str) -> str:
    """A figure's name as people write it: BLEU for valid_bleu, accuracy for test_accuracy."""
    name = column.partition("_")[2].replace("_", " ")
    return name.upper() if len(name) < 5 else name


def draw_lines(axes, lines: Lines, labels: list[str]) -> None:
    """Draws the lines, each in the style that its place among all labels of the picture gives."""
    for i, label in enumerate(labels):
        points = lines.get(label, {})
        every = max(1, len(points) // (10 if len(labels) < 10 else 4))
        style = {
            "color": matplotlib.colormaps["cividis"](0.75 * i / max(1, len(labels) - 1)),
            "linestyle": DASHES[i % 4],
            "marker": MARKERS[i % 9],
            "markevery": (i % every, every),
        }
        if label.startswith("ideal, from"):
            style = {"color": "0.6", "zorder": 1}
        axes.plot(points.keys(), points.values(), **style)


def set_scales(axes, x: str, y: str, lines: Lines, loss_unit: str) -> None:
    """Sets labels, scales and ticks of the axes, logarithmic for what is always above 0."""
    log_x = x in POSITIVE
    log_y = y in POSITIVE and (y not in FROM_0 or x == "processes")
    y_label = AXES.get(y) or f"{written(y)} (validation)"
    axes.set(
        xlabel=AXES[x],
        ylabel=f"{y_label} ({loss_unit})" if y.endswith("loss") else y_label,
        xscale="log" if log_x else "linear",
        yscale="log" if log_y else "linear",
    )
    if y in FROM_0 | {"efficiency"} and not log_y:
        axes.set_ylim(0, 1.08 * max(max(points.values()) for points in lines.values()))
    tried = sorted({value for points in lines.values() for value in points})
    few = {"nbins": 5, "steps": (1, 2, 5, 10)}
    axes.xaxis.set_major_locator(
        FixedLocator(tried, nbins=5) if log_x else MaxNLocator(**few, integer=x == "step")
    )
    low, high = axes.get_ylim()  # marks: of a decade
    marks = (
        (1, 1.5, 2, 3, 4, 5, 7) if high < 20 * low else (1, 2, 5) if high < 200 * low else (1,)
    )
    axes.yaxis.set_major_locator(LogLocator(subs=marks) if log_y else MaxNLocator(**few))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    axes.minorticks_off()


def draw(panels: list[Panel], path: Path, loss_unit: str) -> None:
    """Writes a picture of the panels, with one legend under all of them."""
    labels = list(dict.fromkeys(label for _, _, lines in panels for label in lines))
    curved = len({x for x, _, _ in panels}) == 2  # over steps, and beside it over time
    columns = 2 if curved else max(n for n in (1, 2, 3) if len(panels) % n == 0)
    width = min(7, 3.5 * columns)  # inches: of a page's text, or half of it
    beside = max(1, min(len(labels), int(width / (0.6 + 0.055 * max(map(len, labels))))))
    rows = len(panels) // columns  # beside: entries of the legend
    height = 2.1 * rows + 0.15 * math.ceil(len(labels) / beside)
    matplotlib.rcParams.update(STYLE)
    figure = Figure((width, height), dpi=300, layout="constrained")
    grid = figure.subplots(rows, columns, sharex="col" if curved else "none", squeeze=False)
    for axes, (x, y, lines) in zip(grid.flat, panels):
        draw_lines(axes, lines, labels)
        set_scales(axes, x, y, lines, loss_unit)
        if curved:
            axes.label_outer()
    names = [label if len(label) < 60 else f"{label[:28]}…{label[-28:]}" for label in labels]
    figure.legend(
        grid[0, 0].lines,
        names,
        loc="outside lower center",
        ncols=beside,
        frameon=False,
        handlelength=3,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    print(f"{path}: {width * 300:.0f} x {height * 300:.0f} pixels")


def show_table(runs: list[dict]) -> None:
    """Prints settings, speed and figures of the runs."""
    fast = speed(runs)
    columns = [
        ("processes", "processes", "g"),
        ("batch size", "batch_tokens", ",.0f"),
        ("lr", "lr", "g"),
        ("epoch (s)", "epoch_seconds", ",.1f"),
        (AXES[fast], fast, ",.0f" if fast == "tokens_per_second" else ",.1f"),
    ]
    columns += [
        (f"{title} {written(name)}", name, ".1f" if name.endswith("bleu") else ".4f")
        for part, title in (("valid", "best valid"), ("test", "test"))
        for name in figures(runs, part)
    ]
    rows = [["run", *(title for title, _, _ in columns)]]
    for run in runs:
        rows.append(
            [
                run["run"],
                *(
                    "-" if math.isnan(run[name]) else format(run[name], form)
                    for _, name, form in columns
                ),
            ]
        )
    print("", *aligned(rows), sep="\n")


def main() -> None:
    parser = make_parser(__doc__, "SOURCE ...")
    parser.add_argument(
        "source",
        nargs="+",
        type=Path,
        metavar="SOURCE",
        help="folder of a run, or table (.csv) of a study",
    )
    parser.add_argument(
        "--out", type=Path, help="folder for pictures (default: a single run's own, else logs)"
    )
    parser.add_argument(
        "--steps", action="store_true", help="draw a step of each run, and memory"
    )
    args, runs = parser.parse_args(), []
    if args.steps:
        out = args.out or (args.source[0] if len(args.source) == 1 else Path("logs"))
        step_picture.draw([step_picture.read(run) for run in args.source], out / "step.png")
        memory_picture.draw(
            [memory_picture.read(run) for run in args.source], out / "memory.png"
        )
        return print(f"{out}: step.png, memory.png")
    for path in dict.fromkeys(args.source):
        try:
            if path.is_file():
                runs += read_study(path) or refuse(f"{path}: no rows")
            elif (path / "runs.csv").is_file() and not (path / "config.json").is_file():
                refuse(f"{path}: a study, whose table is {path / 'runs.csv'}")
            else:
                runs.append(read_run(path, [run["run"] for run in runs]))
        except (ValueError, TypeError, KeyError, csv.Error) as problem:
            refuse(f"{path}: not a run or a study, or cut short ({problem})")
    logged = [run for run in runs if "curve" in run]
    out = args.out or (args.source[0] if logged and len(runs) == 1 else Path("logs"))
    found = pictures(runs)
    if not found:
        refuse(f"{args.source[0]}: no two runs differ in processes, batch size, lr or delay")
    # Only a translator's loss is known to be a mean over tokens.
    loss_unit = "nats/token" if all_translate(runs) else "nats"
    for name, panels in found.items():
        draw(panels, out / name, loss_unit)
    if len(runs) == 1 and "confusion" in runs[0]:
        draw_confusion(runs[0]["confusion"], runs[0]["classes"], out / "confusion.png")
    if logged and len(runs) > 1:
        write_study(runs, out / "runs.csv")
        print(f"\n{out / 'runs.csv'}: {len(runs)} runs")
    show_table(runs)


if __name__ == "__main__":
    run_main(main)
