"""What other people would use, each a program that tests/benchmark.py times, run by the Python that has it.

    PYTHON tests/peers.py NAME FOLDER

FOLDER holds train.src and train.tgt, the encoded corpus with numbers for words, and shape.json. Each prints target
tokens a second without padding, over the last three quarters of its steps.
"""

import contextlib
import json
import os
import sys
import time
from pathlib import Path

SENTENCES = 128                                            # in a batch, as in the tutorials


def read(folder: Path) -> list[tuple[list[int], list[int]]]:
    sides = [[[int(word) for word in line.split()] for line in open(folder / f"train.{side}")] for side in ("src", "tgt")]
    return list(zip(*sides))


def padded(sentences: list[list[int]], value: int):
    import torch

    return torch.nn.utils.rnn.pad_sequence([torch.tensor(s) for s in sentences], batch_first=True, padding_value=value)


def time_steps(loss_of, parameters, pairs: list, shape: dict) -> None:
    """The loop of every tutorial: sentences as they come, a batch at a time, Adam. Prints its speed."""
    import torch

    optimizer = torch.optim.Adam(parameters, lr=1e-4)
    bf16 = torch.autocast("cpu", torch.bfloat16) if shape["precision"] == "bf16" else contextlib.nullcontext()
    for step in range(shape["steps"]):
        if step == shape["steps"] // 4:
            began, tokens = time.perf_counter(), 0
        batch = [pairs[i % len(pairs)] for i in range(step * SENTENCES, (step + 1) * SENTENCES)]
        with bf16:
            loss = loss_of(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step >= shape["steps"] // 4:
            tokens += sum(len(tgt) + 1 for _, tgt in batch)
    print(f"{tokens / (time.perf_counter() - began):.1f} target tokens/s")


def tutorial(folder: Path, shape: dict) -> None:
    """torch.nn.Transformer's layers in the recipe of PyTorch's own translation tutorial."""
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
    from model import ModelConfig
    from reference import TorchTransformer

    model = TorchTransformer(ModelConfig(**shape["model"])).train()
    bos, eos, pad = (shape["model"][name] for name in ("bos", "eos", "pad"))

    def loss_of(batch):
        src, tgt_in, tgt_out = ([[*s, eos] for s, _ in batch], [[bos, *t] for _, t in batch], [[*t, eos] for _, t in batch])
        loss, _, tokens = model(padded(src, pad), padded(tgt_in, pad), padded(tgt_out, pad))
        return loss / tokens

    time_steps(loss_of, model.parameters(), read(folder), shape)


def marian(folder: Path, shape: dict) -> None:
    """Hugging Face's MarianMT with random weights, in the loop that its documentation shows."""
    from transformers import MarianConfig, MarianMTModel

    config = shape["model"]
    bos, eos, pad = (config[name] for name in ("bos", "eos", "pad"))
    sides = {f"{side}_{name}": config[ours] for side in ("encoder", "decoder")
             for name, ours in (("layers", "layers"), ("attention_heads", "heads"), ("ffn_dim", "d_ff"))}
    model = MarianMTModel(MarianConfig(
        vocab_size=config["vocab_size"], d_model=config["d_model"], dropout=config["dropout"], activation_function="relu",
        pad_token_id=pad, eos_token_id=eos, bos_token_id=bos, decoder_start_token_id=bos, scale_embedding=True,
        max_position_embeddings=config["max_length"], forced_eos_token_id=eos, **sides)).train()

    def loss_of(batch):
        src, tgt = padded([[*s, eos] for s, _ in batch], pad), padded([[*t, eos] for _, t in batch], -100)
        return model(input_ids=src, attention_mask=src != pad, labels=tgt).loss

    time_steps(loss_of, model.parameters(), read(folder), shape)


def joeynmt(folder: Path, shape: dict) -> None:
    """JoeyNMT's own training, in batches of so many tokens; its log says how fast it was."""
    import yaml

    config = shape["model"]
    words = [str(number) for number in range(config["eos"] + 1, config["vocab_size"])]
    (folder / "vocabulary").write_text("\n".join(["<unk>", "<pad>", "<s>", "</s>", *words]) + "\n")
    for side in ("src", "tgt"):
        lines = (folder / f"train.{side}").read_text().splitlines(keepends=True)
        (folder / f"dev.{side}").write_text("".join(lines[:10]))
    side = {"level": "word", "voc_file": str(folder / "vocabulary"), "max_length": config["max_length"], "lowercase": False}
    coder = {"type": "transformer", "num_layers": config["layers"], "num_heads": config["heads"], "hidden_size": config["d_model"],
             "ff_size": config["d_ff"], "dropout": config["dropout"], "layer_norm": config["norm"],
             "embeddings": {"embedding_dim": config["d_model"], "scale": True, "dropout": config["dropout"]}}
    often = max(1, shape["steps"] // 8)
    (folder / "joeynmt.yaml").write_text(yaml.safe_dump({
        "name": "benchmark", "model_dir": str(folder / "joeynmt"), "use_cuda": False, "fp16": False, "num_workers": 0,
        "data": {"train": str(folder / "train"), "dev": str(folder / "dev"), "dataset_type": "plain",
                 "src": {"lang": "src", **side}, "trg": {"lang": "tgt", **side}},
        "testing": {"beam_size": 1, "eval_metrics": ["bleu"], "max_output_length": 50},
        "training": {"optimizer": "adam", "learning_rate": 1e-4, "scheduling": "warmupinversesquareroot", "learning_rate_warmup": 1000,
                     "adam_betas": [0.9, 0.98], "normalization": "tokens", "label_smoothing": config["label_smoothing"],
                     "batch_size": shape["batch_tokens"], "batch_type": "token", "updates": shape["steps"], "epochs": 100,
                     "logging_freq": often, "validation_freq": 1000 * often, "early_stopping_metric": "loss", "overwrite": True},
        "model": {"tied_embeddings": True, "tied_softmax": True, "encoder": coder, "decoder": coder}}))
    os.execv(sys.executable, [sys.executable, "-m", "joeynmt", "train", str(folder / "joeynmt.yaml"), "--skip-test"])


if __name__ == "__main__":
    name, folder = sys.argv[1], Path(sys.argv[2])
    {"tutorial": tutorial, "marian": marian, "joeynmt": joeynmt}[name](folder, json.loads((folder / "shape.json").read_text()))
