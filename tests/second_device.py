"""A second device for tests without a GPU: it computes on the CPU, but its tensors refuse to meet the CPU's.

torch lets a backend be written in Python (PrivateUse1). A tensor of the device `second` wraps one of the CPU. Every
operation that torch dispatches is checked first, by CUDA's rules: all tensors must be on one device; a CPU tensor of no
dimensions may take part, CPU indices may index, and copies go anywhere. `.numpy()` raises as it does for any device but
the CPU. With `without_float64` the device also has no float64, as Apple's mps has none.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "second"
_aten = torch.ops.aten
COPIES = {_aten.copy_.default, _aten._to_copy.default, _aten._copy_from.default, _aten._copy_from_and_resize.default}
INDEXED = {_aten.index.Tensor, _aten.index_put_.default, _aten.index_put.default, _aten._index_put_impl_.default}
_state = {"float64": True, "operations": 0}


class OnSecond(Tensor):
    """A tensor of the second device; `inner` holds its numbers."""

    inner: Tensor  # type: ignore[assignment]
    _is_param: bool

    @staticmethod
    def __new__(cls, inner: Tensor) -> "OnSecond":
        if inner.dtype in (torch.float64, torch.complex128) and not _state["float64"]:
            raise TypeError(f"the device {NAME!r} has no {inner.dtype}")
        made: OnSecond = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
            dispatch_sizes_strides_policy="sizes",  # asked for each time: squeeze_() changes the inner tensor's
        )
        made.inner = inner
        return made

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def tolist(self) -> Any:
        return self.inner.detach().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError(f"can't convert {NAME} device type tensor to numpy: use Tensor.cpu() first")

    def untyped_storage(self) -> Any:
        return self.inner.untyped_storage()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = OnSecond(self.inner.detach().clone()).requires_grad_(self.requires_grad)
        copied._is_param = getattr(self, "_is_param", False)
        return memo.setdefault(id(self), copied)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.inner.detach().__reduce_ex__(protocol)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OnSecond({self.inner!r})"

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _computed(operation, args, kwargs or {})


def _computed(operation: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the inner tensors, after checking that all of its tensors are on one device."""
    _state["operations"] += 1
    tensors = [item for item in tree_flatten((args, kwargs))[0] if isinstance(item, Tensor)]
    ours = [tensor for tensor in tensors if isinstance(tensor, OnSecond)]
    if ours and operation not in COPIES:
        _refuse_mixing(operation, args, tensors)
    generator = kwargs.get("generator")
    if ours and generator is not None and generator.device.type != NAME:
        raise RuntimeError(f"{operation} on {NAME} was given a generator of the device {generator.device.type}")
    asked = kwargs.get("device")
    here = bool(ours) if asked is None else torch.device(asked).type == NAME
    if operation in (_aten.copy_.default,):
        here = isinstance(args[0], OnSecond)
    inside = tree_map(lambda item: item.inner if isinstance(item, OnSecond) else item, (args, kwargs))
    plain = {
        **inside[1],
        **({"device": "cpu"} if asked is not None else {}),
        **({"pin_memory": False} if kwargs.get("pin_memory") else {}),
    }
    result = WHAT_A_CPU_LACKS.get(operation, operation)(*inside[0], **plain)
    return _as_written(
        operation, args, kwargs, tree_map(lambda r: OnSecond(r) if here and type(r) is Tensor else r, result)
    )


def _counted(numbers: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """torch.histc, also of whole numbers, which GPUs have and the CPU does not."""
    counts: Tensor = _aten.histc.default(numbers.double(), *args, **kwargs)
    return counts.to(numbers.dtype)


WHAT_A_CPU_LACKS: dict[Any, Callable[..., Any]] = {_aten.histc.default: _counted}
"""Operations of GPUs that the CPU behind this device has only in part."""


def _refuse_mixing(operation: Any, args: Any, tensors: list[Tensor]) -> None:
    allowed: list[Tensor] = []
    if operation in INDEXED and isinstance(args[0], OnSecond):
        allowed = [index for index in args[1] if isinstance(index, Tensor)]
    for tensor in tensors:
        if not isinstance(tensor, OnSecond) and tensor.dim() > 0 and not any(tensor is index for index in allowed):
            shapes = [(tuple(t.shape), t.device.type) for t in tensors]
            raise RuntimeError(f"{operation} met tensors of two devices: {shapes}")


def _as_written(operation: Any, args: Any, kwargs: dict[str, Any], result: Any) -> Any:
    """The result; where the operation wrote into an argument, that argument."""
    given = {
        a.name: args[i] if i < len(args) else kwargs.get(a.name) for i, a in enumerate(operation._schema.arguments)
    }
    written: dict[frozenset[str], Any] = {
        frozenset(a.alias_info.before_set): given[a.name]
        for a in operation._schema.arguments
        if a.alias_info is not None and a.alias_info.is_write
    }
    returns = operation._schema.returns
    if not written or not returns:
        return result
    one = len(returns) == 1
    results = [result] if one else list(result)
    for at, about in enumerate(returns):
        if about.alias_info is not None and about.alias_info.is_write:
            results[at] = written[frozenset(about.alias_info.before_set)]
    return results[0] if one else tuple(results)


def _factory(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """Operations that make a tensor of the second device from no tensor."""
    return _computed(operation, args, kwargs)


class _Module(_DummyBackendModule):
    """torch.second: what torch asks a backend for."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


DIRECT = (
    *("empty.memory_format", "empty_strided", "copy_", "_copy_from", "_to_copy", "_local_scalar_dense"),
    *("arange", "arange.start", "arange.start_step", "eye", "eye.m", "linspace", "randperm", "randperm.generator"),
)
"""Operations that a fallback does not reach: torch calls the first ones with dispatch to Python off (torch.tensor,
lists as indices), and resizes an empty tensor in the others."""


_libraries: list[Any] = []


def second_device() -> str:
    """The device's name for `.to()`; made when first asked for."""
    if not _libraries:
        _setup_privateuseone_for_python_backend(NAME, _Module())
        library = torch.library.Library("_", "IMPL")
        library.fallback(_factory, "PrivateUse1")
        own = torch.library.Library("aten", "IMPL")
        for name in DIRECT:
            packet, _, overload = name.partition(".")
            own.impl(name, partial(_factory, getattr(getattr(_aten, packet), overload or "default")), "PrivateUse1")
        _libraries.extend([library, own])
    return NAME


@contextmanager
def without_float64() -> Iterator[None]:
    """The second device as one that has no float64."""
    from armillary.machine.float64 import WITHOUT

    _state["float64"] = False
    WITHOUT.add(NAME)
    try:
        yield
    finally:
        _state["float64"] = True
        WITHOUT.discard(NAME)


def operations(run: Callable[[], Any]) -> int:
    """How many operations ran on the second device."""
    before = int(_state["operations"])
    run()
    return int(_state["operations"]) - before
