"""Files of other people: they run no code here, overwrite nothing, and command no terminal."""

import io
import os
import pickle
import shlex
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from conftest import make_link
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata

from data import BPE
from support.common import checkpoint
from support.common.errors import UserError
from support.common.files import replacing, write_text
from support.common.paths import script_path
from support.common.run_folder import LOCK, lock_folder
from support.common.streams import prepare_streams
from support.distributed import weights
from support.distributed.shards import DescriptionUnpickler, load_shards
from support.training.config_file import read_config
from support.training.settings import Settings
from support.translation.lines import split_line

# Of torch.distributed.checkpoint in a single process.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


class Member:
    """Pickled as Python 3.11.2 pickles a member of an enumeration."""

    def __init__(self, kind: type, name: str):
        self.place = (kind, name)

    def __reduce__(self):
        return getattr, self.place


class Command:
    """A pickle of it runs a command where it is read."""

    def __reduce__(self):
        return os.mkdir, ("created",)


@pytest.fixture
def shards(tmp_path, monkeypatch):
    """A sharded checkpoint, and the folder in which a `Command` would make another."""
    monkeypatch.chdir(tmp_path)
    state = {"weight": torch.arange(3.0), "lr": 0.1, "dtype": torch.bfloat16}
    dcp.save(state, checkpoint_id="shards", no_dist=True)
    return Path("shards")


def test_an_honest_checkpoint_is_loaded(shards):
    state = {"weight": torch.zeros(3), "lr": 0.0, "dtype": torch.float32}
    load_shards(state, str(shards))
    assert state.pop("weight").tolist() == [0, 1, 2]
    assert state == {"lr": 0.1, "dtype": torch.bfloat16}


def test_an_attribute_is_a_member_of_an_enumeration_alone():
    member = pickle.dumps(Member(_MEM_FORMAT_ENCODING, "TORCH_CHANNELS_LAST"))
    loaded = DescriptionUnpickler(io.BytesIO(member)).load()
    assert loaded is _MEM_FORMAT_ENCODING.TORCH_CHANNELS_LAST
    for kind, name in ((Metadata, "__init__"), (_MEM_FORMAT_ENCODING, "__class__")):
        with pytest.raises((pickle.UnpicklingError, KeyError)):
            DescriptionUnpickler(io.BytesIO(pickle.dumps(Member(kind, name)))).load()


@pytest.mark.parametrize(
    "module, name",
    [
        ("torch", "load"),
        ("torch.serialization", "load"),
        ("pathlib", "os"),
        ("pathlib", "os.PathLike.Path"),
        ("os", "abstractPath"),
        ("torch.distributed.checkpoint.filesystem", "os.mkdir"),
        ("torch.distributed.checkpoint.filesystem", "FileSystemReader"),
        ("support.training.settings", "Settings"),
        ("enum", "Enum"),
    ],
)
def test_what_does_not_describe_shards_is_refused(module, name):
    with pytest.raises(pickle.UnpicklingError, match="it may hold code"):
        DescriptionUnpickler(io.BytesIO()).find_class(module, name)


@pytest.mark.parametrize("kind", ["code in it", "code alone", "code of rank 0", "cut", ""])
def test_a_description_of_shards_runs_no_code(shards, kind):
    path = shards / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    assert isinstance(metadata, Metadata)
    metadata.planner_data = Command()
    content = {
        "code in it": pickle.dumps(metadata),
        "code alone": pickle.dumps(Command()),
        "code of rank 0": pickle.dumps(0),
        "cut": path.read_bytes()[:100],
    }
    path.write_bytes(content.get(kind, b""))
    # PyTorch reads it where there is no other.
    (shards / "__0.metadata").write_bytes(pickle.dumps(Command()))
    with pytest.raises(dcp.CheckpointException, match="metadata is None"):
        load_shards({"weight": torch.zeros(3)}, str(shards))
    assert not Path("created").exists()


def test_a_number_among_shards_runs_no_code(shards):
    metadata = pickle.loads((shards / ".metadata").read_bytes())
    (place,) = (place for index, place in metadata.storage_data.items() if index.fqn == "lr")
    file = shards / place.relative_path
    content = io.BytesIO()
    torch.save(Command(), content)
    place.offset, place.length = file.stat().st_size, len(content.getvalue())
    file.write_bytes(file.read_bytes() + content.getvalue())
    (shards / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(dcp.CheckpointException, match="it may hold code"):
        load_shards({"lr": 0.0}, str(shards))
    assert not Path("created").exists()


def test_nothing_is_written_where_a_link_leads(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("text")
    names = ("a.json", "b.csv", f"b.csv.{os.getpid()}.partial", LOCK)
    for name in names:
        make_link(tmp_path / name, precious)
    (tmp_path / "shards").mkdir()
    make_link(tmp_path / "shards/__0_0.distcp", precious)
    weights.save_sharded(tmp_path, "shards", {"weight": torch.zeros(3)}, {})
    write_text(tmp_path / "a.json", "new")
    with replacing(tmp_path / "b.csv") as partial:
        partial.write_text("new")
    lock_folder(tmp_path, is_new=True).close()
    assert precious.read_text() == "text"
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.csv").read_text() == "new"


def test_what_is_not_written_to_its_end_leaves_nothing(tmp_path):
    (tmp_path / "a.csv").write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "a.csv") as partial:
        partial.write_text("new")
        raise KeyboardInterrupt
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_a_link_within_a_run_is_not_followed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("elsewhere", "logs/theirs", "linked"):
        Path(folder).mkdir(parents=True)
        Path(folder, "best.pt").touch()
    make_link(Path("logs/theirs/data"), tmp_path / "elsewhere")
    Path("logs/others").mkdir()
    make_link(Path("logs/others/best.pt"), tmp_path / "elsewhere/best.pt")
    make_link(Path("logs/mine"), tmp_path / "linked")
    found = checkpoint.find_all("best.pt")
    assert set(found) == {Path("logs/theirs/best.pt"), Path("logs/mine/best.pt")}


def test_names_in_a_command_to_paste_are_quoted(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["a $(touch b)/translate.py"])
    assert shlex.split(script_path("classify.py")) == ["a $(touch b)/classify.py"]
    content = {"task": {"type": "classification"}}
    monkeypatch.setattr(checkpoint, "load", lambda path: content)
    with pytest.raises(UserError) as problem:
        checkpoint.find_checkpoint(tmp_path / "$(touch b)" / "best.pt", "translation")
    words = shlex.split(str(problem.value).partition("; use ")[2])
    assert words[-1] == str(tmp_path / "$(touch b)" / "best.pt")


def test_a_terminal_is_not_commanded(monkeypatch):
    """By the name of a class or a file, for example. Progress bars look as they should."""
    output = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO()))
    prepare_streams()
    honest = "\x1b[1;34mbold\x1b[0m\ttab\rgrün 你好\n\x1b[A"
    print("\x1b]0;title\x07\x9b31mred \x1b[2J", honest, end="")
    output.flush()
    shown = output.buffer.getvalue().decode()
    assert shown == r"\x1b]0;title\x07\x9b31mred \x1b[2J " + honest


@pytest.mark.parametrize("text", ["lr: &a [1, 2, *a]", "lr: " + 3000 * "[" + 3000 * "]"])
def test_a_file_of_flags_with_lists(tmp_path, text):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match="is a list, not float|recursion") as problem:
        read_config(str(path), Settings)
    assert "\n" not in str(problem.value)


def test_a_line_of_dots_is_split():
    bpe = BPE.train(iter(["a"]), 259)
    pieces = split_line(bpe, "Ja" + 200_000 * "." + " Nein.", max_tokens=100_000)
    assert bpe.decode(pieces[-1]) == "Nein."
