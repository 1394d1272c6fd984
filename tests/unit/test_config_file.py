"""Flags from a file."""

import json
import sys
from pathlib import Path

import pytest

from model import ModelConfig
from support.common.errors import UserError
from support.common.shape import make_config
from support.training.command_line import parse_arguments
from support.training.config_file import read_config
from support.training.settings import CpuSettings, FsdpSettings, Settings


def write(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return str(tmp_path / name)


def test_yaml_with_headings_and_numbers_as_people_write_them(tmp_path):
    path = write(
        tmp_path,
        "a.yaml",
        "data: x.csv\nmodel:\n  d-model: 64\nempty:\n"
        "training:\n  lr: 1e-3\n  epochs: 2\n  compile: true\n",
    )
    assert read_config(path, Settings) == {
        "data": "x.csv",
        "d_model": 64,
        "lr": 1e-3,
        "epochs": 2,
        "compile": True,
    }


@pytest.mark.parametrize(
    "name, text, expected",
    [
        ("a.yaml", "learning_rate: 1", "there is no flag 'learning_rate'"),
        ("a.yaml", "epochs: 1.5", "epochs is 1.5, not int"),
        ("a.yaml", "epochs: true", "epochs is True, not int"),
        ("a.yaml", "lr: fast", "lr is 'fast', not float"),
        ("a.yaml", "lr: 1" + "0" * 400, "lr is 10+, not float"),
        ("a.yaml", "name: 1", "name is 1, not text \\(put it in quotes\\)"),
        ("a.yaml", "flip: maybe", "flip is 'maybe', not one of no, yes"),
        ("a.yaml", "lr: 1\na: [1", "line 2: expected ',' or ']'"),
        (
            "a.yaml",
            "model:\n\tlr: 1",
            "line 2: found character '.t' that cannot start any token",
        ),
        ("a.yaml", "config: b.yaml", "it names another file"),
        ("a.yaml", "d-model:", "d_model is None, not int"),
        ("a.yaml", "- 1", "it has no flags"),
        ("a.json", '{"mode": "cpu", "flags": null}', "it has no flags"),
        ("a.json", "{", "line 1: expected the node content"),
    ],
)
def test_what_is_no_flag_is_named_in_one_line(tmp_path, name, text, expected):
    with pytest.raises(UserError, match="--config .*" + expected) as problem:
        read_config(write(tmp_path, name, text), Settings)
    assert "\n" not in str(problem.value)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError, match="none.yaml"):
        read_config(str(tmp_path / "none.yaml"), Settings)
    (tmp_path / "a.yaml").write_bytes(b"lr: \xff")
    with pytest.raises(UserError, match="a.yaml: 'utf-8' codec can't decode"):
        read_config(str(tmp_path / "a.yaml"), Settings)


def test_words_that_yaml_takes_for_bools_and_flags_given_twice(tmp_path):
    assert read_config(write(tmp_path, "a.yaml", "flip: yes"), Settings) == {"flip": "yes"}
    with pytest.raises(UserError, match="lr is given twice"):
        read_config(write(tmp_path, "b.yaml", "model: {lr: 1}\ntraining: {lr: 2}"), Settings)
    for name, text in (("c.yaml", "lr: 1\nlr: 2"), ("d.json", '{"lr": 1, "lr": 2}')):
        with pytest.raises(UserError, match="lr is given twice"):
            read_config(write(tmp_path, name, text), Settings)
    with pytest.raises(UserError, match="training is given twice"):
        read_config(
            write(tmp_path, "e.yaml", "training: {lr: 1}\ntraining: {epochs: 2}"), Settings
        )


def test_json_may_be_indented_by_tabs(tmp_path):
    path = write(tmp_path, "a.json", '{\n\t"lr": 1e-05,\n\t"flip": "yes"\n}')
    assert read_config(path, Settings) == {"lr": 1e-05, "flip": "yes"}


def test_what_another_script_has_recorded_is_ignored(tmp_path):
    flags = {"lr": 1.0, "procs": 2, "sharded": True, "replicas": 2}
    path = write(tmp_path, "config.json", json.dumps({"mode": "cpu", "flags": flags}))
    assert read_config(path, Settings) == {"lr": 1.0}
    assert read_config(path, CpuSettings) == {"lr": 1.0, "procs": 2}
    assert read_config(path, FsdpSettings) == {"lr": 1.0, "sharded": True, "replicas": 2}


def test_of_a_record_what_belongs_to_a_machine_is_passed_over(tmp_path):
    """And to the run itself."""
    flags = {"lr": 1, "flip": "yes", "name": "old", "device": "cuda", "hardware_tflops": 9.0}
    flags |= {"delay_ms": 5.0, "netem": True, "profile": True}
    record = json.dumps({"mode": "ddp", "flags": flags})
    path = write(tmp_path, "config.json", record)
    assert read_config(path, Settings) == {"lr": 1.0, "flip": "yes"}
    path = write(tmp_path, "a.yaml", "device: cpu\nlr: 1")
    assert read_config(path, Settings) == {"device": "cpu", "lr": 1.0}


def test_a_file_that_is_no_record_may_name_the_run(tmp_path):
    assert read_config(write(tmp_path, "a.yaml", "name: mine\nlr: 1"), Settings) == {
        "name": "mine",
        "lr": 1.0,
    }
    path = write(
        tmp_path, "b.yaml", "flags:\n  name: mine\nmodel:\n  d_model: 64\n"
    )  # a heading like any other
    assert read_config(path, Settings) == {"name": "mine", "d_model": 64}


def test_a_file_cannot_give_published_weights_another_shape(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train_cpu.py", "--config", "a.yaml"])
    write(tmp_path, "a.yaml", "data: kinds\npretrained: bert\nlayers: 4\n")
    with pytest.raises(
        UserError,
        match="--config a.yaml: --layers cannot be set with --pretrained: "
        "the weights have a shape",
    ):
        parse_arguments("", CpuSettings).complete()
    write(
        tmp_path, "a.yaml", "data: kinds\npretrained: bert\nlayers: 3\n"
    )  # also where it is the default
    with pytest.raises(
        UserError, match="--layers cannot be set with --pretrained: the weights have a shape"
    ):
        parse_arguments("", CpuSettings).complete()
    record = {
        "mode": "cpu",
        "flags": {"data": "kinds", "pretrained": "bert", "layers": 3, "norm": "pre"},
    }
    write(
        tmp_path, "a.yaml", json.dumps(record)
    )  # a record has them, though nothing looks at them
    assert parse_arguments("", CpuSettings).complete().pretrained == "bert"
    record["flags"]["pretrained"] = ""  # nor of a run from scratch, beside --pretrained
    write(tmp_path, "a.yaml", json.dumps(record))
    monkeypatch.setattr(
        sys, "argv", ["train_cpu.py", "--config", "a.yaml", "--pretrained", "bert"]
    )
    assert parse_arguments("", CpuSettings).complete().pretrained == "bert"


def test_the_command_line_goes_before_the_file_also_in_other_words(tmp_path, monkeypatch):
    write(tmp_path, "a.yaml", "name: mine\nsteps: 20\nminutes: 3\nbatch_size: 32\nlr: 1\n")
    monkeypatch.chdir(tmp_path)
    for flags, expected in (
        ([], (20, 32)),
        (["--epochs", "2"], (0, 32)),
        (["--steps", "9"], (9, 32)),
        (["--epochs", "2", "--steps", "9"], (9, 32)),
        (["--batch-tokens", "512"], (20, 0)),
    ):
        monkeypatch.setattr(sys, "argv", ["train_cpu.py", "--config", "a.yaml", *flags])
        args = parse_arguments("", CpuSettings).complete()
        assert (args.steps, args.batch_size) == expected
        assert (args.lr, Path(args.folder)) == (1.0, Path("logs/mine"))
        assert bool(args.minutes) == (args.steps == 20)  # else the length is given


@pytest.mark.parametrize("flags", ["--minutes 3 --steps 9", "--minutes 3 --epochs 2"])
def test_a_run_has_one_length(monkeypatch, flags):
    first, _, second, _ = flags.split()
    monkeypatch.setattr(sys, "argv", ["train_cpu.py", *flags.split()])
    with pytest.raises(UserError, match=f"{first} and {second}: pass only one of them"):
        parse_arguments("", CpuSettings).complete()


def test_the_flags_of_the_shape_reach_the_model():
    args = Settings(layers=2, d_model=64, heads=2, norm="post", max_length=50)
    config = make_config(ModelConfig, args, vocab_size=9, dropout=0.0)
    expected = ModelConfig(
        9, layers=2, d_model=64, heads=2, norm="post", max_length=50, dropout=0.0
    )
    assert config == expected
    with pytest.raises(UserError, match="d_model 256 cannot be split over 3 heads"):
        make_config(ModelConfig, Settings(heads=3), vocab_size=9)
