"""How good a recipe is, and how much of that is luck: the same training with several seeds.

    python tests/measure/quality.py  # train_cpu.py --data multi30k, three times
    python tests/measure/quality.py --seeds 5 --epochs 18 --name short

All other flags are those of train_cpu.py. The runs are logs/NAME/1, logs/NAME/2 and so on, one
after the other. The same command resumes where it was stopped, and does not train a finished
run again. Prints a table with means and standard deviations, of the validation and the test
set: BLEU with a beam of 4, of the test set also by translate.py --score, or accuracy and F1.
"""

import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from printed import header, row

from support.common.errors import make_parser, run_main
from support.corpora.pairs import find_corpus
from support.training.command_line import parse_arguments
from support.training.settings import CpuSettings

TITLES = {
    f"{part}_{metric}": f"{title} {name}"
    for part, title in (("valid", "validation"), ("test", "test"))
    for metric, name in (("bleu", "BLEU"), ("accuracy", "accuracy"), ("f1", "F1"))
}


def given_flags(flags: list[str]) -> dict:
    """What train_cpu.py understands by them."""
    sys.argv = ["train_cpu.py", *flags]
    return parse_arguments("", CpuSettings).given


def has_ended(run: Path, given: dict) -> bool:
    """Whether a run with these flags is there, and was summed up after it was last started."""
    config, summary = run / "config.json", run / "summary.json"
    if not summary.is_file() or summary.stat().st_mtime < config.stat().st_mtime:
        return False
    flags = json.loads(config.read_text())["flags"]
    return all(flags.get(name) == value for name, value in given.items())


def train(name: str, seed: int, flags: list[str]) -> Path:
    """Trains logs/NAME/SEED, or resumes it, and returns it."""
    run = Path("logs", name.removeprefix("logs/"), str(seed))
    how = [*flags, "--name", f"{name}/{seed}", "--seed", str(seed)]
    if not has_ended(run, given_flags(how)):
        print(f"seed {seed}: train_cpu.py {' '.join(how)}", flush=True)
        if status := subprocess.run([sys.executable, ROOT / "train_cpu.py", *how]).returncode:
            sys.exit(status)  # it has said why
    return run


def score(run: Path, flags: dict) -> float:
    """BLEU of the test set as translate.py gives it."""
    names = ("data", "valid", "test", "src", "tgt")
    corpus = find_corpus(*(flags[name] for name in names))
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, side) for side in ("src", "tgt")]
        for path, sentences in zip(paths, zip(*corpus.parts["test"]())):
            path.write_text(
                "".join(sentence + "\n" for sentence in sentences), encoding="utf-8"
            )
        done = subprocess.run(
            [sys.executable, ROOT / "translate.py", "--checkpoint", run, "--score", *paths],
            capture_output=True,
            text=True,
        )
    if done.returncode:
        sys.exit(done.stderr)
    return float(re.match(r"BLEU ([\d.]+)", done.stdout)[1])


def main() -> None:
    parser = make_parser(__doc__)
    parser.allow_abbrev = False  # of flags that are passed on
    parser.add_argument("--seeds", type=int, default=3, help="train with 1, 2, … so many [3]")
    parser.add_argument(
        "--name", default="quality", help="the runs are logs/NAME/SEED [quality]"
    )
    args, flags = parser.parse_known_args()
    if not {"data", "config"} & given_flags(flags).keys():
        flags = ["--data", "multi30k", *flags]
    rows = []
    columns: list[str] = []
    for seed in range(1, args.seeds + 1):
        run = train(args.name, seed, flags)
        summary, config = (
            json.loads((run / f"{name}.json").read_text()) for name in ("summary", "config")
        )
        values = {title: summary[name] for name, title in TITLES.items() if name in summary}
        if "test_bleu" in summary:
            values["test BLEU, `translate.py --score`"] = score(run, config["flags"])
        values["minutes"] = summary["wall_seconds"] / 60
        columns = [*values]
        rows.append([*values.values()])
        shown = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        print(f"seed {seed}: {shown}", flush=True)
    print(f"\n{header('seed', *columns)}")
    table: dict[int | str, list[float]] = dict(enumerate(rows, 1))
    if len(rows) > 1:
        table["mean"] = list(map(statistics.mean, zip(*rows)))
        table["standard deviation"] = list(map(statistics.stdev, zip(*rows)))
    for name, values_of_row in table.items():
        print(row(name, *(f"{value:.4g}" for value in values_of_row)))


if __name__ == "__main__":
    run_main(main)
