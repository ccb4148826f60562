"""docs/scaling.md: the prose is written there, the numbers between its markers come from here."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

BENCH = Path(__file__).parent
PAGE = BENCH.parent / "docs" / "scaling.md"
BIG = "width 8192, 64 heads (a layer of Llama 70B)"
LAYERS = 80
TOKENS = 1_000_000_000
GPUS = 8
WORKERS = 16
PEAK = {"forward": 989e12, "streams": 67e12}
"""Operations per second that the maker of an H100 (SXM) states: bfloat16 for the model, float64 for the streams."""
REACHED = 0.4
"""The share of them that is taken to be reached."""
SETS = {
    "attention, chunks": ("attention", "chunks"),
    "positions, attention, chunks": ("positions", "attention", "chunks"),
    "positions, attention, chunks, covariance": ("positions", "attention", "chunks", "covariance"),
}


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [" | ".join(head), " | ".join("---" if i == 0 else "---:" for i in range(len(head)))]
    return "\n".join(f"| {line} |" for line in [*lines, *(" | ".join(row) for row in rows)])


def costs(found: dict[str, Any]) -> str:
    parts = [
        f"{found['machine']['processor']}, one thread, torch {found['machine']['torch']}, float32, blocks of 512 "
        "tokens; processor time, since other programs ran on the machine."
    ]
    for name, shape in found["costs"].items():
        forward = shape["forward"]
        rows = [
            [
                "the model itself",
                f"{forward['seconds'] * 1e6:,.1f}",
                f"{forward['flops'] / 1e6:,.1f}",
                "",
                "",
            ]
        ]
        for stream, cost in shape.items():
            if isinstance(cost, dict) and stream != "forward":
                rows.append(
                    [
                        f"`{stream}`",
                        f"{cost['seconds'] * 1e6:,.1f}",
                        f"{cost['flops'] / 1e6:,.1f}",
                        f"{cost['seconds'] / forward['seconds']:.2f}",
                        f"{cost['bytes'] / 1e6:,.1f}",
                    ]
                )
        head = [name, "µs a token and layer", "Mflop a token and layer", "of the model's time", "MB a layer in a shard"]
        parts.append(table(head, rows))
        parts.append(f"The model runs at {forward['gflops_per_second']:.1f} Gflop/s here.")
    return "\n\n".join(parts)


def pair(found: dict[str, Any]) -> str:
    """Every run that was made, with the load of the machine: a busy one cannot tell."""
    rows = []
    for both in found["pair"]:
        cpu = both.get("processor_seconds")
        rows.append(
            [
                str(both["shard"]),
                f"{both['load_average']:.1f}",
                f"{both['tokens_per_second']['1']:,.0f}",
                f"{both['tokens_per_second']['2']:,.0f}",
                ", ".join(f"{ratio:.2f}" for ratio in both["ratios"]),
                f"{both['ratio']:.2f}",
                f"{both['whole_scan_ratio']:.2f}",
                "" if cpu is None else f"{cpu['one worker']:.1f}, {cpu['two workers']:.1f}, {cpu['driver']:.1f}",
                "" if cpu is None else f"{both['ratio_of_idle_cores']:.2f}",
            ]
        )
    head = [
        "`--shard`",
        "load average",
        "tokens/s, 1",
        "tokens/s, 2",
        "ratios",
        "median",
        "whole scans",
        "processor s",
        "if idle",
    ]
    last = found["pair"][-1]
    return (
        f"Two single-threaded processes against one, in turn, on {last['cores']} cores that others used too (target "
        f"{last['target']} on idle ones). 'processor s': of the one worker, of both of two, of the driver beside two; "
        "'if idle': the ratio that two cores of our own would show, 2 x the first over the sum of the others.\n\n"
        + table(head, rows)
    )


def seventy(found: dict[str, Any]) -> str:
    layer, merging = found["costs"][BIG], found["merge"]["megabytes_per_second"] * 1e6
    forward = layer["forward"]
    rows = []
    for name, streams in SETS.items():
        seconds = sum(layer[stream]["seconds"] for stream in streams) + forward["seconds"]
        gpu = LAYERS * (
            forward["flops"] / (PEAK["forward"] * REACHED)
            + sum(layer[stream]["flops"] for stream in streams) / (PEAK["streams"] * REACHED)
        )
        size = LAYERS * sum(layer[stream]["bytes"] for stream in streams)
        rate = GPUS / gpu
        merge = size / merging
        shard = WORKERS * merge * rate
        rows.append(
            [
                name,
                f"{TOKENS * LAYERS * seconds / 3600:,.0f}",
                f"{TOKENS * gpu / 3600:,.0f}",
                f"{TOKENS / rate / WORKERS / 3600:,.1f}",
                f"{size / 1e9:,.1f}",
                f"{merge:,.1f}",
                f"{shard / 512:,.0f}",
            ]
        )
    head = [
        "streams",
        "core-hours here",
        "GPU-hours at least",
        f"hours, {WORKERS} workers of {GPUS} GPUs",
        "GB a shard",
        "s to merge one",
        "least `--shard`",
    ]
    params = forward["flops"] * LAYERS / 2 / 1e9
    return (
        f"{LAYERS} layers, {TOKENS:,} tokens in blocks of 512. The model takes {forward['flops'] * LAYERS / 1e9:,.0f} "
        f"Gflop a token (2 for each of about {params:,.0f} billion weights in the blocks, and attention). Merging "
        f"runs at {merging / 1e6:,.0f} MB/s (measured). GPU-hours: operations over {REACHED:.0%} of an H100's "
        f"{PEAK['forward'] / 1e12:.0f} Tflop/s (the model, bfloat16) and {PEAK['streams'] / 1e12:.0f} Tflop/s "
        "(streams, float64); what is bound by memory comes on top.\n\n" + table(head, rows)
    )


def scheduler(rows: list[dict[str, Any]]) -> str:
    base = rows[0]["cluster"]
    shown = [
        [
            row["cluster"]["name"],
            f"{row['outcome']['shards']:,}",
            f"{row['outcome']['hours']:.2f}",
            f"{row['outcome']['ideal_hours']:.2f}",
            f"{row['outcome']['failures']:,}",
            f"{row['outcome']['lost_share']:.1%}",
            f"{row['outcome']['twice_share']:.1%}",
            f"{row['outcome']['most_waiting']:,}",
            f"{row['outcome']['driver_busy']:.0%}",
        ]
        for row in rows
    ]
    head = [
        "what happens",
        "shards",
        "hours",
        "at best",
        "failures",
        "work lost",
        "done twice",
        "most waiting",
        "driver busy",
    ]
    return (
        f"{base['workers']:,} workers, {base['blocks']:,} blocks of {base['block_seconds']:.0f} s, shards of "
        f"{base['shard']} blocks, {base['merge_seconds']} s to merge one, {base['start_seconds']:.0f} s to load the "
        "model.\n\n" + table(head, shown)
    )


def _filled(text: str, markers: re.Match[str]) -> str:
    return f"{markers[1]}{text}\n{markers[2]}"


def rendered(page: str) -> str:
    """The page with the present numbers between its markers."""
    found = json.loads((BENCH / "scaling.json").read_text())
    simulated = json.loads((BENCH / "scheduler.json").read_text())
    parts = {"costs": costs(found), "pair": pair(found), "seventy": seventy(found), "scheduler": scheduler(simulated)}
    for name, text in parts.items():
        pattern = re.compile(rf"(<!-- {name}: generated -->\n).*?(<!-- end -->)", re.DOTALL)
        assert pattern.search(page), f"docs/scaling.md has no place for {name}"
        page = pattern.sub(partial(_filled, text), page)
    return page


def write() -> None:
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
