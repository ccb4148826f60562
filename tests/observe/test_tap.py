"""The tap records what the model computes, in every family, and leaves the model unchanged."""

import copy
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.modeling_utils import AttentionInterface

import armillary as arm
from armillary.anatomy.description import Alibi
from armillary.anatomy.samples import DISTINCT, sample_config, sample_model
from armillary.observe.verification import relative_error
from armillary.observe.view import AttentionView, row_centered

TWICE = "falcon/alibi"  # eager Falcon adds its ALiBi bias twice; sdpa Falcon adds it once


def tokens(model: Any, batch: int = 2, length: int = 20) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(5, model.config.vocab_size, (batch, length), generator=generator)


def written(view: AttentionView) -> Tensor:
    """What the model's attention gave."""
    assert view.output is not None
    return view.output


def views(model: nn.Module, **inputs: Any) -> list[AttentionView]:
    seen: list[AttentionView] = []
    with torch.no_grad(), arm.Tap(model, seen.append):
        model(**inputs)
    return seen


@pytest.fixture(params=["stock", "eager"])
def attention(request: pytest.FixtureRequest) -> str | None:
    return None if request.param == "stock" else "eager"


@pytest.mark.parametrize("name", DISTINCT)
class TestEveryFamily:
    def test_outputs_are_the_same_bit_for_bit(self, name: str, attention: str | None) -> None:
        model = sample_model(name, attention=attention)
        ids = tokens(model)
        with torch.no_grad():
            plain = model(ids)[0]
            with arm.Tap(model, lambda view: view.attention(), on_residual=lambda layer, h: None):
                tapped = model(ids)[0]
        assert torch.equal(plain, tapped)

    def test_attention_equals_eager_transformers(self, name: str) -> None:
        model = sample_model(name, attention="eager")
        ids = tokens(model)
        with torch.no_grad():
            expected = model(ids, output_attentions=True).attentions
        seen = views(model, input_ids=ids)
        assert [view.layer for view in seen] == list(range(len(expected)))
        for view, theirs in zip(seen, expected, strict=True):
            torch.testing.assert_close(view.attention(), theirs, atol=1e-5, rtol=0)

    def test_stock_views_equal_eager_transformers(self, name: str) -> None:
        """What the tap sees under the stock kernel (sdpa, mostly) is what eager attention computes."""
        stock, eager = sample_model(name), sample_model(name, attention="eager")
        ids = tokens(stock)
        with torch.no_grad():
            expected = eager(ids, output_attentions=True).attentions
        worst = max(
            float((view.attention() - theirs).abs().max())
            for view, theirs in zip(views(stock, input_ids=ids), expected, strict=True)
        )
        assert worst > 0.01 if name == TWICE else worst < 1e-5

    def test_stock_attention_times_v_is_what_the_layer_computed(self, name: str) -> None:
        model = sample_model(name)
        for view in views(model, input_ids=tokens(model)):
            assert view.output is not None
            assert relative_error(view.mixed_values(), written(view)) < 1e-5

    def test_logits_follow_from_the_weights(self, name: str, attention: str | None) -> None:
        model = sample_model(name, attention=attention)
        anatomy = arm.describe(model)
        for view in views(model, input_ids=tokens(model)):
            assert view.x is not None
            seen = view.visible()
            ours, theirs = arm.rebuilt_logits(anatomy, view.layer, view.x) * seen, view.logits() * seen
            if isinstance(anatomy.layers[0].position, Alibi):  # written with a constant per row that cancels
                ours, theirs = row_centered(ours, seen), row_centered(theirs, seen)
            if name == TWICE and attention == "eager":
                assert relative_error(ours, theirs) > 0.1
                continue
            assert relative_error(ours, theirs) < 1e-4

    def test_rows_in_blocks_equal_all_rows(self, name: str) -> None:
        model = sample_model(name)
        for view in views(model, input_ids=tokens(model)):
            blocks = [view.attention(slice(start, start + 7)) for start in range(0, view.queries, 7)]
            torch.testing.assert_close(torch.cat(blocks, 2), view.attention(), atol=1e-6, rtol=0)

    @pytest.mark.parametrize("side", ["left", "right"])
    def test_padding_gives_each_sequence_its_own_numbers(self, name: str, side: str, attention: str | None) -> None:
        if name == "llama4_text" and side == "left":
            pytest.skip("its chunks and the growth of its logits count from the first place, padding or not")
        model = sample_model(name, attention=attention)
        lengths, longest = (9, 14), 14
        ids = tokens(model, length=longest)
        kept = [slice(longest - n, longest) if side == "left" else slice(0, n) for n in lengths]
        mask = torch.zeros_like(ids)
        for row, part in enumerate(kept):
            mask[row, part] = 1
        ids = ids.where(mask.bool(), torch.tensor(model.config.pad_token_id))
        inputs = {"input_ids": ids, "attention_mask": mask}
        if "position_ids" in inspect.signature(model.forward).parameters and name not in ("roberta", "mpnet"):
            inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
        together: list[AttentionView] = []
        with torch.no_grad():
            plain = model(**inputs)[0]
            with arm.Tap(model, together.append):
                assert torch.equal(model(**inputs)[0], plain)
        for row, part in enumerate(kept):
            alone = views(model, input_ids=ids[row : row + 1, part])
            for padded, single in zip(together, alone, strict=True):
                assert padded.valid_queries[row].tolist() == mask[row].bool().tolist()
                a = padded.attention()[row, :, part]
                torch.testing.assert_close(a[..., part], single.attention()[0], atol=1e-5, rtol=0)
                assert not a[..., ~mask[row].bool()].any()  # no mass on padding
                seen = single.visible()
                b = padded.logits()[row : row + 1, :, part, part]
                assert relative_error(row_centered(b, seen), row_centered(single.logits(), seen)) < 1e-5
                assert padded.x is not None
                assert single.x is not None
                torch.testing.assert_close(padded.x[row, part], single.x[0], atol=1e-5, rtol=1e-5)

    def test_residual_stream_is_the_models_hidden_states(self, name: str) -> None:
        model = sample_model(name)
        ids, stream = tokens(model), []
        with torch.no_grad():
            with arm.Tap(model, on_residual=lambda layer, h: stream.append((layer, h))):
                model(ids)
            theirs = model(ids, output_hidden_states=True).hidden_states
        assert [layer for layer, _ in stream] == list(range(len(arm.describe(model).layers) + 1))
        if name == "albert/groups":
            return  # transformers keeps one state per group of layers, the tap one per layer
        blocks = [int(layer.block.rpartition(".")[2]) for layer in arm.describe(model).layers]
        theirs = theirs if name == "albert" else [*(theirs[block] for block in blocks), None]
        for (_, ours), expected in list(zip(stream, theirs, strict=True))[:-1]:
            assert torch.equal(ours, expected)  # the last of theirs has the final norm


class TestTheModelIsLeftAsItWas:
    def hooks(self, model: nn.Module) -> Iterator[int]:
        for module in model.modules():
            yield len(module._forward_hooks) + len(module._forward_pre_hooks) + ("_attn" in vars(module))

    @pytest.mark.parametrize("name", ["llama", "gptj", "falcon", "albert"])
    def test_after_leaving(self, name: str) -> None:
        model, stock = sample_model(name), AttentionInterface.get_interface
        before = list(self.hooks(model))
        with arm.Tap(model, lambda view: None, on_residual=lambda layer, h: None):
            assert list(self.hooks(model)) != before
        assert list(self.hooks(model)) == before
        assert AttentionInterface.get_interface is stock

    @pytest.mark.parametrize("name", ["llama", "gpt_neo", "mpt"])
    def test_after_an_exception_in_the_receiver(self, name: str) -> None:
        model, stock = sample_model(name), AttentionInterface.get_interface
        before, ids = list(self.hooks(model)), tokens(model)

        def fail(view: AttentionView) -> None:
            raise RuntimeError("receiver")

        with pytest.raises(RuntimeError, match="receiver"), arm.Tap(model, fail):
            model(ids)
        assert list(self.hooks(model)) == before
        assert AttentionInterface.get_interface is stock
        assert len(views(model, input_ids=ids)) == 3

    def test_a_failed_forward_does_not_confuse_the_next(self) -> None:
        model, seen = sample_model("albert"), []
        with torch.no_grad(), arm.Tap(model, lambda view: seen.append(view.layer)):
            with pytest.raises(IndexError):
                model(torch.full((1, 4), 10_000))
            model(tokens(model))
        assert seen == [0, 1, 2]

    def test_two_taps_on_one_model_are_refused_and_the_first_goes_on(self) -> None:
        model = sample_model("llama")
        seen: list[Any] = []
        with torch.no_grad(), arm.Tap(model, seen.append):
            with pytest.raises(arm.ArmillaryError, match="already has a tap"), arm.Tap(model):
                pass
            model(tokens(model))
        assert len(seen) == 3

    def test_a_copy_made_inside_the_tap_is_an_ordinary_model(self) -> None:
        model = sample_model("gptj")
        seen: list[Any] = []
        ids = tokens(model)
        with torch.no_grad(), arm.Tap(model, seen.append):
            twin = copy.deepcopy(model)
            twin(ids)
            assert not seen
        assert torch.equal(twin(ids)[0], model(ids)[0])
        assert not seen

    def test_a_replaced_method_is_restored(self) -> None:
        model, calls = sample_model("gptj"), []
        attention = model.transformer.h[0].attn
        stock = attention._attn

        def mine(*given: Any) -> Any:
            calls.append(1)
            return stock(*given)

        attention._attn = mine
        with torch.no_grad(), arm.Tap(model):
            model(tokens(model))
        assert attention._attn is mine
        assert calls == [1]

    def test_another_wrapper_of_the_interface_survives(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls, stock = [], AttentionInterface.get_interface

        def theirs(self: AttentionInterface, *a: object) -> object:
            calls.append(1)
            return stock(self, *a)

        monkeypatch.setattr(AttentionInterface, "get_interface", theirs)
        model = sample_model("llama")
        with torch.no_grad(), arm.Tap(model):
            model(tokens(model))
        assert AttentionInterface.get_interface is theirs
        assert len(calls) == 3

    def test_two_models_at_once_and_an_untapped_third(self) -> None:
        first, second, third = (sample_model("llama", attention=a) for a in ("sdpa", "eager", "eager"))
        a: list[AttentionView] = []
        b: list[AttentionView] = []
        with torch.no_grad(), arm.Tap(first, a.append), arm.Tap(second, b.append):
            for model in (first, third, second):
                model(tokens(model))
        assert len(a) == len(b) == 3
        torch.testing.assert_close(a[2].attention(), b[2].attention(), atol=1e-5, rtol=0)


class TestWaysOfRunning:
    def test_the_base_model_may_be_called_instead(self) -> None:
        model = sample_model("llama")
        seen: list[Any] = []
        with torch.no_grad(), arm.Tap(model, seen.append):
            model.model(tokens(model))
        assert [view.layer for view in seen] == [0, 1, 2]

    def test_gpt2_upcast_attention(self) -> None:
        model = sample_model("gpt2", attention="eager")
        model.config.reorder_and_upcast_attn = True
        for block in model.transformer.h:
            block.attn.reorder_and_upcast_attn = True
        seen = views(model, input_ids=tokens(model))
        assert len(seen) == 3
        assert max(relative_error(view.mixed_values(), written(view)) for view in seen) < 1e-5

    @pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "gptj", "gemma2"])
    def test_generation_with_a_cache_sees_past_keys(self, name: str) -> None:
        model = sample_model(name)
        ids = tokens(model, batch=1, length=8)
        seen: list[AttentionView] = []
        with torch.no_grad():
            whole = views(model, input_ids=ids)
            with arm.Tap(model, seen.append):
                cache = model(ids[:, :7], use_cache=True).past_key_values
                model(ids[:, 7:], past_key_values=cache, use_cache=True)
        last = seen[-1]
        assert last.queries == 1
        torch.testing.assert_close(
            last.attention()[0, :, 0], whole[-1].attention()[0, :, -1, -last.keys :], atol=1e-5, rtol=0
        )

    def test_families_that_hide_their_cache_say_so(self) -> None:
        model = sample_model("bloom")
        ids = tokens(model, batch=1, length=8)
        with torch.no_grad(), arm.Tap(model):
            cache = model(ids[:, :7], use_cache=True).past_key_values
            with pytest.raises(arm.ArmillaryError, match="use_cache=False"):
                model(ids[:, 7:], past_key_values=cache, use_cache=True)

    def test_training_with_gradient_checkpointing_reports_each_layer_once(self) -> None:
        model = sample_model("llama")
        seen: list[Any] = []
        model.train()
        model.gradient_checkpointing_enable()
        ids = tokens(model)
        with arm.Tap(model, seen.append):
            model(ids, labels=ids).loss.backward()
        assert [view.layer for view in seen] == [0, 1, 2]
        assert not any(view.q.requires_grad for view in seen)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_precision(self, dtype: torch.dtype) -> None:
        model = sample_model("llama").to(dtype)
        found = arm.verify(model)
        assert found.identical
        assert found.passed
        assert views(model, input_ids=tokens(model))[0].logits().dtype == torch.float32

    def test_soft_cap_with_an_implementation_that_refuses_it(self) -> None:
        """sdpa cannot soft-cap, so Gemma 2 runs eager by itself; the tap changes nothing about that."""
        model = sample_model("gemma2")
        assert model.config._attn_implementation == "eager"
        for view in views(model, input_ids=tokens(model)):
            assert view.softcap == 0.7
            assert float(view.logits().abs().max()) > 0.7  # before the cap

    def test_sinks_take_their_share(self) -> None:
        model = sample_model("gpt_oss")
        for view in views(model, input_ids=tokens(model)):
            assert float(view.attention().sum(-1).max()) < 1

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore")
    def test_flex_attention_is_refused_with_advice(self) -> None:
        model = sample_model("llama", attention="flex_attention")
        with torch.no_grad(), arm.Tap(model), pytest.raises(arm.ArmillaryError, match="attn_implementation='sdpa'"):
            model(tokens(model))

    def test_a_mask_with_numbers_is_a_bias_after_the_soft_cap(self) -> None:
        model = sample_model("gemma2")
        ids = tokens(model)
        mask = torch.zeros(2, 1, 20, 20).masked_fill(torch.ones(20, 20).triu(1).bool(), torch.finfo(torch.float32).min)
        mask = mask + 0.5 * torch.randn(20, generator=torch.Generator().manual_seed(0))
        masks = {"full_attention": mask, "sliding_attention": mask}
        for view in views(model, input_ids=ids, attention_mask=masks):
            assert view.bias is not None
            assert relative_error(view.mixed_values(), written(view)) < 1e-5

    def test_a_home_made_mask_of_minus_a_billion_hides(self) -> None:
        model = sample_model("llama", attention="eager")
        mask = torch.zeros(2, 1, 20, 20).masked_fill(torch.ones(20, 20).triu(1).bool(), -1e9)
        view = views(model, input_ids=tokens(model), attention_mask=mask)[0]
        assert not view.visible()[0, 0, 0, 1:].any()
        assert view.bias is None

    def test_automatic_half_precision_does_not_touch_the_view(self) -> None:
        model, seen = sample_model("llama"), []
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), arm.Tap(model, lambda v: seen.append(v.logits())):
            model(tokens(model))
        assert {logits.dtype for logits in seen} == {torch.float32}

    def test_nan_stays_nan(self) -> None:
        model = sample_model("llama")
        with torch.no_grad():
            model.model.layers[0].self_attn.q_proj.weight[0] = torch.nan
        assert views(model, input_ids=tokens(model))[0].attention()[:, 0].isnan().any()

    def test_a_wrapped_model(self) -> None:
        class Wrapper(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = sample_model("gpt2")
                self.layers = nn.ModuleList([nn.Linear(2, 2)])

            def forward(self, text: Tensor, mask: Tensor) -> Tensor:
                logits: Tensor = self.inner(input_ids=text, attention_mask=mask)[0]
                return logits

        wrapper = Wrapper().eval()
        seen: list[AttentionView] = []
        ids = tokens(wrapper.inner)
        mask = torch.ones_like(ids)
        mask[1, 15:] = 0
        with torch.no_grad(), arm.Tap(wrapper, seen.append):
            wrapper(ids, mask)
            with pytest.raises(arm.ArmillaryError, match="65 tokens"):
                wrapper(torch.full((1, 65), 7), torch.ones(1, 65))
        assert torch.equal(seen[0].valid_queries, mask.bool())

    def test_parts_and_forward_called_by_themselves_are_seen(self) -> None:
        model, seen = sample_model("albert"), []
        with torch.no_grad(), arm.Tap(model, lambda view: seen.append(view.layer)):
            model.forward(tokens(model))
            model.encoder(torch.randn(1, 5, 16))
        assert seen == [0, 1, 2, 0, 1, 2]

    def test_threads_do_not_mix(self) -> None:
        from concurrent.futures import ThreadPoolExecutor

        model, wrong = sample_model("albert"), []
        ids = [tokens(model, batch=1, length=length) for length in range(5, 17)]

        def check(view: AttentionView) -> None:
            if view.x is None or view.x.shape[1] != view.queries:
                wrong.append("x")
            order.setdefault(view.queries, []).append(view.layer)

        order: dict[int, list[int]] = {}
        with arm.Tap(model, check), ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda text: model(text), ids))
        assert not wrong
        assert order == {length: [0, 1, 2] for length in range(5, 17)}

    def test_compiled_models_have_their_own_error(self) -> None:
        model = sample_model("llama")
        model._compiled_call_impl = model._call_impl  # what model.compile() leaves, without waiting for a compiler
        for layer in model.model.layers:
            layer.self_attn.forward = lambda *a, **k: (k["hidden_states"], None)  # attention that bypasses the tap
        with torch.no_grad(), pytest.raises(arm.ArmillaryError, match="the model is compiled"), arm.Tap(model):
            model(tokens(model))

    def test_nothing_is_kept_alive(self) -> None:
        model = sample_model("llama")
        seen: list[Any] = []
        ids = tokens(model)
        tap = arm.Tap(model, lambda view: seen.append(view.x))
        with tap:
            model(ids)
        assert not any(x.requires_grad for x in seen)
        assert not tap._forward.x

    def test_packed_texts_need_the_positions_they_use(self) -> None:
        model = sample_model("gpt2")
        positions = torch.arange(40).repeat(2)[None]
        with torch.no_grad(), arm.Tap(model):
            model(torch.full((1, 80), 7), position_ids=positions)
            cache = model(torch.full((1, 60), 7), use_cache=True).past_key_values
            with pytest.raises(arm.ArmillaryError, match="65 tokens"):
                model(torch.full((1, 5), 7), past_key_values=cache, use_cache=True)


class TestUnknownFamilies:
    @pytest.mark.parametrize("family", ["jais2", "xlm-roberta-xl", "hyperclovax"])
    def test_still_tap(self, family: str) -> None:
        assert arm.known_families().count(family) == 0
        settings = dict(
            vocab_size=99,
            hidden_size=48,
            num_hidden_layers=3,
            num_attention_heads=6,
            intermediate_size=64,
            embedding_size=48,
            max_position_embeddings=64,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        )
        torch.manual_seed(0)
        config = AutoConfig.for_model(family, **settings)
        loader = AutoModel if family == "xlm-roberta-xl" else AutoModelForCausalLM
        model = loader.from_config(config, attn_implementation="eager").eval()
        ids, stream = tokens(model), []
        with torch.no_grad():
            expected = model(ids, output_attentions=True).attentions
            plain = model(ids)[0]
            seen: list[AttentionView] = []
            with arm.Tap(model, seen.append, on_residual=lambda layer, h: stream.append(layer)):
                tapped = model(ids)[0]
        assert torch.equal(plain, tapped)
        for view, theirs in zip(seen, expected, strict=True):
            assert view.x is not None
            torch.testing.assert_close(view.attention(), theirs, atol=1e-5, rtol=0)
        assert stream == [0, 1, 2, 3]
        assert arm.verify(model).passed
        anatomy = arm.describe(model)
        assert "no adapter knows the family" in anatomy.missing
        with pytest.raises(arm.ArmillaryError, match=family):
            anatomy.weights(0)

    def test_encoder_decoders_show_their_encoder(self) -> None:
        config = AutoConfig.for_model(
            "bart", vocab_size=99, d_model=48, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64,
        )  # fmt: skip
        torch.manual_seed(0)
        model = AutoModel.from_config(config, attn_implementation="eager").eval()
        ids = tokens(model)
        mask = torch.ones_like(ids)
        mask[0, :6] = 0
        with torch.no_grad():
            expected = model(ids, attention_mask=mask, decoder_input_ids=ids, output_attentions=True).encoder_attentions
        seen = views(model, input_ids=ids, attention_mask=mask, decoder_input_ids=ids)
        assert [view.module for view in seen] == [f"encoder.layers.{i}.self_attn" for i in range(2)]
        for view, theirs in zip(seen, expected, strict=True):
            kept = view.valid_queries[:, None, :, None]
            torch.testing.assert_close(view.attention() * kept, theirs * kept, atol=1e-5, rtol=0)
        assert arm.verify(model).passed

    def test_t5_whole_and_generating(self) -> None:
        from transformers import T5ForConditionalGeneration

        torch.manual_seed(0)
        model = T5ForConditionalGeneration(sample_config("t5")).eval()
        assert arm.verify(model).passed
        seen: list[int] = []
        with torch.no_grad(), arm.Tap(model, lambda view: seen.append(view.layer)):
            model.generate(tokens(model, batch=1), max_new_tokens=3, decoder_start_token_id=0)
        assert seen == [0, 1, 2]

    @pytest.mark.slow
    def test_mixed_models_number_their_attention_by_block(self) -> None:
        config = AutoConfig.for_model(
            "lfm2_moe", vocab_size=99, hidden_size=48, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, intermediate_size=64, moe_intermediate_size=16, num_experts=2, num_experts_per_tok=1,
            bos_token_id=1, eos_token_id=2, pad_token_id=0,
            layer_types=["conv", "full_attention", "conv", "full_attention"],
        )  # fmt: skip
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).eval()
        assert [view.layer for view in views(model, input_ids=tokens(model))] == [1, 3]
        found = arm.verify(model)
        assert (found.seen, found.declared) == (2, 4)
        atlas = arm.scan(model, tokens(model))
        assert atlas.heads.groupby("layer")["entropy"].count().tolist() == [0, 4, 0, 4]

    def test_a_model_without_the_interface_and_without_adapter_says_so(self) -> None:
        config = AutoConfig.for_model("xlnet", vocab_size=99, d_model=48, n_layer=2, n_head=4, d_inner=64)
        model = AutoModel.from_config(config).eval()
        with torch.no_grad(), pytest.raises(arm.ArmillaryError, match="no attention passed the tap"), arm.Tap(model):
            model(tokens(model))
