"""How good the default settings are: text classifiers beside TF-IDF with logistic regression.

    python tests/measure/defaults.py CORPUS...
    python tests/measure/defaults.py CORPUS... --pretrained FOLDER  # also from these weights
    python tests/measure/defaults.py CORPUS... --minutes 5          # other flags are passed on

A corpus is a name that --data knows, or a folder with train.csv and test.csv, tables with the
columns `label` and `text`. Each is trained by train_cpu.py with the settings that it chooses,
as logs/NAME/nothing-CORPUS or pretrained-CORPUS, where NAME is "defaults" unless --name gives
another. The same command goes on where it was stopped. Prints a table: accuracy on the test
set, in %, and minutes in all. Needs scikit-learn.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from printed import header, row

from support.classification.corpus import Labelled
from support.classification.labelled import find_labelled
from support.common.errors import make_parser, run_main


def corpus_settings(corpus: str) -> dict[str, str]:
    """Returns what names a corpus: flags of train_cpu.py, and arguments of `find_labelled`."""
    train = Path(corpus, "train.csv")
    if not train.is_file():
        return {"data": corpus}
    test = Path(corpus, "test.csv")
    return {"data": str(train), "test": str(test), "label": "label", "text": "text"}


def read_part(corpus: Labelled, part: str) -> tuple[list[str], list[str]]:
    """Returns the texts of a part, and their classes."""
    texts, labels = zip(*corpus.parts[part]())
    return list(texts), list(labels)


def tfidf(corpus: Labelled, analyzer: str) -> float:
    """Returns the accuracy of TF-IDF with logistic regression.

    1- and 2-grams of words or characters, by the analyzer, "word" or "char", that occur in two
    texts at least, with sublinear counts; C is 10.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    pipeline = make_pipeline(
        TfidfVectorizer(analyzer=analyzer, ngram_range=(1, 2), min_df=2, sublinear_tf=True),
        LogisticRegression(C=10, max_iter=300),
    )
    pipeline.fit(*read_part(corpus, "train"))
    return pipeline.score(*read_part(corpus, "test"))


def train(run: str, flags: list[str]) -> dict:
    """Trains logs/RUN, unless it has ended already, and returns its summary.json."""
    summary = Path("logs", run, "summary.json")
    if not summary.is_file():
        command = [sys.executable, str(ROOT / "train_cpu.py"), "--name", run, *flags]
        print(" ".join(command[1:]), flush=True)
        if status := subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
            sys.exit(status)  # it has said why
    return json.loads(summary.read_text(encoding="utf-8"))


def cells_of(corpus: str, args: argparse.Namespace, flags: list[str]) -> list[str]:
    """Returns the cells of a corpus."""
    settings = corpus_settings(corpus)
    found = find_labelled(**settings)
    corpus_flags = [word for name, value in settings.items() for word in (f"--{name}", value)]
    texts, labels = read_part(found, "train")
    words = statistics.mean(len(text.split()) for text in texts)
    name = Path(corpus).name
    cells = [name, f"{len(texts):,}", str(len(set(labels))), f"{words:.0f}"]
    analyzer = "word" if words >= 2 else "char"  # Chinese has no spaces, for example
    cells.append(f"{100 * tfidf(found, analyzer):.1f}")
    starts: list[tuple[str, list[str]]] = [("nothing", [])]
    if args.pretrained:
        starts.append(("pretrained", ["--pretrained", args.pretrained]))
    for start, start_flags in starts:
        run = f"{args.name}/{start}-{name}"
        summary = train(run, [*corpus_flags, *start_flags, *flags])
        cells.append(f"{100 * summary['test_accuracy']:.1f}")
        cells.append(f"{summary['wall_seconds'] / 60:.1f}")
    return cells


def main() -> None:
    parser = make_parser(__doc__, "CORPUS ...")
    parser.allow_abbrev = False  # of flags that are passed on
    parser.add_argument("corpora", nargs="+", metavar="CORPUS")
    parser.add_argument(
        "--name", default="defaults", help="the runs are logs/NAME/... [defaults]"
    )
    parser.add_argument("--pretrained", default="", help="a Hugging Face folder")
    args, flags = parser.parse_known_args()
    titles = ["corpus", "training texts", "classes", "words", "TF-IDF"]
    titles += ["from scratch", "minutes"]
    if args.pretrained:
        titles += ["from pretrained weights", "minutes"]
    rows = [cells_of(corpus, args, flags) for corpus in args.corpora]
    print(header(*titles))
    for cells in rows:
        print(row(*cells))


if __name__ == "__main__":
    run_main(main)
