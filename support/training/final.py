"""The end of a run: which weights it keeps, their scores, and summary.json."""

import csv
import statistics
import time
from pathlib import Path
from typing import Any

from torch import nn

from support.common import checkpoint
from support.common.files import read_json, write_json
from support.common.hardware import peak_memory
from support.distributed.collectives import (
    all_gather_objects,
    broadcast_object,
    long_barrier,
)
from support.distributed.weights import load_full_state_dict
from support.training.summary import epoch_tokens, format_duration

# `run` is a Run (support/training/run.py), which imports this module.


def score_run(run, model: nn.Module) -> None:
    """Scores the best weights on the validation and test set, and writes summary.json.

    There may be no test set. A collective. `model` is left with the best weights.
    """
    run.say("scoring the best weights")
    keep_mean_if_better(run, model)
    best = load_best(run, model)
    task = run.task
    part = "valid"
    valid, outputs = task.final_evaluation(model, part, run.data_rank, run.data_size)
    metrics = valid
    if run.keeps_log:
        (run.folder / "best.pt").touch()  # translate.py takes the newest
    if task.has_test_set:
        part = "test"
        metrics, outputs = task.final_evaluation(model, part, run.data_rank, run.data_size)
    memory = all_gather_objects(peak_memory())
    if not run.keeps_log:
        return
    report, text = task.report(part, metrics, outputs)
    seconds = time.perf_counter() - run.began
    epochs = list(run.progress.epochs)
    if run.progress.epoch["seconds"]:  # the last epoch is not whole
        epochs.append(run.progress.epoch_record(run.epoch_of(run.last_step), run.last_step))
    content: dict[str, Any] = {
        "steps": run.last_step,
        "tokens": run.progress.tokens,
        "wall_seconds": round(seconds, 1),
        **median_speed(run.folder / "metrics.csv"),
        "best_step": best["step"],
        "averaged_checkpoints": best["averaged"],
        **{f"valid_{name}": round(value, 4) for name, value in valid.items()},
        **report,
        "training_examples": len(task.batches.examples),
        "epoch_tokens": round(epoch_tokens(run)),
        "peak_memory_mib": {
            "largest_process": round(max(memory)),
            "all_processes": round(sum(memory)),
        },
        "epochs": epochs,
    }
    profile = run.folder / "profile.json"
    if profile.is_file():
        content["profile"] = read_json(profile)
    write_json(run.folder / "summary.json", content)
    run.say(
        f"\n{text}\n{format_duration(seconds)} in all; {run.folder}/ has the log, and in "
        f"best.pt the weights."
    )


def keep_mean_if_better(run, model: nn.Module) -> None:
    """Replaces best.pt by the mean of the last evaluations' weights if that has a lower loss.

    The loss decides, because the highest of many accuracies is partly luck. A collective: rank
    0 reads and writes the files.
    """
    count = run.args.average_checkpoints
    paths = checkpoint.evaluation_checkpoints(run.folder)[-count:] if count > 1 else []
    if not broadcast_object(len(paths)):
        return
    mean = checkpoint.average_weights(paths) if run.keeps_log else None
    long_barrier()
    load_full_state_dict(model, mean)
    # As during training: a longer run compares its evaluations with this one.
    score = run.score(run.task.evaluate(model, "valid", run.data_rank, run.data_size))
    if score[-1] > run.progress.best[-1]:  # of negative losses; never if it is not finite
        run.progress.best = run.progress.highest = score
        if run.keeps_log:
            content = run.checkpoint_content(run.last_step, mean) | {"averaged": len(paths)}
            checkpoint.save(run.folder / "best.pt", content)


def load_best(run, model: nn.Module) -> dict[str, Any]:
    """Loads best.pt into the model of every rank, and returns in rank 0 its content."""
    best: dict[str, Any] = {"model": None}  # in the other ranks
    if run.keeps_log:
        best = checkpoint.load(run.folder / "best.pt")
    long_barrier()
    load_full_state_dict(model, best["model"])
    return best


def median_speed(path: Path) -> dict[str, float]:
    """Returns the medians of tokens/s and MFU over the rows of metrics.csv.

    A resumed run has only its own rows in memory.
    """
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    medians = {}
    for name in ("tokens_per_second", "mfu"):
        values = [float(row[name]) for row in rows if row[name]]
        medians[f"median_{name}"] = statistics.median(values or [0.0])
    return medians
