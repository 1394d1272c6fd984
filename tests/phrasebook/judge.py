"""How many first sentences a trained translator gets right.

    python tests/phrasebook/judge.py logs/phrasebook-1          # prints: 85 of 100 right
    python tests/phrasebook/judge.py logs/phrasebook-1 --show   # and those that it got wrong
    python tests/phrasebook/judge.py logs/phrasebook-1 --sentences my.tsv

A sentence is translated as translate.py does, with a beam of 4. A line of the file has it and,
after tabs, each translation that is right. Capitals, commas, marks at the end and contractions
("I'm", "I am") make no difference.

Two files of sentences were kept out of the making of the phrasebook: do not change phrases.txt
because of what --show says. The share of phrases was chosen with the score of
first_sentences.tsv in view; nothing was chosen by that of more_sentences.tsv.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SENTENCES = Path(__file__).with_name("first_sentences.tsv")
CONTRACTIONS = [  # (as it is written, in full)
    ("can't", "can not"),
    ("cannot", "can not"),
    ("won't", "will not"),
    ("shan't", "shall not"),
    ("let's", "let us"),
    ("n't", " not"),
    ("'m", " am"),
    ("'re", " are"),
    ("'ve", " have"),
    ("'ll", " will"),
    ("'d", " would"),
]
# After these, "'s" is "is"; after others it tells whose something is: my brother's name.
SHORT_IS = re.compile(
    r"\b(it|he|she|that|this|there|here|what|where|who|how|when|why|everything)'s\b"
)


def plain(sentence: str) -> str:
    """Returns the sentence without what makes no difference."""
    text = sentence.lower().replace("’", "'")
    for short, full in CONTRACTIONS:
        text = text.replace(short, full)
    text = SHORT_IS.sub(r"\1 is", text)
    return " ".join(re.sub(r'[.,!?;:"]', " ", text).split())


def read_sentences(path: Path) -> list[tuple[str, list[str]]]:
    """Returns (German, the translations that are right) of each line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if line.strip() and line[0] != "#"]
    return [(row[0], [text for text in row[1:] if text]) for row in rows]


def wrong_ones(
    sentences: list[tuple[str, list[str]]], translations: list[str]
) -> list[tuple[str, str]]:
    """Returns (German, its translation) where that is none of the right ones."""
    return [
        (german, translation)
        for (german, right), translation in zip(sentences, translations)
        if plain(translation) not in map(plain, right)
    ]


def translate(run: Path, sources: list[str]) -> list[str]:
    """Returns what translate.py makes of the sentences, with the model in the run's folder."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "translate.py"), "--checkpoint", str(run)],
        input="".join(source + "\n" for source in sources),
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    if done.returncode:
        sys.exit(done.returncode)  # it has said why
    return done.stdout.splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="the run's folder, or a checkpoint")
    parser.add_argument("--show", action="store_true", help="print what is wrong, too")
    parser.add_argument("--sentences", type=Path, default=SENTENCES, help="others to judge by")
    args = parser.parse_args()
    sentences = read_sentences(args.sentences)
    translations = translate(args.run, [german for german, _ in sentences])
    wrong = wrong_ones(sentences, translations)
    if args.show:
        for german, translation in wrong:
            print(german, translation, sep="\t")
    print(f"{len(sentences) - len(wrong)} of {len(sentences)} right")


if __name__ == "__main__":
    main()
