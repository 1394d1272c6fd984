"""Reads finished or running runs and tables of runs, and finds which of them can be compared.

A table of runs is a list of rows, one per run: dicts with the columns of a study's runs.csv.
These are TEXTS, NUMBERS, RESULTS (the median speed, the duration of an epoch at this speed, the
last training loss as a running mean, and the validation loss), the task's metrics in validation
as valid_*, such as valid_bleu, and on the test set as test_*, and LATER. The validation metrics
of a finished run are those of the weights that it kept; those of a continuing run are the best
so far. A value that was not measured is NaN.
"""

import csv
import math
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

from support.common.files import read_json, write_csv

TEXTS = ["study", "run", "mode"]
NUMBERS = ["processes", "batch_tokens", "accumulate", "lr", "delay_ms"]
SPEEDS = ["samples_per_second", "epoch_seconds", "tokens_per_second"]
RESULTS = [*SPEEDS, "train_loss", "valid_loss"]
# Tables of earlier versions lack these columns. The memory is that of the largest process.
LATER = ["seed", "wall_seconds", "peak_memory_mib"]
# How the legend of a figure writes a setting in which runs differ.
SETTINGS = {
    "mode": "train_{}.py",
    "study": "{}",
    "processes": "{:g} processes",
    "batch_tokens": "batch size {:,.0f}",
    "accumulate": "accumulate {:g}",
    "lr": "learning rate {:g}",
    "delay_ms": "delay {:g} ms",
}
# Other flags that affect speed and loss. Runs that differ in one of them belong to different
# studies. (Not the length, --warmup and --tensor: they may change with what a study compares,
# the batch size and the processes.)
DATA = ("src", "tgt", "text", "label", "tokenizer", "max_length", "windows", "image_size")
MODEL = ("heads", "dropout", "norm", "patch", "stem_channels", "pretrained", "pool", "freeze")
RATES = ("schedule", "head_lr", "weight_decay", "class_weights")
REGULARIZATION = ("token_dropout", "crop", "flip", "label_smoothing", "clip")
SPEED = ("replicas", "precision", "compile", "recompute", "plain", "netem")
STUDY_FLAGS = DATA + MODEL + RATES + REGULARIZATION + SPEED
# Quantities that are always above 0, and so can be drawn on a logarithmic scale.
POSITIVE = {"processes", "batch_tokens", "lr", "speed_up", *RESULTS, "loss"}

IDEAL = "ideal, from"  # how the label of an ideal line begins
STEPS_OF_EXAMPLES = "steps of examples"  # in the name of a study, with --batch-size


class NothingLoggedError(ValueError):
    """A run has ended before it logged a loss, as one that diverges at once does."""


Row = dict[str, Any]  # texts and numbers, by column
Lines = dict[str, dict[float, float]]  # {label: {x: y}}


# --- Tables


def measured(rows: list[Row], column: str) -> list[Row]:
    """Returns the rows with a finite value in a column, above 0 if its quantity always is."""
    finite = [row for row in rows if math.isfinite(row[column])]
    if column in POSITIVE:
        return [row for row in finite if row[column] > 0]
    return finite


def metric_columns(rows: list[Row], part: str) -> list[str]:
    """Returns the columns of the task's metrics, such as valid_bleu, that all rows have."""
    metrics = [name for name in rows[0] if name.startswith(f"{part}_") and name != "valid_loss"]
    return [name for name in metrics if all(name in row for row in rows)]


def all_translate(runs: list[Row]) -> bool:
    """Returns whether all runs train translators."""
    return "valid_bleu" in metric_columns(runs, "valid")


def batch_unit(runs: list[Row]) -> str:
    """Returns what the runs' batch sizes count, or "" if that differs."""
    units = {"examples" if STEPS_OF_EXAMPLES in run["study"] else "tokens" for run in runs}
    return units.pop() if len(units) == 1 else ""


def speed_column(runs: list[Row]) -> str:
    """Returns the column of the speed to compare.

    It is tokens/s if all runs translate or one has not ended, and otherwise examples/s.
    """
    all_ended = all(math.isfinite(run["samples_per_second"]) for run in runs)
    if all_translate(runs) or not all_ended:
        return "tokens_per_second"
    return "samples_per_second"


def read_table(lines: Iterable[str], required: list[str]) -> list[Row]:
    """Returns the rows of a CSV table, with numbers in all columns but TEXTS.

    Raises ValueError and csv.Error.
    """
    table = csv.DictReader(lines)
    columns = table.fieldnames or []
    for name in required:
        if name not in columns:
            raise ValueError(f"there is no column {name}")
    rows = []
    for cells in table:
        if None in cells or None in cells.values():
            raise ValueError(f"a row does not have {len(columns)} cells")
        rows.append(
            {name: cell if name in TEXTS else number(cell) for name, cell in cells.items()}
        )
    return rows


def number(value: Any) -> float:
    """Returns a value as a number; NaN for None and for an empty cell."""
    return math.nan if value in ("", None) else float(value)


def read_study(path: Path) -> list[Row]:
    """Returns the runs of a study's table. Raises OSError, ValueError and csv.Error."""
    with open(path, encoding="utf-8", newline="") as file:
        runs = read_table(file, [*TEXTS, *NUMBERS, *RESULTS])
    if not runs:
        raise ValueError("there are no rows")
    return runs


def write_study(runs: list[Row], path: Path) -> None:
    """Writes runs as a study's table."""
    later = [name for name in LATER if all(name in run for run in runs)]
    metrics = [*metric_columns(runs, "test"), *RESULTS, *metric_columns(runs, "valid")]
    names = [*NUMBERS, *later, *metrics]
    rows = [[*TEXTS, *names]]
    for run in runs:
        texts = [run[name] for name in TEXTS]
        numbers = ["" if math.isnan(run[name]) else f"{run[name]:.8g}" for name in names]
        rows.append([*texts, *numbers])
    write_csv(path, rows)


# --- Runs


def read_run(
    folder: Path, names: list[str], defaults: dict[str, Any]
) -> tuple[Row, list[Row], dict[str, Any]]:
    """Returns a run's row, its curve (metrics.csv), and its summary.json if it has ended.

    Its name is the folder's or, if `names` has it, the path. defaults: of the flags. Raises
    OSError, ValueError, csv.Error, TypeError and KeyError.
    """
    config = read_json(folder / "config.json")
    flags = dict(config["flags"])
    summary = {}
    if (folder / "summary.json").is_file():  # the run has ended
        summary = read_json(folder / "summary.json")
    curve = read_curve(folder / "metrics.csv")
    name = folder.resolve().name
    speed = median(values_of(curve, "tokens_per_second") or [math.nan])
    train_losses = values_of(curve, "train_loss")
    lowest_loss = min(values_of(curve, "valid_loss"), default=math.nan)
    # --steps may end in an epoch, so that its examples are not those that were trained on.
    epoch_seconds = number(summary.get("epoch_tokens")) / speed
    row = {
        "study": study_of(flags, defaults, config["parameters"]),
        "run": str(folder) if name in names else name,
        "mode": config["mode"],
        "processes": number(config["world_size"]),
        "batch_tokens": number(flags.get("batch_size") or flags.get("batch_tokens")),
        "accumulate": number(flags.get("accumulate")),
        "lr": number(flags.get("lr")),
        "delay_ms": number(flags.get("delay_ms", 0)),
        "samples_per_second": number(summary.get("training_examples")) / epoch_seconds,
        "epoch_seconds": epoch_seconds,
        "tokens_per_second": speed,
        "train_loss": train_losses[-1] if train_losses else math.nan,
        "valid_loss": number(summary.get("valid_loss", lowest_loss)),
        "seed": number(flags.get("seed")),
        "wall_seconds": number(summary.get("wall_seconds")),
        "peak_memory_mib": number(summary.get("peak_memory_mib", {}).get("largest_process")),
    }
    for valid in metric_columns(curve, "valid"):
        test = valid.replace("valid", "test", 1)
        row[test] = number(summary.get(test))
        best = max(values_of(curve, valid), default=math.nan)
        row[valid] = number(summary.get(valid, best))
    if "test_bleu" in row:  # chrF is computed at the end alone
        row["test_chrf"] = math.nan
    for name, value in summary.items():
        if name.startswith("test_") and isinstance(value, int | float):
            row[name] = float(value)
    return row, curve, summary


def read_curve(path: Path) -> list[Row]:
    """Returns metrics.csv as far as it is written, with train_loss as a running mean."""
    text = path.read_text(encoding="utf-8")
    whole_lines = text.split("\n")[:-1]  # a run may be writing the last one
    columns = ["step", "seconds", "tokens_per_second", "train_loss", "valid_loss"]
    curve = measured(measured(read_table(whole_lines, columns), "step"), "seconds")
    with_loss = measured(curve, "train_loss")
    if not with_loss and not measured(curve, "valid_loss"):
        raise NothingLoggedError("metrics.csv has no row with a loss")
    # The mean over some rows to each side: over fewer at the start, where the loss is steep,
    # and at the end, where there are no more.
    sums = list(accumulate((row["train_loss"] for row in with_loss), initial=0.0))
    reach = max(1, len(curve) // 40)
    for i, row in enumerate(with_loss):
        near = min(reach, i)
        first, end = i - near, min(i + near + 1, len(with_loss))
        row["train_loss"] = (sums[end] - sums[first]) / (end - first)
    for row in curve:
        row["minutes"] = row["seconds"] / 60
    return curve


def values_of(rows: list[Row], column: str) -> list[float]:
    """Returns the measured values of a column."""
    return [row[column] for row in measured(rows, column)]


def study_of(flags: dict, defaults: dict, parameters: int) -> str:
    """Returns what comparable runs have in common, in words: data, model size, other flags."""
    words = [str(flags.get("data")), f"{parameters / 1e6:.1f}M parameters"]
    if flags.get("batch_size"):
        words.append(STEPS_OF_EXAMPLES)
    for name in STUDY_FLAGS:
        value = flags.get(name, defaults[name])
        if value != defaults[name]:
            words.append(f"{name} {value}")
    return ", ".join(words)


# --- Lines to draw


def curve_lines(curves: dict[str, list[Row]], x: str, y: str) -> Lines:
    """Returns a line for each run or, if y is "loss", for both losses of a single run.

    curves: of the runs, by the runs' names.
    """
    columns = {"validation": y}
    if y == "loss":
        columns = {"training (running mean)": "train_loss", "validation": "valid_loss"}
    lines = {}
    for name, curve in curves.items():
        for label, column in columns.items():
            rows = measured(curve, column)
            if rows:
                line = {row[x]: row[column] for row in rows}
                lines[label if len(curves) == 1 else name] = line
    return lines


def setting_text(run: Row, name: str) -> str:
    """Returns how a legend writes a setting of a run; "" if the table has none."""
    is_missing = run[name] == "" or run[name] != run[name]  # NaN
    return "" if is_missing else SETTINGS[name].format(run[name])


def comparable_groups(runs: list[Row], x: str, settings: list[str]) -> dict[str, list[Row]]:
    """Returns groups of runs that differ in x but in no other setting.

    A group is named after the settings in which it differs from other groups.
    """
    others = [name for name in settings if name != x]
    groups: dict[tuple[str, ...], list[Row]] = {}
    for run in sorted(measured(runs, x), key=lambda run: [run[name] for name in others]):
        texts = tuple(setting_text(run, name) for name in others)
        groups.setdefault(texts, []).append(run)
    kept = {key: group for key, group in groups.items() if len({run[x] for run in group}) > 1}
    differ = [len(set(texts)) > 1 for texts in zip(*kept)]  # in each setting
    named = {}
    for texts, group in kept.items():
        label = ", ".join(text for text, differs in zip(texts, differ) if differs and text)
        named[label or setting_text(group[0], "mode") or "measured"] = group
    return named


def compare(runs: list[Row], x: str, y: str) -> Lines:
    """Returns a line for each group of runs that differ in x alone, through the median of y.

    If there is no such group, as when the batch grows with the processes, a line joins the runs
    of one mode, study and --accumulate. Speed-up (over the fewest processes of the line)
    and efficiency (percent of the ideal speed-up) also have a line for the ideal.
    """
    column = speed_column(runs) if y in ("speed_up", "efficiency") else y
    runs = measured(runs, column)
    groups = comparable_groups(runs, x, list(SETTINGS))
    if not groups:
        groups = comparable_groups(runs, x, ["mode", "study", "accumulate"])
    lines: Lines = {}
    for label, group in groups.items():
        line = {
            value: median(run[column] for run in group if run[x] == value)
            for value in sorted({run[x] for run in group})
        }
        lines[label] = line
        if y != column:
            lines[label], ideal = against_ideal(line, y)
            lines.setdefault(f"{IDEAL} {min(line):g}", {}).update(ideal)
    return lines


def against_ideal(
    speeds: dict[float, float], y: str
) -> tuple[dict[float, float], dict[float, float]]:
    """Returns the speed-up or the efficiency, whichever y says, and the ideal one.

    speeds: by the number of processes, as are the results.
    """
    fewest = min(speeds)
    speed_up = {n: speed / speeds[fewest] for n, speed in speeds.items()}
    ideal = {n: n / fewest for n in speeds}
    if y == "speed_up":
        return speed_up, ideal
    efficiency = {n: 100 * speed_up[n] / ideal[n] for n in speeds}
    return efficiency, dict.fromkeys(speeds, 100.0)
