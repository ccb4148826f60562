"""What a scan costs beside the model's own forward pass: time and memory, a short text and a long one."""

import statistics
from typing import Any

import numpy as np
import torch
from measuring import Row, apart, interleaved, peak_of, resident
from transformers import AutoConfig, AutoModelForCausalLM

import armillary as arm
from armillary.engines.engine import Done, Task
from armillary.scanning.folder import Shard
from armillary.scanning.job import ScanBench
from armillary.scanning.settings import scan_settings
from armillary.scanning.tasks import ShardWork
from armillary.streams.attention import AttentionStatistics
from armillary.streams.declaration import Pass
from armillary.streams.stream import Stream

FIRST_PASS = ("positions", "attention", "chunks", "covariance")
"""The default streams of a scan's first pass over its text."""

LENGTH, BATCH = 512, 4
LONG = 4096


def gpt2() -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", use_cache=False)).eval()


def long_model(attention: str = "sdpa") -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "llama",
        vocab_size=1000,
        hidden_size=512,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=4,
        intermediate_size=1376,
        max_position_embeddings=LONG,
        use_cache=False,
    )
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


def tokens(count: int, length: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 1000, (count, length))


@torch.no_grad()
def first_pass() -> list[Row]:
    model = gpt2()
    bench = ScanBench(model)
    rows = []
    for count, length, target in ((BATCH, LENGTH, 1.25), (2, 1024, 1.4)):
        blocks = tokens(count, length)
        settings = scan_settings(length=length, sequences=count, batch=count, streams=FIRST_PASS)
        task = Task(ShardWork(Pass.FIRST, Shard(0, 0, count), blocks, settings))

        def scan(task: Task = task) -> None:
            assert any(isinstance(event, Done) for event in bench.run(task))

        ids = torch.from_numpy(blocks)
        ours, forward = interleaved(scan, lambda ids=ids: model.transformer(ids), 5)  # type: ignore[misc]
        what = f"first pass of a scan, all its streams; GPT-2-small shape, {count} x {length} tokens"
        rows.append(Row(what, "the forward without the LM head", ours / forward, target=target))
    return rows


@torch.no_grad()
def scan_memory(sequences: int) -> dict[str, float]:
    """What a forward pass, the layers alone, and a whole scan of so many sequences need at most, in megabytes."""
    import xarray  # noqa: F401  what a scan imports is not what it needs

    torch.set_num_threads(2)
    model = gpt2()
    ids = torch.from_numpy(tokens(BATCH, LENGTH))
    blocks = tokens(sequences, LENGTH)

    def scan() -> None:
        arm.scan(model, blocks, length=LENGTH, sequences=sequences, batch=BATCH, shard=BATCH, streams=FIRST_PASS)

    arm.scan(model, tokens(1, 16), length=16, sequences=1, streams=("positions",))
    works = {"forward": lambda: model(ids), "layers": lambda: model.transformer(ids), "scan": scan}
    return {name: peak_of(work) for name, work in works.items()}


def memory() -> list[Row]:
    """Medians of three processes each: what the allocator keeps of freed memory differs by 100 MB between runs."""
    few, many = ([apart(scan_memory, count * BATCH) for _ in range(3)] for count in (2, 4))
    what = "the same scan, written to an atlas: peak memory"

    def beyond(other: str) -> float:
        return float(statistics.median(one["scan"] - one[other] for one in (*few, *many)))

    growth = statistics.median(one["scan"] for one in many) - statistics.median(one["scan"] for one in few)
    return [
        Row(f"{what} above", "the sdpa forward", beyond("forward"), "MB", 250),
        Row(f"{what} above", "the forward without the LM head", beyond("layers"), "MB"),
        Row(f"{what}, of 16 sequences above", "of 8", growth, "MB", 25),
    ]


@torch.no_grad()
def long_text() -> list[Row]:
    model, ids = long_model(), torch.from_numpy(tokens(1, LONG))

    def scan() -> None:
        stream = Stream(AttentionStatistics(1, LONG))
        with arm.Tap(model, lambda view: stream.update(view.layer, view)):
            model.model(ids)

    ours, forward = interleaved(scan, lambda: model.model(ids), 3)
    peaks = {kind: apart(long_memory, kind) for kind in ("forward", "ours", "eager")}
    what = "attention statistics, 4,096 tokens (8 layers, 512 wide, 16/4 heads)"
    return [
        Row(what, "the forward without the LM head", ours / forward, target=1.8),
        Row(f"{what}: peak memory", "sdpa forward", peaks["ours"]["peak"] / peaks["forward"]["peak"], target=1.3),
        Row("entropy and masses from output_attentions (eager)", "ours", peaks["eager"]["seconds"] / ours, note="time"),
        Row(
            "entropy and masses from output_attentions (eager)",
            "ours",
            peaks["eager"]["peak"] / peaks["ours"]["peak"],
            note="peak memory",
        ),
    ]


@torch.no_grad()
def long_memory(kind: str) -> dict[str, float]:
    """The peak of a forward pass alone, with our statistics, or with attentions as eager transformers gives them."""
    from measuring import seconds

    torch.set_num_threads(2)
    model, ids = long_model("eager" if kind == "eager" else "sdpa"), torch.from_numpy(tokens(1, LONG))
    stream = Stream(AttentionStatistics(1, LONG))

    def eager() -> None:
        for a in model(ids, output_attentions=True).attentions:
            a.clamp(min=1e-30).log().mul_(a).sum(-1).neg().mean((0, 2))
            a.diagonal(0, 2, 3).mean(-1), a.diagonal(-1, 2, 3).mean(-1), a[..., 0].mean((0, 2))

    def ours() -> None:
        with arm.Tap(model, lambda view: stream.update(view.layer, view)):
            model(ids)

    took = seconds({"forward": lambda: model(ids), "ours": ours, "eager": eager}[kind])
    return {"peak": resident(), "seconds": took}
