"""TensorBoard and W&B get the numbers of metrics.csv, also of a resumed run; epochs."""

import importlib.util
import json
import math
import os
import shlex
import struct
import sys

import pytest
from conftest import read_metrics

from support.common.errors import UserError
from support.training import command_line
from support.training.command_line import parse_arguments
from support.training.settings import CpuSettings

KEY = "0123456789abcdef" * 2 + "01234567"  # of the length of a real one


def expected(run) -> dict[tuple[str, int], float]:
    """What metrics.csv has, by column and step."""
    return {
        (name, int(row["step"])): float(value)
        for row in read_metrics(run)
        for name, value in row.items()
        if name != "step" and value != ""
    }


@pytest.fixture(scope="module")
def seen(tmp_path_factory, train):
    """A run of 12 steps that was resumed: the last row of its first part is written again."""
    pytest.importorskip("tensorboard", reason="pip install tensorboard")
    pytest.importorskip("wandb", reason="pip install wandb")
    folder = tmp_path_factory.mktemp("seen")
    offline = os.environ | {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB_API_KEY": KEY,
    }
    for part in (
        shlex.split(
            "--name seen --steps 12 --save-every 5 --eval-every 10 --procs 2 "
            "--tensorboard --wandb translator"
        ),
        ["--resume", "logs/seen", "--steps", "20"],
    ):
        done = train(folder, *part, env=offline)
        assert done.returncode == 0, done.stderr
    return folder / "logs" / "seen"


@pytest.mark.slow
def test_tensorboard_reads_what_metrics_csv_has(seen):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = seen
    events = EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
    found = {
        (name, event.step): event.value
        for name in events.Tags()["scalars"]
        for event in events.Scalars(name)
    }
    assert (
        json.loads(events.Tensors("config/text_summary")[-1].tensor_proto.string_val[0])[
            "world_size"
        ]
        == 2
    )
    assert len(list(run.glob("events.out.*"))) == 2  # one process, twice
    assert found.keys() == expected(run).keys()
    assert all(
        math.isclose(found[key], value, rel_tol=1e-6) for key, value in expected(run).items()
    )  # it keeps fp32
    assert sum(len(events.Scalars(name)) for name in events.Tags()["scalars"]) == len(found)


def wandb_records(path):
    """The records of an offline run's file.

    It is a log as LevelDB writes it, blocks of 32 KiB with pieces of records, behind 7 bytes.
    """
    from wandb.proto import wandb_internal_pb2

    content = path.read_bytes()
    at = 7
    whole = b""
    assert content.startswith(b":W&B")
    while at + 7 <= len(content):
        if 32_768 - at % 32_768 < 7:  # no room for a piece's head: the block ends here
            at += 32_768 - at % 32_768
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole one, or the last piece
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


@pytest.mark.slow
def test_wandb_offline_has_what_metrics_csv_has(seen):
    run = seen
    assert not [
        path
        for path in run.parents[1].rglob("*")
        if path.is_file() and KEY.encode() in path.read_bytes()
    ]
    found = {}
    ids = set()
    config = {}
    for file in sorted(
        run.glob("wandb/offline-run-*/run-*.wandb"), key=lambda file: file.stat().st_mtime
    ):
        for record in wandb_records(file):
            if record.run.run_id:
                ids.add((record.run.project, record.run.run_id))
                config |= {
                    item.key: json.loads(item.value_json) for item in record.run.config.update
                }
            if record.history.item:
                row = {
                    (item.nested_key[0] if item.nested_key else item.key): json.loads(
                        item.value_json
                    )
                    for item in record.history.item
                }
                found |= {
                    (name, int(row["_step"])): value
                    for name, value in row.items()
                    if name[0] != "_"
                }
    assert len(ids) == 1 and next(iter(ids))[0] == "translator"
    assert {key: config[key] for key in ("mode", "world_size", "flags")} == {
        key: value
        for key, value in json.loads((run / "config.json").read_text()).items()
        if key in ("mode", "world_size", "flags")
    }
    assert found == expected(run) | {
        key: value for key, value in found.items() if key[1] == 12 and key not in expected(run)
    }


@pytest.mark.parametrize(
    "name, flags", [("tensorboard", ["--tensorboard"]), ("wandb", ["--wandb", "translator"])]
)
def test_what_is_not_installed_is_named(monkeypatch, name, flags):
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda module, *more: None if module == name else there(module, *more),
    )
    monkeypatch.setattr(sys, "argv", ["train_cpu.py", *flags])
    monkeypatch.setattr(command_line, "make_folder", lambda *_: "")
    with pytest.raises(UserError, match=f"pip install {name}"):
        parse_arguments("", CpuSettings).complete()


@pytest.mark.slow
def test_a_finished_run_that_is_resumed_is_as_it_was(tmp_path, train):
    """It died after its last checkpoint and before its summary, which is now written again."""
    done = train(
        tmp_path,
        *shlex.split("--name seen --steps 5 --average-checkpoints 2 --log-every 4"),
    )
    assert done.returncode == 0, done.stderr
    run = tmp_path / "logs/seen"
    before = {
        name: (run / name).read_text()
        for name in ("metrics.csv", "summary.json", "translations.txt")
    }
    (run / "summary.json").unlink()
    done = train(tmp_path, "--resume", "logs/seen")
    assert done.returncode == 0, done.stderr
    assert (run / "metrics.csv").read_text() == before["metrics.csv"] and (
        run / "translations.txt"
    ).read_text() == before["translations.txt"]
    now, then = (
        json.loads(text)
        for text in ((run / "summary.json").read_text(), before["summary.json"])
    )
    for record in (*now["epochs"], *then["epochs"]):
        del record["memory_mib"]  # of the process that wrote the summary
    assert now["epochs"] == then["epochs"] and now["test_bleu"] == then["test_bleu"]
    assert len(then["epochs"]) == 1


@pytest.mark.slow
def test_the_record_of_each_epoch(tmp_path, train):
    """The latest evaluation before an epoch's end counts, also if a stop lies in between."""
    how = ["--batch-size", "32", "--eval-every", "7"]  # an epoch has 19 steps
    assert train(tmp_path, "--name", "seen", "--steps", "9", *how).returncode == 0
    assert train(tmp_path, "--resume", "logs/seen", "--steps", "30").returncode == 0
    assert train(tmp_path, "--name", "whole", "--steps", "30", *how).returncode == 0
    rows, whole = (
        json.loads((tmp_path / f"logs/{name}/summary.json").read_text())["epochs"]
        for name in ("seen", "whole")
    )
    timed = {"seconds", "samples_per_second", "tokens_per_second", "memory_mib"}
    assert [{k: v for k, v in row.items() if k not in timed} for row in rows] == [
        {k: v for k, v in row.items() if k not in timed} for row in whole
    ]
    assert [row["epoch"] for row in rows] == list(range(1, len(rows) + 1))
    for row in rows:
        assert (
            0 <= row["valid_token_accuracy"] <= 1
            and row["train_loss"] > 0
            and row["valid_bleu"] >= 0
        )
        assert all(row[name] > 0 for name in timed)
    evaluated = {
        int(row["step"]): float(row["valid_loss"])
        for row in read_metrics(tmp_path / "logs/seen")
        if row["valid_loss"]
    }
    assert (
        rows[-1]["step"] == 30
        and rows[0]["step"] > 9
        and any(row["step"] % 7 for row in rows[:-1])
    )
    of_step = {
        int(row["step"]): int(row["epoch"]) for row in read_metrics(tmp_path / "logs/seen")
    }
    assert of_step[1] == 1
    for row in rows:
        assert of_step[row["step"]] == row["epoch"]
        assert row["valid_loss"] == pytest.approx(
            evaluated[max(step for step in evaluated if step <= row["step"])], abs=1e-6
        )
