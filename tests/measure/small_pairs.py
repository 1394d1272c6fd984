"""How good the default settings are: translators beside JoeyNMT's, after the same minutes.

    python tests/measure/small_pairs.py CORPUS --src en --tgt fr --pairs 2000 --minutes 5 \
        --joeynmt PYTHON

CORPUS is a folder with train.en and train.fr, dev.en and dev.fr, test.en and test.fr. The first
--pairs of its training set are used. PYTHON is the interpreter of an environment with JoeyNMT
2.3. Both programs train at the same time, with one core each: train_cpu.py with the settings
that it chooses and --minutes, JoeyNMT with its recipe for IWSLT14, on text that a BPE of as
many tokens has divided. JoeyNMT is stopped after as many minutes and tested with the best of
its checkpoints. Prints a row of a table: corpus, minutes, our BLEU and steps, JoeyNMT's BLEU
and steps. The runs are logs/small_pairs/NAME and NAME-joeynmt.
"""

import itertools
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from printed import row

from data import BPE
from support.common.errors import make_parser, run_main
from support.training.config_file import config_for_amount, read_config
from support.training.settings import CpuSettings
from support.translation.scores import bleu

# train_cpu.py has a thread for each core that it may use, whatever OMP_NUM_THREADS says.
OUR_CORE = ["taskset", "-c", "0"]
JOEYNMT_CORE = ["taskset", "-c", "1"]
DEV_SENTENCES = 200  # that JoeyNMT validates on, so that this takes little of its time


def read_part(prefix: Path, sides: list[str], limit: int | None = None) -> list[list[str]]:
    """Returns the lines of both sides."""
    texts = [Path(f"{prefix}.{side}").read_text(encoding="utf-8") for side in sides]
    return [text.split("\n")[:-1][:limit] for text in texts]


def write_part(prefix: Path, sides: list[str], texts: list[list[str]]) -> None:
    for side, lines in zip(sides, texts):
        text = "".join(f"{line}\n" for line in lines)
        Path(f"{prefix}.{side}").write_text(text, encoding="utf-8")


def joeynmt_config(folder: Path, sides: list[str]) -> dict:
    """Returns the values of JoeyNMT's recipe for IWSLT14, with the files in `folder`."""
    side = {
        "level": "word",
        "voc_file": str(folder / "vocabulary"),
        "lowercase": False,
        "max_length": 128,
    }
    coder = {
        "type": "transformer",
        "num_layers": 6,
        "num_heads": 4,
        "hidden_size": 256,
        "ff_size": 1024,
        "dropout": 0.3,
        "embeddings": {"embedding_dim": 256, "scale": True, "dropout": 0.0},
    }
    parts = {part: str(folder / part) for part in ("train", "dev", "test")}
    return {
        "name": "small-pairs",
        "model_dir": str(folder / "model"),
        "use_cuda": False,
        "fp16": False,
        "num_workers": 0,
        "data": {
            "dataset_type": "plain",
            "src": {"lang": sides[0], **side},
            "trg": {"lang": sides[1], **side},
            **parts,
        },
        "testing": {
            "beam_size": 5,
            "beam_alpha": 1.0,
            "eval_metrics": ["bleu"],
            "max_output_length": 100,
            "batch_size": 2048,
            "batch_type": "token",
        },
        "training": {
            "optimizer": "adam",
            "normalization": "tokens",
            "adam_betas": [0.9, 0.999],
            "loss": "crossentropy",
            # The recipe lowers the rate where validation gains no more, which takes longer than
            # these runs. Its scheduler does not know today's PyTorch; this one lowers nothing.
            "scheduling": "exponential",
            "decrease_factor": 1.0,
            "learning_rate": 0.0003,
            "label_smoothing": 0.1,
            "batch_size": 4096,
            "batch_type": "token",
            "early_stopping_metric": "bleu",
            "epochs": 1000,
            "validation_freq": 20,
            "logging_freq": 10,
            "overwrite": True,
        },
        "model": {
            "initializer": "xavier",
            "embed_initializer": "xavier",
            "tied_embeddings": True,
            "tied_softmax": True,
            "encoder": coder,
            "decoder": coder,
        },
    }


def write_for_joeynmt(folder: Path, sides: list[str], bpe: BPE, parts: dict) -> None:
    """Writes the parts as tokens, numbers for words, with their vocabulary and joeynmt.yaml."""
    folder.mkdir(parents=True, exist_ok=True)
    words = set()
    for part, texts in parts.items():
        limit = DEV_SENTENCES if part == "dev" else None
        tokens = [
            [" ".join(map(str, ids)) for ids in bpe.encode(lines[:limit])] for lines in texts
        ]
        write_part(folder / part, sides, tokens)
        if part == "train":
            words = {word for line in itertools.chain(*tokens) for word in line.split()}
    vocabulary = ["<unk>", "<pad>", "<s>", "</s>", *sorted(words, key=int)]
    (folder / "vocabulary").write_text("\n".join(vocabulary) + "\n")
    config = yaml.safe_dump(joeynmt_config(folder, sides))
    (folder / "joeynmt.yaml").write_text(config)


def train_joeynmt(python: str, folder: Path) -> subprocess.Popen:
    """Starts JoeyNMT's training."""
    with open(folder / "train.txt", "w") as output:
        command = [python, "-m", "joeynmt", "train", folder / "joeynmt.yaml", "--skip-test"]
        return subprocess.Popen(
            [*JOEYNMT_CORE, *command], stdout=output, stderr=subprocess.STDOUT
        )


def test_joeynmt(python: str, folder: Path, bpe: BPE, references: list[str], tgt: str) -> str:
    """Returns the BLEU of JoeyNMT's translations of the test set, as text."""
    if not (folder / "model" / "best.ckpt").exists():
        return "no checkpoint"
    command = [python, "-m", "joeynmt", "test", folder / "joeynmt.yaml", "-o", folder / "out"]
    with open(folder / "test.txt", "w") as output:
        subprocess.run(command, check=True, stdout=output, stderr=subprocess.STDOUT)
    lines = (folder / "out.test").read_text().split("\n")[: len(references)]
    hypotheses = [
        bpe.decode([int(word) for word in line.split() if word.isdigit()]) for line in lines
    ]
    return f"{bleu(hypotheses, references, tgt).value:.1f}"


def last_step(folder: Path) -> str:
    """Returns the last step that JoeyNMT has logged, as text."""
    steps = re.findall(r"Step: +(\d+)", (folder / "train.txt").read_text())
    return steps[-1] if steps else "0"


def main() -> None:
    parser = make_parser(__doc__, "CORPUS")
    parser.allow_abbrev = False  # of flags that are passed on
    parser.add_argument("corpus", metavar="CORPUS", type=Path)
    parser.add_argument("--src", required=True)
    parser.add_argument("--tgt", required=True)
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--joeynmt", metavar="PYTHON", default="")
    args, flags = parser.parse_known_args()
    sides = [args.src, args.tgt]
    limits = {"train": args.pairs, "dev": None, "test": None}
    parts = {
        part: read_part(args.corpus / part, sides, limit) for part, limit in limits.items()
    }
    name = f"{args.corpus.name}-{len(parts['train'][0])}"
    folder = Path("logs", "small_pairs", f"{name}-joeynmt").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    write_part(folder / "text", sides, parts["train"])
    ours = [
        *(sys.executable, str(ROOT / "train_cpu.py"), "--name", f"small_pairs/{name}"),
        *("--data", str(folder / "text"), "--src", args.src, "--tgt", args.tgt),
        *("--valid", str(args.corpus / "dev"), "--test", str(args.corpus / "test")),
        *("--minutes", str(args.minutes), "--procs", "1", *flags),
    ]
    peer = None
    if args.joeynmt:
        config = config_for_amount("pairs", parts["train"][0])
        size = read_config(str(config), CpuSettings).get("vocab_size", CpuSettings.vocab_size)
        bpe = BPE.train(itertools.chain(*parts["train"]), size)
        write_for_joeynmt(folder, sides, bpe, parts)
        peer = train_joeynmt(args.joeynmt, folder)
    began = time.monotonic()
    try:
        process = subprocess.run([*OUR_CORE, *ours], stdout=subprocess.DEVNULL)
        if process.returncode:
            sys.exit(process.returncode)  # it has said why
        if peer:
            time.sleep(max(0, args.minutes * 60 - (time.monotonic() - began)))
    finally:
        if peer:
            peer.kill()
            peer.wait()
    summary = json.loads(Path("logs", "small_pairs", name, "summary.json").read_text())
    cells = [name, f"{args.minutes:g}", f"{summary['test_bleu']:.1f}", summary["steps"]]
    if peer:
        cells.append(test_joeynmt(args.joeynmt, folder, bpe, parts["test"][1], args.tgt))
        cells.append(last_step(folder))
    print(row(*cells))


if __name__ == "__main__":
    run_main(main)
