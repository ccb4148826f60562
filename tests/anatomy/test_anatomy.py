"""The anatomy says what the model is made of: weights as views, positions as the model computes them."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.falcon.modeling_falcon import build_alibi_tensor as build_falcon_alibi
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

import armillary as arm
from armillary.anatomy.adapter import ABOUT_ATTENTION, UNDERSTOOD
from armillary.anatomy.bias import alibi_slopes, alibi_slopes_mpt, bucket_of
from armillary.anatomy.checkpoint import Checkpoint
from armillary.anatomy.description import Alibi, Anatomy, RelativeBias, Rotary
from armillary.anatomy.registry import adapter_for
from armillary.anatomy.samples import DISTINCT, SAMPLES, SMALL, sample_config, sample_model
from armillary.anatomy.weights import (
    Latent,
    NormWeights,
    Projection,
    in_four_parts,
    per_group,
    per_head,
    separate,
    stacked,
)
from armillary.errors import ArmillaryError
from armillary.observe.rebuild import rotate

PROMISED = """
gpt2 gpt_neo gpt_neox gptj bert roberta distilbert albert modernbert opt bloom falcon mpt llama mistral qwen2 qwen3
gemma gemma2 gemma3_text phi phi3 olmo2 stablelm starcoder2 gpt_oss t5
qwen3_moe qwen2_moe mixtral olmo olmo3 olmoe smollm3 granite granitemoe granitemoeshared granitemoehybrid gemma4_text
qwen3_5_text qwen3_5_moe_text qwen3_next cohere cohere2 glm glm4 glm4_moe ernie4_5 ernie4_5_moe exaone4 nemotron
deepseek_v2 deepseek_v3 llama4_text xlm-roberta electra deberta-v2 mpnet mt5 bart whisper vit dinov2 dinov3_vit
siglip_vision_model
"""


def test_every_promised_family_has_an_adapter_and_a_sample() -> None:
    assert set(PROMISED.split()) <= set(arm.known_families())
    assert set(arm.known_families()) == {name.split("/")[0] for name in SAMPLES}


@pytest.mark.parametrize("name", DISTINCT)
class TestEveryFamily:
    def test_a_folder_gives_what_the_loaded_model_gives(self, name: str, tmp_path: Path) -> None:
        model = sample_model(name)
        model.save_pretrained(tmp_path)
        loaded, folder = arm.describe(model), arm.describe(tmp_path)
        assert folder == loaded
        for layer in loaded.layers:
            ours, theirs = loaded.weights(layer.index), folder.weights(layer.index)
            for field in vars(ours):
                a, b = getattr(theirs, field), getattr(ours, field)
                if isinstance(a, NormWeights | Latent):
                    a, b = vars(a), vars(b)
                rounding = 1e-6 if layer.latent else 0  # products of matrices that lie elsewhere in memory
                torch.testing.assert_close(a, b, atol=rounding, rtol=rounding)

    def test_weights_are_views_with_one_orientation(self, name: str) -> None:
        model = sample_model(name)
        anatomy = arm.describe(model)
        storages = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        for layer in anatomy.layers:
            weights, d, e = anatomy.weights(layer.index), anatomy.d_model, layer.head_width
            assert len(weights.q) == len(weights.o) == layer.heads
            assert len(weights.k) == len(weights.v) == layer.kv_heads
            for part in ("q", "k", "v", "o"):
                width = (layer.value_width or e) if part in ("v", "o") else e
                for matrix in getattr(weights, part):
                    assert matrix.shape == ((width, d) if part == "o" else (d, width))
                    assert layer.latent or matrix.untyped_storage().data_ptr() in storages

    def test_changing_a_view_changes_only_that_head(self, name: str) -> None:
        model = sample_model(name)
        anatomy = arm.describe(model)
        if anatomy.layers[0].latent:
            return  # its matrices are products, no views
        seen: list[arm.AttentionView] = []
        ids = torch.randint(5, 90, (1, 9), generator=torch.Generator().manual_seed(0))
        norm = anatomy.layers[0].qk_norm  # a norm undoes the scaling, up to its epsilon
        with torch.no_grad(), arm.Tap(model, seen.append):
            model(ids)
            anatomy.weights(0).q[1].mul_(2)
            if (bias := anatomy.weights(0).q_bias) is not None:
                bias[1].mul_(2)
            model(ids)
        before, after = seen[0], seen[len(seen) // 2]
        if anatomy.layers[0].clip_qkv is None and norm is None:
            torch.testing.assert_close(after.q[:, 1], 2 * before.q[:, 1])
        if norm is not None and norm.over == "all":
            return  # every head shares the norm
        assert torch.equal(after.q[:, 0], before.q[:, 0])
        assert torch.equal(after.q[:, 2:], before.q[:, 2:])
        assert torch.equal(after.k, before.k)

    def test_output_matrices_rebuild_what_the_layer_adds(self, name: str) -> None:
        """sum over heads of z_a W_o[a] + b_o equals the output projection applied to the model's own z."""
        model = sample_model(name)
        anatomy, adapter = arm.describe(model), adapter_for(name.split("/")[0])
        seen: list[arm.AttentionView] = []
        projected: list[torch.Tensor] = []
        block = next(
            m for n, m in model.named_modules() if n.endswith(anatomy.layers[0].block) or n == anatomy.layers[0].block
        )
        assert adapter is not None
        hook = block.get_submodule(adapter.o.name).register_forward_hook(lambda m, a, out: projected.append(out))
        with torch.no_grad(), arm.Tap(model, seen.append):
            model(torch.arange(5, 14)[None])
        hook.remove()
        weights, z = anatomy.weights(0), seen[0].output
        assert z is not None
        if weights.gate is not None:
            assert seen[0].x is not None
            z = z * torch.stack([(seen[0].x @ gate).sigmoid() for gate in weights.gate], 2)
        total = torch.stack([z[:, :, a] @ weights.o[a] for a in range(anatomy.layers[0].heads)]).sum(0)
        if weights.o_bias is not None:
            total = total + weights.o_bias
        torch.testing.assert_close(total, projected[0].view_as(total), atol=1e-5, rtol=1e-4)

    def test_values_are_x_times_w_v(self, name: str) -> None:
        model = sample_model(name)
        anatomy = arm.describe(model)
        seen: list[arm.AttentionView] = []
        with torch.no_grad(), arm.Tap(model, seen.append):
            model(torch.arange(5, 14)[None])
        weights, clip, x = anatomy.weights(0), anatomy.layers[0].clip_qkv, seen[0].x
        assert x is not None
        for g in range(anatomy.layers[0].kv_heads):
            v = x @ weights.v[g] + (0 if weights.v_bias is None else weights.v_bias[g])
            v = v if clip is None else v.clamp(-clip, clip)
            theirs = seen[0].v[:, g]
            if anatomy.layers[0].latent or anatomy.layers[0].value_norm is not None:  # but for a number for each token
                v, theirs = (torch.nn.functional.normalize(part, dim=-1) for part in (v, theirs))
            torch.testing.assert_close(theirs, v, atol=1e-5, rtol=1e-4)

    def test_every_attention_setting_is_accounted_for(self, name: str) -> None:
        """A key about attention in the family's configuration class is understood: nothing is passed over."""
        adapter = adapter_for(name.split("/")[0])
        assert adapter is not None
        keys = set(AutoConfig.for_model(adapter.family).to_dict())
        silent = {key for key in keys if ABOUT_ATTENTION.search(key)} - UNDERSTOOD - adapter.understands
        assert not silent

    def test_json_holds_the_description(self, name: str) -> None:
        anatomy = arm.describe(sample_config(name))
        stored = json.loads(json.dumps(anatomy.as_dict()))
        assert len(stored["layers"]) == len(anatomy.layers)
        assert stored["layers"][0]["heads"] == anatomy.layers[0].heads

    def test_json_gives_the_description_back(self, name: str) -> None:
        anatomy = arm.describe(sample_model(name))
        read = Anatomy.from_dict(json.loads(json.dumps(anatomy.as_dict())))
        assert read == anatomy
        assert read.as_dict() == anatomy.as_dict()  # the parameters of a rotary scaling too, which == leaves out
        for ours, theirs in zip(read.layers, anatomy.layers, strict=True):
            assert type(ours.position) is type(theirs.position)
        with pytest.raises(ArmillaryError, match="no weights"):
            read.weights(0)


class TestRecords:
    """A record that is not the shape of an anatomy says where it is not."""

    @pytest.mark.parametrize(
        ("place", "value", "said"),
        [
            ((), None, "anatomy should be an object, not null"),
            (("d_model",), "x", 'anatomy.d_model should be a whole number, not "x"'),
            (("norm",), "batch", "anatomy.norm should be 'layer' or 'rms' or 'unknown', not \"batch\""),
            (("family",), ..., "anatomy.family is missing"),
            (("layers",), [], "anatomy.layers is empty"),
            (("layers",), {}, "anatomy.layers should be a list, not an object"),
            (("layers", 1), [], "anatomy.layers[1] should be an object, not a list"),
            (("layers", 1, "heads"), 0, "anatomy.layers[1] has no heads"),
            (("layers", 1, "kv_heads"), 4, "anatomy.layers[1] has 6 heads, which cannot share 4 key heads"),
            (("layers", 1, "index"), 2, "anatomy.layers[1].index should be 1, not 2"),
            (("layers", 0, "window"), 1.5, "anatomy.layers[0].window should be a whole number, not 1.5"),
            (("layers", 0, "position"), 3, "anatomy.layers[0].position should be an object, not 3"),
            (
                ("layers", 0, "position", "kind"),
                "Dial",
                "position.kind should be 'Rotary' or 'Alibi'",
            ),
            (("layers", 0, "position", "kind"), [], "position.kind should be 'Rotary' or 'Alibi'"),
            (("layers", 0, "position", "frequencies"), [1.0, "x"], "frequencies[1] should be a number"),
            (("layers", 0, "position", "layout"), "thirds", "layout should be 'half' or 'interleaved'"),
            (("layers", 0, "qk_norm", "eps"), ..., "anatomy.layers[0].qk_norm.eps is missing"),
        ],
    )
    def test_what_is_wrong_is_named(self, place: tuple[str | int, ...], value: object, said: str) -> None:
        record: Any = {"": arm.describe(sample_config("gemma3_text")).as_dict()}
        inside = record
        *way, last = ("", *place)
        for step in way:
            inside = inside[step]
        if value is ...:
            del inside[last]
        else:
            inside[last] = value
        with pytest.raises(ArmillaryError) as error:
            Anatomy.from_dict(record[""])
        assert said in str(error.value)

    def test_what_has_a_default_may_be_missing(self) -> None:
        anatomy = arm.describe(sample_config("gpt2"))
        record = anatomy.as_dict()
        del record["layers"][0]["clip_qkv"], record["shared_layers"]
        assert Anatomy.from_dict(record) == anatomy

    def test_a_description_is_read_without_torch(self) -> None:
        program = "import sys; from armillary.anatomy.description import Anatomy; print('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"


class TestPositions:
    def test_rotary_facts_by_family(self) -> None:
        def first(name: str) -> Rotary:
            position = arm.describe(sample_config(name)).layers[0].position
            assert isinstance(position, Rotary)
            return position

        assert first("llama").width == 8
        share = sample_config("gpt_neox").rope_parameters["partial_rotary_factor"]  # transformers 5.1 makes it 1/4
        assert first("gpt_neox").width == 8 * share < 8
        assert first("gptj").layout == first("codegen").layout == "interleaved"
        assert first("llama").layout == "half"
        assert first("llama/yarn").factor == 1.2
        gemma3 = [layer.position for layer in arm.describe(sample_config("gemma3_text")).layers]
        assert [p.base for p in gemma3] == [1e3, 1e5, 1e3]  # type: ignore[union-attr]
        assert gemma3[1].frequencies[0] == 0.5  # type: ignore[union-attr]  # linear scaling by 2

    @pytest.mark.parametrize("length", [8, 40])
    @pytest.mark.parametrize("name", ["llama/dynamic", "phi3/longrope"])
    def test_frequencies_that_follow_the_length(self, name: str, length: int) -> None:
        """Below and above the length the encoding was made for, logits still follow from the weights."""
        model = sample_model(name)
        assert arm.verify(model, torch.arange(5, 5 + length)[None]).passed

    def test_windows_and_sinks_by_layer(self) -> None:
        gpt_oss = arm.describe(sample_config("gpt_oss"))
        assert [layer.window for layer in gpt_oss.layers] == [5, None, 5]
        assert all(layer.sinks for layer in gpt_oss.layers)
        assert [layer.window for layer in arm.describe(sample_config("gpt_neo")).layers] == [None, 5, None]

    @pytest.mark.parametrize("name", [n for n in DISTINCT if n not in ("mpt/clipped",)])
    def test_declared_window_and_causality_are_what_the_tap_sees(self, name: str) -> None:
        model = sample_model(name)
        seen: list[arm.AttentionView] = []
        with torch.no_grad(), arm.Tap(model, seen.append):
            model(torch.arange(5, 25)[None])
        i, j = torch.arange(20)[:, None], torch.arange(20)[None, :]
        for view, layer in zip(seen, arm.describe(model).layers, strict=True):
            expected = (j <= i) if layer.causal else torch.ones(20, 20, dtype=torch.bool)
            if layer.window is not None:
                expected = expected & ((i - j).abs() < layer.window)
            if layer.chunk is not None:
                expected = expected & (i // layer.chunk == j // layer.chunk)
            assert torch.equal(view.visible()[0, 0], expected)

    @given(heads=st.integers(1, 40))
    @settings(deadline=None, max_examples=30)
    def test_alibi_slopes_equal_transformers(self, heads: int) -> None:
        ones = torch.ones(1, 2, dtype=torch.long)
        for build in (build_alibi_tensor, build_falcon_alibi):
            theirs = build(ones, heads, torch.float32)[:, 0, 1]
            if build is build_falcon_alibi:
                theirs = theirs.to(torch.bfloat16)
                ours = torch.tensor(alibi_slopes(heads)).to(torch.bfloat16)
                torch.testing.assert_close(ours, theirs, atol=0, rtol=1e-2)
            else:
                torch.testing.assert_close(torch.tensor(alibi_slopes(heads)), theirs)
        mpt = build_mpt_alibi_tensor(heads, 2)[:, 0, 0]
        torch.testing.assert_close(torch.tensor(alibi_slopes_mpt(heads, 8.0)), -mpt)

    @given(buckets=st.sampled_from([8, 32, 64]), farthest=st.sampled_from([64, 128, 300]), both=st.booleans())
    @settings(deadline=None, max_examples=20)
    def test_buckets_equal_t5(self, buckets: int, farthest: int, both: bool) -> None:
        offset = torch.arange(-400, 401)[None]
        theirs = T5Attention._relative_position_bucket(offset, both, buckets, farthest)
        assert torch.equal(bucket_of(RelativeBias(buckets, farthest, both), offset), theirs)

    @given(shift=st.integers(0, 500), layout=st.sampled_from(["half", "interleaved"]))
    @settings(deadline=None, max_examples=20)
    def test_rotation_keeps_norms_and_depends_on_distance_only(self, shift: int, layout: str) -> None:
        rotary = Rotary(tuple(10.0**-f for f in range(4)), layout, 10.0)  # type: ignore[arg-type]
        q = torch.randn(1, 1, 6, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        here = rotate(rotary, q, torch.arange(6))
        there = rotate(rotary, q, torch.arange(6) + shift)
        torch.testing.assert_close(here.norm(dim=-1), q.norm(dim=-1))
        torch.testing.assert_close(here @ here.mT, there @ there.mT)
        assert torch.equal(here[..., 8:], q[..., 8:])

    def test_positions_may_differ_between_texts(self) -> None:
        for name in ("llama", "bloom", "t5"):
            anatomy, positions = arm.describe(sample_model(name)), torch.stack([torch.arange(6), torch.arange(6) + 3])
            x = torch.randn(2, 6, 48)
            both = arm.rebuilt_logits(anatomy, 0, x, positions)
            for row in range(2):
                one = arm.rebuilt_logits(anatomy, 0, x[row : row + 1], positions[row])
                torch.testing.assert_close(both[row : row + 1], one)

    def test_one_angle_by_hand(self) -> None:
        q = torch.tensor([[[[1.0, 0.0]]]])
        turned = rotate(Rotary((0.5,), "half", 1.0), q, torch.tensor([3]))
        torch.testing.assert_close(turned[0, 0, 0], torch.tensor([math.cos(1.5), math.sin(1.5)]))


class TestLayouts:
    @given(kv_heads=st.sampled_from([1, 2, 4]), group=st.sampled_from([1, 2, 3]))
    @settings(deadline=None)
    def test_fused_layouts_use_every_row_once(self, kv_heads: int, group: int) -> None:
        heads = kv_heads * group
        for rows in (stacked, per_group):
            used = [rows("q", a, heads, kv_heads) for a in range(heads)]
            used += [rows(part, g, heads, kv_heads) for part in "kv" for g in range(kv_heads)]
            assert sorted(used) == list(range(heads + 2 * kv_heads))
        for rows in (per_head, *([in_four_parts] if heads % 4 == 0 else [])):
            assert sorted(rows(part, a, heads, heads) for part in "qkv" for a in range(heads)) == list(range(3 * heads))
        assert [separate("k", g, heads, kv_heads) for g in range(kv_heads)] == list(range(kv_heads))


class TestReadingFromDisk:
    def test_sharded_checkpoints_are_read_a_layer_at_a_time(self, tmp_path: Path) -> None:
        model = sample_model("llama")
        model.save_pretrained(tmp_path, max_shard_size="40KB")
        shards = sorted(tmp_path.glob("*.safetensors"))
        assert len(shards) > 2
        anatomy = arm.describe(tmp_path)
        index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
        needed = {file for name, file in index.items() if ".layers.0.self_attn" in name}
        for shard in shards:
            if shard.name not in needed:
                shard.unlink()  # layer 0 needs none of these
        torch.testing.assert_close(anatomy.weights(0).q, arm.describe(model).weights(0).q)

    def test_describing_reads_no_numbers(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        sample_model("llama").save_pretrained(tmp_path)
        monkeypatch.setattr(Checkpoint, "read", lambda self, name: pytest.fail(f"read {name}"))
        assert arm.describe(tmp_path).layers[2].kv_heads == 2

    def test_a_backup_in_the_folder_is_not_read(self, tmp_path: Path) -> None:
        model = sample_model("llama")
        model.save_pretrained(tmp_path)
        blank = {name: torch.zeros_like(tensor) for name, tensor in load_file(tmp_path / "model.safetensors").items()}
        save_file(blank, tmp_path / "old_backup.safetensors")
        assert torch.equal(arm.describe(tmp_path).weights(0).q[0], arm.describe(model).weights(0).q[0])
        (tmp_path / "model.safetensors").rename(tmp_path / "other.safetensors")
        with pytest.raises(arm.ArmillaryError, match="several safetensors files"):
            arm.describe(tmp_path)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_stays_as_stored(self, dtype: torch.dtype, tmp_path: Path) -> None:
        sample_model("llama").to(dtype).save_pretrained(tmp_path)
        assert arm.describe(tmp_path).weights(0).q[0].dtype == dtype


class TestExtending:
    def test_a_users_adapter_in_a_few_lines(self) -> None:
        """HyperCLOVA X is Llama with another logit scale: four lines make it fully known."""
        settings = {**SMALL, "num_key_value_heads": 2, "attention_multiplier": 0.3}
        config = AutoConfig.for_model("hyperclovax", **settings)
        from transformers import AutoModelForCausalLM

        from armillary.anatomy.registry import _ADAPTERS

        model = AutoModelForCausalLM.from_config(config).eval()
        assert arm.describe(model).missing
        llama = adapter_for("llama")
        assert llama is not None
        arm.register(
            replace(
                llama,
                family="hyperclovax",
                scale=lambda config, layer: config.attention_multiplier,
                understands=frozenset({"attention_multiplier"}),
            )
        )
        try:
            assert not arm.describe(model).missing
            assert arm.verify(model).passed
        finally:
            del _ADAPTERS["hyperclovax"]

    @pytest.mark.parametrize(
        "change",
        [
            dict(scale=lambda config, layer: 1.0),
            dict(position=lambda config, layer: None),
            dict(v=Projection("self_attn.k_proj")),
            dict(k=Projection("self_attn.v_proj")),
            dict(window=lambda config, layer: None),
            dict(causal=lambda config: False),
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_a_wrong_adapter_does_not_pass_verification(self, change: dict[str, object]) -> None:
        from armillary.anatomy.registry import _ADAPTERS

        mistral, model = adapter_for("mistral"), sample_model("mistral")
        assert mistral is not None
        assert arm.verify(model).passed
        _ADAPTERS["mistral"] = replace(mistral, **change)  # type: ignore[arg-type]
        try:
            assert not arm.verify(model).passed
        finally:
            _ADAPTERS["mistral"] = mistral

    def test_a_wrong_output_projection_does_not_pass(self) -> None:
        """W_o with its heads in another order."""
        model = sample_model("llama")
        weights = arm.describe(model).weights(0)
        with torch.no_grad():
            swapped = torch.cat([*weights.o[::-1]]).T.clone()
            found = arm.verify(model)
            assert found.worst("projected") < 1e-5  # type: ignore[operator]
            model.model.layers[0].self_attn.o_proj.register_forward_hook(lambda m, a, out: a[0] @ swapped.T)
            assert not arm.verify(model).passed

    def test_a_nan_is_no_agreement(self) -> None:
        model = sample_model("llama")
        with torch.no_grad():
            model.model.layers[1].self_attn.q_proj.weight[0] = torch.nan
        assert not arm.verify(model).passed

    def test_an_adapter_registered_first_is_not_replaced(self) -> None:
        code = (
            "import armillary.anatomy.registry as a\n"
            "from armillary.anatomy.adapter import Adapter\n"
            "from armillary.anatomy.weights import Projection as P\n"
            "mine = Adapter('llama', 'layers', 'self_attn', P('q'), P('k'), P('v'), P('o'), 'rms')\n"
            "a.register(mine)\n"
            "assert a.adapter_for('llama') is mine"
        )
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_float64_models_verify_to_float64(self) -> None:
        found = arm.verify(sample_model("gpt2").double())
        assert found.passed
        assert found.tolerance == 1e-9

    @pytest.mark.parametrize(
        ("name", "change", "named"),
        [
            ("llama", {"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}}, "spiral"),
            ("bert", {"position_embedding_type": "relative_key"}, "relative_key"),
            ("llama", {"attention_window_size": 9}, "attention_window_size"),
            ("gemma3_text", {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping"),
            ("gptj", {"rotary_dim": None}, "rotary_dim"),
            ("llama", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25}}, "partial_rotary_factor"),
            ("phi3", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.4}}, "partial_rotary_factor"),
            ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
            ("gpt_neo", {"attention_layers": ["global", "weird", "local"]}, "weird"),
            ("mistral", {"layer_types": ["full_attention"] * 3}, "layer_types"),
            ("qwen2", {"sliding_window": None}, "sliding_window"),
            ("roberta", {"pad_token_id": None}, "pad_token_id"),
        ],
    )
    def test_a_value_that_is_not_understood_is_named(self, name: str, change: dict[str, object], named: str) -> None:
        config = sample_config(name)
        for key, value in change.items():
            object.__setattr__(config, key, value)
        with pytest.raises(arm.ArmillaryError, match=named):
            arm.describe(config)

    @pytest.mark.parametrize(
        ("name", "extra"),
        [
            ("bloom", {"offset_alibi": 100, "skip_bias_add_qkv": False, "attention_softmax_in_fp32": True}),
            ("gptj", {"rotary": True, "scale_attn_weights": True}),
            ("bert", {"position_embedding_type": "absolute", "pooler_num_attention_heads": 12}),
            ("albert", {"down_scale_factor": 1, "gap_size": 0}),
            ("llama", {"rope_interleaved": False, "_flash_attn_2_enabled": True, "pretraining_tp": 1}),
            ("gemma2", {"sliding_window_size": 4096}),
            ("phi3", {"full_attn_mod": 1}),
            ("stablelm", {"rotary_scaling_factor": 1.0}),
            ("starcoder2", {"scale_attn_weights": True, "scale_attention_softmax_in_fp32": True}),
            ("qwen2", {"use_mrope": False}),
        ],
    )
    def test_settings_of_published_checkpoints_are_not_refused(self, name: str, extra: dict[str, object]) -> None:
        config = sample_config(name)
        for key, value in extra.items():
            setattr(config, key, value)
        assert not arm.describe(config).missing

    def test_alibi_is_described_with_the_models_scale(self) -> None:
        position = arm.describe(sample_config("falcon/alibi")).layers[0].position
        assert isinstance(position, Alibi)
        assert position.slopes[0] == pytest.approx(alibi_slopes(6)[0] / math.sqrt(8))
