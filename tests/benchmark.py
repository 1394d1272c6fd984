"""Training speed of this project beside torch.nn.Transformer: same batches, loop and settings, in turn.

    python tests/benchmark.py --data multi30k             # all flags of train_cpu.py are passed on

Each line is a fresh `train_cpu.py --benchmark`; for the peer only the model is another one.
"""

import subprocess
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import train_cpu
from reference import TorchTransformer


def peer_worker(*args) -> None:
    """What each process runs for the peer."""
    train_cpu.Transformer = TorchTransformer
    train_cpu.worker(*args)


def main() -> None:
    flags = sys.argv[1:]
    if "--peer" in flags:
        flags.remove("--peer")
        train_cpu.worker = peer_worker
        sys.argv = ["train_cpu.py", *flags]
        train_cpu.main()
        return
    for _ in range(2):
        for name, command in (("this project", [str(Path(__file__).parents[1] / "train_cpu.py")]),
                              ("torch.nn.Transformer", [__file__, "--peer"]),
                              ("torch.nn.Transformer, fp32", [__file__, "--peer", "--precision", "fp32"])):
            done = subprocess.run([sys.executable, *command, "--benchmark", *flags], capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{name}: {done.stderr}")
            print(f"{name:27} {done.stdout.splitlines()[-1]}", flush=True)


if __name__ == "__main__":
    main()
