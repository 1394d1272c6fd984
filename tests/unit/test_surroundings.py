"""What machines have or lack: standard streams, encodings, packages, fonts, a compiler."""

import errno
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from conftest import LINUX, ROOT, run_script

from support.common import figures, files, paths
from support.common.errors import UserError, require, run_main
from support.common.hardware import check_compiler
from support.distributed.launch import check_environment
from support.distributed.rendezvous import check_interface
from support.training import throughput
from support.training.command_line import CommandLine
from support.training.settings import CpuSettings, FsdpSettings

CHINESE = "你好"


def run_python(program: str, shell: str = "", **environment) -> subprocess.CompletedProcess:
    """Runs a program, with redirections of the shell. Its output is bytes."""
    if not shutil.which("sh"):
        pytest.skip("needs sh, which Windows has with Git only")
    command = f'"$0" -c "$1" {shell}'
    return subprocess.run(
        ["sh", "-c", command, sys.executable, program],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
    )


# --- Standard streams


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(tmp_path, closed):
    """Nothing that is opened later gets their numbers, also not in the processes started."""
    program = f"""
import subprocess, sys
from support.common.streams import prepare_streams
prepare_streams()
print("out", flush=True)
print("err", file=sys.stderr, flush=True)
assert sys.stdin.read() == ""
code = "import sys; print(None in (sys.stdin, sys.stdout, sys.stderr), file=sys.stderr)"
subprocess.run([sys.executable, "-c", code], check=True)
file = open({str(tmp_path / "file")!r}, "w")
file.write(str(file.fileno()))
"""
    done = run_python(program, f"{closed} {'' if '<' in closed else '</dev/null'}")
    assert done.returncode == 0, done.stderr
    assert int((tmp_path / "file").read_text()) > 2
    assert done.stdout == (b"" if ">&-" in closed.split() else b"out\n")
    assert done.stderr == (b"" if "2>&-" in closed else b"err\nFalse\n")


@pytest.mark.parametrize(
    "environment, shown",
    [
        ({"PYTHONIOENCODING": "ascii"}, rb"\u4f60\u597d"),
        ({"PYTHONIOENCODING": "iso-8859-1"}, rb"\u4f60\u597d"),
        ({"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, CHINESE.encode()),
    ],
)
def test_text_that_the_encoding_lacks(environment, shown):
    program = f"""
import sys
from support.common.streams import prepare_streams
prepare_streams()
print({ascii(CHINESE)})
print({ascii(CHINESE)}, file=sys.stderr)
"""
    done = run_python(program, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == done.stderr.strip() == shown


def test_a_name_that_is_not_utf_8_is_printed(tmp_path):
    """Python reads such a byte of a file's name as half a character."""
    program = """
import os
from support.common.streams import prepare_streams
prepare_streams()
print(os.fsdecode(b"caf\\xe9"))
"""
    done = run_python(program)
    assert (done.returncode, done.stdout) == (0, rb"caf\udce9" + b"\n"), done.stderr


@pytest.mark.parametrize(
    "script",
    [
        "translate.py",
        *(
            pytest.param(script, marks=pytest.mark.slow)
            for script in ("train_cpu.py", "train_fsdp.py", "classify.py", "plot.py")
        ),
    ],
)
def test_help_in_ascii(tmp_path, script):
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = run_script(script, "--help", cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "--" in done.stdout and done.stderr == ""


@pytest.mark.parametrize("where", [pytest.param(">/dev/full", marks=LINUX), ">&-"])
def test_a_run_outlives_its_terminal(where):
    """What a run says is lost with its terminal, or with the disk that its output is on."""
    program = """
from support.common.streams import ignore_lost_stdout, prepare_streams
prepare_streams()
for _ in range(2):
    with ignore_lost_stdout(OSError):
        print("step")
"""
    done = run_python(program, where)
    assert done.returncode == 0 and done.stderr == b""


# --- Files


@LINUX
@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EIO])
def test_a_file_system_that_syncs_no_folders(tmp_path, monkeypatch, error):
    def fsync(descriptor):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "fsync", fsync)
    opened = len(os.listdir("/proc/self/fd"))
    if error == errno.EIO:  # the disk is broken
        with pytest.raises(OSError):
            files.sync_folder(tmp_path)
    else:
        files.sync_folder(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == opened


def test_a_full_disk_leaves_no_part_of_a_file(tmp_path, monkeypatch):
    def replace(partial, path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "replace", replace)
    with pytest.raises(OSError):
        files.write_text(tmp_path / "a.json", "x")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", ["null", "[1]", '{"a"'])
def test_damaged_measured_speeds_are_ignored(tmp_path, monkeypatch, content):
    (tmp_path / "matrix_rates.json").write_text(content)
    monkeypatch.setattr(throughput, "broadcast_object", lambda mine: mine)
    args = CpuSettings(hardware_tflops=2.0)
    assert throughput.peak_rate(args, rank=0, world_size=3, cache=tmp_path) == 6e12


def test_a_user_without_a_home(monkeypatch):
    """As a container's user who is only a number: Path.home() raises RuntimeError."""

    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    assert paths.find_cache() == Path.home() / ".cache" / "translator"
    monkeypatch.setattr(Path, "home", home)
    assert paths.find_cache() == Path(".cache/translator")


# --- Packages, compilers, networks


def test_a_folder_that_is_named_like_a_package(tmp_path, monkeypatch):
    """W&B leaves a folder wandb/; Python imports it as a module without content."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "notinstalled").mkdir()
    message = "^--wandb needs a package: pip install other-name$"
    with pytest.raises(UserError, match=message):
        require("other-name", "--wandb", module="notinstalled")
    with pytest.raises(UserError, match="pip install missing"):
        require("missing", "--wandb")
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "__init__.py").touch()
    require("installed", "--wandb")


@pytest.mark.parametrize("device, variable", [("cpu", "CXX"), ("cuda", "CC")])
def test_compile_without_a_compiler(monkeypatch, device, variable):
    monkeypatch.setenv(variable, "no-such-compiler")
    with pytest.raises(UserError, match=r"^--compile .*no-such-compiler.*apt install g\+\+"):
        check_compiler(device)
    monkeypatch.delenv(variable)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="^--compile needs a compiler"):
        check_compiler(device)


def test_compile_without_pythons_headers(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(UserError, match="^--compile needs .*python3-dev"):
        check_compiler("cpu")


@LINUX
def test_an_interface_that_is_not_there(monkeypatch):
    for name in ("", "lo"):
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", name)
        check_interface()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,eth77")
    with pytest.raises(UserError, match="^GLOO_SOCKET_IFNAME=eth77: .* only .*lo"):
        check_interface()


# --- Figures


def test_variables_of_other_launchers(tmp_path, monkeypatch):
    """train_cpu.py sets WORLD_SIZE itself."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "abc")
    CommandLine(CpuSettings, {}).complete()
    with pytest.raises(UserError, match="WORLD_SIZE=abc: .* must be a whole number"):
        CommandLine(FsdpSettings, {"replicas": 2}).complete()


@pytest.mark.parametrize(
    ("rank", "world_size", "port"), [(0, 0, 29500), (2, 2, 29500), (0, 1, 99999), (0, 1, 0)]
)
def test_impossible_variables_of_torchrun(monkeypatch, rank, world_size, port):
    variables = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": world_size, "MASTER_PORT": port}
    for name, value in (variables | {"MASTER_ADDR": "localhost"}).items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(UserError, match=f"RANK={rank} .* MASTER_PORT={port}: .*must be from 0"):
        check_environment()


def test_full_memory_is_answered_in_one_line(monkeypatch, capfd):
    def main():
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: 64 bytes\nmore")

    with pytest.raises(SystemExit) as stop:
        run_main(main)
    assert stop.value.code == 2
    said = "error: out of memory (DefaultCPUAllocator: can't allocate memory: 64 bytes)\n"
    assert capfd.readouterr().err == said


@pytest.mark.parametrize("backend", ["module://matplotlib_inline.backend_inline", "TkAgg"])
def test_a_notebooks_backend(backend):
    program = """
import support.common.figures
import matplotlib
assert matplotlib.get_backend() == "agg"
"""
    done = run_python(program, MPLBACKEND=backend)
    assert done.returncode == 0, done.stderr


def draw(path: Path, text: str) -> None:
    """Draws a figure with the text as title, as legend, and as name of a tick."""
    with figures.new_figure(path, 3, 2) as figure:
        axes = figure.subplots()
        axes.plot([1, 2], label=text)
        axes.legend()
        axes.set_title(text)
        axes.set_xticks([0, 1], [text, "b"])


def make_font(path: Path, name: str, characters: str) -> None:
    """Writes a font whose characters are rectangles."""
    builder = pytest.importorskip("fontTools.fontBuilder").FontBuilder(1000)
    from fontTools.pens.ttGlyphPen import TTGlyphPen

    glyphs = [".notdef", *(f"glyph{i}" for i in range(len(characters)))]
    pen = TTGlyphPen(None)
    for move, point in zip((pen.moveTo, pen.lineTo, pen.lineTo), ((0, 0), (0, 700), (700, 0))):
        move(point)
    pen.closePath()
    builder.setupGlyphOrder(glyphs)
    builder.setupCharacterMap(dict(zip(map(ord, characters), glyphs[1:])))
    builder.setupGlyf(dict.fromkeys(glyphs, pen.glyph()))
    builder.setupHorizontalMetrics(dict.fromkeys(glyphs, (800, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    names = {"familyName": name, "styleName": "Regular", "psName": name.replace(" ", "")}
    builder.setupNameTable(names)
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)


def test_a_figure_takes_fonts_that_have_its_characters(tmp_path, monkeypatch, capsys, recwarn):
    from matplotlib.font_manager import fontManager

    known = [font for font in fontManager.ttflist if font.name == "DejaVu Sans"]
    monkeypatch.setattr(fontManager, "ttflist", known)
    make_font(tmp_path / "a.ttf", "Noto Sans CJK JP", CHINESE[0])
    make_font(tmp_path / "b.ttf", "Microsoft YaHei", CHINESE)
    fontManager.addfont(tmp_path / "a.ttf")
    fontManager.addfont(tmp_path / "b.ttf")
    draw(tmp_path / "figure.svg", f"{CHINESE}, Welt")
    assert capsys.readouterr().err == "" and not recwarn.list
    drawn = (tmp_path / "figure.svg").read_text(encoding="utf-8")
    assert "NotoSansCJKJP" in drawn and "MicrosoftYaHei" in drawn
    assert "LastResort" not in drawn  # it has boxes only


def test_characters_that_no_font_has(tmp_path, monkeypatch, capsys, recwarn):
    monkeypatch.setitem(figures.STYLE, "font.family", figures.FONTS[:1])
    draw(tmp_path / "figure.png", f"{CHINESE} Ä")
    message = capsys.readouterr().err
    assert message.startswith("warning: ") and message.count("\n") == 1
    assert "figure.png" in message and " ".join(sorted(CHINESE)) in message
    assert "Ä" not in message
    assert not recwarn.list
    draw(tmp_path / "figure.png", "Ä\x1b")  # what is not printable has no glyph
    assert capsys.readouterr().err == ""


def test_other_warnings_while_a_figure_is_saved(tmp_path):
    with (
        pytest.warns(UserWarning, match="constrained_layout not applied"),
        figures.new_figure(tmp_path / "figure.png", 0.1, 0.1) as figure,
    ):
        figure.subplots().set_title("too small")
