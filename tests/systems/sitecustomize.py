"""Shows the project's code a Linux that lacks what Windows or macOS lacks.

Python loads this file first in every process that has its folder in PYTHONPATH. PRETEND is the
system, as in sys.platform. Only modules of the project see the difference: the standard library
and PyTorch, which are built for Linux, need all of it.
"""

import builtins
import errno
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing.context
import os
import pathlib
import sys
import types
import warnings

SYSTEM = os.environ["PRETEND"]
ROOT = pathlib.Path(__file__).parents[2]
FOLDERS = {str(ROOT), *map(str, (ROOT / "support").iterdir())}

# --- What is not there ------------------------------------------------------------------------

LACKING = {"darwin": {"os": {"sched_getaffinity"}}, "win32": {}}
LACKING["win32"] = {
    "os": {"sched_getaffinity", "fork", "killpg", "sysconf", "getuid", "geteuid", "uname"},
    "signal": {"SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGKILL", "pthread_sigmask"},
}
LACKING_MODULES = {
    "darwin": set(),
    "win32": {"fcntl", "resource", "readline", "termios", "pwd"},
}


class Module:
    """A module without some of its names, and with others in their place."""

    def __init__(self, module, lacking, replaced):
        self.__dict__.update(module=module, lacking=lacking, replaced=replaced)

    def __getattr__(self, name):
        if name in self.lacking:
            raise AttributeError(f"module has no attribute {name!r} on {SYSTEM}")
        if name in self.replaced:
            return self.replaced[name]
        return getattr(self.module, name)

    def __setattr__(self, name, value):
        setattr(self.module, name, value)


class Loader(importlib.machinery.SourceFileLoader):
    """Loads a module of the project, whose imports go through `import_as_there`."""

    def exec_module(self, module):
        module.__dict__["__builtins__"] = vars(builtins) | {"__import__": import_as_there}
        super().exec_module(module)


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of the project."""

    def find_spec(self, name, path, target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        is_ours = spec and spec.origin and os.path.dirname(spec.origin) in FOLDERS
        if not is_ours:
            return None
        loader = Loader(name, spec.origin)
        return importlib.util.spec_from_file_location(name, spec.origin, loader=loader)


def import_as_there(name, *how):
    """As `import`, in a module of the project."""
    if name in LACKING_MODULES[SYSTEM]:
        raise ModuleNotFoundError(f"No module named {name!r} on {SYSTEM}", name=name)
    if SYSTEM == "win32" and name == "msvcrt":
        return types.SimpleNamespace(LK_NBLCK=2, locking=lock)
    module = builtins.__import__(name, *how)
    if SYSTEM == "win32" and name == "torch.distributed":
        refuse_libuv()
    lacking = LACKING[SYSTEM].get(name, set())
    replaced = REPLACED[SYSTEM].get(name, {})
    return Module(module, lacking, replaced) if lacking or replaced else module


# --- What is different ------------------------------------------------------------------------

PARENT = os.getppid()
real_exists = pathlib.Path.exists
real_replace, real_unlink, real_kill, real_open = os.replace, os.unlink, os.kill, os.open


def exists(path, **how):
    """There is no /proc."""
    return not str(path).startswith("/proc") and real_exists(path, **how)


def open_no_folder(path, *how):
    if os.path.isdir(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))
    return real_open(path, *how)


def is_in_use(path) -> bool:
    """Whether a process of this session has a file open, or mapped."""
    path = os.path.abspath(path)
    for process in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        try:
            if os.getsid(process) != os.getsid(0):
                continue
            with open(f"/proc/{process}/maps", encoding="utf-8") as maps:
                files = {line.split(maxsplit=5)[-1].strip() for line in maps}
            descriptors = f"/proc/{process}/fd"
            files |= {os.readlink(f"{descriptors}/{one}") for one in os.listdir(descriptors)}
        except OSError:  # it has ended, or it has closed the file
            continue
        if path in files:
            return True
    return False


def refuse_in_use(*paths) -> None:
    for path in paths:
        if is_in_use(path):
            raise PermissionError(errno.EACCES, "another process is using it", str(path))


def replace(source, target, **how):
    if os.path.isdir(target):
        raise PermissionError(errno.EACCES, "it is a folder", str(target))
    refuse_in_use(source, target)
    real_replace(source, target, **how)


def rename(source, target, **how):
    if os.path.exists(target):
        raise FileExistsError(errno.EEXIST, "it exists already", str(target))
    replace(source, target, **how)


def unlink(path, **how):
    if how.get("dir_fd") is None:
        refuse_in_use(path)
    real_unlink(path, **how)


def lock(descriptor, mode, size):
    """msvcrt.locking, by the lock that Linux has."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PermissionError(errno.EACCES, "Permission denied") from None


def refuse_libuv() -> None:
    """PyTorch's store is built without libuv, which it asks for by default."""
    import torch.distributed.rendezvous

    if torch.distributed.TCPStore.__name__ == "StoreWithoutLibuv":
        return

    class StoreWithoutLibuv(torch.distributed.TCPStore):
        def __init__(self, *args, use_libuv=True, **how):
            if use_libuv:
                raise RuntimeError("use_libuv was requested, but there is no libuv")
            super().__init__(*args, use_libuv=False, **how)

    torch.distributed.TCPStore = StoreWithoutLibuv
    torch.distributed.rendezvous.TCPStore = StoreWithoutLibuv


def peak_wset() -> float:
    import psutil

    return psutil.Process().memory_info().rss


process = types.SimpleNamespace(
    memory_info=lambda: types.SimpleNamespace(peak_wset=peak_wset())
)
REPLACED = {
    "darwin": {"sys": {"platform": "darwin"}},
    "win32": {
        "sys": {"platform": "win32"},
        "os": {
            "sep": "\\",
            "open": open_no_folder,
            "getppid": lambda: PARENT,  # also when it has died
            "kill": lambda process, number: real_kill(process, 9),  # whatever the signal
        },
        "psutil": {"Process": lambda pid=None: process},
    },
}

pathlib.Path.exists = exists
multiprocessing.set_start_method("spawn")
for method in ("fork", "forkserver"):
    del multiprocessing.context._concrete_contexts[method]
if SYSTEM == "win32":
    os.replace, os.rename, os.unlink, os.remove = replace, rename, unlink, unlink
warnings.filterwarnings(
    "error", category=EncodingWarning, module=r"(support\.|data$|__main__$|__mp_main__$)"
)
sys.meta_path.insert(0, Finder())
