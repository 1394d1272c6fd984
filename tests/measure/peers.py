"""Other toolkits' programs that tests/measure/benchmark.py times, with their own interpreter.

    PYTHON tests/measure/peers.py NAME FOLDER

FOLDER holds train.src and train.tgt, the encoded corpus with numbers for words, and shape.json.
tutorial and marian print target tokens a second without padding, the median of the last three
quarters of their steps; joeynmt prints JoeyNMT's own log. joeynmt_search is for
tests/measure/decoding.py.
"""

import json
import os
import statistics
import sys
import time
from pathlib import Path

SENTENCES = 128  # in a batch, as in the tutorials


def read(folder: Path) -> list[tuple[list[int], list[int]]]:
    sides = []
    for side in ("src", "tgt"):
        lines = (folder / f"train.{side}").read_text().splitlines()
        sides.append([[int(word) for word in line.split()] for line in lines])
    return list(zip(*sides))


def padded(sentences: list[list[int]], value: int):
    import torch

    rows = [torch.tensor(sentence) for sentence in sentences]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)


def time_steps(loss_of, parameters, pairs: list, shape: dict) -> None:
    """The loop of every tutorial: batches of sentences as they come, Adam. Prints its speed."""
    import torch

    optimizer = torch.optim.Adam(parameters, lr=1e-4)
    bf16 = shape["precision"] == "bf16"
    speeds = []
    for step in range(shape["steps"]):
        began = time.perf_counter()
        first = step * SENTENCES
        batch = [pairs[i % len(pairs)] for i in range(first, first + SENTENCES)]
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = loss_of(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        targets = sum(len(tgt) + 1 for _, tgt in batch)
        speeds.append(targets / (time.perf_counter() - began))
    print(f"{statistics.median(speeds[len(speeds) // 4 :]):.1f} target tokens/s")


def tutorial(folder: Path, shape: dict) -> None:
    """torch.nn.Transformer's layers in the recipe of PyTorch's own translation tutorial."""
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]
    from reference import TorchTransformer

    from model import ModelConfig

    model = TorchTransformer(ModelConfig(**shape["model"])).train()
    bos, eos, pad = (shape["model"][name] for name in ("bos", "eos", "pad"))

    def loss_of(batch):
        src, tgt_in, tgt_out = (
            padded(rows, pad)
            for rows in (
                [[*s, eos] for s, _ in batch],
                [[bos, *t] for _, t in batch],
                [[*t, eos] for _, t in batch],
            )
        )
        return model(src, tgt_in, tgt_out)[0] / (tgt_out != pad).sum()

    time_steps(loss_of, model.parameters(), read(folder), shape)


def marian(folder: Path, shape: dict) -> None:
    """Hugging Face's MarianMT with random weights, in the loop that its documentation shows."""
    from transformers import MarianConfig, MarianMTModel

    config = shape["model"]
    bos, eos, pad = (config[name] for name in ("bos", "eos", "pad"))
    names = {"layers": "layers", "attention_heads": "heads", "ffn_dim": "d_ff"}
    sides = {
        f"{side}_{name}": config[ours]
        for side in ("encoder", "decoder")
        for name, ours in names.items()
    }
    model = MarianMTModel(
        MarianConfig(
            vocab_size=config["vocab_size"],
            d_model=config["d_model"],
            dropout=config["dropout"],
            activation_function="relu",
            scale_embedding=True,
            pad_token_id=pad,
            eos_token_id=eos,
            bos_token_id=bos,
            decoder_start_token_id=bos,
            forced_eos_token_id=eos,
            max_position_embeddings=config["max_length"],
            **sides,
        )
    ).train()

    def loss_of(batch):
        src = padded([[*s, eos] for s, _ in batch], pad)
        tgt = padded([[*t, eos] for _, t in batch], -100)
        return model(input_ids=src, attention_mask=src != pad, labels=tgt).loss

    time_steps(loss_of, model.parameters(), read(folder), shape)


def joeynmt(folder: Path, shape: dict) -> None:
    """JoeyNMT's own training, in batches of so many tokens; its log says how fast it was."""
    import yaml

    config = shape["model"]
    words = [str(number) for number in range(config["eos"] + 1, config["vocab_size"])]
    (folder / "vocabulary").write_text(
        "\n".join(["<unk>", "<pad>", "<s>", "</s>", *words]) + "\n"
    )
    for side in ("src", "tgt"):
        lines = (folder / f"train.{side}").read_text().splitlines(keepends=True)
        (folder / f"dev.{side}").write_text("".join(lines[:10]))
    side = {
        "level": "word",
        "voc_file": str(folder / "vocabulary"),
        "lowercase": False,
        "max_length": config["max_length"],
    }
    coder = joeynmt_coder(config, config["dropout"])
    often = max(1, shape["steps"] // 8)
    (folder / "joeynmt.yaml").write_text(
        yaml.safe_dump(
            {
                "name": "benchmark",
                "model_dir": str(folder / "joeynmt"),
                "use_cuda": False,
                "fp16": False,
                "num_workers": 0,
                "data": {
                    "train": str(folder / "train"),
                    "dev": str(folder / "dev"),
                    "dataset_type": "plain",
                    "src": {"lang": "src", **side},
                    "trg": {"lang": "tgt", **side},
                },
                "testing": {"beam_size": 1, "eval_metrics": ["bleu"], "max_output_length": 50},
                "training": {
                    "optimizer": "adam",
                    "learning_rate": 1e-4,
                    "adam_betas": [0.9, 0.98],
                    "scheduling": "warmupinversesquareroot",
                    "learning_rate_warmup": 1000,
                    "normalization": "tokens",
                    "label_smoothing": config["label_smoothing"],
                    "batch_size": shape["batch_tokens"],
                    "batch_type": "token",
                    "updates": shape["steps"],
                    "epochs": 100,
                    "logging_freq": often,
                    "validation_freq": 1000 * often,
                    "early_stopping_metric": "loss",
                    "overwrite": True,
                },
                "model": {
                    "tied_embeddings": True,
                    "tied_softmax": True,
                    "encoder": coder,
                    "decoder": coder,
                },
            }
        )
    )
    os.execv(
        sys.executable,
        [sys.executable, "-m", "joeynmt", "train", str(folder / "joeynmt.yaml"), "--skip-test"],
    )


def joeynmt_coder(config: dict, dropout: float) -> dict:
    """What JoeyNMT's configuration says of our encoder, and of our decoder."""
    return {
        "type": "transformer",
        "num_layers": config["layers"],
        "num_heads": config["heads"],
        "hidden_size": config["d_model"],
        "ff_size": config["d_ff"],
        "dropout": dropout,
        "layer_norm": config["norm"],
        "embeddings": {"embedding_dim": config["d_model"], "scale": True, "dropout": dropout},
    }


def joeynmt_search(folder: Path, shape: dict) -> None:
    """JoeyNMT, with FOLDER/weights.pt, translates the ids in FOLDER/batches.json.

    It does so greedily and with a beam of 4. Its first four words are <unk>, <pad>, <s> and
    </s>. Ours begin with the last three, so each of our ids is one more here.
    """
    from types import SimpleNamespace

    import torch
    from joeynmt.batch import Batch
    from joeynmt.model import build_model
    from joeynmt.search import search
    from joeynmt.vocabulary import Vocabulary

    config = shape["model"]
    ours = torch.load(folder / "weights.pt", weights_only=True)
    specials = SimpleNamespace(
        unk_token="<unk>",
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        sep_token=None,
        lang_tags=[],
        unk_id=0,
        pad_id=1,
        bos_id=2,
        eos_id=3,
    )
    vocabulary = Vocabulary(
        [str(number) for number in range(3, config["vocab_size"])], specials
    )
    coder = joeynmt_coder(config, dropout=0.0)
    model = build_model(
        {"tied_embeddings": True, "tied_softmax": True, "encoder": coder, "decoder": coder},
        vocabulary,
        vocabulary,
    ).eval()
    theirs = joeynmt_weights(config, ours)
    missing, unexpected = model.load_state_dict(theirs, strict=False)
    assert not unexpected, unexpected
    assert {name.split(".")[-1] for name in missing} <= {"pe"}, missing

    def translate(sentences: list[list[int]], beam: int) -> list[list[int]]:
        src = padded([[i + 1 for i in ids] + [3] for ids in sentences], 1)
        lengths = torch.tensor([len(ids) + 1 for ids in sentences])
        batch = Batch(
            src,
            lengths,
            None,
            None,
            None,
            torch.arange(len(src)),
            torch.device("cpu"),
            1,
            3,
            is_train=False,
        )
        found = search(model, batch, -1, beam, 1.0, generate_unk=False)[0]
        ended = [list(ids)[: list(ids).index(3) if 3 in ids else None] for ids in found]
        return [[int(i) - 1 for i in ids if i > 3] for ids in ended]

    told = json.loads((folder / "told.json").read_text())
    batches = told["batches"]
    found = {}
    for beam in (1, 4):
        translate(batches[-1], beam)
        began = time.perf_counter()
        ids = [translate(batch, beam) for batch in batches]
        seconds = time.perf_counter() - began
        alone = []
        for sentence in told["alone"]:
            began = time.perf_counter()
            translate([sentence], beam)
            alone.append(time.perf_counter() - began)
        found[beam] = {"ids": ids, "seconds": seconds, "alone": alone}
    (folder / "found.json").write_text(json.dumps(found))


def joeynmt_weights(config: dict, ours: dict) -> dict:
    """Our weights under JoeyNMT's names."""
    import torch

    embedding = torch.cat([torch.zeros(1, config["d_model"]), ours["embedding.weight"]])
    tied = ["src_embed.lut.weight", "trg_embed.lut.weight", "decoder.output_layer.weight"]
    theirs = dict.fromkeys(tied, embedding)

    def copy(to: str, of: str, bias: bool = True) -> None:
        theirs[f"{to}.weight"] = ours[f"{of}.weight"]
        none = torch.zeros(len(ours[f"{of}.weight"]))
        theirs[f"{to}.bias"] = ours[f"{of}.bias"] if bias else none

    def attention(to: str, of: str) -> None:
        heads = ours[f"{of}.key_value.weight"].unflatten(0, (config["heads"], 2, -1))
        ours[f"{of}.key.weight"] = heads[:, 0].flatten(0, 1)
        ours[f"{of}.value.weight"] = heads[:, 1].flatten(0, 1)
        for name, part in (
            ("q_layer", "query"),
            ("k_layer", "key"),
            ("v_layer", "value"),
            ("output_layer", "out"),
        ):
            copy(f"{to}.{name}", f"{of}.{part}", bias=False)

    for side, attentions in (
        ("encoder", [("src_src_att", "attention", "layer_norm")]),
        (
            "decoder",
            [
                ("trg_trg_att", "self_attention", "x_layer_norm"),
                ("src_trg_att", "cross_attention", "dec_layer_norm"),
            ],
        ),
    ):
        for number in range(config["layers"]):
            to, of = f"{side}.layers.{number}", f"{side}.{number}"
            for place, (name, part, norm) in enumerate(attentions):
                attention(f"{to}.{name}", f"{of}.{part}")
                copy(f"{to}.{norm}", f"{of}.residuals.{place}.norm")
            copy(f"{to}.feed_forward.layer_norm", f"{of}.residuals.{len(attentions)}.norm")
            for theirs_at, ours_at in ((0, 0), (3, 2)):
                copy(
                    f"{to}.feed_forward.pwff_layer.{theirs_at}", f"{of}.feed_forward.{ours_at}"
                )
        copy(f"{side}.layer_norm", f"{side}_norm")
    return theirs


if __name__ == "__main__":
    name = sys.argv[1]
    folder = Path(sys.argv[2])
    programs = {each.__name__: each for each in (tutorial, marian, joeynmt, joeynmt_search)}
    programs[name](folder, json.loads((folder / "shape.json").read_text()))
