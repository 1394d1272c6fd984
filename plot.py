"""Draws runs: losses, BLEU, and what processes, batch size, learning rate, delay do.

    python plot.py logs/multi30k                 # one run: logs/multi30k/curves.png
    python plot.py logs/a logs/b logs/c          # several: logs/curves.png, runs.csv …
    python plot.py --out FOLDER logs/runs.csv    # a study: a table with a row a run

curves.png has losses (of training: a running mean) and BLEU, over steps and over time.
Where runs differ in them: scaling.png (processes), batch_size.png, learning_rate.png,
delay.png; a line joins runs that are alike in all else, a point is their median.
"""

import argparse
import csv
import json
import math
import sys
from pathlib import Path
from statistics import mean, median

try:
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, StrMethodFormatter
except ImportError:
    print("error: there is no matplotlib to draw with: pip install matplotlib", file=sys.stderr)
    sys.exit(2)

# A run is a dict with the columns of a study; one read from a folder also has its metrics.csv, as "curve".
CURVE = ("step", "seconds", "tokens_per_second", "train_loss", "valid_loss", "valid_bleu")
STUDY = ("processes", "batch_tokens", "accumulate", "lr", "delay_ms", "test_bleu", *CURVE[2:])
SETTINGS = {"mode": "{}", "study": "{}", "processes": "{:g} processes", "batch_tokens": "{:,g} tokens a step",
            "accumulate": "accumulate {:g}", "lr": "learning rate {:g}", "delay_ms": "delay {:g} ms"}
PICTURES = {"scaling.png": ("processes", "tokens_per_second", "speed_up", "efficiency"),
            "batch_size.png": ("batch_tokens", "valid_loss", "valid_bleu", "tokens_per_second"),
            "learning_rate.png": ("lr", "train_loss", "valid_loss", "valid_bleu"),
            "delay.png": ("delay_ms", "tokens_per_second")}
AXES = {"step": "steps", "minutes": "time (minutes)", "processes": "processes", "batch_tokens": "batch size (tokens)",
        "lr": "peak learning rate", "delay_ms": "delay (ms)", "tokens_per_second": "tokens/s", "speed_up": "speed-up",
        "efficiency": "efficiency (%)", "valid_bleu": "BLEU (validation)", "loss": "loss (nats/token)",
        "train_loss": "training loss (nats/token)", "valid_loss": "validation loss (nats/token)"}
POSITIVE = {"processes", "batch_tokens", "lr", "speed_up", "tokens_per_second", "loss", "train_loss", "valid_loss"}
DASHES, MARKERS = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5))), "os^Dv<>PX"     # 36 different pairs


def fail(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def number(value) -> float:
    """What was measured, NaN for what was not. Raises ValueError and TypeError for what is no number."""
    return math.nan if value in ("", None) else float(value)


def measured(rows: list[dict], name: str) -> list[dict]:
    """The rows with a finite value under this name, above 0 where it is a quantity that always is."""
    return [row for row in rows if math.isfinite(row[name]) and (row[name] > 0 or name not in POSITIVE)]


def read_table(path: Path, names: tuple, texts: tuple = ()) -> list[dict]:
    """The rows of a CSV but a last that is half-written, `names` as numbers. Raises OSError and ValueError."""
    table = csv.DictReader(line for line in path.read_text(encoding="utf-8").splitlines(True) if line.endswith("\n"))
    if missing := [name for name in (*texts, *names) if name not in (table.fieldnames or ())]:
        raise ValueError(f"{path.name} has no column {missing[0]}")
    return [row | {name: number(row[name]) for name in names} for row in table if None not in (*row, *row.values())]


def read_run(folder: Path, others: list[dict]) -> dict:
    """A run, under a name that none of the others has. Raises OSError, ValueError, TypeError and KeyError."""
    config = dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    flags, summary, name = dict(config["flags"]), folder / "summary.json", folder.resolve().name
    summary = dict(json.loads(summary.read_text(encoding="utf-8"))) if summary.is_file() else {}
    curve = measured(measured(read_table(folder / "metrics.csv", CURVE), "step"), "seconds")
    found = {name: [row[name] for row in measured(curve, name)] for name in CURVE}
    if not found["train_loss"] + found["valid_loss"]:
        raise ValueError("metrics.csv has no row with a loss")
    for i, row in enumerate(measured(curve, "train_loss")):
        reach = min(len(curve) // 40, i)                   # at its start, where it is steep, the mean is over less
        row["train_loss"] = mean(found["train_loss"][i - reach : i + reach + 1])
    return {name: number(flags.get(name)) for name in ("batch_tokens", "accumulate", "lr")} | {
        "run": str(folder) if any(run["run"] == name for run in others) else name, "mode": str(config.get("mode", "")),
        "study": f"{Path(str(flags.get('data'))).name}, {number(config.get('parameters')) / 1e6:.1f}M parameters",
        "processes": number(config.get("world_size")), "delay_ms": number(flags.get("delay_ms", 0)),
        "curve": [row | {"minutes": row["seconds"] / 60} for row in curve],
        "tokens_per_second": median(found["tokens_per_second"] or [math.nan]),
        "train_loss": curve[-1]["train_loss"], "valid_loss": min(found["valid_loss"], default=math.nan),
        "valid_bleu": max([*found["valid_bleu"], number(summary.get("valid_bleu"))]),      # a NaN at the end loses
        "test_bleu": number(summary.get("test_bleu"))}


def alike(runs: list[dict], x: str, settings: tuple) -> dict[str, list[dict]]:
    """Runs that differ in x but not in the other settings, by their label: what sets them apart from other such."""
    groups, settings = {}, [name for name in settings if name != x]
    for run in sorted(measured(runs, x), key=lambda run: [run[name] for name in settings]):
        groups.setdefault(tuple(SETTINGS[name].format(run[name]) for name in settings), []).append(run)
    groups = {key: group for key, group in groups.items() if len({run[x] for run in group}) > 1}
    apart = [i for i in range(len(settings)) if len({key[i] for key in groups}) > 1]
    return {", ".join(key[i] for i in apart if key[i]) or key[0] or "measured": group for key, group in groups.items()}


def scaling(speeds: dict[float, float]) -> tuple[dict, dict]:
    """From tokens/s by processes: speed-up over the fewest of them, and what percentage of the ideal that is."""
    speed_up = {n: speed / speeds[min(speeds)] for n, speed in speeds.items()}
    return speed_up, {n: 100 * speed_up[n] * min(speeds) / n for n in speeds}


def compare(runs: list[dict], x: str, y: str) -> dict[str, dict[float, float]]:
    """Lines by their label, each a dict of x: median y, of runs alike in all else or, where none are, in the mode."""
    lines, column = {}, "tokens_per_second" if y in ("speed_up", "efficiency") else y
    runs = measured(runs, column)
    for label, group in (alike(runs, x, (*SETTINGS,)) or alike(runs, x, ("mode", "accumulate"))).items():
        values = sorted({run[x] for run in group})
        lines[label] = {value: median(run[column] for run in group if run[x] == value) for value in values}
        if y != column:
            lines[label] = scaling(lines[label])[y == "efficiency"]
            lines[f"ideal, from {values[0]:g}"] = {n: n / values[0] if y == "speed_up" else 100 for n in values}
    return lines


def curves(runs: list[dict], x: str, y: str) -> dict[str, dict[float, float]]:
    """Lines by their label, each a dict of x: y, as the runs went on; "loss" has both losses of a single run."""
    both = {"training (running mean)": "train_loss", "validation": "valid_loss"}
    return {kind if len(runs) == 1 else run["run"]: {row[x]: row[column] for row in rows}
            for run in runs for kind, column in (both if y == "loss" else {"validation": y}).items()
            if (rows := measured(run["curve"], column))}


def draw(rows: list[list[tuple]], path: Path) -> None:
    """Writes a picture of axes in rows, each from (x, y, lines), with one legend under all of them."""
    matplotlib.rcParams.update({"font.size": 8, "legend.fontsize": 7, "lines.linewidth": 1, "lines.markersize": 3,
                                "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
                                "grid.color": "0.9", "text.parse_math": False})
    handles = {label: None for row in rows for *_, lines in row for label in lines}
    width = min(7, 3.5 * len(rows[0]))                     # inches: a page's text, or one of its two columns
    columns = max(1, min(len(handles), int(width / (0.6 + 0.055 * max(map(len, handles))))))
    figure = Figure((width, 2.1 * len(rows) + 0.15 * math.ceil(len(handles) / columns)), dpi=300, layout="constrained")
    grid = figure.subplots(len(rows), len(rows[0]), sharex="col", squeeze=False)
    for axes, (x, y, lines) in zip(grid.flat, sum(rows, [])):
        for i, (label, points) in enumerate((label, lines.get(label, {})) for label in handles):
            every = max(1, len(points) // (10 if len(handles) < 10 else 4))
            style = {"color": "0.6", "zorder": 1} if label.startswith("ideal, from") else {
                "color": matplotlib.colormaps["cividis"](0.75 * i / max(1, len(handles) - 1)),
                "linestyle": DASHES[i % 4], "marker": MARKERS[i % 9], "markevery": (i % every, every)}
            handles[label], = axes.plot(points.keys(), points.values(), **style)
        log_x, log_y = x in POSITIVE, y in POSITIVE and (y != "tokens_per_second" or x == "processes")
        axes.set(xlabel=AXES[x], ylabel=AXES[y], xscale=("linear", "log")[log_x], yscale=("linear", "log")[log_y])
        if y in ("tokens_per_second", "efficiency") and not log_y:
            axes.set_ylim(0, 1.08 * max(value for points in lines.values() for value in points.values()))
        tried = FixedLocator(sorted({value for points in lines.values() for value in points}), nbins=5)
        for axis, ticks in (axes.xaxis, log_x and tried), (axes.yaxis, log_y and LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 7))):
            axis.set_major_locator(ticks or MaxNLocator(5, steps=(1, 2, 5, 10), integer=x == "step"))
            axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axes.minorticks_off()
        if len(rows) > 1:
            axes.label_outer()
    names = [label if len(label) < 60 else f"{label[:28]}…{label[-28:]}" for label in handles]
    figure.legend(handles.values(), names, loc="outside lower center", ncols=columns, frameon=False, handlelength=3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    print(f"{path}: {figure.get_figwidth() * 300:.0f} x {figure.get_figheight() * 300:.0f} pixels")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="+", type=Path, help="folder of a run, or table (.csv) of a study")
    parser.add_argument("--out", type=Path, help="folder for pictures (default: a single run's own, else logs)")
    parser.error = lambda message: fail(f"{message}; --help lists what it takes")
    args, runs = parser.parse_args(), []
    for path in dict.fromkeys(args.source):
        try:
            runs += (read_table(path, STUDY, ("study", "run", "mode")) or fail(f"{path}: no rows")) if path.is_file() else [read_run(path, runs)]
        except (ValueError, TypeError, KeyError, csv.Error) as problem:
            fail(f"{path}: not a run or a study, or cut short ({problem})")
    logged = [run for run in runs if "curve" in run]
    ys = ("loss", "valid_bleu") if len(logged) == 1 else ("train_loss", "valid_loss", "valid_bleu")
    plan = {"curves.png": [[(x, y, lines) for x in ("step", "minutes") if (lines := curves(logged, x, y))] for y in ys]}
    for name, (x, *ys) in PICTURES.items():
        plan[name] = [[(x, y, lines) for y in ys if (lines := compare(runs, x, y))]]
    out = args.out or (args.source[0] if logged and len(runs) == 1 else Path("logs"))
    if not any(sum(plan.values(), [[]])):
        fail(f"{args.source[0]}: no two of its runs differ in processes, batch size, learning rate or delay")
    for name, grid in plan.items():
        if grid := [row for row in grid if row]:
            draw(grid, out / name)
    if logged and len(runs) > 1:
        table = [[run["study"], run["run"], run["mode"], *(f"{run[x]:.8g}".strip("na") for x in STUDY)] for run in runs]
        with open(out / "runs.csv", "w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([("study", "run", "mode", *STUDY), *table])
        print(f"\n{out / 'runs.csv'}: {len(runs)} runs")
    width = max(len(run["run"]) for run in runs)
    print(f"\n{'run':{width}}  processes  batch tokens        lr  tokens/s  best valid BLEU  test BLEU")
    line = "{processes:11g}{batch_tokens:14,g}{lr:10g}{tokens_per_second:10,.0f}{valid_bleu:17.1f}{test_bleu:11.1f}"
    print(*(f"{run['run']:{width}}" + line.format_map(run).replace("nan", "  -") for run in runs), sep="\n")


if __name__ == "__main__":
    try:
        main()
    except OSError as problem:
        fail(f"{problem.filename or 'output'}: {problem.strerror}")
