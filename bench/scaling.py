"""What a scan costs, measured here; `--render` puts the numbers, and what follows from them, into docs/scaling.md.

python bench/scaling.py             measure everything, write bench/scaling.json
python bench/scaling.py pair        only one against two processes
python bench/scaling.py --render    docs/scaling.md from bench/scaling.json and bench/scheduler.json
"""

import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

import armillary as arm
from armillary.anatomy.layout import entry
from armillary.engines.engine import Done, Task, Worker
from armillary.engines.local import Local
from armillary.engines.packing import Data, unpack
from armillary.progress import Progress
from armillary.scanning.folder import FileKind, Shard, from_tensors
from armillary.scanning.job import ScanBench
from armillary.scanning.settings import scan_settings, wanted_of
from armillary.scanning.tasks import ShardWork
from armillary.streams.declaration import Pass
from armillary.streams.registry import DEFAULT_STREAMS
from armillary.streams.stream import Stream

RESULTS = Path(__file__).with_name("scaling.json")
STREAMS = ("positions", "attention", "chunks", "covariance", "lags")
"""Those of the first round."""

SEVENTY = dict(vocab_size=512, hidden_size=8192, num_attention_heads=64, num_key_value_heads=8, intermediate_size=28672)
SMALL = dict(vocab_size=512, hidden_size=512, num_attention_heads=8, num_key_value_heads=8, intermediate_size=1536)
SHAPES = {
    "width 512, 8 heads": (SMALL, 4, STREAMS),
    "width 8192, 64 heads (a layer of Llama 70B)": (SEVENTY, 1, STREAMS[:-1]),
}
LENGTH = 512
SHARD = 8
"""Blocks of a shard where processes are compared; a scan has 32 unless told otherwise."""


def llama(shape: dict[str, int], layers: int) -> Any:
    """A random model of this shape, made without the time that a proper initialization takes."""
    config = AutoConfig.for_model("llama", num_hidden_layers=layers, max_position_embeddings=LENGTH, **shape)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model = model.to_empty(device="cpu").eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0, 0.02, generator=generator)
    fresh = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("llama", **{**shape, "num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 8})
    )
    model.model.rotary_emb = fresh.model.rotary_emb  # its frequencies are computed, not stored
    return model


def cost(work: Callable[[], Any]) -> tuple[float, int, Any]:
    """Processor time of this process (what it takes where nobody else computes), operations, and what came back."""
    with FlopCounterMode(display=False) as counter:
        start = time.process_time()
        found = work()
        seconds = time.process_time() - start
    return seconds, int(counter.get_total_flops()), found


def shape_costs(shape: dict[str, int], layers: int, streams: tuple[str, ...]) -> dict[str, Any]:
    """Seconds and operations per token and layer, and bytes per layer, of the model and of every stream.

    Streams are measured on a model with a small MLP, which they do not see.
    """
    blocks = 1 if shape["hidden_size"] > 1000 else 4
    tokens = np.random.default_rng(0).integers(0, shape["vocab_size"], (blocks, LENGTH))
    ids = torch.from_numpy(tokens)
    each = tokens.size * layers

    def forward(model: Any) -> tuple[float, int, Any]:
        with torch.no_grad():
            entry(model)(input_ids=ids[:, :8], use_cache=False)  # what happens only once
            return cost(lambda: entry(model)(input_ids=ids, use_cache=False))

    seconds, operations, _ = forward(llama(shape, layers))
    rate = operations / seconds / 1e9
    found: dict[str, Any] = {
        "layers": layers,
        "forward": {"seconds": seconds / each, "flops": operations / each, "gflops_per_second": rate},
    }
    print("forward", found["forward"], flush=True)
    model = llama({**shape, "intermediate_size": 64}, layers)
    bench = ScanBench(model)
    seconds, operations, _ = forward(model)

    def run(stream: str) -> Data:
        settings = scan_settings(length=LENGTH, sequences=blocks, batch=blocks, shard=blocks, streams=(stream,))
        for event in bench.run(Task(ShardWork(Pass.FIRST, Shard(0, 0, blocks), tokens, settings))):
            if isinstance(event, Done):
                return event.files[FileKind.FIRST]
        raise AssertionError

    for stream in streams:
        passed, counted, data = cost(partial(run, stream))
        found[stream] = {
            "seconds": max(0.0, passed - seconds) / each,
            "flops": (counted - operations) / each,
            "bytes": len(data) / layers,
        }
        print(stream, found[stream], flush=True)
    return found


def merge_rate() -> dict[str, float]:
    """Megabytes per second of reading a shard's streams and adding them to the merged ones."""
    model = llama(SMALL, 4)
    bench = ScanBench(model)
    settings = scan_settings(length=LENGTH, sequences=2, batch=2, shard=2, streams=DEFAULT_STREAMS)
    tokens = np.random.default_rng(0).integers(0, 512, (2, LENGTH))
    done = [e for e in bench.run(Task(ShardWork(Pass.FIRST, Shard(0, 0, 2), tokens, settings))) if isinstance(e, Done)]
    data = done[0].files[FileKind.FIRST]
    merged = wanted_of(settings).first_streams(bench.anatomy)

    def merge() -> None:
        streams = {name: Stream(stream.statistic) for name, stream in merged.items()}
        from_tensors(streams, unpack(data))
        for name, stream in streams.items():
            merged[name].merge(stream)

    merge()
    seconds = min(cost(merge)[0] for _ in range(5))
    return {"megabytes": len(data) / 1e6, "megabytes_per_second": len(data) / 1e6 / seconds}


class Clock(Progress):
    """Times the first round, from its start to its last shard."""

    def __init__(self) -> None:
        self.began = self.ended = 0.0
        self.worked = self.drove = (0.0, 0.0)  # processor seconds of the workers and of the driver, then and now
        self.tokens = 0
        self.by_worker: dict[int, int] = {}

    def begin(self, what: str, total: int, unit: str, **others: int) -> None:
        if not self.began:
            self.began, self.tokens = time.perf_counter(), total
            self.worked, self.drove = (workers_seconds(), 0.0), (time.process_time(), 0.0)

    def advance(self, count: int = 1, worker: object = None) -> None:
        if isinstance(worker, Worker):
            self.by_worker[worker.number] = self.by_worker.get(worker.number, 0) + count

    def piece_merged(self, index: int) -> None:
        self.ended = time.perf_counter()
        self.worked, self.drove = (self.worked[0], workers_seconds()), (self.drove[0], time.process_time())


def workers_seconds() -> float:
    """Processor time of all worker processes so far."""
    return sum(sum(child.cpu_times()[:2]) for child in psutil.Process().children())


def pair(repeats: int = 3) -> dict[str, Any]:
    """One single-threaded process and two, in turn: tokens per second of the first round, and of whole scans."""
    with tempfile.TemporaryDirectory() as place:
        llama({**SMALL, "hidden_size": 256, "intermediate_size": 768}, 4).save_pretrained(f"{place}/model")
        engines = {1: Local(1), 2: Local(2)}
        rates: dict[int, list[float]] = {1: [], 2: []}
        wholes: dict[int, list[float]] = {1: [], 2: []}
        loads = []
        worked: dict[int, list[float]] = {1: [], 2: []}
        drove: list[float] = []
        tokens = np.random.default_rng(0).integers(0, 512, (96, 128))
        for repeat in range(repeats + 1):
            for workers, engine in engines.items():
                clock, start = Clock(), time.perf_counter()
                asked: dict[str, Any] = dict(batch=4, shard=SHARD, streams=STREAMS[:-1])
                arm.scan(f"{place}/model", tokens, engine=engine, progress=clock, **asked)
                if repeat:  # the first time models are loaded
                    rates[workers].append(clock.tokens / (clock.ended - clock.began))
                    wholes[workers].append(time.perf_counter() - start)
                    loads.append(os.getloadavg()[0])
                    worked[workers].append(clock.worked[1] - clock.worked[0])
                    drove += [clock.drove[1] - clock.drove[0]] if workers == 2 else []
        for engine in engines.values():
            engine.close()
    ratios = [two / one for one, two in zip(rates[1], rates[2], strict=True)]
    one, two, driver = (statistics.median(found) for found in (worked[1], worked[2], drove))
    return {
        "shard": SHARD,
        "processor_seconds": {"one worker": one, "two workers": two, "driver": driver},
        "ratio_of_idle_cores": 2 * one / (two + driver),
        "tokens_per_second": {str(workers): statistics.median(found) for workers, found in rates.items()},
        "ratios": ratios,
        "ratio": statistics.median(ratios),
        "best_ratio": max(rates[2]) / max(rates[1]),
        "whole_scan_ratio": statistics.median(a / b for a, b in zip(wholes[1], wholes[2], strict=True)),
        "load_average": statistics.median(loads),
        "cores": os.cpu_count(),
        "target": 1.7,
    }


def machine() -> dict[str, Any]:
    names = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "load_average": os.getloadavg()[0],
    }


def main(only: list[str]) -> None:
    torch.set_num_threads(1)
    if "--render" in only:
        import scaling_page

        scaling_page.write()
        return
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    found["machine"] = machine()
    if not only or "pair" in only:
        found["pair"] = [*found.get("pair", []), pair()]
        print(found["pair"][-1], flush=True)
    if not only or "merge" in only:
        found["merge"] = merge_rate()
        print(found["merge"], flush=True)
    if not only or "costs" in only:
        found["costs"] = {name: shape_costs(*shape) for name, shape in SHAPES.items()}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
