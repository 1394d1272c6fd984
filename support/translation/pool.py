"""Decoding with beam.py on all cores, with a process for each, or on the GPU.

pool = Pool(models, beam=4, n_best=1, procs=2)
answers = translate_lines(bpe, lines, longest, pool.search)
"""

import atexit
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial

import torch

from model import Transformer
from support.common.errors import UserError
from support.common.kernels import keep_memory, speed_up
from support.translation.beam import translate_batch


class Pool:
    """Models, of which several form an ensemble, ready to decode."""

    def __init__(
        self,
        models: list[Transformer],
        beam: int,
        n_best: int,
        procs: int,
        device: str = "cpu",
        bf16: bool = False,
    ):
        """procs: processes, on a CPU; device: cpu or cuda; bf16: whether to multiply in bf16."""
        models = [speed_up(model.to(device), device, bf16).eval() for model in models]
        self.here = partial(search_batch, models, beam, n_best, bf16)
        self.procs, self.executor = procs if device == "cpu" else 1, None
        keep_memory()  # before the processes are forked

    def search(self, batches: list[list[list[int]]]) -> Iterator[list]:
        """Gives for each batch of token ids what `beam_search` gives.

        The first call with several batches starts the processes. Raises UserError where one dies.
        """
        procs = min(self.procs, len(batches))
        if procs > 1 and not self.executor:
            # A fork has the models at once; but what multiplies on macOS does not survive one.
            context = multiprocessing.get_context(
                "fork" if sys.platform == "linux" else "spawn"
            )
            given = os.getpid(), self.here
            self.executor = ProcessPoolExecutor(procs, context, start_worker, given)
            atexit.register(self.executor.shutdown)  # so it is not collected before
        try:
            if procs > 1:
                yield from self.executor.map(search_there, batches)
            else:
                yield from map(self.here, batches)
        except BrokenProcessPool:
            raise UserError(
                "a process that translated has died (out of memory?); fewer: --procs N"
            ) from None


def search_batch(
    models: list[Transformer], beam: int, n_best: int, bf16: bool, batch: list[list[int]]
) -> list:
    """What `beam_search` gives for one batch of token ids, longest first."""
    model, *others = models
    with torch.autocast(model.embedding.weight.device.type, torch.bfloat16, enabled=bf16):
        return translate_batch(model, batch, beam, n_best, others)


def start_worker(parent: int, given: partial) -> None:
    """Makes a process ready: one thread, Ctrl-C left to the parent, an end when that is gone."""
    global here
    here = given
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()


def end_with(parent: int) -> None:
    """Ends this process when its parent is gone, which may have been killed."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def search_there(batch: list[list[int]]) -> list:
    """In a process of the pool: what `start_worker` was given, called with a batch."""
    return here(batch)
