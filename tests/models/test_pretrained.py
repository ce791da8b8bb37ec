"""Pretrained backbones: their features are those of their own library, and what cannot be used is said."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from idiolect import models
from idiolect.core import keys
from idiolect.core.errors import InputError
from idiolect.core.option_spec import Spec
from idiolect.models import pretrained
from idiolect.models.pretrained.pixels import ImageForm, Pixels

hf: Any = pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_backbones import write_bert, write_clip, write_resnet, write_vit  # noqa: E402

RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def images(height: int, width: int, channels: int = 3, rows: int = 5) -> Any:
    """Smooth random images, as photographs are: (rows, channels, height, width), 8 bits."""
    small = RNG.integers(0, 256, (rows, channels, 5, 5)).astype(np.uint8)
    big = [[np.asarray(Image.fromarray(c).resize((width, height), 3)) for c in image] for image in small]
    return np.array(big)


def features(model: str, x: Any) -> Any:
    backbone = pretrained.frozen_backbone(model, "float32")
    assert backbone is not None
    x_R = torch.from_numpy(x)
    backbone.check(x_R)
    return backbone(x_R).numpy()


def of_library(folder: Path, kind: Any, x: Any) -> Any:
    """The last hidden state of images, by the library's own processor and network, one image at a time."""
    processor, network = hf.AutoImageProcessor.from_pretrained(folder), kind.from_pretrained(folder).eval()
    x = np.repeat(x, 3, axis=1) if x.shape[1] == 1 else x
    rows = [processor(Image.fromarray(image.transpose(1, 2, 0)), return_tensors="pt")["pixel_values"] for image in x]
    with torch.no_grad():
        return np.concatenate([network(row).last_hidden_state.numpy() for row in rows])


def near(ours: Any, theirs: Any) -> None:
    """Equal but for the rounding of resized images to 8 bits in the library."""
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() < 0.02 * np.abs(theirs).max()


SIZES = [(16, 16, 3), (28, 28, 1), (40, 56, 3), (9, 30, 3)]


@pytest.mark.parametrize(("height", "width", "channels"), SIZES)
def test_features_of_images_are_the_class_token_after_the_librarys_own_preprocessing(
    tmp_path: Path, height: int, width: int, channels: int
) -> None:
    folder, x = write_vit(tmp_path / "vit"), images(height, width, channels)
    state = of_library(folder, hf.ViTModel, x)
    near(features(f"hf:{folder}", x), state[:, 0])
    near(features(f"hf:{folder},pooling=cls", x), state[:, 0])
    near(features(f"hf:{folder},pooling=mean", x), state[:, 1:].mean(1))


@pytest.mark.parametrize(("height", "width", "channels"), SIZES)
def test_features_of_a_convolution_are_the_mean_over_its_places(
    tmp_path: Path, height: int, width: int, channels: int
) -> None:
    folder, x = write_resnet(tmp_path / "resnet"), images(height, width, channels)
    near(features(f"hf:{folder}", x), of_library(folder, hf.ResNetModel, x).mean((2, 3)))


@pytest.mark.parametrize(("height", "width", "channels"), SIZES)
def test_a_class_token_of_another_name_and_a_centre_crop(
    tmp_path: Path, height: int, width: int, channels: int
) -> None:
    folder, x = write_clip(tmp_path / "clip"), images(height, width, channels)
    near(features(f"hf:{folder}", x), of_library(folder, hf.CLIPVisionModel, x)[:, 0])


def rows_of_ids(*rows: Sequence[int]) -> Any:
    """Texts as they are stored: each id plus one, zeros behind."""
    x = np.zeros((len(rows), max(map(len, rows)) + 2), np.int32)
    for k, row in enumerate(rows):
        x[k, : len(row)] = np.array(row) + 1
    return x


TEXTS = [[2, 5, 7, 10, 3], [2, 3], [2, 6, 8, 11, 17, 5, 18, 19, 3], [2, 0, 3]]


def _bert(folder: Path) -> Any:
    return hf.BertModel.from_pretrained(write_bert(folder), add_pooling_layer=False)


def _roberta(folder: Path) -> Any:
    torch.manual_seed(0)
    network = hf.RobertaModel(
        hf.RobertaConfig(vocab_size=24, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                         intermediate_size=24, max_position_embeddings=40, pad_token_id=22), add_pooling_layer=False,
    )  # fmt: skip
    network.save_pretrained(folder)
    return network


def _gpt2(folder: Path) -> Any:
    """It has no padding token at all."""
    torch.manual_seed(0)
    network = hf.GPT2Model(hf.GPT2Config(vocab_size=24, n_embd=16, n_layer=1, n_head=2, n_positions=32))
    network.save_pretrained(folder)
    return network


def _t5(folder: Path) -> Any:
    """Encoder and decoder, of which the encoder is taken."""
    torch.manual_seed(0)
    network = hf.T5Model(hf.T5Config(vocab_size=24, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2))
    network.save_pretrained(folder)
    return network.get_encoder()


@pytest.mark.parametrize("write", [_bert, _roberta, _gpt2, _t5])
def test_features_of_texts_are_the_mean_over_tokens_of_each_text_alone(
    tmp_path: Path, write: Callable[[Path], Any]
) -> None:
    network = write(tmp_path / "m").eval()
    with torch.no_grad():
        alone = [network(input_ids=torch.tensor([row])).last_hidden_state[0].mean(0).numpy() for row in TEXTS]
    np.testing.assert_allclose(features(f"hf:{tmp_path / 'm'}", rows_of_ids(*TEXTS)), alone, atol=2e-5)


def test_the_class_token_of_a_text_is_its_first(tmp_path: Path) -> None:
    network = _bert(tmp_path / "m").eval()
    with torch.no_grad():
        first = [network(input_ids=torch.tensor([row])).last_hidden_state[0, 0].numpy() for row in TEXTS]
    np.testing.assert_allclose(features(f"hf:{tmp_path / 'm'},pooling=cls", rows_of_ids(*TEXTS)), first, atol=2e-5)


def test_the_weights_of_a_larger_model_of_the_same_body_are_taken(tmp_path: Path) -> None:
    """As those that were trained to predict masked words, which is what most backbones were trained on."""
    write_bert(tmp_path / "m")
    whole = hf.BertForMaskedLM(hf.BertConfig.from_pretrained(tmp_path / "m"))
    whole.save_pretrained(tmp_path / "m")
    with torch.no_grad():
        want = whole.bert.eval()(input_ids=torch.tensor([TEXTS[0]])).last_hidden_state[0].mean(0).numpy()
    np.testing.assert_allclose(features(f"hf:{tmp_path / 'm'}", rows_of_ids(TEXTS[0]))[0], want, atol=2e-5)


@pytest.mark.parametrize("kind", ["folder", "safetensors", "torch"])
def test_weights_in_another_place(tmp_path: Path, kind: str) -> None:
    one, other, x = write_vit(tmp_path / "one"), write_vit(tmp_path / "other", seed=1), images(16, 16)
    place = {"folder": other, "safetensors": other / "model.safetensors", "torch": tmp_path / "w.pt"}[kind]
    if kind == "torch":
        torch.save(hf.ViTModel.from_pretrained(other, add_pooling_layer=False).state_dict(), place)
    want = features(f"hf:{other}", x)
    np.testing.assert_array_equal(features(f"hf:{one},weights={place}", x), want)
    assert np.abs(features(f"hf:{one}", x) - want).max() > 0.01


def test_a_digest_is_of_the_content_and_not_of_its_place(tmp_path: Path) -> None:
    one = write_vit(tmp_path / "one")
    shutil.copytree(one, tmp_path / "moved")
    write_vit(tmp_path / "other", seed=1)
    write_vit(tmp_path / "act", hidden_act="relu")

    def digest(name: str, precision: Any = "float32") -> str:
        backbone = pretrained.frozen_backbone(f"hf:{tmp_path / name}", precision)
        assert backbone is not None
        return backbone.digest

    assert digest("one") == digest("moved")
    assert len({digest("one"), digest("one", "bf16"), digest("one,pooling=mean"), digest("other"), digest("act")}) == 5
    about = json.loads((one / "preprocessor_config.json").read_text())
    (tmp_path / "moved" / "preprocessor_config.json").write_text(json.dumps(about | {"image_mean": [0.4, 0.5, 0.5]}))
    assert digest("moved") != digest("one")


def test_draws_of_the_program_are_not_touched(tmp_path: Path) -> None:
    folder = write_vit(tmp_path / "vit")
    torch.manual_seed(3)
    want = torch.rand(3)
    torch.manual_seed(3)
    features(f"hf:{folder}", images(16, 16))
    assert torch.equal(torch.rand(3), want)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("hf:/models/minilm", {"name": "/models/minilm"}),
        ("hf: o/m , adapt=frozen, body=mlp:64", {"name": "o/m", "adapt": "frozen", "body": "mlp:64"}),
        (r"hf:C:\models\minilm,pooling=cls", {"name": r"C:\models\minilm", "pooling": "cls"}),
        ("hf:name=o/m,weights=w.pt", {"name": "o/m", "weights": "w.pt"}),
        ("hf:a=b/c", {"a": "b/c"}),
        ("hf:./a=b/c", {"name": "./a=b/c"}),
        ("timm:resnet18.a1_in1k,body=linear:8", {"name": "resnet18.a1_in1k", "body": "linear:8"}),
    ],
)
def test_how_a_backbone_is_written(text: str, options: dict[str, str]) -> None:
    spec = pretrained.spec_of(text)
    assert (spec.name, spec.options) == (text.partition(":")[0], options)
    if "name" in options:
        assert pretrained.spec_of(pretrained.text_of(spec)) == spec


def test_other_models_are_read_as_before() -> None:
    for text in ("mlp:hidden=3", "auto", "my.net:hf=1", "wrn16_2:norm=batch,buffers=local"):
        assert pretrained.spec_of(text) == Spec.parse(text)
        assert not pretrained.is_pretrained(text)


@pytest.mark.parametrize(
    ("body", "shapes"),
    [
        ("identity", {}),
        ("linear:7", {"body.0.weight": (7, 16), "body.0.bias": (7,)}),
        ("mlp:5", {"body.0.weight": (5, 16), "body.0.bias": (5,)}),
    ],
)
def test_bodies_on_features_and_behind_the_backbone_are_the_same(
    tmp_path: Path, body: str, shapes: dict[str, tuple[int, ...]]
) -> None:
    model, x = f"hf:{write_vit(tmp_path / 'vit')},body={body}", images(16, 16)
    on_features = models.build(model, (16,), 4)
    weights = on_features.init(keys.key(3))
    assert {name: tuple(w.shape) for name, w in weights.body.items()} == shapes
    z = torch.from_numpy(features(model, x))
    want = on_features(weights, z)
    layer = z @ weights.body["body.0.weight"].T + weights.body["body.0.bias"] if shapes else z
    layer = layer.relu() if body.startswith("mlp") else layer
    torch.testing.assert_close(want, layer @ weights.head["weight"].T + weights.head["bias"])


BAD = [
    ("hf:", "model hf does not say which: write hf:sentence-transformers/all-MiniLM-L6-v2, or the folder"),
    ("hf:o/m,adapt=frosen", "adapt=frosen is not valid; did you mean 'frozen'"),
    ("hf:o/m,body=mlp", "body=mlp is not valid: write identity, linear:64 or mlp:64"),
    ("hf:o/m,body=linear:0", "body=linear:0 is not valid"),
    ("hf:o/m,body=cnn:8", "body=cnn:8 is not valid"),
    ("hf:o/m,pooling=max", "pooling='max' is not valid"),
    ("hf:o/m,poling=cls", "has no option 'poling'; did you mean 'pooling'"),
    ("hf:o/m,name=p", "has two names, 'o/m' and 'p': leave one out"),
    ("hf:o/m,other", "cannot read 'other'"),
    ("hf:/not/there", "there is no folder /not/there: give a folder that save_pretrained wrote"),
    ("hf:./not/there", "there is no folder ./not/there"),
    ("hf:o/m,weights=/not/there", "there is no file or folder weights=/not/there"),
    ("hf:nobody/nothing", "cannot be read from the name nobody/nothing on the Hugging Face hub"),
]


@pytest.mark.parametrize(("model", "said"), BAD, ids=[model for model, _ in BAD])
def test_what_cannot_be_a_backbone_is_said_in_one_sentence(model: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        models.build(model, (3, 8, 8), 4)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def _broken(folder: Path, how: str) -> str:
    """A folder in which something is wrong."""
    if how == "empty":
        folder.mkdir()
    elif how == "another model":
        write_vit(folder)
        shutil.copy(write_bert(folder.parent / "b") / "model.safetensors", folder / "model.safetensors")
    elif how == "another width":
        write_vit(folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"hidden_size": 20}))
    elif how == "half of the weights":
        write_vit(folder)
        content = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
    elif how == "no processor":
        write_vit(folder)
        (folder / "preprocessor_config.json").unlink()
    elif how == "no weights":
        write_vit(folder)
        (folder / "model.safetensors").unlink()
    elif how == "code":
        write_vit(folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"model_type": "mine", "auto_map": {
            "AutoConfig": "mine.Config", "AutoModel": "mine.Model"}}))  # fmt: skip
        (folder / "mine.py").write_text("raise SystemExit('this ran')")
    elif how == "sound":
        torch.manual_seed(0)
        hf.Wav2Vec2Model(
            hf.Wav2Vec2Config(vocab_size=9, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                              intermediate_size=16, conv_dim=[8], conv_stride=[5], conv_kernel=[10],
                              num_feat_extract_layers=1, num_conv_pos_embeddings=4)
        ).save_pretrained(folder)  # fmt: skip
    return f"hf:{folder}"


BROKEN = {
    "empty": "cannot be read from the folder",
    "another model": "has the weights of another network: it has no",
    "another width": "has the weights of another network",
    "half of the weights": "cannot be read from the folder",
    "no processor": "cannot be read from the folder",
    "no weights": "cannot be read from the folder",
    "code": "cannot be read from the folder",
    "sound": "takes input_values: name a backbone for texts or images",
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_folder_that_is_not_in_order_is_said_in_one_sentence(tmp_path: Path, how: str, capfd: Any) -> None:
    model = _broken(tmp_path / "m", how)
    with pytest.raises(InputError) as error:
        models.build(model, (3, 16, 16), 4)
    assert BROKEN[how] in str(error.value)
    assert len(str(error.value)) < 700
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("content", [b"", b"not weights", "another", "list"])
def test_a_file_of_weights_that_is_none(tmp_path: Path, content: Any) -> None:
    folder, file = write_vit(tmp_path / "m"), tmp_path / "w.pt"
    if content == "another":
        torch.save({"encoder.weight": torch.ones(3)}, file)
    elif content == "list":
        torch.save([1, 2], file)
    else:
        file.write_bytes(content)
    with pytest.raises(InputError, match=r"is not a file of weights|does not hold the tensors|weights of another"):
        features(f"hf:{folder},weights={file}", images(16, 16))


@pytest.mark.parametrize("shape", [(16, 16, 3), (4,), (5, 7)])
def test_samples_that_a_backbone_does_not_take(tmp_path: Path, shape: tuple[int, ...]) -> None:
    folder = write_bert(tmp_path / "m") if len(shape) == 3 else write_vit(tmp_path / "m")
    kind = np.uint8 if len(shape) == 3 else np.float32
    says = "takes texts, and these samples are images" if len(shape) == 3 else "takes images, and these samples are num"
    with pytest.raises(InputError, match=says):
        features(f"hf:{folder}", np.zeros((2, *shape), kind))


def test_images_of_other_channels_are_refused(tmp_path: Path) -> None:
    folder = write_vit(tmp_path / "m")
    with pytest.raises(InputError, match="these images have 2 channels, and the backbone takes 3"):
        features(f"hf:{folder}", np.zeros((2, 2, 16, 16), np.uint8))


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for library, extra in (("transformers", "pretrained"), ("timm", "timm")):
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(InputError, match=rf'needs the package {library}: pip install "idiolect\[{extra}\]"'):
            models.build(f"{'hf' if library == 'transformers' else library}:some", (3, 16, 16), 4)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(7, 7), (12, 5), (40, 40)])
def test_images_are_resized_as_pillow_does(mode: Any, size: tuple[int, int]) -> None:
    x = images(11, 19)
    pixels = Pixels(ImageForm(size, None, mode, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)))
    how = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}[mode]
    want = [np.asarray(Image.fromarray(i.transpose(1, 2, 0)).resize(size[::-1], how)).transpose(2, 0, 1) for i in x]
    least = {"bilinear": 1.6, "bicubic": 3.1}[mode] / 255  # Pillow rounds and cuts off after each direction
    np.testing.assert_allclose(pixels(torch.from_numpy(x) / 255).numpy(), np.array(want) / 255, atol=least)


def test_an_adapter_adds_its_product_to_what_a_layer_makes(tmp_path: Path) -> None:
    """W x + (alpha / r) B A x by hand in the weights of the library's own network; before training B is 0."""
    folder, x = write_vit(tmp_path / "vit"), images(16, 16)
    network = models.build(f"hf:{folder},adapt=lora(r=2,targets=q_proj+fc1,alpha=6)", (3, 16, 16), 4)
    model = network.init(keys.key(1))
    z = network.features(model.body, torch.from_numpy(x) / 255)
    np.testing.assert_allclose(z.numpy(), features(f"hf:{folder}", x), atol=1e-5)
    rng = np.random.default_rng(0)
    body = {n: torch.from_numpy(rng.normal(size=w.shape) / 4).float() for n, w in model.body.items()}
    names = sorted({name.rpartition(".lora_")[0] for name in body})
    assert len(names) == 4
    plain = hf.ViTModel.from_pretrained(folder, add_pooling_layer=False).eval()
    layers = dict(plain.named_modules())
    with torch.no_grad():
        for name in names:
            a, b = (body[f"{name}.lora_{which}.default.weight"] for which in "AB")
            layers[name.removeprefix("backbone.module.")].weight += 6 / 2 * b @ a
    plain.save_pretrained(tmp_path / "merged")
    shutil.copy(folder / "preprocessor_config.json", tmp_path / "merged")
    z = network.features(body, torch.from_numpy(x) / 255)
    np.testing.assert_allclose(z.numpy(), features(f"hf:{tmp_path / 'merged'}", x), atol=1e-4)


def test_weights_that_no_feature_depends_on_do_not_train(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    write_bert(folder)
    hf.BertModel(hf.BertConfig.from_pretrained(folder)).save_pretrained(folder)  # with a pooler, which nobody asks
    from idiolect.core.inputs import Input

    network = models.build(f"hf:{folder},adapt=full", Input((6,), True, 25), 4)
    names = set(network.init(keys.key(0)).body)
    own = {f"backbone.module.{name}" for name, _ in hf.BertModel.from_pretrained(folder).named_parameters()}
    assert own - names == {f"backbone.module.pooler.dense.{which}" for which in ("weight", "bias")}
    assert network.frozen_bytes == 4 * (16 * 16 + 16)


def test_two_networks_of_a_process_hold_frozen_weights_once(tmp_path: Path) -> None:
    model = f"hf:{write_vit(tmp_path / 'vit')},adapt=lora"
    one, other = (models.build(model, (3, 16, 16), classes) for classes in (3, 4))
    pointers = [{t.data_ptr() for t in n._frozen.tensors.values()} for n in (one, other)]  # type: ignore[union-attr]
    assert pointers[0] == pointers[1]
    held = pretrained.readers.read(pretrained.settings_of(pretrained.spec_of(model))).backbone
    assert {p.data_ptr() for p in held.parameters()} <= pointers[0]
