"""Three float32 operations that numba has no name for, as single instructions: loops with them use vector units.

Imported only where numba is.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

FLOAT, INTEGER = ir.FloatType(), ir.IntType(32)


@intrinsic  # type: ignore[untyped-decorator]
def larger(context: Any, a: Any, b: Any) -> Any:
    """The larger of two numbers, neither of which is NaN."""

    def generate(_: Any, builder: Any, signature: Any, values: Any) -> Any:
        function = builder.module.declare_intrinsic("llvm.maxnum", [FLOAT], ir.FunctionType(FLOAT, [FLOAT, FLOAT]))
        return builder.call(function, values, fastmath=("fast",))

    return types.float32(types.float32, types.float32), generate


@intrinsic  # type: ignore[untyped-decorator]
def rounded(context: Any, x: Any) -> Any:
    """A number that is not positive, rounded to the nearest integer, as a 32-bit integer."""

    def generate(_: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.fptosi(builder.fsub(values[0], ir.Constant(FLOAT, 0.5)), INTEGER)

    return types.int32(types.float32), generate


@intrinsic  # type: ignore[untyped-decorator]
def doubled(context: Any, x: Any, times: Any) -> Any:
    """x * 2^times, by adding to the exponent's bits; the result must not leave the range of float32."""

    def generate(_: Any, builder: Any, signature: Any, values: Any) -> Any:
        bits = builder.bitcast(values[0], INTEGER)
        moved = builder.add(bits, builder.shl(values[1], ir.Constant(INTEGER, 23)))
        return builder.bitcast(moved, FLOAT)

    return types.float32(types.float32, types.int32), generate
