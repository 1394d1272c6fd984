"""What a run leaves in logs/RUN/: its log, its checkpoints, its summary; and what it shows while it goes on."""

import csv
import fcntl
import json
import math
import os
import platform
import resource
import shutil
import socket
import statistics
import sys
import time
import uuid
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from corpora import BadInput
from data import BPE
from model import ModelConfig, Transformer, flops, load_checkpoint
from training import LOGS, bleu, read_text, save_file, translate_part

COLUMNS = ["step", "epoch", "seconds", "tokens", "train_loss", "learning_rate", "grad_norm", "tokens_per_second",
           "mfu", "valid_loss", "valid_bleu"]
EPOCH_SUMS = ("nll", "targets", "tokens", "samples", "seconds")
EVALUATED = ("valid_loss", "valid_bleu", "token_accuracy")


class Run:
    """Counts what a run does; on rank 0 it also keeps logs/RUN/ and shows progress."""

    def __init__(self, args, config: ModelConfig, batches, last: int, rank: int, world_size: int, resumed: dict | None):
        self.args, self.config, self.batches, self.last = args, config, batches, last
        self.rank, self.world_size = rank, world_size
        self.folder = Path(args.resume) if args.resume else LOGS / args.run
        self.writes = rank == 0 and not args.benchmark
        # Travels in the checkpoint: nll and targets are the sums since the last row of metrics.csv.
        # epochs: a row for each; epoch: the sums of the one that is going on, evaluated: its latest evaluation;
        # unfinished: its row, if the run ends in it.
        self.progress = {"seconds": 0.0, "tokens": 0, "nll": 0.0, "targets": 0.0, "best": [-1.0, 0.0],
                         "epochs": [], "unfinished": [], "epoch": dict.fromkeys(EPOCH_SUMS, 0.0),
                         "evaluated": dict.fromkeys(EVALUATED)}
        self.progress |= resumed["progress"] if resumed else {}
        self.best = self.progress["best"]
        self.began = time.perf_counter() - self.progress["seconds"]
        self.since = [0.0, 0, 0.0]                         # training seconds, tokens, FLOPs since the last row
        self.timed, self.bar = [], None                    # (tokens/s, MFU) of each row
        self.peak = (args.peak_tflops * 1e12 or matrix_rate(args.device, args.precision)) * world_size
        self.trackers = []
        if self.writes:
            self.open_trackers(self.open(resumed))
        if rank == 0 and sys.stderr.isatty():
            from tqdm import tqdm
            self.bar = tqdm(total=last, initial=resumed["step"] if resumed else 0, unit="step", dynamic_ncols=True)

    def is_logged(self, step: int) -> bool:
        """Whether metrics.csv has a row for this step, apart from the last one of a run."""
        return step % self.args.log_every == 0 or step % self.args.eval_every == 0

    def open(self, resumed: dict | None) -> int:
        """Makes the folder, or cuts its metrics.csv back to the step that the checkpoint is of; returns where it ends."""
        path, partial, rows, end = self.folder / "metrics.csv", self.folder / "metrics.partial", [], 0
        if resumed and resumed["step"] > self.last:
            raise BadInput(f"{self.folder} is at step {resumed['step']} already, past the last one wanted, {self.last}")
        try:
            self.claim()
            for left in self.folder.glob("*.partial"):     # by a run that was killed while it wrote
                left.unlink()
            if resumed and path.is_file():
                rows = [row for row in path.read_text().splitlines()[1:] if row.count(",") == len(COLUMNS) - 1]
                numbers = [int(row.split(",")[0]) for row in rows]
                # What the stopped run did at its last step for being the last, a row and weights, goes again.
                every = resumed["flags"]["log_every"], resumed["flags"]["eval_every"]
                end = resumed["step"] - (resumed["step"] < self.last and all(resumed["step"] % n for n in every))
                rows = [row for row, n in zip(rows, numbers) if n <= end]
                for kept in self.folder.glob("step-*.pt"):
                    number = int(kept.stem[5:])
                    if number > resumed["step"] or number % self.args.eval_every and number < self.last:
                        kept.unlink()
            partial.write_text("\n".join([",".join(COLUMNS), *rows]) + "\n")
            partial.rename(path)
            self.metrics = open(path, "a", buffering=1)    # line by line, so that others can watch it grow
            self.about = {
                "mode": Path(sys.argv[0]).stem.removeprefix("train_"), "flags": vars(self.args),
                "model": asdict(self.config), "world_size": self.world_size,
                "parameters": sum(p.numel() for p in Transformer(self.config).parameters()),
                "host": socket.gethostname(), "device": device_name(self.args.device),
                "threads": torch.get_num_threads(), "python": platform.python_version(), "torch": torch.__version__,
                "started": time.strftime("%Y-%m-%d %H:%M:%S")}
            write_json(self.folder / "config.json", self.about)
        except OSError as problem:
            raise BadInput(f"{self.folder}: cannot be written ({problem.strerror or problem})")
        return end

    def claim(self) -> None:
        """Holds the folder's lock until this process ends, so that two runs never write to one folder."""
        self.lock = open(self.folder / ".lock", "w")
        for _ in range(200):                               # a run that was just killed may still be saving
            try:
                return fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.1)
        raise BadInput(f"{self.folder}: another run is writing to it")

    def open_trackers(self, step: int) -> None:
        """Where the metrics go besides metrics.csv: functions of a step and its values. A resumed run goes on in its record.

        After a crash the steps since the checkpoint come again, with the same values: TensorBoard forgets the first, W&B the
        second ones. W&B's key comes from the environment or from its own login, and is stored nowhere by us.
        """
        if self.args.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(str(self.folder), purge_step=step + 1)
            self.board.add_text("config", json.dumps(self.about, indent=1), step)
            self.trackers.append(lambda step, values: [self.board.add_scalar(name, values[name], step) for name in values])
        if self.args.wandb:
            import wandb

            self.progress.setdefault("wandb", uuid.uuid4().hex[:8])
            try:
                self.online = wandb.init(project=self.args.wandb, name=self.folder.name, id=self.progress["wandb"],
                                         resume="allow", dir=str(self.folder), config=self.about)
            except wandb.Error as problem:
                raise BadInput(f"--wandb: {problem}")
            self.trackers.append(lambda step, values: self.online.log(values, step=step))

    def close(self) -> None:
        """Ends what this run has open, at its end or where it was stopped."""
        if self.bar is not None:
            self.bar.close()
        if self.trackers and self.args.tensorboard:
            self.board.close()
        if self.trackers and self.args.wandb:
            self.online.finish()

    def stop(self, step: int) -> None:
        """Ends a run that was asked to stop, and says how to go on with it."""
        self.close()
        start = "torchrun ..." if "TORCHELASTIC_RUN_ID" in os.environ else "python"
        self.say(f"stopped and saved at step {step}; go on with: {start} {Path(sys.argv[0]).name} --resume {self.folder}")

    def record(self, step: int, seconds: float, nll: float, targets: float, lr: float, norm: float, valid: dict):
        """One step is done: its training seconds, and its loss and target tokens over all processes."""
        progress, pairs, rows = self.progress, self.batches.pairs, self.batches.rows(step - 1)
        lengths = [torch.from_numpy(side) for side in pairs.lengths(rows)]
        tokens = int(sum(side.sum() for side in lengths))
        progress["seconds"] = time.perf_counter() - self.began
        progress["tokens"] += tokens
        progress["nll"] += nll
        progress["targets"] += targets
        self.since = [a + b for a, b in zip(self.since, (seconds, tokens, flops(self.config, *lengths)))]
        self.record_epoch(step, (nll, targets, tokens, len(rows), seconds), valid)
        loss, speed = progress["nll"] / progress["targets"], self.since[1] / self.since[0]
        if self.bar is not None:
            self.bar.set_postfix_str(f"loss {loss:.3f}, {speed:,.0f} tokens/s", refresh=False)
            self.bar.update()
        if not (self.is_logged(step) or step == self.last):
            return
        self.timed.append((speed, self.since[2] / self.since[0] / self.peak))
        self.since = [0.0, 0, 0.0]
        if self.is_logged(step):                           # a last row between two others leaves their sums alone
            progress["nll"] = progress["targets"] = 0.0
        if not self.writes:
            return
        epoch = (step - 1) // len(self.batches)
        found = [f"{valid[name]:.6f}" if valid else "" for name in ("valid_loss", "valid_bleu")]
        row = [step, epoch, f"{progress['seconds']:.2f}", progress["tokens"], f"{loss:.6f}", f"{lr:.4e}", f"{norm:.6f}",
               f"{speed:.0f}", f"{self.timed[-1][1]:.4f}", *found]
        self.metrics.write(",".join(map(str, row)) + "\n")
        for track in self.trackers:
            # As they stand in metrics.csv, to the last digit.
            track(step, {name: float(value) for name, value in zip(COLUMNS[1:], row[1:]) if value != ""})
        if valid or self.bar is None and step % (10 * self.args.log_every) == 0:
            found = f", validation loss {valid['valid_loss']:.3f}, BLEU {valid['valid_bleu']:.1f}" if valid else ""
            left = (self.last - step) * progress["seconds"] / step
            self.say(f"step {step}/{self.last}, epoch {epoch + 1}: loss {loss:.3f}{found}, {speed:,.0f} tokens/s, "
                     f"{minutes(progress['seconds'])} gone, {minutes(left)} left")

    def record_epoch(self, step: int, sums: tuple, valid: dict) -> None:
        """Adds a step's `sums`, in the order of EPOCH_SUMS; at the end of an epoch, or of the run, they become a row."""
        epoch = {name: self.progress["epoch"][name] + more for name, more in zip(EPOCH_SUMS, sums)}
        self.progress |= {"epoch": epoch, "unfinished": []}
        latest = valid or self.progress["evaluated"]
        if step % self.args.eval_every == 0:               # an evaluation for being last is not one if resumed
            self.progress["evaluated"] = latest
        if step % len(self.batches) and step != self.last:
            return
        row = {"epoch": -(-step // len(self.batches)), "step": step, "train_loss": epoch["nll"] / epoch["targets"]}
        row |= latest
        row |= {"seconds": round(epoch["seconds"], 2), "samples_per_second": round(epoch["samples"] / epoch["seconds"], 1),
                "tokens_per_second": round(epoch["tokens"] / epoch["seconds"]), "memory_mib": round(peak_memory())}
        if step % len(self.batches):
            self.progress["unfinished"] = [row]
        else:
            self.progress |= {"epochs": [*self.progress["epochs"], row], "epoch": dict.fromkeys(EPOCH_SUMS, 0.0),
                              "evaluated": dict.fromkeys(EVALUATED)}

    def say(self, text: str) -> None:
        """A line from rank 0, above the progress bar."""
        if self.rank == 0:
            (self.bar.write if self.bar is not None else print)(text)
            sys.stdout.flush()

    def checkpoint(self, step: int, bpe: BPE, model: dict, optimizer: dict | None = None) -> dict:
        """What every mode's checkpoint file holds; `model` and `optimizer` by plain parameter names."""
        return {"format": 1, "step": step, "config": asdict(self.config), "model": model, "bpe": bpe.serialized,
                "flags": vars(self.args), "progress": self.progress} | ({"optimizer": optimizer} if optimizer else {})

    def keep(self, step: int, bpe: BPE, model: dict, valid: dict) -> None:
        """After an evaluation: weights that are the best so far go to best.pt, those to be averaged to step-N.pt.

        The best have the highest BLEU on validation, and of the same BLEU the lowest loss.
        """
        reached, checkpoint = [valid["valid_bleu"], -valid["valid_loss"]], self.checkpoint(step, bpe, model)
        if self.writes and reached > self.best:
            self.best = reached
            if step % self.args.eval_every == 0:           # an evaluation for being last is not one if resumed
                self.progress["best"] = reached
            save_file(self.folder / "best.pt", checkpoint | {"averaged": 1})
        if self.writes and self.args.average > 1 and self.last - step < self.args.average * self.args.eval_every:
            save_file(self.folder / f"step-{step:07d}.pt", checkpoint)

    def keep_parts(self, step: int, bpe: BPE) -> None:
        """Writes last.pt for the weights that are now in sharded-STEP/, and removes those of other steps."""
        if not self.writes:
            return
        name = f"sharded-{step:07d}"
        save_file(self.folder / "last.pt", self.checkpoint(step, bpe, {}) | {"sharded": name})
        for other in self.folder.glob("sharded-*"):
            if other.name != name:
                shutil.rmtree(other)

    def check_finite(self, step: int, nll: float, norm: float) -> None:
        """Ends the run if its loss or gradient is no number; what was saved before is as it was. Raises BadInput."""
        if not math.isfinite(nll + norm):
            self.close()
            saved = f"{self.folder}/last.pt is from before" if (self.folder / "last.pt").is_file() else "nothing was saved"
            raise BadInput(f"step {step}: the {'loss' if not math.isfinite(nll) else 'gradient'} is not finite; {saved} "
                           f"(a lower --lr, a longer --warmup or --precision fp32 may help)")

    def finish(self, model: Transformer, corpus: Path, bpe: BPE) -> None:
        """Averages, scores the best weights on the test part, sums up. `model` is a plain one, and is changed."""
        args, rank, world_size = self.args, self.rank, self.world_size
        if args.benchmark:
            memory = torch.tensor(peak_memory(), device=next(model.parameters()).device)
            dist.all_reduce(memory, dist.ReduceOp.MAX)
            self.close()
            speed, mfu = (statistics.median(column) for column in zip(*self.timed[len(self.timed) // 4 :]))
            return self.say(f"{speed:,.0f} source+target tokens/s, MFU {mfu:.1%} of {self.peak / 1e9:,.0f} GFLOP/s; "
                            f"processes x threads: {world_size} x {torch.get_num_threads()}, {args.precision}; "
                            f"at most {float(memory):,.0f} MiB each")

        def translate(part: str, weights: dict | None) -> tuple[list[str], float, str]:
            """As the model will be used, with beam search: translations, and on rank 0 their BLEU."""
            share_weights(model, weights, rank)
            hypotheses = translate_part(model.eval(), bpe, read_text(corpus, part, "src"), args, 4, rank, world_size)
            return hypotheses, *(bleu(hypotheses, read_text(corpus, part, "tgt")) if rank == 0 else (0.0, ""))

        best = load_checkpoint(str(self.folder / "best.pt"))[1] if self.writes else {"model": None}
        valid_bleu = translate("valid", best["model"])[1]
        if args.average > 1:
            paths = sorted(self.folder.glob("step-*.pt"))[-args.average :] if self.writes else []
            mean = mean_weights(paths) if self.writes else None
            mean_bleu = translate("valid", mean)[1]
            if mean_bleu > valid_bleu:
                valid_bleu, best = mean_bleu, self.checkpoint(self.last, bpe, mean) | {"averaged": len(paths)}
                save_file(self.folder / "best.pt", best)
        part = "test" if (corpus / "test.src.txt").is_file() else "valid"
        hypotheses, score, signature = translate(part, best["model"])
        memory = [None] * world_size if rank == 0 else None
        dist.gather_object(peak_memory(), memory)
        if not self.writes:
            return
        sources, references = read_text(corpus, part, "src"), read_text(corpus, part, "tgt")
        (self.folder / "translations.txt").write_text("\n".join(hypotheses) + "\n", encoding="utf-8")
        with open(self.folder / "metrics.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        seconds = time.perf_counter() - self.began
        write_json(self.folder / "summary.json", {
            "steps": self.last, "tokens": self.progress["tokens"], "wall_seconds": round(seconds, 1),
            "median_tokens_per_second": statistics.median(float(row["tokens_per_second"]) for row in rows),
            "median_mfu": statistics.median(float(row["mfu"]) for row in rows),
            "best_step": best["step"], "averaged_checkpoints": best["averaged"], "beam": 4,
            "valid_bleu": round(valid_bleu, 2), f"{part}_bleu": round(score, 2), "bleu_signature": signature,
            "peak_memory_mib": {"largest_process": round(max(memory)), "all_processes": round(sum(memory))},
            "epochs": self.progress["epochs"] + self.progress["unfinished"]})
        self.close()
        print(f"\nBLEU {score:.1f} on {len(sources):,} sentences of the {part} part, beam 4 ({signature})\n")
        for i in range(0, len(sources), max(1, len(sources) // 5)):
            print(f"  source       {sources[i]}\n  translation  {hypotheses[i]}\n  reference    {references[i]}\n")
        print(f"{minutes(seconds)} in all; {self.folder}/ has the log and the checkpoints. Now talk to it:\n\n"
              f"  python translate.py\n", flush=True)


# FLOP/s in bf16 without sparsity, from the makers' data sheets; the first name that the device's has in it counts.
PEAKS = {"B200": 2250e12, "H200 NVL": 835e12, "H200": 989e12, "H100 NVL": 835e12, "H100 PCIe": 756e12, "H100": 989e12,
         "A100": 312e12, "L40S": 362e12, "L40": 181e12, "L4": 121e12}


def matrix_rate(device: str, precision: str) -> float:
    """FLOP/s that MFU is a share of: a known GPU's in bf16; else those of a large matrix product, in this process."""
    if device == "cuda" and precision == "bf16":
        known = next((peak for name, peak in PEAKS.items() if name in torch.cuda.get_device_name()), None)
        if known:
            return known
    size, times = (8192 if device == "cuda" else 1024), []
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16 if precision == "bf16" else torch.float32)
    for _ in range(6):
        began = time.perf_counter()
        a @ a
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()               # its matrices are not the run's
    return 2 * size**3 / min(times)


def peak_memory() -> float:
    """The most memory that this process has had, in MiB; on a GPU, the most that PyTorch has had there."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def device_name(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    return getattr(torch.cpu, "get_capabilities", dict)().get("cpu_name", platform.machine())


def write_json(path: Path, content: dict) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.rename(path)                                   # so others find it whole or not at all


def minutes(seconds: float) -> str:
    return f"{int(seconds // 60)}:{int(seconds % 60):02d}"


def mean_weights(paths: list[Path]) -> dict[str, Tensor]:
    """The mean, weight by weight, of several checkpoints (section 6.1)."""
    states = [load_checkpoint(str(path))[1]["model"] for path in paths]
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}


def share_weights(model: nn.Module, state: dict[str, Tensor], rank: int) -> None:
    """Rank 0's `state` becomes the weights of every process's `model`."""
    if rank == 0:
        model.load_state_dict(state)
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), 0)
