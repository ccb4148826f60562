"""Every family that resembles another is verified against its own model, read from a folder, and scanned."""

import html
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

import armillary as arm
from armillary.anatomy.adapter import ABOUT_ATTENTION, UNDERSTOOD
from armillary.anatomy.other_samples import OTHER, part_of
from armillary.anatomy.registry import adapter_for, described_part
from armillary.anatomy.samples import DISTINCT, SAMPLES, SMALL, sample_config, sample_model
from armillary.errors import ArmillaryError
from armillary.lenses.products import layer_spectra
from armillary.observe.verification import some_images, some_sound
from armillary.probe.observed import observed_heads
from armillary.report import report_html
from conftest import Atlases

SIMILAR = [name for name in SAMPLES if name not in DISTINCT and name not in OTHER]
TOKENS = torch.randint(5, 99, (4, 16), generator=torch.Generator().manual_seed(3))
STREAMS = ("attention", "positions", "constituents", "patterns")


@pytest.mark.parametrize("name", SIMILAR)
class TestEveryFamily:
    @pytest.mark.parametrize("attention", ["stock", "eager"])
    def test_it_is_verified(self, name: str, attention: str) -> None:
        """Same bits with the tap; logits, values, outputs and constituents from the weights; shares add to 1."""
        found = arm.verify(sample_model(name, attention=None if attention == "stock" else "eager"))
        assert found.identical
        assert found.passed
        assert not found.missing
        clips = arm.describe(sample_config(name)).layers[0].clip_qkv is not None
        for check in ("output", "logits", "values", "projected", *(() if clips else ("constituents", "shares"))):
            worst = found.worst(check)
            assert worst is not None, check
            assert worst < 1e-5, check

    def test_every_attention_setting_is_accounted_for(self, name: str) -> None:
        adapter = adapter_for(name.split("/")[0])
        assert adapter is not None
        keys = set(AutoConfig.for_model(adapter.family).to_dict())
        assert not {key for key in keys if ABOUT_ATTENTION.search(key)} - UNDERSTOOD - adapter.understands

    def test_a_folder_gives_the_weights_and_their_spectra(self, name: str, tmp_path: Path) -> None:
        model = sample_model(name)
        model.save_pretrained(tmp_path / "model")
        anatomy, folder = arm.describe(model), arm.describe(tmp_path / "model")
        assert folder == anatomy
        last = len(anatomy.layers) - 1
        for part in ("q", "k", "v", "o"):
            ours, theirs = (getattr(a.weights(last), part) for a in (folder, anatomy))
            torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)
        spectra = layer_spectra(folder.layers[last], folder.weights(last))
        expected = np.linalg.norm(theirs_product(anatomy, last))
        np.testing.assert_allclose(spectra.qk.frobenius[-1], expected, rtol=1e-5)

    def test_it_scans(self, name: str) -> None:
        """End to end: tables, labels, shares that add to 1."""
        check_scan(name)


def check_scan(name: str) -> None:
    model = sample_model(name)
    anatomy = arm.describe(model)
    heads = arm.scan(model, TOKENS, streams=STREAMS, batch=4, shard=4).heads
    assert len(heads) == sum(layer.heads for layer in anatomy.layers)
    assert heads["label"].notna().all()
    assert heads["entropy"].notna().all()
    if anatomy.layers[0].clip_qkv is None:
        shares = heads[[column for column in heads if str(column).startswith("share_")]].sum(axis=1)
        np.testing.assert_allclose(shares, 1, atol=1e-6)
        assert float(heads["constituent_error"].max()) < 1e-5


def theirs_product(anatomy: arm.Anatomy, layer: int) -> Any:
    """W_q W_k' of the layer's last head."""
    weights, described = anatomy.weights(layer), anatomy.layers[layer]
    head = described.heads - 1
    return (weights.q[head] @ weights.k[described.kv_head(head)].T).double().numpy()


@pytest.mark.parametrize("name", OTHER)
class TestOtherModels:
    """Encoder-decoders with their decoders and cross-attention, and image encoders."""

    @pytest.mark.parametrize("attention", ["stock", "eager"])
    def test_it_is_verified(self, name: str, attention: str) -> None:
        model = sample_model(name, attention=None if attention == "stock" else "eager")
        found = arm.verify(model, part=part_of(name))
        assert found.identical
        assert found.passed
        for check in ("output", "logits", "values", "projected", "constituents", "shares"):
            worst = found.worst(check)
            assert worst is not None, check
            assert worst < 1e-5, check

    def test_every_attention_setting_is_accounted_for(self, name: str) -> None:
        adapter = adapter_for(name.split("/")[0], part_of(name))
        assert adapter is not None
        keys = set(AutoConfig.for_model(adapter.family).to_dict())
        assert not {key for key in keys if ABOUT_ATTENTION.search(key)} - UNDERSTOOD - adapter.understands

    def test_a_folder_gives_the_weights(self, name: str, tmp_path: Path) -> None:
        model, part = sample_model(name), part_of(name)
        model.save_pretrained(tmp_path)
        anatomy, folder = arm.describe(model, part=part), arm.describe(tmp_path, part=part)
        assert folder == anatomy
        for which in ("q", "k", "v", "o"):
            for ours, theirs in zip(*(getattr(a.weights(1), which) for a in (folder, anatomy)), strict=True):
                assert torch.equal(ours, theirs)
        assert type(arm.load(tmp_path)) is type(model)

    def test_the_table_says_what_positions_are(self, name: str) -> None:
        model, part = sample_model(name), part_of(name)
        anatomy = arm.describe(model, part=part)
        table = observed_heads(model, part=part, **inputs_of(model, anatomy))
        assert len(table) == sum(layer.heads for layer in anatomy.layers)
        assert set(table["kind"]) == {"cross" if part == "cross" else "self"}
        expected = "the encoder's" if part == "cross" else anatomy.positions
        assert set(table["positions"]) == {expected}
        assert ("monotone" in table) == (part == "cross")
        assert ("self_mass" in table) == ("mean_distance" in table) == (part != "cross")
        assert not table.isna().any().any()


def inputs_of(model: Any, anatomy: arm.Anatomy) -> dict[str, torch.Tensor]:
    if model.main_input_name == "pixel_values":
        return some_images(model, anatomy)
    if model.main_input_name == "input_features":
        return some_sound(model, anatomy)
    return {"input_ids": TOKENS, "decoder_input_ids": TOKENS[:, :9]}


@pytest.mark.parametrize("name", [*SIMILAR, *OTHER])
def test_json_gives_the_description_back(name: str) -> None:
    anatomy = arm.describe(sample_config(name), part=part_of(name))
    assert arm.Anatomy.from_dict(json.loads(json.dumps(anatomy.as_dict()))) == anatomy


@pytest.mark.parametrize("name", ["mt5", "bart"])
def test_an_encoder_scans(name: str) -> None:
    check_scan(name)


class TestObservedHeads:
    def test_a_head_that_walks_along_the_encoder_is_monotone(self) -> None:
        """W_q and W_k of one head are set so that the decoder's position t attends to the encoder's position t."""
        model = sample_model("bart/cross")
        ids = TOKENS[:, :12]
        attention = model.decoder.layers[0].encoder_attn
        place = torch.arange(12.0)
        states = torch.stack([place.sin(), place.cos(), (place / 5).sin(), (place / 5).cos()], -1)
        with torch.no_grad():
            for projection in (attention.q_proj, attention.k_proj):
                projection.register_forward_hook(
                    lambda m, a, out: torch.cat(
                        [40 * states[: out.shape[1]].expand(len(out), -1, -1), out[..., 4:]], -1
                    )
                )
        table = observed_heads(model, part="cross", input_ids=ids, decoder_input_ids=ids[:, :10])
        head = table[(table["layer"] == 0) & (table["head"] == 0)].iloc[0]
        assert head["label"] == "monotone"
        assert head["monotone"] > 0.99

    def test_distances_of_patches_are_those_of_the_grid(self) -> None:
        """Patches 3 and 4 of a grid of 4 x 4 follow each other and are sqrt(1 + 9) apart."""
        model = sample_model("vit")
        attention = model.layers[0].attention
        wanted = torch.zeros(17, 17)
        wanted[:, 1 + 4] = 60.0  # every position attends to patch 4
        with torch.no_grad():
            attention.k_proj.weight.zero_()
            attention.k_proj.bias.zero_()
            attention.q_proj.weight.zero_()
            attention.q_proj.bias.fill_(8.0)
            attention.k_proj.register_forward_hook(lambda m, a, out: out + wanted[0][None, :, None])
        images = some_images(model, arm.describe(model))["pixel_values"]
        table = observed_heads(model, pixel_values=images)
        at = np.array([(patch // 4, patch % 4) for patch in range(16)], dtype=float)
        expected = np.linalg.norm(at - at[4], axis=1).mean()
        assert table["mean_distance"].iloc[0] == pytest.approx(expected, rel=1e-6)
        assert np.linalg.norm(at[3] - at[4]) == pytest.approx(10**0.5)
        with pytest.raises(ArmillaryError, match="resize it"):
            observed_heads(sample_model("vit"), pixel_values=images.repeat(1, 1, 2, 2), interpolate_pos_encoding=True)

    def test_a_scan_of_images_says_what_it_reads(self) -> None:
        with pytest.raises(ArmillaryError, match="vit models read patches, not tokens: a scan reads text"):
            arm.scan(sample_model("vit"), TOKENS)

    def test_a_part_that_no_adapter_knows(self) -> None:
        with pytest.raises(ArmillaryError, match="'decoder' and 'cross' of bart, mt5, t5, whisper"):
            arm.describe(sample_config("llama"), part="cross")

    def test_an_image_encoder_without_an_adapter_is_still_tapped(self) -> None:
        settings = {key: SMALL[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
        config = AutoConfig.for_model("ijepa", image_size=32, patch_size=8, intermediate_size=64, **settings)
        model = AutoModel.from_config(config).eval()
        assert "no adapter knows the family 'ijepa'" in arm.describe(model).missing
        assert arm.verify(model).passed


class TestWhatIsSpecial:
    def test_blocks_without_attention_are_named_and_left_out(self) -> None:
        anatomy = arm.describe(sample_config("qwen3_next"))
        assert anatomy.skipped == ("layers.0: linear_attention", "layers.2: linear_attention")
        assert [(layer.index, layer.block) for layer in anatomy.layers] == [(0, "layers.1"), (1, "layers.3")]

    def test_the_text_part_of_a_larger_model_is_described(self) -> None:
        whole, text = (arm.describe(sample_config(name)) for name in ("gemma3_text/gemma3", "gemma3_text"))
        assert whole == text
        model = sample_model("gemma3_text/gemma3")
        assert described_part(model.config).model_type == "gemma3_text"
        seen: list[str] = []
        with torch.no_grad(), arm.Tap(model, lambda view: seen.append(view.module)):
            model(input_ids=TOKENS)
        assert all("language_model" in name and "vision" not in name for name in seen)
        assert len(seen) == 3

    def test_a_text_part_that_cannot_be_described_is_still_tapped(self) -> None:
        """PaliGemma asks Gemma for attention in both directions, which the adapter does not describe."""
        vision = dict(
            hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28,
            patch_size=14, model_type="siglip_vision_model", projection_dim=16,
        )  # fmt: skip
        text = {**SMALL, "num_key_value_heads": 2, "head_dim": 12, "model_type": "gemma"}
        config = AutoConfig.for_model("paligemma", text_config=text, vision_config=vision, projection_dim=48)
        model = AutoModel.from_config(config).eval()
        assert "use_bidirectional_attention" in arm.describe(model).missing
        assert arm.verify(model).passed

    def test_latent_keys_have_the_rank_of_the_latent(self) -> None:
        """Of a head's key channels those without rotation come from the latent vector, of rank 16, normalized."""
        model = sample_model("deepseek_v3")
        anatomy = arm.describe(model)
        weights = anatomy.weights(0)
        without = torch.cat([key[:, :6] for key in weights.k], 1)
        assert int(torch.linalg.matrix_rank(without.double(), rtol=1e-5)) == 16
        assert all(torch.equal(key[:, 6:], weights.k[0][:, 6:]) for key in weights.k)  # the rotated key is shared

    def test_absorbing_the_keys_gives_the_same_logits(self) -> None:
        """q.k from the latent itself: (q up_k').c with c the normalized latent, as fast decoding computes it."""
        model = sample_model("deepseek_v3")
        views: list[arm.AttentionView] = []
        latents: list[torch.Tensor] = []
        attention = model.model.layers[0].self_attn
        attention.kv_a_layernorm.register_forward_hook(lambda m, a, out: latents.append(out))
        with torch.no_grad(), arm.Tap(model, views.append):
            model(input_ids=TOKENS)
        view, c = views[0], latents[0]
        up = attention.kv_b_proj.weight.unflatten(0, (6, -1))[:, :6]  # head, channel, rank
        absorbed = torch.einsum("bhqe,her->bhqr", view.q[..., :6], up) @ c[:, None].mT
        turned = view.q[..., 6:] @ view.k[..., 6:].mT
        torch.testing.assert_close((absorbed + turned) * view.scale, view.logits(), atol=1e-5, rtol=1e-4)

    def test_debertas_terms_are_its_own(self) -> None:
        """Without content in q and k their share is the bias; what content adds with distances is mixed."""
        heads = arm.scan(sample_model("deberta-v2"), TOKENS, streams=STREAMS, batch=4, shard=4).heads
        assert heads["share_bias"].notna().all()
        plain = arm.scan(sample_model("deberta-v2/plain"), TOKENS, streams=STREAMS, batch=4, shard=4).heads
        assert plain["share_bias"].isna().all()

    def test_layers_may_differ_in_their_heads(self) -> None:
        anatomy = arm.describe(sample_config("gemma4_text/keys-as-values"))
        assert [(layer.head_width, layer.kv_heads) for layer in anatomy.layers] == [(8, 2), (12, 1), (12, 1)]

    def test_logits_that_grow_with_the_position(self) -> None:
        """At position 2 the factor changes: floor((2 + 1) / 4) is 0, floor((3 + 1) / 4) is 1."""
        growth = arm.describe(sample_config("llama4_text")).layers[1].growth
        assert growth is not None
        assert (growth.slope, growth.every, growth.ahead) == (0.5, 4.0, 1)
        assert arm.describe(sample_config("llama4_text")).layers[0].growth is None


@pytest.mark.parametrize("name", ["qwen3_moe", "gemma3_text/gemma3", "gemma4_text/keys-as-values", "deepseek_v2"])
def test_an_atlas_from_the_weights_of_a_folder(name: str, tmp_path: Path) -> None:
    """`armillary weights`, without loading a model."""
    model = sample_model(name)
    model.save_pretrained(tmp_path / "model")
    atlas = arm.weigh(tmp_path / "model")
    expected = np.linalg.norm(theirs_product(arm.describe(model), 2))
    np.testing.assert_allclose(atlas.heads["qk_fro"].iloc[-1], expected, rtol=1e-5)
    assert set(atlas.matrices["matrix"]) >= {"o"}


class TestReports:
    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("qwen3_next", "Of 4 blocks 2 have linear attention and no heads: they are left out"),
            ("llama4_text", "Logits of 1 layer grow with the position, every 4 tokens."),
            ("gemma4_text", "Values are normalized."),
            ("deberta-v2", "keys and queries of distances of their own"),
            ("deepseek_v3", "Keys and values come from a latent vector that all heads share"),
        ],
    )
    def test_the_report_says_what_is_special(self, name: str, said: str, atlases: Atlases) -> None:
        page = report_html(atlases.family(name))
        assert said in html.unescape(page)


class TestCheckpoints:
    def test_a_base_model_under_the_name_of_one_with_a_head(self, tmp_path: Path) -> None:
        """all-mpnet-base-v2 says that it is an MPNetForMaskedLM, but has no such head."""
        model = sample_model("mpnet")
        model.save_pretrained(tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["MPNetForMaskedLM"]}))
        loaded = arm.load(tmp_path)
        assert type(loaded) is type(model)
        assert arm.verify(loaded).passed

    def test_a_missing_head_of_a_model_that_has_one_is_still_named(self, tmp_path: Path) -> None:
        model = sample_model("qwen3_moe")
        model.save_pretrained(tmp_path)
        weights = load_file(tmp_path / "model.safetensors")
        save_file({name: t for name, t in weights.items() if "lm_head" not in name}, tmp_path / "model.safetensors")
        with pytest.raises(ArmillaryError, match="lm_head"):
            arm.load(tmp_path)


class TestWhatIsMissing:
    """What no adapter describes is observed as far as it can be, and a sentence says what is missing."""

    def test_layers_that_read_the_keys_of_another_layer(self) -> None:
        settings = {**SMALL, **SAMPLES["gemma4_text"], "num_kv_shared_layers": 1}
        settings["layer_types"] = ["full_attention", "sliding_attention", "full_attention"]
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gemma4_text", **settings)).eval()
        anatomy = arm.describe(model)
        assert anatomy.missing.startswith("num_kv_shared_layers=1")
        assert arm.verify(model).passed
        with pytest.raises(ArmillaryError, match="num_kv_shared_layers"):
            anatomy.weights(0)

    @pytest.mark.parametrize(
        ("family", "settings"),
        [
            ("hunyuan_v1_dense", dict(num_key_value_heads=2, head_dim=8)),
            ("persimmon", {}),
            ("diffllama", dict(num_key_value_heads=2)),
            ("roformer", dict(embedding_size=48)),
            ("bitnet", dict(num_key_value_heads=2)),
            ("nanochat", dict(num_key_value_heads=2)),
        ],
    )
    def test_a_family_without_an_adapter_says_so(self, family: str, settings: dict[str, Any]) -> None:
        anatomy = arm.describe(AutoConfig.for_model(family, **{**SMALL, **settings}))
        assert f"no adapter knows the family {family!r}" in anatomy.missing
        with pytest.raises(ArmillaryError, match="spectra, exact constituents, rotary frequencies"):
            anatomy.weights(0)

    @pytest.mark.parametrize(
        ("name", "change", "named"),
        [
            ("qwen3_moe", {"layer_types": ["sliding_attention"] * 3}, "layer_types"),
            ("qwen3_next", {"layer_types": ["gated_attention"] * 4}, "gated_attention"),
            ("olmoe", {"clip_qkv": 3.0}, "clip_qkv"),
            ("cohere2", {"position_embedding_type": "alibi"}, "alibi"),
            ("granitemoehybrid", {"position_embedding_type": "spiral"}, "spiral"),
            ("llama4_text", {"layer_types": ["sliding_attention"] * 3}, "sliding_attention"),
            ("deberta-v2", {"pos_att_type": ["p2p"]}, "p2p"),
            ("mpnet", {"relative_attention_num_buckets": 16}, "relative_attention_num_buckets"),
            ("gemma4_text", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
            ("deepseek_v3", {"sliding_window": 64}, "sliding_window"),
        ],
    )
    def test_a_setting_that_is_not_understood_is_named(self, name: str, change: dict[str, Any], named: str) -> None:
        config = sample_config(name)
        for key, value in change.items():
            object.__setattr__(config, key, value)
        with pytest.raises(ArmillaryError, match=named):
            arm.describe(config)
