"""Decoding with beam.py on all cores, in a process for each, or on a GPU.

Example:
    pool = Pool(models, beam=4, n_best=1, procs=2)
    answers = translate_lines(bpe, lines, max_tokens, pool.search)
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing.process import BaseProcess
from typing import cast

import torch

from model import Transformer
from support.common.errors import UserError
from support.common.hardware import configure_backends
from support.common.kernels import speed_up
from support.translation.beam import Batch, Hypothesis, translate_batch

# Parameters of mallopt, from glibc's malloc.h.
M_TRIM_THRESHOLD = -1
M_TOP_PAD = -2
M_MMAP_THRESHOLD = -3


class Pool:
    """Models, of which several form an ensemble, and the processes that decode with them."""

    def __init__(
        self,
        models: list[Transformer],
        beam: int,
        n_best: int,
        procs: int,
        device: str = "cpu",
        dtype: torch.dtype | None = None,
    ):
        """procs: processes on a CPU; device: "cpu" or "cuda"; dtype: autocast's, if any."""
        configure_backends()
        keep_freed_memory()  # now, so that forked processes inherit it
        models = [speed_up(model.to(device), device, dtype).eval() for model in models]
        self.search_batch = partial(
            translate_batch, models, beam=beam, n_best=n_best, dtype=dtype
        )
        self.procs = procs if device == "cpu" else 1
        if sys.platform == "win32":
            self.procs = min(self.procs, 61)  # a process cannot wait for more there
        self.executor: ProcessPoolExecutor | None = None

    def search(self, batches: list[Batch]) -> Iterator[list[list[Hypothesis]]]:
        """Yields for each batch what `beam_search` returns.

        The first call with several batches starts the processes. Raises UserError if one dies.
        """
        if min(self.procs, len(batches)) <= 1:
            yield from map(self.search_batch, batches)
            return
        if self.executor is None:
            # A fork has the models at once; but macOS's matrix library does not survive one.
            method = "fork" if sys.platform == "linux" else "spawn"
            context = multiprocessing.get_context(method)
            self.executor = ProcessPoolExecutor(
                self.procs, context, set_up_process, (self.search_batch,)
            )
            # Ends the processes with this object or, at the latest, with this process.
            weakref.finalize(self, self.executor.shutdown)
        try:
            yield from self.executor.map(run_in_process, batches)
        except BrokenProcessPool:
            raise UserError(
                "a process that translated has died, perhaps out of memory; "
                "use fewer of them: --procs N"
            ) from None


def keep_freed_memory() -> None:
    """Makes glibc keep the memory of freed tensors instead of returning it to the system.

    Without it decoding a file on two busy cores took a quarter longer, for its page faults.
    Training is no faster with it. Other C libraries are left as they are.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # not glibc
        return
    # Tensors of less than a GiB come from the heap; an old glibc allows 32 MiB at most.
    if not mallopt(M_MMAP_THRESHOLD, 2**30):
        mallopt(M_MMAP_THRESHOLD, 2**25)
    mallopt(M_TRIM_THRESHOLD, -1)  # the heap never shrinks
    mallopt(M_TOP_PAD, 2**28)  # it grows by 256 MiB at a time


# --- Processes --------------------------------------------------------------------------------


process_search: Callable  # in each process of the pool: what it calls with a batch


def set_up_process(search: Callable) -> None:
    """Prepares a process of the pool: one thread, Ctrl-C left to the parent."""
    global process_search
    process_search = search
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=exit_with_parent, daemon=True).start()


def exit_with_parent() -> None:
    """Ends this process when its parent is gone, which SIGKILL may have ended."""
    cast(BaseProcess, multiprocessing.parent_process()).join()
    os._exit(1)


def run_in_process(batch: Batch) -> list[list[Hypothesis]]:
    return process_search(batch)
