"""Weights wherever they are: sharded, quantized, with an adapter, in GGUF, on the hub; read as the same model."""

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import armillary as arm
from armillary.anatomy import codes
from armillary.anatomy.loading import load_for, refuse_not_finite
from armillary.anatomy.lora import LowRank
from armillary.anatomy.samples import sample_model
from stored import FORMATS, fp8, write_adapter, write_gguf, write_quantized


@cache
def exact() -> dict[str, np.ndarray]:
    """The singular values of the small model itself."""
    return singular_values(sample_model("llama"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain") / "model"
    sample_model("llama").save_pretrained(folder)
    return folder


def singular_values(source: Any, **options: Any) -> dict[str, np.ndarray]:
    """The singular values of every matrix (layer, component), by name."""
    group = arm.weigh(source, **options).group("matrices")
    return {str(name): np.sqrt(group[name].to_numpy()) for name in group.data_vars}


SIZES = {"q": 48 * 48, "o": 48 * 48, "k": 48 * 16, "v": 48 * 16}
"""Numbers of a matrix of the small model; 48 * 64 in those of the MLP."""


class TestTheSameModel:
    """A quantized, sharded, adapter and GGUF checkpoint of one small model have spectra that agree."""

    @pytest.mark.parametrize("form", FORMATS)
    def test_quantized_within_what_its_steps_allow(self, form: str, tmp_path: Path) -> None:
        quantize, settings = FORMATS[form]
        worst = write_quantized(sample_model("llama"), tmp_path / "packed", quantize, settings)
        packed = singular_values(tmp_path / "packed")
        assert set(packed) == set(exact()) == {"q", "k", "v", "o", "gate", "up", "down"}
        for name, values in exact().items():
            numbers = SIZES.get(name, 48 * 64)
            moved = np.abs(values - packed[name]).max()
            assert 0 < moved <= worst * np.sqrt(numbers)  # Weyl: at most the norm of the error
            assert moved < 0.1 * values.max()

    @pytest.mark.parametrize("form", FORMATS)
    def test_every_number_is_decoded_to_half_a_step(self, form: str, tmp_path: Path) -> None:
        quantize, settings = FORMATS[form]
        model = sample_model("llama")
        worst = write_quantized(model, tmp_path / "packed", quantize, settings)
        decoded = arm.describe(tmp_path / "packed")
        for layer, parts in enumerate(model.model.layers):
            for name, matrix in decoded.matrices(layer):
                module = getattr(parts.self_attn, f"{name}_proj", None) or getattr(parts.mlp, f"{name}_proj")
                assert (matrix.T - module.weight).abs().max() <= 1.01 * worst

    def test_sharded(self, tmp_path: Path) -> None:
        sample_model("llama").save_pretrained(tmp_path, max_shard_size="20KB")
        assert len(list(tmp_path.glob("*.safetensors"))) > 2
        sharded = singular_values(tmp_path)
        for name, values in exact().items():
            np.testing.assert_array_equal(values, sharded[name])

    def test_gguf(self, tmp_path: Path) -> None:
        write_gguf(pytest.importorskip("gguf"), sample_model("llama"), tmp_path / "packed" / "model.gguf")
        packed = singular_values(tmp_path / "packed")
        for name, values in exact().items():
            np.testing.assert_allclose(values, packed[name], rtol=1e-5)

    def test_adapter_merged_as_the_merged_model(self, plain: Path, tmp_path: Path) -> None:
        model = sample_model("llama")
        changes = write_adapter(tmp_path / "lora", model)
        model.load_state_dict({**model.state_dict(), **{n: model.state_dict()[n] + c for n, c in changes.items()}})
        model.save_pretrained(tmp_path / "merged")
        merged = singular_values(tmp_path / "merged")
        adapted = singular_values(plain, adapter=tmp_path / "lora")
        loaded = singular_values(arm.load(plain, adapter=tmp_path / "lora"))
        for name, values in merged.items():
            np.testing.assert_allclose(adapted[name], values, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(loaded[name], values, rtol=1e-5, atol=1e-6)

    def test_the_change_alone_has_the_adapters_rank(self, plain: Path, tmp_path: Path) -> None:
        changes = write_adapter(tmp_path / "lora", sample_model("llama"))
        delta = singular_values(plain, adapter=tmp_path / "lora", delta=True)
        theirs = np.linalg.svd(changes["model.layers.1.self_attn.q_proj.weight"].double().numpy(), compute_uv=False)
        np.testing.assert_allclose(delta["q"][1][:2], theirs[:2], rtol=1e-5)
        assert delta["q"][:, 2:].max() < 1e-5 * theirs[0]
        assert np.nanmax(delta["k"]) == np.nanmax(delta["down"]) == 0

    def test_an_adapter_of_a_quantized_model(self, plain: Path, tmp_path: Path) -> None:
        quantize, settings = FORMATS["bitsandbytes NF4"]
        write_quantized(sample_model("llama"), tmp_path / "packed", quantize, settings)
        write_adapter(tmp_path / "lora", sample_model("llama"))
        ours, theirs = (singular_values(p, adapter=tmp_path / "lora")["q"] for p in (plain, tmp_path / "packed"))
        np.testing.assert_allclose(ours, theirs, atol=0.02 * ours.max())
        with pytest.raises(AssertionError):
            np.testing.assert_allclose(ours, singular_values(tmp_path / "packed")["q"], atol=0.02 * ours.max())


class TestReferences:
    """The decoders against others' own: transformers' here, bitsandbytes' and PEFT's where they are installed."""

    def test_fp8_and_mxfp4_as_transformers_reads_them(self) -> None:
        from transformers.integrations.finegrained_fp8 import Fp8Dequantize
        from transformers.integrations.mxfp4 import convert_moe_packed_tensors

        weight = torch.randn(48, 32, generator=torch.Generator().manual_seed(0))
        parts, _ = fp8(weight)
        theirs = Fp8Dequantize(None)._dequantize_one(parts["weight"], parts["weight_scale_inv"], torch.float32)
        assert torch.equal(codes.scaled(parts["weight"], parts["weight_scale_inv"], (16, 16)), theirs)
        random = torch.Generator().manual_seed(1)
        blocks = torch.randint(0, 256, (2, 6, 3, 16), dtype=torch.uint8, generator=random)
        scales = torch.randint(110, 140, (2, 6, 3), dtype=torch.uint8, generator=random)
        theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        assert torch.equal(codes.mxfp4(blocks, scales).transpose(1, 2), theirs)

    @pytest.mark.parametrize("kind", ["nf4", "fp4"])
    @pytest.mark.parametrize("nested", [False, True])
    def test_bitsandbytes(self, kind: str, nested: bool) -> None:
        functional = pytest.importorskip("bitsandbytes.functional")
        # rows of whole blocks: on a CPU bitsandbytes 0.50 misreads others, by more than its own steps
        weight = torch.randn(48, 128, generator=torch.Generator().manual_seed(2))
        packed, state = functional.quantize_4bit(weight, quant_type=kind, compress_statistics=nested)
        parts = {name.removeprefix("weight."): tensor for name, tensor in state.as_dict(packed=True).items()}
        ours = {"weight": packed, "state": parts.pop(f"quant_state.bitsandbytes__{kind}"), **parts}
        theirs = functional.dequantize_4bit(packed, state)
        torch.testing.assert_close(codes.four_bit(ours), theirs, rtol=1e-6, atol=1e-7)

    @pytest.mark.parametrize("family", ["llama", "gpt2"])
    @pytest.mark.parametrize("kind", ["nf4", "int8"])
    def test_what_transformers_writes_with_bitsandbytes(self, kind: str, family: str, tmp_path: Path) -> None:
        pytest.importorskip("bitsandbytes")
        from transformers import AutoModelForCausalLM, BitsAndBytesConfig

        model = sample_model(family)
        model.save_pretrained(tmp_path / "plain")
        four = dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
        how = BitsAndBytesConfig(**(four if kind == "nf4" else dict(load_in_8bit=True)))
        packed = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", quantization_config=how, device_map="cpu")
        packed.save_pretrained(tmp_path / "packed")
        read, loaded = arm.describe(tmp_path / "packed"), arm.describe(arm.load(tmp_path / "packed"))
        for layer in range(3):
            for name, exact in arm.describe(model).matrices(layer):
                ours, theirs = dict(read.matrices(layer))[name], dict(loaded.matrices(layer))[name]
                assert (ours - exact).norm() < (0.12 if kind == "nf4" else 0.02) * exact.norm()
                torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("more", [{}, {"use_rslora": True}, {"use_dora": True}, {"bias": "all"}])
    @pytest.mark.parametrize("family", ["llama", "gpt2"])
    def test_peft(self, family: str, more: dict[str, Any], tmp_path: Path) -> None:
        peft = pytest.importorskip("peft")
        model = sample_model(family)
        targets = ["q_proj", "down_proj"] if family == "llama" else ["c_attn", "c_proj"]
        config = peft.LoraConfig(
            r=3, lora_alpha=5, target_modules=targets, fan_in_fan_out=family == "gpt2", init_lora_weights=False, **more
        )
        adapted = peft.get_peft_model(model, config)
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if "lora_" in name or (more.get("bias") and name.endswith("bias")):
                    parameter.add_(0.1 * torch.rand_like(parameter))
        adapted.save_pretrained(tmp_path / "lora")
        sample_model(family).save_pretrained(tmp_path / "base")
        merged = adapted.merge_and_unload().state_dict()
        ours = arm.load(tmp_path / "base", adapter=tmp_path / "lora").state_dict()
        assert LowRank(tmp_path / "lora").changes
        for name, weight in merged.items():
            torch.testing.assert_close(ours[name], weight, rtol=1e-5, atol=1e-6)


class TestRefusals:
    def test_formats_that_are_not_decoded_are_named(self, plain: Path, tmp_path: Path) -> None:
        write_quantized(sample_model("llama"), tmp_path / "m", *FORMATS["GPTQ"])
        for settings, sentence in (
            ({"quant_method": "hqq"}, r"quantized as hqq, which is not decoded here .*dequantize it"),
            ({"quant_method": "gptq", "bits": 3}, "GPTQ with 3 bits"),
            ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "AWQ with 4 bits, version gemv"),
            (
                {"quant_method": "compressed-tensors", "format": "pack-quantized"},
                r"compressed-tensors \(pack-quantized\)",
            ),
        ):
            config = json.loads((tmp_path / "m" / "config.json").read_text())
            (tmp_path / "m" / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
            with pytest.raises(arm.ArmillaryError, match=sentence):
                arm.weigh(tmp_path / "m")

    def test_parts_that_are_missing_or_do_not_fit(self, tmp_path: Path) -> None:
        write_quantized(sample_model("llama"), tmp_path, *FORMATS["GPTQ"])
        file = tmp_path / "model.safetensors"
        stored = load_file(file)
        name = "model.layers.0.self_attn.q_proj"
        save_file({n: t for n, t in stored.items() if n != f"{name}.scales"}, file, {"format": "pt"})
        with pytest.raises(arm.ArmillaryError, match=r"qweight without .*q_proj.scales, which decodes it"):
            arm.weigh(tmp_path)
        save_file({**stored, f"{name}.scales": stored[f"{name}.scales"][:, :5].clone()}, file, {"format": "pt"})
        with pytest.raises(arm.ArmillaryError, match=r"q_proj.weight of .* cannot be decoded as GPTQ"):
            arm.weigh(tmp_path)

    def test_plain_weights_under_a_quantization_config(self, plain: Path, tmp_path: Path) -> None:
        shutil.copytree(plain, tmp_path / "m")
        config = json.loads((tmp_path / "m" / "config.json").read_text())
        settings = {**config, "quantization_config": FORMATS["FP8"][1]}
        (tmp_path / "m" / "config.json").write_text(json.dumps(settings))
        with pytest.raises(arm.ArmillaryError, match="has a quantization_config, but its weights are plain numbers"):
            arm.weigh(tmp_path / "m")

    def test_adapters_that_cannot_be_merged(self, plain: Path, tmp_path: Path) -> None:
        write_adapter(tmp_path / "lora", sample_model("llama"))
        with pytest.raises(arm.ArmillaryError, match=r"is an adapter, not a model: give the model .*someone/base"):
            arm.describe(tmp_path / "lora")
        sample_model("gpt2").save_pretrained(tmp_path / "gpt2")
        with pytest.raises(arm.ArmillaryError, match="changes weights that this model does not have"):
            arm.weigh(tmp_path / "gpt2", adapter=tmp_path / "lora")
        write_adapter(tmp_path / "other", sample_model("llama"), peft_type="IA3")
        with pytest.raises(arm.ArmillaryError, match="adapter of type 'IA3': only LORA"):
            arm.load(plain, adapter=tmp_path / "other")
        with pytest.raises(arm.ArmillaryError, match="there is no folder"):
            arm.load(plain, adapter=tmp_path / "nothing")
        with pytest.raises(arm.ArmillaryError, match="`delta=True` shows what an adapter changes"):
            arm.weigh(plain, delta=True)

    def test_a_loaded_model_in_a_format_that_is_not_decoded(self) -> None:
        model = sample_model("llama")
        projection = model.model.layers[0].self_attn.q_proj
        projection.weight = torch.nn.Parameter(projection.weight.to(torch.float8_e4m3fn), requires_grad=False)
        with pytest.raises(arm.ArmillaryError, match=r"q_proj.weight is stored in a quantized format"):
            refuse_not_finite(model)
        model.is_quantized = True  # as transformers marks those that a package quantized
        refuse_not_finite(model)
        with pytest.raises(arm.ArmillaryError, match=r"q_proj.weight is stored in a quantized format"):
            arm.weigh(model)

    def test_an_atlas_remembers_its_adapter(self, plain: Path, tmp_path: Path) -> None:
        write_adapter(tmp_path / "lora", sample_model("llama"))
        tokens = torch.randint(5, 90, (3, 12), generator=torch.Generator().manual_seed(0))
        atlas = arm.scan(plain, tokens, streams=("attention",), adapter=tmp_path / "lora")
        assert atlas.attrs["model"]["adapter"] == str(tmp_path / "lora")
        again = load_for(atlas.attrs["model"], str(plain))
        assert not torch.equal(
            again.model.layers[0].self_attn.q_proj.weight, sample_model("llama").model.layers[0].self_attn.q_proj.weight
        )
        with pytest.raises(arm.ArmillaryError, match="other weights"):
            load_for({**atlas.attrs["model"], "adapter": None}, str(plain))
