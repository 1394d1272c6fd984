"""Every flag of the training scripts: its name, type, default, limits and help.

A training script calls `parse_arguments(__doc__, Settings)` of command_line.py, and its `train`
gets the flags as one object of this class, `args`. Flags that only some scripts have are in
classes derived from it. The values in configs/ override the defaults here.
"""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from support.common.errors import UserError

if TYPE_CHECKING:  # plot.py, too, imports this module, and does without torch
    from support.distributed.trial import Trial


def flag(
    default: Any,
    help: str,
    limits: tuple[float, float] = (0, 2**31 - 1),
    *,
    choices: tuple[str, ...] = (),
    task: str = "",
    is_shape: bool = False,
    changeable: bool = False,
    remembered: bool = True,
    copied: bool = True,
) -> Any:
    """Describes a flag.

    limits: the smallest and the largest number. choices: the allowed words. task: the only task
    that uses it. is_shape: whether it is part of the model's shape, which --pretrained decides.

    What happens to its value when a run is resumed, or another begins with its config.json:
    remembered=False: a resumed run does not use the stored value. copied=False: --config does
    not copy it from a config.json. changeable=True: a resumed run may have another value. A
    flag that is not remembered, or not copied, is changeable as well.
    """
    return dataclasses.field(
        default=default,
        metadata={
            "help": help,
            "limits": limits,
            "choices": choices,
            "task": task,
            "is_shape": is_shape,
            "changeable": changeable or not remembered or not copied,
            "remembered": remembered,
            "copied": copied,
        },
    )


TRANSLATE, CLASSIFY = "translation", "classification"
# For flags of one start on one machine: neither a resumed run nor --config takes them over.
ONCE: dict[str, Any] = {"remembered": False, "copied": False}

# `heading` is that of the flags in --help. A class without its own has that of its base class.


@dataclass
class CorpusSettings:
    """The corpus."""

    heading: ClassVar[str] = "corpus"

    data: str = flag(
        "phrasebook",
        "corpus to translate: phrasebook, multi30k, a folder, a PREFIX, a table (.csv, .json, "
        ".jsonl, or lines with tabs) or a .zip; to classify: agnews, amazon-polarity, "
        "fashion-mnist, imdb, kinds, class folders, or a table with --label",
        changeable=True,  # the corpus may have moved; its content may not have changed
    )
    valid: str = flag(
        "",
        "PREFIX, table or class folders to validate on; without any, some of the training set "
        "is held out",
        changeable=True,
    )
    test: str = flag("", "PREFIX, table or class folders to score at the end", changeable=True)
    src: str = flag(
        "de",
        "source language: ending of its file, or column; also in --valid and --test",
        task=TRANSLATE,
    )
    tgt: str = flag("en", "target language, likewise", task=TRANSLATE)
    tokenizer: str = flag(
        "bpe",
        "what tokens are: pieces of words (BPE); words, of which those that occur once are "
        "unknown; or phrases: half are frequent words, half are sequences of words; auto: "
        "words, if few are unknown",
        choices=("bpe", "words", "phrases", "auto"),
        task=CLASSIFY,
        is_shape=True,
    )
    vocab_size: int = flag(
        8000, "tokens in the vocabulary; a BPE has at least 259", (1, 10**7), is_shape=True
    )
    max_length: int = flag(
        128,
        "tokens; longer sentence pairs are left out; longer texts are divided (--windows) or "
        "lose their middle",
        (1, 32_767),
    )
    windows: int = flag(
        1,
        "windows, of --max-length tokens, that a longer text is divided into, at most",
        (1, 1000),
        task=CLASSIFY,
    )
    label: str = flag("", "column of a table that holds the class, by name or position")
    text: str = flag("", "columns with the text, separated by commas", task=CLASSIFY)
    image_size: int = flag(
        0,
        "pixels a side; 0: the size that --pretrained or an IDX file has, or 32",
        task=CLASSIFY,
    )


@dataclass
class ModelSettings:
    """The shape of the model."""

    heading: ClassVar[str] = "model"

    layers: int = flag(
        3, "encoder layers, and as many decoder layers", (1, 1000), is_shape=True
    )
    d_model: int = flag(256, "width of the model", (1, 65_536), is_shape=True)
    heads: int = flag(4, "attention heads", is_shape=True)
    d_ff: int = flag(1024, "width inside the feed-forward layers", (1, 10**6), is_shape=True)
    dropout: float = flag(0.1, "dropout probability")
    norm: str = flag(
        "pre",
        "layer norm before each sub-layer, or after it",
        choices=("pre", "post"),
        is_shape=True,
    )
    patch: int = flag(
        4, "pixels a side of an image's patches", (1, 4096), task=CLASSIFY, is_shape=True
    )
    stem_channels: int = flag(
        0,
        "channels of the first of two convolutions before the patches; 0: no convolutions",
        task=CLASSIFY,
        is_shape=True,
    )
    pretrained: str = flag(
        "",
        "start from the weights in this Hugging Face folder (BERT, ViT, ...), or OWNER/NAME, "
        "which is downloaded",
        task=CLASSIFY,
    )
    pool: str = flag(
        "pretrained",
        "with --pretrained: pool the tokens as these weights expect, or take their mean",
        choices=("pretrained", "mean"),
        task=CLASSIFY,
    )
    freeze: int = flag(0, "number of lowest layers to freeze", task=CLASSIFY)


@dataclass
class OptimizerSettings:
    """How the model is trained."""

    heading: ClassVar[str] = "optimization"

    batch_tokens: int = flag(
        4096, "source tokens, and target tokens, in a step of all processes", (1, 10**9)
    )
    batch_size: int = flag(0, "examples in a step; 0: as many as --batch-tokens holds")
    accumulate: int = flag(
        1,
        "micro-batches of each process in a step; their gradients add up",
        (1, 10_000),
        changeable=True,
    )
    epochs: int = flag(10, "passes through the corpus", (1, 2**31 - 1), changeable=True)
    steps: int = flag(0, "number of steps, instead of --epochs", changeable=True)
    minutes: float = flag(
        0.0,
        "train for as many epochs as fit in this time, found by a short trial; 0: --epochs",
        **ONCE,
    )
    lr: float = flag(2e-3, "peak learning rate, at the end of the warm-up")
    warmup: int = flag(1000, "warm-up steps; 0: a tenth of the run")
    schedule: str = flag(
        "noam",
        "how the learning rate falls after the warm-up",
        choices=("noam", "linear", "cosine"),
    )
    head_lr: float = flag(
        0.0, "peak learning rate of a classifier's head; 0: --lr", task=CLASSIFY
    )
    weight_decay: float = flag(
        0.0, "weight decay of AdamW; biases and norms never decay", (0, 1)
    )
    class_weights: bool = flag(
        False, "give each class the same total weight in the loss", task=CLASSIFY
    )
    token_dropout: float = flag(
        0.0, "probability of hiding a token of a text in training", (0, 0.9), task=CLASSIFY
    )
    crop: int = flag(0, "shift images by up to this many pixels", task=CLASSIFY)
    flip: str = flag("no", "mirror half of the images", choices=("no", "yes"), task=CLASSIFY)
    label_smoothing: float = flag(0.1, "probability that is spread over all tokens or classes")
    clip: float = flag(1.0, "maximum norm of the gradient; 0: no clipping")
    average_checkpoints: int = flag(
        5,
        "at the end, also try the mean of the weights of the last N evaluations",
        (1, 1000),
        changeable=True,
    )
    patience: int = flag(
        0, "stop after this many evaluations that were no better; 0: never", changeable=True
    )
    seed: int = flag(1, "seed of weights, order of examples and dropout")


@dataclass
class SpeedSettings:
    """What makes training faster, or needs less memory."""

    heading: ClassVar[str] = "speed"

    precision: str = flag(
        "auto",
        "precision of matrix products; auto selects bf16 if the hardware supports it, fp16 "
        "on GPUs of compute capability 7, else fp32; tf32, on GPUs, keeps tensors in fp32",
        choices=("auto", "fp32", "tf32", "bf16", "fp16"),
        changeable=True,
    )
    compile: bool = flag(
        False, "compile the layers, and on a GPU the loss, with torch.compile", changeable=True
    )
    recompute: bool = flag(
        False,
        "keep few activations and recompute the others in the backward pass",
        changeable=True,
    )
    plain: bool = flag(False, "run model.py as it is written, without faster replacements")
    profile: bool = flag(False, "record some steps: step.png, memory.png and traces", **ONCE)
    benchmark: bool = flag(
        False,
        "time --steps, or 200 of them, and save nothing; prints tokens/s and MFU",
        changeable=True,
    )
    hardware_tflops: float = flag(
        0.0, "peak of a process's GPU or cores, for MFU; 0: look up or measure", **ONCE
    )


@dataclass
class RunSettings:
    """The folder of a run, what it logs and saves, and when."""

    heading: ClassVar[str] = "run"

    config: str = flag("", "take flags from this YAML or JSON file", copied=False)
    name: str = flag("", "start the run logs/NAME, or resume it", copied=False)
    resume: str = flag("", "resume the run in this folder, logs/RUN", copied=False)
    eval_every: int = flag(
        0,
        "steps between evaluations; 0: every epoch, and in equal parts of one that has more "
        "than 5,000 steps",
        changeable=True,
    )
    bleu_sentences: int = flag(
        2000,
        "sentences of the validation set, at most, that give BLEU during training",
        task=TRANSLATE,
    )
    save_every: int = flag(
        0,
        "steps between checkpoints; 0: at every evaluation, and at least every 1,000",
        changeable=True,
    )
    log_every: int = flag(
        10, "steps between rows of metrics.csv", (1, 2**31 - 1), changeable=True
    )
    device: str = flag("auto", "where to train", choices=("auto", "cpu", "cuda"), **ONCE)
    tensorboard: bool = flag(
        False, "also write metrics for TensorBoard to logs/RUN/", changeable=True
    )
    wandb: str = flag(
        "", "also send metrics to this project of Weights & Biases", changeable=True
    )
    timeout: int = flag(
        600,
        "seconds to wait for another process; ten times as long while rank 0 writes files",
        (1, 10**7),
        changeable=True,
    )
    delay_ms: float = flag(
        0.0,
        "milliseconds to wait before each collective of a step, as in a slow network",
        **ONCE,
    )
    netem: bool = flag(
        False,
        "batch/netem.sh already delays the network: do not wait in the process as well",
        **ONCE,
    )


@dataclass
class Settings(RunSettings, SpeedSettings, OptimizerSettings, ModelSettings, CorpusSettings):
    """All flags of a run, completed and checked, and values that are derived from them."""

    DEVICES: ClassVar[tuple[str, ...]] = ("cpu", "cuda")  # where the script can train
    SCALES_LOSS: ClassVar[bool] = True  # whether the script can train in fp16

    folder: str = ""  # of the run; none with --benchmark
    task_state: dict | None = None  # Task.state() of the checkpoint that a resumed run has
    base_config: str = ""  # the file in configs/ that the run began with
    threads: int = 1  # of this process
    gpu_rate: float = 0.0  # FLOP/s of all GPUs together, if steps may be enlarged for them
    growth: int = 1  # how many times as large they are then
    trial: "Trial | None" = None  # if the run is the trial of --minutes

    # Flags that only some scripts have: the classes of these scripts override the values. A
    # class attribute without a type is not a field of the dataclass, and so not a flag.
    sharded = False
    replicas = 1
    tensor = 1

    @property
    def is_resumed(self) -> bool:
        """Whether the run goes on from a checkpoint."""
        return self.task_state is not None

    def flags(self) -> dict[str, Any]:
        """Returns the flags by name, as config.json and checkpoints hold them."""
        return {name: getattr(self, name) for name in flags_of(type(self))}


@dataclass
class CpuSettings(Settings):
    """The flags of train_cpu.py."""

    DEVICES: ClassVar[tuple[str, ...]] = ("cpu",)

    procs: int = flag(
        0,
        "processes; 0: one for each core, at most 8 and at most one per 512 --batch-tokens",
        changeable=True,
    )


@dataclass
class ShardedSettings(Settings):
    """The flags of the scripts that shard the weights."""

    sharded: bool = flag(
        False,
        "save last.pt in shards, one per process, in a logs/ that all nodes share",
        remembered=False,
    )


@dataclass
class FsdpSettings(ShardedSettings):
    """The flags of train_fsdp.py."""

    replicas: int = flag(
        1,
        "model replicas for hybrid sharding (HSDP); typically the number of nodes",
        (1, 10_000),
        remembered=False,
    )


@dataclass
class TpSettings(ShardedSettings):
    """The flags of train_tp.py."""

    SCALES_LOSS: ClassVar[bool] = False
    tensor: int = flag(
        0, "processes that compute each layer together; 0: all of a node", remembered=False
    )


def flags_of(settings_class: type[Settings]) -> dict[str, dataclasses.Field]:
    """Returns the fields that are flags, by name, in the order of the classes above."""
    return {
        field.name: field
        for field in dataclasses.fields(settings_class)
        if "help" in field.metadata
    }


# Flags that not all scripts have. The others ignore them in a file.
ALL_FLAGS = flags_of(CpuSettings) | flags_of(FsdpSettings) | flags_of(TpSettings)
SCRIPT_FLAGS = ALL_FLAGS.keys() - flags_of(Settings)


def defaults_of(settings_class: type[Settings]) -> dict[str, Any]:
    """Returns the default of each flag."""
    return {name: field.default for name, field in flags_of(settings_class).items()}


def option(name: str) -> str:
    """Returns a flag as people type it: --batch-tokens of batch_tokens."""
    return "--" + name.replace("_", "-")


def check_limits(settings_class: type[Settings], values: dict[str, Any]) -> None:
    """Raises UserError for a number outside the limits of its flag."""
    for name, field in flags_of(settings_class).items():
        smallest, largest = field.metadata["limits"]
        value = values.get(name)
        if isinstance(value, int | float) and not smallest <= value <= largest:
            raise UserError(f"{option(name)} {value}: it must be from {smallest} to {largest}")
