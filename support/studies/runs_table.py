"""Reads finished or running runs and tables of runs, and finds which of them can be compared.

A table of runs has a row a run, and the columns of a study's runs.csv: TEXTS, NUMBERS, RESULTS
(the median speed, the duration of an epoch at this speed, the last training loss as a running
mean, and the best validation loss), and the task's metrics as valid_* and test_*, such as
valid_bleu. What was not measured is NaN.
"""

import io
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

TEXTS = ["study", "run", "mode"]
NUMBERS = ["processes", "batch_tokens", "accumulate", "lr", "delay_ms"]
RESULTS = [
    "samples_per_second",
    "epoch_seconds",
    "tokens_per_second",
    "train_loss",
    "valid_loss",
]
# How a setting is written where runs differ in it.
SETTINGS = {
    "mode": "{}",
    "study": "{}",
    "processes": "{:g} processes",
    "batch_tokens": "{:,.0f} a step",
    "accumulate": "accumulate {:g}",
    "lr": "learning rate {:g}",
    "delay_ms": "delay {:g} ms",
}
# Other flags that affect speed and loss, with their usual values. Runs that differ in one of
# them belong to different studies.
STUDY_FLAGS = {
    "replicas": 1,
    "precision": "",
    "compile": False,
    "recompute": False,
    "freeze": 0,
}
# What is always above 0, and so can be drawn on a logarithmic scale.
POSITIVE = {"processes", "batch_tokens", "lr", "speed_up", *RESULTS, "loss"}

Lines = dict[str, dict[float, float]]  # {label: {x: y}}


@dataclass
class Run:
    """What the folder of a run says."""

    row: pd.DataFrame  # a table of this run alone
    curve: pd.DataFrame  # metrics.csv
    summary: dict[str, Any]  # summary.json; empty while the run goes on


# --- Tables


def measured(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """Returns the rows with a finite value in a column, above 0 for what is always above 0."""
    is_measured = np.isfinite(table[column])
    if column in POSITIVE:
        is_measured &= table[column] > 0
    return table[is_measured]


def metrics(table: pd.DataFrame, part: str) -> list[str]:
    """Returns the columns of the task's metrics on a part of the data, such as valid_bleu."""
    return [
        name for name in table.columns if name.startswith(f"{part}_") and name != "valid_loss"
    ]


def all_translate(runs: pd.DataFrame) -> bool:
    """Returns whether all runs train translators."""
    return "valid_bleu" in runs.columns


def speed_column(runs: pd.DataFrame) -> str:
    """Returns the speed to compare: tokens/s if all runs translate or one has not ended."""
    all_ended = np.isfinite(runs["samples_per_second"]).all()
    if all_translate(runs) or not all_ended:
        return "tokens_per_second"
    return "samples_per_second"


def join_tables(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Returns one table of all runs, with the columns, and so the metrics, that all have."""
    return pd.concat(tables, join="inner", ignore_index=True)


def read_table(file: Path | io.StringIO, required: list[str]) -> pd.DataFrame:
    """Returns a table in CSV, with numbers in all columns but TEXTS. Raises ValueError."""
    texts = dict.fromkeys(TEXTS, str)
    table = pd.read_csv(file, dtype=texts, keep_default_na=False, na_values=[""])
    table = table.fillna(dict.fromkeys(TEXTS, ""))
    for column in required:
        if column not in table.columns:
            raise ValueError(f"there is no column {column}")
    return table.astype({name: float for name in table.columns if name not in TEXTS})


def read_study(path: Path) -> pd.DataFrame:
    """Returns the runs of a study's table. Raises OSError and ValueError."""
    runs = read_table(path, [*TEXTS, *NUMBERS, *RESULTS])
    if runs.empty:
        raise ValueError("there are no rows")
    return runs


def write_study(runs: pd.DataFrame, path: Path) -> None:
    """Writes runs as a study's table."""
    test, valid = metrics(runs, "test"), metrics(runs, "valid")
    columns = [*TEXTS, *NUMBERS, *test, *RESULTS, *valid]
    runs[columns].to_csv(path, index=False, float_format="%.8g")


# --- Runs


def read_json(path: Path) -> dict:
    """Returns the JSON object of a file."""
    return dict(json.loads(path.read_text(encoding="utf-8")))


def read_run(folder: Path, names: list[str]) -> Run:
    """Returns the run in a folder. If the folder's name is among `names`, its path is the name.

    Raises OSError, ValueError, TypeError and KeyError.
    """
    config = read_json(folder / "config.json")
    flags = dict(config["flags"])
    summary = {}
    if (folder / "summary.json").is_file():  # the run has ended
        summary = read_json(folder / "summary.json")
    curve = read_curve(folder / "metrics.csv")
    name = folder.resolve().name
    speed = measured(curve, "tokens_per_second")["tokens_per_second"].median()
    samples_per_second = speed * examples_per_token(summary)
    row = {
        "study": study_of(flags, config["parameters"]),
        "run": str(folder) if name in names else name,
        "mode": config["mode"],
        "processes": config["world_size"],
        "batch_tokens": flags.get("batch_size") or flags.get("batch_tokens"),
        "accumulate": flags.get("accumulate"),
        "lr": flags.get("lr"),
        "delay_ms": flags.get("delay_ms", 0),
        "samples_per_second": samples_per_second,
        "epoch_seconds": summary.get("training_examples", math.nan) / samples_per_second,
        "tokens_per_second": speed,
        "train_loss": curve["train_loss"].iloc[-1],
        "valid_loss": measured(curve, "valid_loss")["valid_loss"].min(),
    }
    for column in metrics(curve, "valid"):
        of_test = column.replace("valid", "test", 1)
        row[of_test] = summary.get(of_test)
        evaluations = [*curve[column], summary.get(column)]
        row[column] = pd.Series(evaluations, dtype=float).max()
    check_confusion(summary)
    table = pd.DataFrame([row])
    numbers = {column: float for column in table.columns if column not in TEXTS}
    return Run(table.astype(numbers), curve, summary)


def read_curve(path: Path) -> pd.DataFrame:
    """Returns metrics.csv as far as it is written, with train_loss as a running mean."""
    text = path.read_text(encoding="utf-8")
    whole_lines = text.rpartition("\n")[0]  # a run may be writing the last one
    columns = ["step", "seconds", "tokens_per_second", "train_loss", "valid_loss"]
    curve = read_table(io.StringIO(whole_lines), columns)
    curve = measured(measured(curve, "step"), "seconds")
    if measured(curve, "train_loss").empty and measured(curve, "valid_loss").empty:
        raise ValueError("metrics.csv has no row with a loss")
    losses = measured(curve, "train_loss")["train_loss"]
    means = running_mean(losses.to_numpy(), reach=len(curve) // 40)
    curve.loc[losses.index, "train_loss"] = means
    return curve.assign(minutes=curve["seconds"] / 60)


def running_mean(values: np.ndarray, reach: int) -> list[float]:
    """Returns means over `reach` values to each side, fewer at the start, where it is steep."""
    means = []
    for i in range(len(values)):
        near = min(reach, i)
        means.append(float(values[i - near : i + near + 1].mean()))
    return means


def study_of(flags: dict, parameters: int) -> str:
    """Returns what runs that can be compared have in common: data, size, and other flags."""
    words = [Path(str(flags.get("data"))).name, f"{parameters / 1e6:.1f}M parameters"]
    if flags.get("batch_size"):
        words.append("steps of examples")
    for name, usual in STUDY_FLAGS.items():
        value = flags.get(name, usual)
        if value != usual:
            words.append(f"{name} {value}")
    return ", ".join(words)


def examples_per_token(summary: dict) -> float:
    """Returns the mean number of examples a token, NaN if the run has not ended."""
    epochs = summary.get("epochs", [])
    if not epochs:
        return math.nan
    tokens = sum(epoch.get("tokens", math.nan) for epoch in epochs)
    return sum(epoch.get("examples", math.nan) for epoch in epochs) / tokens


def check_confusion(summary: dict) -> None:
    """Raises ValueError for a confusion matrix that is not (classes, classes)."""
    matrix = summary.get("confusion", [])
    size = len(summary.get("classes", []))
    if any(len(row) != size for row in [matrix, *matrix]):
        raise ValueError("the confusion matrix in summary.json does not match its classes")


# --- Lines to draw


def curves(logs: dict[str, pd.DataFrame], x: str, y: str) -> Lines:
    """Returns a line for each run. With y "loss": a line for each loss of a single run.

    logs: the curves of the runs, by their names.
    """
    columns = {"validation": y}
    if y == "loss":
        columns = {"training (running mean)": "train_loss", "validation": "valid_loss"}
    lines = {}
    for name, curve in logs.items():
        for label, column in columns.items():
            rows = measured(curve, column)
            if not rows.empty:
                lines[label if len(logs) == 1 else name] = dict(zip(rows[x], rows[column]))
    return lines


def alike(runs: pd.DataFrame, x: str, settings: list[str]) -> dict[str, pd.DataFrame]:
    """Returns groups of runs that differ in x but in no other setting.

    Each is named after the settings in which it differs from other groups.
    """
    others = [name for name in settings if name != x]
    by_others = measured(runs, x).groupby(others, dropna=False)
    groups = [group for _, group in by_others if group[x].nunique() > 1]
    if not groups:
        return {}
    firsts = pd.concat([group.head(1) for group in groups])
    differing = [name for name in others if firsts[name].nunique(dropna=False) > 1]
    named = {}
    for group in groups:
        first = group.iloc[0]
        words = [SETTINGS[name].format(first[name]) for name in differing]
        label = ", ".join(word for word in words if word)
        named[label or first["mode"] or "measured"] = group
    return named


def compare(runs: pd.DataFrame, x: str, y: str) -> Lines:
    """Returns a line for each group of runs that differ in x alone, through the median y.

    Where there is no such group, as when the batch grows with the processes, a line joins the
    runs of one mode, study and --accumulate. Speed-up and efficiency also have a line for the
    ideal.
    """
    column = speed_column(runs) if y in ("speed_up", "efficiency") else y
    runs = measured(runs, column)
    groups = alike(runs, x, list(SETTINGS))
    if not groups:
        groups = alike(runs, x, ["mode", "study", "accumulate"])
    lines: Lines = {}
    for label, group in groups.items():
        line = group.groupby(x)[column].median()
        if y == column:
            lines[label] = line.to_dict()
            continue
        speed_up, efficiency = scaling(line)
        lines[label] = (speed_up if y == "speed_up" else efficiency).to_dict()
        fewest = line.index[0]
        ideal = {n: n / fewest if y == "speed_up" else 100 for n in line.index}
        lines.setdefault(f"ideal, from {fewest:g}", {}).update(ideal)
    return lines


def scaling(speeds: pd.Series) -> tuple[pd.Series, pd.Series]:
    """Returns the speed-up over the fewest processes, and its percentage of the ideal.

    speeds: by the number of processes, in order.
    """
    speed_up = speeds / speeds.iloc[0]
    efficiency = 100 * speed_up * speeds.index[0] / speeds.index
    return speed_up, efficiency
