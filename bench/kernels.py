"""Which compiler for the loop over a row of logits: numba, torch.compile or a C++ extension. Writes bench/kernels.json.

The same sums of a tile of logits by each: entropy, mean distance, four moments of the logits, sums by lag. Times are
medians on one thread, in nanoseconds a logit; also the seconds before the first result, in an empty cache, and what is
needed on the user's machine. `python bench/kernels.py`; it needs gcc and ninja for two of the three.
"""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import apart

RESULTS = Path(__file__).with_name("kernels.json")
HEADS, ROWS, KEYS = 8, 128, 4096
NEEDS = {"numba": "nothing", "torch.compile": "a C++ compiler", "C++ extension": "a C++ compiler and Python's headers"}

SOURCE = r"""
#include <torch/extension.h>
#include <cmath>
static inline float exp_of(float x) {
  // 2^t by a polynomial on [-1/2, 1/2] and the exponent set by bits
  float t = std::max(x * 1.44269504f, -126.0f), n = std::nearbyint(t), f = t - n;
  float p = 1.5353362e-4f; p = p * f + 1.3398874e-3f; p = p * f + 9.6184370e-3f; p = p * f + 5.5503324e-2f;
  p = p * f + 2.4022648e-1f; p = p * f + 6.9314720e-1f; p = p * f + 1.0f;
  union { int i; float f; } u; u.i = (int(n) + 127) << 23; return p * u.f;
}
void add(torch::Tensor logits, torch::Tensor sums, torch::Tensor lags) {
  int64_t heads = logits.size(0), rows = logits.size(1), keys = logits.size(2), wide = lags.size(1);
  for (int64_t h = 0; h < heads; h++) {
    double* s = sums.data_ptr<double>() + 6 * h;
    for (int64_t i = 0; i < rows; i++) {
      const float* b = logits.data_ptr<float>() + (h * rows + i) * keys;
      float* lag = lags.data_ptr<float>() + h * wide + rows - 1 - i;
      float top = b[0], mean = 0;
      for (int64_t j = 0; j < keys; j++) { top = std::max(top, b[j]); mean += b[j]; lag[j] += b[j]; }
      mean /= keys;
      float z = 0, zb = 0, zj = 0, m2 = 0, m3 = 0, m4 = 0;
      for (int64_t j = 0; j < keys; j++) {
        float d = b[j] - mean, d2 = d * d, w = exp_of(b[j] - top);
        z += w; zb += w * (b[j] - top); zj += w * float(j); m2 += d2; m3 += d2 * d; m4 += d2 * d2;
      }
      s[0] += std::log(z) - zb / z; s[1] += (keys - 1) - zj / z; s[2] += mean; s[3] += m2; s[4] += m3; s[5] += m4;
    }
  }
}
"""


def tile() -> torch.Tensor:
    return torch.randn(HEADS, ROWS, KEYS, generator=torch.Generator().manual_seed(0)) * 2


def by_torch(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sums (head, 6) and, by lag, (head, lag)."""
    heads, rows, keys = logits.shape
    a = logits.softmax(-1)
    entropy = logits.logsumexp(-1) - (a * logits).sum(-1)
    distance = keys - 1 - (a * torch.arange(keys)).sum(-1)
    mean = logits.mean(-1)
    off = logits - mean[..., None]
    moments = [off.square().sum(-1), (off * off.square()).sum(-1), off.square().square().sum(-1)]
    sums = torch.stack([part.double().sum(-1) for part in (entropy, distance, mean, *moments)], -1)
    skewed = torch.nn.functional.pad(logits.flip(1), (0, rows)).flatten(1)[:, : rows * (rows + keys - 1)]
    return sums, skewed.view(heads, rows, rows + keys - 1).sum(1)


def with_numba() -> Callable[[torch.Tensor], Any]:
    """The parts of the loop that a scan runs (streams/compiled_rows.py)."""
    from numba import njit

    from armillary.streams.compiled_rows import add_places, largest, mean_near, powers_about, soft_sums, u8

    nothing = np.zeros(0, np.float32)

    @njit(nogil=True, fastmath=True, error_model="numpy")  # type: ignore[untyped-decorator]
    def add(flat: Any, heads: Any, rows: Any, keys: Any, sums: Any, lags: Any, columns: Any, weights: Any) -> None:
        wide = rows + keys - u8(1)
        for h in range(heads):
            for i in range(rows):
                at, to = (h * rows + i) * keys, u8(2) * h * wide + rows - u8(1) - i
                add_places(flat, at, keys, np.float32(0), nothing, lags, to, to + wide, columns, u8(0))
                mean = mean_near(flat, at, keys)
                _, m2, m3, m4 = powers_about(flat, at, keys, mean)
                total, gap, distance = soft_sums(
                    flat, at, keys, largest(flat, at, keys), np.float32(keys - u8(1)), weights
                )
                s = h * u8(6)
                sums[s] += np.log(total) - gap / total
                sums[s + u8(1)] += distance / total
                sums[s + u8(2)] += mean
                sums[s + u8(3)] += m2
                sums[s + u8(4)] += m3
                sums[s + u8(5)] += m4

    def work(logits: torch.Tensor) -> Any:
        heads, rows, keys = logits.shape
        sums, lags = np.zeros(heads * 6), np.zeros(heads * 2 * (rows + keys - 1), np.float32)
        buffers = np.zeros(keys, np.float32), np.zeros(keys, np.float32)
        add(logits.numpy().ravel(), *(np.uint64(n) for n in logits.shape), sums, lags, *buffers)
        return torch.from_numpy(sums).view(heads, 6), torch.from_numpy(lags).view(heads, 2, -1)[:, 0]

    return work


def with_cpp() -> Callable[[torch.Tensor], Any]:
    from torch.utils.cpp_extension import load_inline

    flags = ["-O3", "-march=native", "-ffast-math"]
    with tempfile.TemporaryDirectory() as folder:
        module = load_inline("rows", [SOURCE], functions=["add"], extra_cflags=flags, build_directory=folder)

    def work(logits: torch.Tensor) -> Any:
        heads, rows, keys = logits.shape
        sums, lags = torch.zeros(heads, 6, dtype=torch.float64), torch.zeros(heads, rows + keys - 1)
        module.add(logits, sums, lags)
        return sums, lags

    return work


def with_compile() -> Callable[[torch.Tensor], Any]:
    compiled: Callable[[torch.Tensor], Any] = torch.compile(by_torch, dynamic=False)
    return compiled


WAYS: dict[str, Callable[[], Callable[[torch.Tensor], Any]]] = {
    "torch, not compiled": lambda: by_torch,
    "numba": with_numba,
    "torch.compile": with_compile,
    "C++ extension": with_cpp,
}


def measured(name: str) -> dict[str, Any]:
    """Of one way, in a process of its own: seconds before the first result, nanoseconds a logit, and the error."""
    torch.set_num_threads(1)
    logits = tile()
    expected = by_torch(logits.double())
    start = time.perf_counter()
    try:
        work = WAYS[name]()
        result = work(logits)
    except Exception as error:  # no compiler, no headers
        return {"said": f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"}
    first = time.perf_counter() - start
    times = []
    for _ in range(15):
        start = time.perf_counter()
        work(logits)
        times.append(time.perf_counter() - start)
    errors = [float(((a.double() - b).abs() / b.abs().max()).max()) for a, b in zip(result, expected, strict=True)]
    return {"first": first, "nanoseconds": statistics.median(times) * 1e9 / logits.numel(), "error": max(errors)}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"TORCHINDUCTOR_CACHE_DIR": folder, "NUMBA_CACHE_DIR": folder, "OMP_NUM_THREADS": "1"}
        results = {name: {"needs": NEEDS.get(name, "nothing"), **apart(measured, name)} for name in WAYS}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(RESULTS.read_text())


if __name__ == "__main__":
    import kernels

    kernels.main()
