"""Windows and macOS, as far as Linux can play them: tests/systems/sitecustomize.py says how."""

import ast
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import LINUX, ROOT, SMALL, read_metrics
from test_house import MODULES, path_of

from support.common import files, run_folder
from support.common.errors import UserError, error_message
from support.corpora.encoded import make_once
from support.distributed import launch, signals

SYSTEMS = ["win32", "darwin"]


def run_there(system, *command, cwd, text=""):
    """Runs Python as on another system; returns what it prints. Its session is its own."""
    pretended = {
        "PRETEND": system,
        "PYTHONPATH": str(ROOT / "tests" / "systems"),
        "PYTHONWARNDEFAULTENCODING": "1",  # an error, in a module of the project
        "PYTHONIOENCODING": "cp1252" if system == "win32" else "utf-8",
        "USE_LIBUV": "0" if system == "win32" else "1",  # PyTorch's default on Windows
    }
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env=os.environ | pretended,
        input=text,
        capture_output=True,
        encoding=pretended["PYTHONIOENCODING"],
        timeout=300,
        start_new_session=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@LINUX
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_module_can_be_imported(system):
    needs_a_package = {"support.ctranslate.engine"}
    names = [name for name in MODULES if name not in needs_a_package]
    assert "support.common.run_folder" in names and "train_fsdp" in names
    run_there(system, "-c", f"import {', '.join(names)}", cwd=ROOT)


def test_a_python_that_was_built_without_optional_libraries():
    """As pyenv builds one on a machine that lacks their headers."""
    names = [name for name in MODULES if name != "support.ctranslate.engine"]
    lacking = ("_lzma", "_bz2", "_sqlite3", "_curses", "readline")
    code = f"import sys\nsys.modules |= dict.fromkeys({lacking})\nimport {', '.join(names)}"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_two_processes_train_go_on_and_translate(tmp_path, system, corpus_flags):
    name = r"logs\r" if system == "win32" else "logs/r"
    flags = shlex.split("--procs 2 --eval-every 2 --average-checkpoints 2 --steps 4 --name")
    run_there(system, ROOT / "train_cpu.py", *corpus_flags, *SMALL, *flags, name, cwd=tmp_path)
    run_there(system, ROOT / "train_cpu.py", "--resume", "logs/r", "--steps", "6", cwd=tmp_path)
    assert [int(row["step"]) for row in read_metrics(tmp_path / "logs/r")] == list(range(1, 7))
    script = [ROOT / "translate.py", "--procs", "2"]
    lines = "".join(f"{i} Hunde laufen.\n" for i in range(100))
    assert run_there(system, *script, cwd=tmp_path, text=lines).count("\n") == 100


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_a_process_trains_without_torchrun_on_windows(tmp_path, mode, corpus_flags):
    """PyTorch's torchrun does not start there, but its variables can be set by hand."""
    code = f"""
import os, runpy, socket, sys
os.environ |= dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")
with socket.create_server(("127.0.0.1", 0)) as server:
    os.environ["MASTER_PORT"] = str(server.getsockname()[1])
runpy.run_path({str(ROOT / f"train_{mode}.py")!r}, run_name="__main__")
"""
    flags = [*corpus_flags, *SMALL, *shlex.split("--device cpu --name r --steps 3")]
    script = tmp_path / "start.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{code}")
    run_there("win32", script, *flags, cwd=tmp_path)
    assert len(read_metrics(tmp_path / "logs/r")) == 3


def reads_or_writes_text(call: ast.Call) -> bool:
    """Whether a call is open() of a text file, or read_text or write_text of a path.

    Or of another function with the keyword `text`, such as subprocess.run.
    """
    if any(keyword.arg == "text" for keyword in call.keywords):
        return getattr(call.func, "attr", "") in ("run", "Popen", "check_output")
    if isinstance(call.func, ast.Attribute):
        return call.func.attr in ("read_text", "write_text")
    modes = [*call.args[1:2], *(each.value for each in call.keywords if each.arg == "mode")]
    is_binary = any("b" in str(each.value) for each in modes if isinstance(each, ast.Constant))
    return isinstance(call.func, ast.Name) and call.func.id == "open" and not is_binary


def test_no_text_is_in_the_encoding_that_the_system_prefers():
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in [*map(path_of, MODULES), *(ROOT / "batch").glob("*.py")]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and reads_or_writes_text(node)
        if not any(keyword.arg == "encoding" for keyword in node.keywords)
    ]
    assert wrong == []


@LINUX
def test_peak_memory_does_not_count_what_the_parent_had():
    child = "from support.common.hardware import peak_resident; print(peak_resident())"
    code = f"""
import subprocess, sys
memory = bytearray(2**30)
memory[::4096] = b"x" * 2**18
done = subprocess.run([sys.executable, "-c", {child!r}], capture_output=True, check=True)
print(int(done.stdout))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert 2**24 < int(done.stdout) < 2**30


@pytest.mark.parametrize("name", ["nul", "a/COM1", "aux.txt", "run."])
def test_names_that_windows_keeps_for_itself(monkeypatch, name):
    monkeypatch.setattr(run_folder, "sys", SimpleNamespace(platform="win32"))
    with pytest.raises(UserError, match="Windows has no folder of this name"):
        run_folder.check_name(name)
    assert run_folder.check_name("nul-1/common.5") == "nul-1/common.5"


def test_windows_and_its_separators(monkeypatch):
    monkeypatch.setattr(run_folder, "os", SimpleNamespace(sep="\\"))
    assert run_folder.check_name(r"logs\study\a") == "study/a"


@pytest.mark.parametrize("platform, tries", [("win32", 3), ("linux", 1)])
def test_a_file_that_is_being_read_is_replaced_a_little_later(
    tmp_path, monkeypatch, platform, tries
):
    monkeypatch.setattr(files, "sys", SimpleNamespace(platform=platform))
    monkeypatch.setattr(files.time, "sleep", lambda seconds: None)
    calls = []
    real_replace = Path.replace

    def replace(path, target):
        calls.append(path)
        if len(calls) < 3:
            raise PermissionError(13, "in use")
        return real_replace(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    (tmp_path / "new").write_text("new", encoding="utf-8")
    if platform == "win32":
        files.replace(tmp_path / "new", tmp_path / "old")
        assert (tmp_path / "old").is_file()
    else:  # where it is not allowed, it will not be allowed later
        with pytest.raises(PermissionError):
            files.replace(tmp_path / "new", tmp_path / "old")
    assert len(calls) == tries


def test_an_encoded_corpus_that_is_being_read_gets_its_name_a_little_later(
    tmp_path, monkeypatch
):
    """By a scanner of files, for example; it took minutes to encode."""

    def write(folder):
        (folder / "train.ids").write_bytes(b"1")
        return {}

    def replace(path, target):
        refusals.pop()
        raise PermissionError(13, "in use", str(path), str(target))

    real_replace = Path.replace
    refusals = [1, 2]
    monkeypatch.setattr(files, "sys", SimpleNamespace(platform="win32"))
    monkeypatch.setattr(files.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(
        Path, "replace", lambda *paths: (replace if refusals else real_replace)(*paths)
    )
    folder = make_once(tmp_path / "encoded", write)
    assert (folder / "train.ids").read_bytes() == b"1" and refusals == []


def test_a_file_that_stays_open_in_another_program_is_named(tmp_path, monkeypatch):
    """By its own name, not by the name of the file that was to replace it."""

    def refuse(path, target):
        raise PermissionError(13, "in use", str(path), str(target))

    monkeypatch.setattr(files, "sys", SimpleNamespace(platform="win32"))
    monkeypatch.setattr(files, "READERS_TIMEOUT", 0)
    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(PermissionError, match="another program has it open") as problem:
        files.write_text(tmp_path / "runs.csv", "")
    assert error_message(problem.value).startswith(str(tmp_path / "runs.csv: another program"))
    assert list(tmp_path.iterdir()) == []


def test_a_parent_that_has_died_on_windows(monkeypatch):
    """There the number of a parent stays the same."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    monkeypatch.setattr(signals, "sys", SimpleNamespace(platform="win32"))
    monkeypatch.setattr(signals.Signals, "parent", os.getppid())
    assert not signals.parent_has_died()
    monkeypatch.setattr(signals.Signals, "parent", ended.pid)
    assert signals.parent_has_died()


def test_a_signal_that_ends_the_wait_on_windows_does_not_end_the_run(monkeypatch):
    class Workers:
        ends = iter([InterruptedError, True])
        processes = []

        def join(self):
            end = next(self.ends)
            if end is InterruptedError:
                raise end
            return end

    workers = Workers()
    monkeypatch.setattr(launch, "forward_signals", lambda workers, early: [])
    launch.wait_for_workers(workers, "", early=[])
    assert next(workers.ends, None) is None
