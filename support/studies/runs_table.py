"""Reads finished or running runs and tables of runs, and finds which of them can be compared.

A run is a dict with the columns of a study's table: TEXTS and NUMBERS, RESULTS (the median speed,
the last training loss, a running mean, and the best validation loss), TIMES (how many examples
these tokens are, and what an epoch takes at this speed), and the task's figures as valid_* and
test_*, such as valid_bleu. A run that was read from its folder also has its metrics.csv, as
"curve", and if it trained a classifier "confusion", its confusion matrix, with the names of its
"classes". What was not measured is NaN.
"""

import csv
import json
import math
from pathlib import Path
from statistics import mean, median

TEXTS = ("study", "run", "mode")
NUMBERS = ("processes", "batch_tokens", "accumulate", "lr", "delay_ms")
RESULTS = ("tokens_per_second", "train_loss", "valid_loss")
TIMES = ("samples_per_second", "epoch_seconds")  # which an older table has not
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
# Other flags that matter to speed and loss, with what they usually are; runs that differ in one are
# of different studies.
MATTER = {"replicas": 1, "precision": "", "compile": False, "recompute": False, "freeze": 0}
# What is always above 0, and so can be drawn on a logarithmic scale.
POSITIVE = {"processes", "batch_tokens", "lr", "speed_up", *TIMES, *RESULTS, "loss"}

Lines = dict[str, dict[float, float]]  # {label: {x: y}}


def number(value) -> float:
    """The value as a number, NaN for none. Raises ValueError and TypeError for other things."""
    return math.nan if value in ("", None) else float(value)


def measured(rows: list[dict], name: str) -> list[dict]:
    """The rows with a finite value under this name, above 0 for a quantity that always is."""
    return [
        row
        for row in rows
        if math.isfinite(row[name]) and (row[name] > 0 or name not in POSITIVE)
    ]


def figures(rows: list[dict], part: str) -> list[str]:
    """The task's figures on a part that all of the rows have, by their columns: valid_bleu."""
    return [
        name
        for name in rows[0]
        if name.startswith(f"{part}_")
        and name != "valid_loss"
        and all(name in row for row in rows)
    ]


def all_translate(rows: list[dict]) -> bool:
    """Whether all of the rows are translators'."""
    return "valid_bleu" in figures(rows, "valid")


def speed(rows: list[dict]) -> str:
    """The column of speeds to compare: in tokens for translators and what has not ended."""
    ended = all(math.isfinite(row["samples_per_second"]) for row in rows)
    return "samples_per_second" if ended and not all_translate(rows) else "tokens_per_second"


def read_table(text: str, required: tuple[str, ...]) -> list[dict]:
    """The rows of a table in CSV, with a number in every column but TEXTS.

    Raises ValueError and csv.Error.
    """
    table = csv.DictReader(text.split("\n"))
    missing = [name for name in required if name not in (table.fieldnames or ())]
    if missing:
        raise ValueError(f"there is no column {missing[0]}")
    rows = list(table)
    for row in rows:
        if None in (*row, *row.values()):
            raise ValueError(f"a row of more or fewer than {len(table.fieldnames)} cells")
    return [
        {name: cell if name in TEXTS else number(cell) for name, cell in row.items()}
        for row in rows
    ]


def read_study(path: Path) -> list[dict]:
    """The runs in a study's table. Raises OSError and what read_table raises."""
    unknown, text = dict.fromkeys(TIMES, math.nan), path.read_text(encoding="utf-8")
    return [unknown | row for row in read_table(text, (*TEXTS, *NUMBERS, *RESULTS))]


def write_study(runs: list[dict], path: Path) -> None:
    """Writes runs as a study's table."""
    columns = [*NUMBERS, *figures(runs, "test"), *TIMES, *RESULTS, *figures(runs, "valid")]
    with open(path, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([*TEXTS, *columns])
        for run in runs:
            cells = ["" if math.isnan(run[name]) else f"{run[name]:.8g}" for name in columns]
            table.writerow([*(run[name] for name in TEXTS), *cells])


def read_json(path: Path) -> dict:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def read_run(folder: Path, names: list[str]) -> dict:
    """The run in a folder, by the folder's name or, if that is among `names`, by its path.

    Raises OSError, what read_table raises, TypeError and KeyError.
    """
    config, summary = read_json(folder / "config.json"), {}
    if (folder / "summary.json").is_file():  # the run has ended
        summary = read_json(folder / "summary.json")
    text = (folder / "metrics.csv").read_text(encoding="utf-8")
    whole_lines = text.rpartition("\n")[0]  # the run is writing the last one
    curve = read_table(whole_lines, ("step", "seconds", *RESULTS))
    curve = measured(measured(curve, "step"), "seconds")
    if not measured(curve, "train_loss") + measured(curve, "valid_loss"):
        raise ValueError("metrics.csv has no row with a loss")
    curve = [row | {"minutes": row["seconds"] / 60} for row in curve]
    smooth(curve)
    found = {name: [row[name] for row in measured(curve, name)] for name in curve[0]}

    flags, name = dict(config["flags"]), folder.resolve().name
    data, parameters = Path(str(flags.get("data"))).name, number(config.get("parameters"))
    size = flags.get("batch_size")  # in examples, else in tokens
    others = "".join(
        f", {name} {value}"
        for name, usual in MATTER.items()
        if (value := flags.get(name, usual)) != usual
    )
    tokens_per_second = median(found["tokens_per_second"] or [math.nan])
    examples, tokens = (
        sum(number(epoch.get(name)) for epoch in summary.get("epochs", ()))
        for name in ("examples", "tokens")
    )
    whole_epoch = number(summary.get("training_examples"))
    samples_per_second = tokens_per_second * examples / (tokens or math.nan)
    run = {
        "study": (
            f"{data}, {parameters / 1e6:.1f}M parameters"
            + ", steps of examples" * bool(size)
            + others
        ),
        "run": str(folder) if name in names else name,
        "mode": str(config.get("mode", "")),
        "processes": number(config.get("world_size")),
        "batch_tokens": number(size or flags.get("batch_tokens")),
        "accumulate": number(flags.get("accumulate")),
        "lr": number(flags.get("lr")),
        "delay_ms": number(flags.get("delay_ms", 0)),
        "samples_per_second": samples_per_second,
        "epoch_seconds": whole_epoch / (samples_per_second or math.nan),
        "tokens_per_second": tokens_per_second,
        "train_loss": curve[-1]["train_loss"],
        "valid_loss": min(found["valid_loss"], default=math.nan),
        "curve": curve,
    }
    if "confusion" in summary:
        run |= {name: summary[name] for name in ("confusion", "classes")}
        if any(
            len(row) != len(run["classes"]) for row in [run["confusion"], *run["confusion"]]
        ):
            raise ValueError(
                "summary.json has a confusion matrix of other classes than its own"
            )
    for valid in figures(curve, "valid"):
        test = valid.replace("valid", "test", 1)
        run[test] = number(summary.get(test))
        run[valid] = max([*found[valid], number(summary.get(valid))])  # a NaN at the end loses
    return run


def smooth(curve: list[dict]) -> None:
    """Makes train_loss a running mean, over fewer rows at the start, where it is steep."""
    rows = measured(curve, "train_loss")
    losses = [row["train_loss"] for row in rows]
    for i, row in enumerate(rows):
        reach = min(len(curve) // 40, i)
        row["train_loss"] = mean(losses[i - reach : i + reach + 1])


def curves(runs: list[dict], x: str, y: str) -> Lines:
    """A line for each run as it went on. With y "loss": a line for each loss of a single run."""
    if y == "loss":
        columns = {"training (running mean)": "train_loss", "validation": "valid_loss"}
    else:
        columns = {"validation": y}
    lines = {}
    for run in runs:
        for label, column in columns.items():
            if rows := measured(run["curve"], column):
                label = label if len(runs) == 1 else run["run"]
                lines[label] = {row[x]: row[column] for row in rows}
    return lines


def alike(runs: list[dict], x: str, settings: tuple[str, ...]) -> dict[str, list[dict]]:
    """Groups of runs that differ in x but in no other setting, by what sets each group apart."""
    others = [name for name in settings if name != x]
    groups = {}
    for run in sorted(measured(runs, x), key=lambda run: [run[name] for name in others]):
        key = tuple(SETTINGS[name].format(run[name]) for name in others)
        groups.setdefault(key, []).append(run)
    groups = {key: group for key, group in groups.items() if len({run[x] for run in group}) > 1}
    apart = [i for i in range(len(others)) if len({key[i] for key in groups}) > 1]
    return {
        ", ".join(key[i] for i in apart if key[i]) or key[0] or "measured": group
        for key, group in groups.items()
    }


def compare(runs: list[dict], x: str, y: str) -> Lines:
    """A line for each group of runs that differ in x alone, through the median y of every x.

    Where there is no such group, as when the batch grows with the processes, a line joins the runs
    of one mode, study and --accumulate. Speed-up and efficiency have a line for the ideal, too.
    """
    column = speed(runs) if y in ("speed_up", "efficiency") else y
    runs = measured(runs, column)
    lines = {}
    groups = alike(runs, x, tuple(SETTINGS)) or alike(runs, x, ("mode", "study", "accumulate"))
    for label, group in groups.items():
        values = sorted({run[x] for run in group})
        lines[label] = {
            value: median(run[column] for run in group if run[x] == value) for value in values
        }
        if y != column:
            speed_up, efficiency = scaling(lines[label])
            lines[label] = speed_up if y == "speed_up" else efficiency
            ideal = {n: n / values[0] if y == "speed_up" else 100 for n in values}
            lines.setdefault(f"ideal, from {values[0]:g}", {}).update(ideal)
    return lines


def scaling(speeds: dict[float, float]) -> tuple[dict[float, float], dict[float, float]]:
    """From tokens/s by processes: speed-up over the fewest, and its percentage of the ideal."""
    fewest = min(speeds)
    speed_up = {n: speed / speeds[fewest] for n, speed in speeds.items()}
    efficiency = {n: 100 * speed_up[n] * fewest / n for n in speeds}
    return speed_up, efficiency
