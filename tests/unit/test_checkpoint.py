"""Checkpoint files: whole or not written at all, and rejected in one line if unusable."""

import os
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from conftest import LINUX, make_link, write_runs
from test_model import make_batch, make_model

import translate
from data import BPE
from support.common import checkpoint
from support.common.errors import UserError, exit_on_user_error
from support.translation.task import load_translator


class Code:
    """What a checkpoint may not hold: it makes the file `ran` when it is read by pickle."""

    def __init__(self, folder):
        self.ran = str(folder / "ran")

    def __reduce__(self):
        return open, (self.ran, "w")


def content(model) -> dict:
    """What a run saves of a small translator."""
    bpe = BPE.train(iter(["Ein Hund läuft."]), 270).serialized
    task = {
        "type": "translation",
        "config": asdict(model.config),
        "bpe": bpe,
        "src": "de",
        "tgt": "en",
        "checksum": "0",
    }
    return {
        "step": 7,
        "model": model.state_dict(),
        "task": task,
        "flags": {"lr": 1e-3},
        "progress": {"seconds": 1.5},
    }


@pytest.fixture
def model():
    return make_model(vocab_size=270).eval()


@pytest.fixture
def saved(tmp_path, model):
    checkpoint.save(tmp_path / "good.pt", content(model))
    return tmp_path / "good.pt"


def refusal(read, path) -> str:
    """What the user is told: one line that names the file."""
    with pytest.raises(UserError) as problem:
        read(path)
    assert path.name in str(problem.value) and "\n" not in str(problem.value)
    assert len(str(problem.value)) < len(str(path)) + 160
    return str(problem.value)


# --- Saving and loading


def test_weights_that_are_no_numbers_are_refused(tmp_path, model):
    spoilt = content(model)
    spoilt["model"]["embedding.weight"] = torch.full_like(model.embedding.weight, float("nan"))
    checkpoint.save(tmp_path / "nan.pt", spoilt)
    assert "embedding.weight holds numbers that are not finite" in refusal(
        checkpoint.load, tmp_path / "nan.pt"
    )


def test_what_is_saved_is_loaded(saved, model):
    found = checkpoint.load(saved)
    expected = content(model) | {"format": checkpoint.FORMAT}
    assert found.keys() == expected.keys()
    assert all(found[name] == expected[name] for name in expected.keys() - {"model"})
    assert found["model"].keys() == expected["model"].keys()
    assert all(
        torch.equal(found["model"][name], weight) for name, weight in expected["model"].items()
    )
    assert os.listdir(saved.parent) == ["good.pt"]


def test_a_file_that_is_no_checkpoint_is_refused(saved, model, tmp_path, recwarn):
    def write(name, what):
        torch.save(what, tmp_path / name)
        return tmp_path / name

    whole = saved.read_bytes()
    good = content(model) | {"format": checkpoint.FORMAT}
    for name, what in {
        "list.pt": [1, 2],
        "empty.pt": {},
        "new.pt": good | {"format": 99},
        "unformatted.pt": content(model),
    }.items():
        assert "not a whole checkpoint" in refusal(checkpoint.load, write(name, what)), name
    assert "it may hold code" in refusal(
        checkpoint.load, write("code.pt", good | {"code": Code(tmp_path)})
    )
    torch.save(good | {"code": Code(tmp_path)}, tmp_path / "four.pt", pickle_protocol=4)
    assert (
        refusal(checkpoint.load, tmp_path / "four.pt") and not recwarn.list
    )  # a warning would be a second line
    assert not (tmp_path / "ran").exists()
    for size in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.pt").write_bytes(whole[:size])
        refusal(checkpoint.load, tmp_path / "cut.pt")
    for text in (b"no checkpoint", b"\x80", b"PK\x03\x04", b"\0" * 1000):
        (tmp_path / "text.pt").write_bytes(text)
        refusal(checkpoint.load, tmp_path / "text.pt")
    assert "no such file" in refusal(checkpoint.load, tmp_path / "missing.pt")


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path):
    """A file that may not grow past its limit fails as a full disk does."""
    checkpoint.save(tmp_path / "last.pt", {"step": 1, "weights": torch.zeros(1000)})
    resource = pytest.importorskip("resource", reason="Windows limits no files")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        for name, kept in (("last", "; the previous one is intact$"), ("first", r"\)$")):
            said = f"{name}.pt: the checkpoint cannot be written .*{kept}"
            with pytest.raises(UserError, match=said):
                checkpoint.save(tmp_path / f"{name}.pt", {"weights": torch.zeros(1_000_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert torch.load(tmp_path / "last.pt", weights_only=True)["step"] == 1
    assert os.listdir(tmp_path) == ["last.pt"]


def test_a_checkpoint_that_torch_cannot_write_says_how_much_is_free(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(UserError, match=r"unexpected pos 64 vs 0; [\d,]+ MiB are free on the"):
        checkpoint.save(tmp_path / "last.pt", {"step": 1})


@LINUX
def test_any_file_that_finds_the_disk_full_is_answered_in_one_line(capsys):
    """Writing, unlike opening, does not say which file it was."""
    with (
        pytest.raises(SystemExit) as ended,
        exit_on_user_error(),
        open("/dev/full", "w", buffering=1) as file,
    ):
        file.write("a row\n")
    assert ended.value.code == 2
    assert (
        capsys.readouterr().err == "error: a file cannot be written: No space left on device\n"
    )


def test_a_folder_that_is_gone_is_answered(tmp_path):
    with pytest.raises(
        UserError, match="last.pt: the checkpoint cannot be written .*No such file"
    ):
        checkpoint.save(tmp_path / "gone" / "last.pt", {"step": 1})


def test_a_checkpoint_that_may_not_be_read_is_not_called_damaged(saved, monkeypatch, capsys):
    def refuse(path, **_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(torch, "load", refuse)
    with pytest.raises(SystemExit), exit_on_user_error():
        checkpoint.load(saved)
    assert capsys.readouterr().err == f"error: {saved}: Permission denied\n"


def test_the_mean_is_that_of_all_files(tmp_path):
    models = [make_model(seed) for seed in (1, 2, 3)]
    paths = [tmp_path / f"{seed}.pt" for seed in (1, 2, 3)]
    for path, model in zip(paths, models):
        checkpoint.save(path, content(model))
    mean = checkpoint.average_weights(paths)
    assert mean.keys() == models[0].state_dict().keys()
    for name, weight in mean.items():
        one, two, three = (model.get_parameter(name) for model in models)
        torch.testing.assert_close(weight, (one + two + three).detach() / 3)
    assert not torch.equal(mean["embedding.weight"], models[0].embedding.weight)
    alone = checkpoint.average_weights(paths[:1])
    assert all(
        torch.equal(weight, models[0].get_parameter(name)) for name, weight in alone.items()
    )


@LINUX
def test_a_file_is_on_disk_before_it_has_its_name_and_its_name_after(tmp_path, monkeypatch):
    """What a machine that loses its power needs."""
    done = []
    sizes = []
    fsync = os.fsync
    replace = Path.replace

    def sync(file):
        done.append(
            os.readlink(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}")
        )
        sizes.append(os.path.getsize(done[-1]))
        fsync(file)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(
        Path, "replace", lambda path, to: (done.append("replace"), replace(path, to))[1]
    )
    opened = len(os.listdir("/proc/self/fd"))
    checkpoint.save(tmp_path / "last.pt", {"step": 1})
    assert done == [str(tmp_path / "last.pt.partial"), "replace", str(tmp_path)]
    assert sizes[0] == (tmp_path / "last.pt").stat().st_size  # nothing was left in a buffer
    assert len(os.listdir("/proc/self/fd")) == opened


# --- Which one is meant


def test_a_checkpoint_that_cannot_be_mapped_is_read(saved, monkeypatch):
    read = torch.load

    def refuse_to_map(*args, mmap=False, **kwargs):
        if mmap:
            raise RuntimeError("unable to mmap 99 bytes from file: No such device (19)")
        return read(*args, **kwargs)

    monkeypatch.setattr(torch, "load", refuse_to_map)
    assert checkpoint.load(saved)["step"] == 7


def test_a_run_behind_a_link_is_found(tmp_path, monkeypatch, model):
    """It may link to a run elsewhere; a link to where it is itself leads nowhere."""
    whole = {"format": checkpoint.FORMAT} | content(model)
    write_runs(tmp_path / "elsewhere", whole, {"new": "translation"})
    write_runs(tmp_path, whole, {"mid": "other", "old": "translation"})
    make_link(tmp_path / "logs" / "linked", tmp_path / "elsewhere" / "logs" / "new")
    for name in ("circle", "another"):
        make_link(tmp_path / "logs" / name, tmp_path / "logs")
    make_link(tmp_path / "logs" / "gone", tmp_path / "nowhere")
    monkeypatch.chdir(tmp_path)
    found, _ = checkpoint.find_checkpoint(None, "translation")
    assert found == Path("logs/linked/best.pt")


def test_the_newest_run_of_a_kind_is_found(tmp_path, monkeypatch, model, capsys):
    monkeypatch.setattr("sys.argv", ["translate.py"])
    monkeypatch.chdir(tmp_path)
    write_runs(
        tmp_path,
        content(model) | {"format": checkpoint.FORMAT},
        # What a trial of --minutes leaves when it is killed is no run.
        {".trial": "translation", "texts": "classification", "new": "translation"},
    )
    best = Path("logs/new/best.pt")
    assert checkpoint.find_checkpoint(None, "translation")[0] == best
    assert checkpoint.find_checkpoint(None, "classification")[0] == Path("logs/texts/best.pt")
    assert checkpoint.find_checkpoint(Path("logs/new"), "translation")[0] == best
    assert checkpoint.find_checkpoint(best, "translation")[0] == best
    texts = Path("logs/texts/best.pt")
    advice = f"use python classify.py --checkpoint {texts}"
    with pytest.raises(UserError) as problem:
        checkpoint.find_checkpoint(texts.parent, "translation")
    assert str(problem.value) == f"{texts}: not a model for translation; {advice}"
    write_runs(
        tmp_path / "logs",
        {"format": checkpoint.FORMAT} | content(model),
        {"study": "translation"},
    )
    (tmp_path / "logs/logs").rename(tmp_path / "logs/set")  # as --name set/study does
    os.utime("logs/set/study/best.pt")
    assert checkpoint.find_checkpoint(None, "translation")[0] == Path("logs/set/study/best.pt")
    Path("logs/set/study/best.pt").write_bytes(b"cut short")
    assert checkpoint.find_checkpoint(None, "translation")[0] == best
    assert "warning: logs/set/study/best.pt: not a whole checkpoint" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path / "logs")
    for kind, data in {"translation": "", "classification": " --data kinds"}.items():
        with pytest.raises(
            UserError,
            match=f"no checkpoint for {kind} under logs/ yet; .*: python train_cpu.py{data}$",
        ):
            checkpoint.find_checkpoint(None, kind)


@pytest.mark.parametrize(
    "folder, said", [("a", "logs/a"), ("logs/b", "logs/RUN"), ("b", "logs/RUN")]
)
def test_the_folder_of_a_run_is_proposed(tmp_path, monkeypatch, folder, said):
    monkeypatch.chdir(tmp_path)
    Path("logs/a").mkdir(parents=True)
    Path("logs/b").mkdir()
    Path("logs/a/last.pt").touch()
    with pytest.raises(UserError, match=f"last.pt: no such file; .* folder of a run, {said}$"):
        checkpoint.load_run(Path(folder), False)


def test_what_a_run_can_go_on_from(tmp_path, model):
    def refused(sharded, more=None):
        checkpoint.save(tmp_path / "last.pt", content(model) | (more or {}))
        with pytest.raises(UserError) as problem:
            checkpoint.load_run(tmp_path, sharded)
        return str(problem.value)

    with pytest.raises(
        UserError, match="last.pt: no such file; --resume takes the folder of a run"
    ):
        checkpoint.load_run(tmp_path, False)
    for sharded in (False, True):
        checkpoint.save(tmp_path / "last.pt", content(model) | {"optimizer": {"a": 1}})
        assert checkpoint.load_run(tmp_path, sharded)["optimizer"] == {"a": 1}
    assert "its weights are sharded, in sharded-7/; resume it with" in refused(
        False, {"sharded": "sharded-7"}
    )
    assert checkpoint.load_run(tmp_path, True)["sharded"] == "sharded-7"


def test_checkpoints_in_parts_of_other_steps_are_removed(tmp_path):
    for name in ("sharded-1", "sharded-2", "sharded-3", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").touch()
    checkpoint.remove_sharded(tmp_path, "sharded-2")
    assert sorted(os.listdir(tmp_path)) == ["other", "sharded-2"]
    checkpoint.remove_sharded(tmp_path, "")
    assert os.listdir(tmp_path) == ["other"]


# --- A translator


def read_translator(path):
    return load_translator(path, checkpoint.load(path))


def test_a_checkpoint_is_read_once(saved, monkeypatch):
    paths = []
    read = torch.load
    monkeypatch.setattr(
        torch, "load", lambda path, **how: [paths.append(path), read(path, **how)][1]
    )
    monkeypatch.setattr(sys, "argv", ["translate.py", "--checkpoint", str(saved)])
    translate.Translator(translate.parse_arguments())
    assert paths == [saved]


def test_a_translator_comes_back_as_it_was(saved, model):
    found, bpe, task = load_translator(saved, checkpoint.load(saved))
    batch = make_batch()
    assert not found.training and found.config == model.config
    assert torch.equal(found(*batch)[0], model(*batch)[0])
    assert bpe.decode(bpe.encode(["Ein Hund läuft."])[0]) == "Ein Hund läuft."
    assert (task["src"], task["tgt"]) == ("de", "en")


@pytest.mark.parametrize(
    "wrong",
    [
        {"task": {"bpe": "{}"}},
        {"task": {"config": 3}},
        {"task": {"config": {}}},
        {"task": {"config": {"vocab_size": 270, "flavour": "vanilla"}}},
        {"task": {"config": {"vocab_size": "many"}}},
        {"task": {"config": {"vocab_size": -1}}},
        {"task": {"bpe": "garbage"}},
        {"task": {"bpe": 3}},
        {"task": {"bpe": None}},
        {"model": {}},
        {"model": {"embedding.weight": torch.zeros(3, 3)}},
    ],
)
def test_a_spoilt_translator_is_refused(tmp_path, model, wrong):
    good = content(model)
    for part, changes in wrong.items():
        good[part] = good[part] | changes if changes else {}
    checkpoint.save(tmp_path / "spoilt.pt", good)
    assert "not a whole checkpoint of a translator" in refusal(
        read_translator, tmp_path / "spoilt.pt"
    )


def test_a_translator_with_a_weight_too_few_or_too_many_is_refused(tmp_path, model):
    weights = model.state_dict()
    few = {name: weight for name, weight in weights.items() if name != "embedding.weight"}
    for wrong in (few, weights | {"another": torch.zeros(1)}):
        checkpoint.save(tmp_path / "wrong.pt", content(model) | {"model": wrong})
        assert "not a whole checkpoint of a translator" in refusal(
            read_translator, tmp_path / "wrong.pt"
        )


@pytest.mark.parametrize("task", [{}, {"type": "speech"}])
def test_a_checkpoint_of_no_known_task_is_answered_in_one_line(tmp_path, task):
    path = tmp_path / "best.pt"
    checkpoint.save(path, {"format": checkpoint.FORMAT, "model": {}, "task": task})
    with pytest.raises(UserError, match="best.pt: not a whole checkpoint") as problem:
        checkpoint.find_checkpoint(path, "translation")
    assert "\n" not in str(problem.value)
