"""`armillary observe`: heads on images, on sound, and between a text and what the decoder writes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import wavfile
from transformers import (
    AutoConfig,
    BartForConditionalGeneration,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

import armillary as arm
from armillary.anatomy.other_samples import SEQ2SEQ, SOUND
from armillary.anatomy.sample_sizes import SMALL
from armillary.anatomy.samples import sample_model
from armillary.atlas.columns import declared
from armillary.probe.inputs import image_inputs, sound_inputs, with_target
from armillary.probe.observed import observed_heads
from handmade import letters
from program import complaint, run

TEXT = "a b c a b c a b"
SECOND = {**SOUND, "max_source_positions": 50}
"""A second of sound."""


def encoder_decoder(kind: Any, family: str, sizes: Any, place: Path) -> Path:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SMALL, **sizes})
    kind(config).eval().save_pretrained(place)
    letters().save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoder_decoder(BartForConditionalGeneration, "bart", SEQ2SEQ, tmp_path_factory.mktemp("bart"))


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = encoder_decoder(WhisperForConditionalGeneration, "whisper", SECOND, tmp_path_factory.mktemp("whisper"))
    WhisperFeatureExtractor(feature_size=8, chunk_length=1).save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("vit")
    sample_model("vit").save_pretrained(place)
    (place / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4], "image_processor_type": "ViT"})
    )
    return place


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pillow = pytest.importorskip("PIL.Image", reason="images are read with Pillow, the extra 'images'")
    path = tmp_path_factory.mktemp("image") / "noise.png"
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    pillow.fromarray(pixels).save(path)
    return path


def rows(*line: str | Path) -> list[dict[str, Any]]:
    ran = run("observe", *line, "--json")
    assert ran.returncode == 0, ran.stderr
    printed: list[dict[str, Any]] = json.loads(ran.stdout)
    return printed


class TestCrossAttention:
    def test_a_given_target(self, bart: Path) -> None:
        """The same numbers as with the tensors put together by hand: start, then all tokens but the last."""
        printed = rows(bart, "--text", TEXT, "--target", "c a b")
        model, ids = arm.load(bart), letters()("c a b")["input_ids"]
        start = model.config.decoder_start_token_id
        expected = observed_heads(
            model,
            part="cross",
            input_ids=torch.tensor([letters()(TEXT)["input_ids"]]),
            decoder_input_ids=torch.tensor([[start, *ids[:-1]]]),
        )
        assert {row["kind"] for row in printed} == {"cross"}
        assert [row["entropy"] for row in printed] == pytest.approx(expected["entropy"].to_list(), rel=1e-6)
        assert "self_mass" not in printed[0]

    def test_what_the_model_writes_itself(self, bart: Path) -> None:
        model = arm.load(bart)
        inputs = {"input_ids": torch.tensor([letters()(TEXT)["input_ids"]])}
        written = model.generate(**inputs, max_new_tokens=64, do_sample=False, num_beams=1)
        assert torch.equal(with_target(model, None, inputs, None)["decoder_input_ids"], written[:, :-1])
        assert len(rows(bart, "--text", TEXT)) == 2 * 4

    @pytest.mark.parametrize(("part", "heads"), [("encoder", 3 * 6), ("decoder", 2 * 4)])
    def test_the_other_parts(self, bart: Path, part: str, heads: int) -> None:
        printed = rows(bart, "--text", TEXT, "--target", "c a b", "--part", part)
        assert len(printed) == heads
        assert {row["kind"] for row in printed} == {"self"}
        assert ("next_mass" in printed[0]) == (part == "encoder")  # a decoder does not see what follows

    def test_a_table_for_people(self, bart: Path) -> None:
        ran = run("observe", bart, "--text", TEXT, "--target", "c a b", "--layer", "1", "--sort", "monotone")
        assert ran.returncode == 0, ran.stderr
        assert "queries are the decoder's positions, keys the encoder's" in ran.stdout
        assert "without its comparison with random heads" in ran.stdout
        assert len([line for line in ran.stdout.splitlines() if line.split()[:1] == ["1"]]) == 4
        assert run("observe", bart, "--text", TEXT, "--csv").stdout.startswith("layer,head,kind,positions,label,")


class TestImages:
    def test_pixels_are_those_of_the_image_with_the_checkpoints_mean(self, vit: Path, image: Path) -> None:
        import PIL.Image

        pixels = image_inputs(arm.load(vit), vit, [image])["pixel_values"]
        by_hand = (np.asarray(PIL.Image.open(image)) / 255 - [0.4, 0.5, 0.6]) / [0.2, 0.3, 0.4]
        np.testing.assert_allclose(pixels[0].numpy(), by_hand.transpose(2, 0, 1), atol=1e-6)

    def test_patches_in_a_grid(self, vit: Path, image: Path) -> None:
        printed = rows(vit, "--image", image, "--image", image)
        assert len(printed) == 3 * 6
        assert {row["positions"] for row in printed} == {"patches"}
        assert printed[0]["special_mass"] > 0
        assert "a grid of 4 x 4" in run("observe", vit, "--image", image).stdout

    def test_what_is_no_image(self, vit: Path, image: Path) -> None:
        assert "cannot be read as an image" in complaint("observe", vit, "--image", vit / "config.json")

    def test_without_its_mean(self, image: Path, tmp_path: Path) -> None:
        sample_model("vit").save_pretrained(tmp_path)
        assert "has no preprocessor_config.json" in complaint("observe", tmp_path, "--image", image)


class TestSound:
    @pytest.fixture
    def wav(self, tmp_path: Path) -> Path:
        """A tenth of a second in two channels, at another rate than the model's."""
        noise = np.random.default_rng(0).integers(-20000, 20000, (1280, 2), dtype=np.int16)
        wavfile.write(tmp_path / "noise.wav", 12800, noise)
        return tmp_path / "noise.wav"

    def test_frames_and_cross_attention(self, whisper: Path, wav: Path) -> None:
        features = sound_inputs(arm.load(whisper), whisper, [wav])["input_features"]
        assert features.shape == (1, 8, 100)
        assert len(rows(whisper, "--sound", wav, "--target", "c a b")) == 2 * 4
        encoder = rows(whisper, "--sound", wav, "--target", "c a b", "--part", "encoder")
        assert {row["positions"] for row in encoder} == {"frames"}

    def test_what_is_no_sound(self, whisper: Path) -> None:
        assert "cannot be read as a WAV file" in complaint("observe", whisper, "--sound", whisper / "config.json")


def test_what_does_not_fit_is_said(bart: Path, vit: Path, tmp_path: Path) -> None:
    assert "there is nothing to observe: give --image, --sound or --text" in complaint("observe", bart)
    assert "--image and --text are given" in complaint("observe", bart, "--image", "a.png", "--text", "a")
    assert "ViTModel reads pixel_values: give --image" in complaint("observe", vit, "--text", "a")
    assert "--part is for encoder-decoders" in complaint("observe", vit, "--image", "a.png", "--part", "cross")
    assert "--part sideways is not known" in complaint("observe", bart, "--text", "a", "--part", "sideways")
    with pytest.raises(arm.ArmillaryError, match="armillary observe MODEL"):
        arm.scan(arm.load(vit), torch.zeros(1, 8, dtype=torch.int64))


def test_every_column_is_declared_and_every_declared_one_is_shown_somewhere(
    bart: Path, vit: Path, image: Path, tmp_path: Path
) -> None:
    seen: set[str] = set()
    lines: list[tuple[str | Path, ...]] = [
        (bart, "--text", TEXT),
        (bart, "--text", TEXT, "--part", "encoder"),
        (vit, "--image", image),
    ]
    for line in lines:
        seen |= set(rows(*line)[0])
    assert seen == {column.name for column in declared("observed")}
