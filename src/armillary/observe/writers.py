"""What writes the residual stream: the embedding, every head, every MLP; and the stream as a sum of what they wrote.

A run of the model is recorded. Then it is replayed with the parts of the stream in place of the sequences of a batch:
a module that writes returns, for each part, what that part's writer wrote; a norm is linear at the scale that it had;
the model's own code does everything in between (adds, multiplies by constants, runs blocks in parallel). So pre-norm,
post-norm, sandwich norms and parallel blocks need no declarations, and whether the parts add up to what was observed is
a test of all of it.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from armillary.anatomy.adapter import Adapter
from armillary.anatomy.description import Anatomy
from armillary.anatomy.layout import find_stack
from armillary.anatomy.registry import adapter_of
from armillary.anatomy.source import blocks_name
from armillary.errors import ArmillaryError
from armillary.observe.frozen import FrozenNorm, frozen_norm, is_norm

Kind = Literal["heads", "mlp", "mixer", "ignored", "norm"]
"""What a module of a block is: attention's output (its heads), an MLP, something else that writes (a state space, a
convolution, cross-attention), something whose result is not needed in a replay, a norm of the stream."""

OnInput = Callable[[int, Float[Tensor, "part token d"]], None]
OnOutput = Callable[[Float[Tensor, "part token d"]], None]

EMBEDDING, BIASES = 0, 1
"""The first two parts: what enters the first block; and the biases of norms and of W_o."""


@dataclass(frozen=True)
class Written:
    """One call of a module that writes: what it returned, in parts; `heads` is the layer of attention, else None."""

    block: int
    kind: Kind
    result: Any
    value: Float[Tensor, "token d"]
    layer: int | None = None
    z: Float[Tensor, "token head ev"] | None = None
    matrices: Float[Tensor, "head ev d"] | None = None
    bias: Float[Tensor, "d"] | None = None
    adds: bool = False
    """Whether the module adds what it computes to the stream, which is another of its arguments (BLOOM)."""

    @property
    def count(self) -> int:
        """How many parts of the stream it writes."""
        return 0 if self.kind == "ignored" else 1 if self.z is None else self.z.shape[1]

    def parts(self, rows: slice) -> Float[Tensor, "part token d"]:
        """What each of its writers wrote at these positions."""
        if self.z is None or self.matrices is None:
            return self.value[rows][None]
        return torch.einsum("thv,hvd->htd", self.z[rows], self.matrices)


@dataclass
class Recording:
    """One sequence through the model: what entered the first block, and every call of a module that writes or norms."""

    length: int
    width: int
    embedding: Float[Tensor, "token d"] | None = None
    calls: dict[int, list[Written | FrozenNorm]] = field(default_factory=dict)
    order: list[Written] = field(default_factory=list)
    blocks: int = 0

    def sources(self) -> list[tuple[Kind | str, int, int]]:
        """(kind, block, head) of every part of the stream, in the order in which they are written."""
        named: list[tuple[Kind | str, int, int]] = [("embedding", 0, 0), ("biases", 0, 0)]
        for call in self.order:
            named += [(call.kind, call.block, head) for head in range(call.count)]
        return named


class Stream:
    """The residual stream of a model as a sum of what its modules write; raises if the family is not known."""

    def __init__(self, model: nn.Module, anatomy: Anatomy) -> None:
        adapter = adapter_of(anatomy)
        if adapter is None or anatomy.missing:
            raise ArmillaryError(anatomy.missing or "what writes this model's residual stream is not known")
        if anatomy.part == "cross":
            raise ArmillaryError("cross-attention reads two streams, which are not split by what wrote them")
        if anatomy.shared_layers:
            raise ArmillaryError(f"the layers of {anatomy.family} models share modules: their stream is not split")
        self.model, self.anatomy, self.adapter = model, anatomy, adapter
        modules: Any = model.get_submodule(blocks_name(model, adapter))
        self.blocks: list[nn.Module] = list(modules)
        attending = find_stack(model, anatomy).blocks
        self.layer_of = {id(block): layer for layer, block in enumerate(attending)}
        if len(self.layer_of) < len(attending):
            raise ArmillaryError(f"the layers of this {anatomy.family} model share modules: their stream is not split")
        self.kinds: dict[int, tuple[str, nn.Module, Kind, int]] = {}
        for number, block in enumerate(self.blocks):
            for name, module, kind in _modules(block, adapter, id(block) in self.layer_of):
                self.kinds[id(module)] = (name, module, kind, number)
        inside = {id(module) for block in self.blocks for module in block.modules()}
        for name, module in model.named_modules():
            if is_norm(module) and id(module) not in inside:
                self.kinds[id(module)] = (name, module, "norm", -1)

    def record(self, run: Callable[[], Any]) -> Recording:
        """Run one sequence, and keep what every module that writes returned."""
        recording, z = Recording(0, self.anatomy.d_model), {}  # type: tuple[Recording, dict[int, Tensor]]
        projections = {
            id(block): block.get_submodule(self.adapter.o.name) for block in self.blocks if id(block) in self.layer_of
        }

        def begins(block: nn.Module, args: Any, kwargs: Any) -> None:
            if recording.embedding is None:
                recording.embedding = _copy(_hidden(args, kwargs)[0])
                recording.length = len(recording.embedding)
            recording.blocks += 1

        with ExitStack() as hooks:
            for block in self.blocks:
                hooks.callback(block.register_forward_pre_hook(begins, with_kwargs=True).remove)
            for number, projection in projections.items():

                def keep(module: nn.Module, args: Any, at: int = number) -> None:
                    z[at] = _copy(args[0])

                hooks.callback(projection.register_forward_pre_hook(keep).remove)
            for name, module, kind, number in self.kinds.values():
                hook = self._recorder(recording, z, name, kind, number)
                hooks.callback(module.register_forward_hook(hook, with_kwargs=True).remove)
            run()
        return recording

    def _recorder(
        self, recording: Recording, z: dict[int, Tensor], name: str, kind: Kind, number: int
    ) -> Callable[[nn.Module, Any, Any, Any], None]:
        def keep(module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
            calls = recording.calls.setdefault(id(module), [])
            if kind == "norm":
                if recording.embedding is not None:
                    shape = (-1, recording.width)
                    if args[0].numel() == recording.length * recording.width:
                        calls.append(frozen_norm(name, module, args[0].reshape(shape), result.reshape(shape)))
                return
            if kind == "ignored":
                calls.append(Written(number, kind, result, torch.zeros(1, 1)))
                return
            value = _copy(_tensor_of(result, recording.length, recording.width, name))
            stream = _second_stream(args, kwargs, recording.length * recording.width)
            if stream is not None:
                value = value - _copy(stream).reshape(value.shape)
            written = Written(number, kind, result, value, adds=stream is not None)
            if kind == "heads":
                written = self._of_heads(written, z, name)
            calls.append(written)
            recording.order.append(written)

        return keep

    def _of_heads(self, written: Written, z: dict[int, Tensor], name: str) -> Written:
        block = self.blocks[written.block]
        layer = self.layer_of[id(block)]
        weights, heads = self.anatomy.weights(layer), self.anatomy.layers[layer].heads
        mixed = z.pop(id(block))[0].unflatten(-1, (heads, -1))
        matrices = torch.stack([matrix.detach().double() for matrix in weights.o])
        bias = None if weights.o_bias is None else weights.o_bias.detach().double()
        whole = torch.einsum("thv,hvd->td", mixed, matrices) + (0.0 if bias is None else bias)
        first = next(item for item in _tensors(written.result))
        error = float((whole - written.value).abs().max() / written.value.abs().max().clamp(min=1e-300))
        if not error <= max(1e-4, 64 * torch.finfo(first.dtype).eps):
            raise ArmillaryError(f"what {name} returns is not the sum of its heads' outputs")
        return replace(written, layer=layer, z=mixed, matrices=matrices, bias=bias)

    @contextmanager
    def replaying(
        self, recording: Recording, rows: slice, on_input: OnInput | None = None, on_output: OnOutput | None = None
    ) -> Iterator[None]:
        """Inside, a run of the model calls on_input with the parts of every attention input x at these positions.

        They are in the order of `recording.sources()`, as many as have been written below that layer. on_output gets
        the parts of what the output embedding reads.
        """
        replay = _Replay(self, recording, rows)
        with ExitStack() as undo:
            if on_output is not None:
                head: Any = self.model
                hook = head.get_output_embeddings().register_forward_pre_hook(lambda _, args: on_output(args[0]))
                undo.callback(hook.remove)
            for block in self.blocks:
                undo.callback(block.register_forward_pre_hook(replay.begins, with_kwargs=True).remove)
                if id(block) in self.layer_of:
                    layer = self.layer_of[id(block)]
                    attention = block.get_submodule(self.adapter.attention)

                    def reads(module: nn.Module, args: Any, kwargs: Any, layer: int = layer) -> None:
                        if on_input is not None:
                            on_input(layer, _hidden(args, kwargs))

                    undo.callback(attention.register_forward_pre_hook(reads, with_kwargs=True).remove)
            for name, module, kind, _ in self.kinds.values():
                own = vars(module).get("forward")
                undo.callback(_restore, module, own)
                module.forward = replay.forward(name, module, kind)
            yield


class _Replay:
    """The state of one replay: how many calls each module has had, and how many parts are in use."""

    def __init__(self, stream: Stream, recording: Recording, rows: slice) -> None:
        self.recording, self.rows = recording, rows
        self._calls: dict[int, int] = {}
        self._begun = 0
        self._counts = [2] * (recording.blocks + 1)
        for number in range(recording.blocks):
            more = sum(call.count for call in recording.order if call.block == number)
            self._counts[number + 1] = self._counts[number] + more
        self._firsts: dict[int, int] = {}
        first = 2
        for call in recording.order:
            self._firsts[id(call)] = first
            first += call.count

    def begins(self, block: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Before a block: room for the parts that it will write."""
        hidden = _hidden(args, kwargs)
        if self._begun == 0:
            assert self.recording.embedding is not None
            entered = self.recording.embedding[self.rows]
            hidden = torch.stack([entered, torch.zeros_like(entered)])
        self._begun += 1
        more = self._counts[self._begun] - len(hidden)
        hidden = torch.cat([hidden, hidden.new_zeros(more, *hidden.shape[1:])])
        if args:
            return (hidden, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": hidden}

    def forward(self, name: str, module: nn.Module, kind: Kind) -> Callable[..., Any]:
        """What the module computes in the replay."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            if self._begun == 0:  # a norm of the embeddings, before the first block
                return type(module).forward(module, *args, **kwargs)
            at = self._calls.get(id(module), 0)
            self._calls[id(module)] = at + 1
            call = self.recording.calls[id(module)][at]
            if isinstance(call, FrozenNorm):
                x = args[0] if args else kwargs["hidden_states"]
                parts = x.reshape(self._counts[self._begun], -1, self.recording.width)
                y = call.linear(parts, self.rows)
                if call.bias is not None:
                    y[BIASES] += call.bias
                return y.reshape(x.shape)
            if call.kind == "ignored":
                return _with_tensor(call.result, None, torch.zeros(1, 1, 1, dtype=torch.float64))
            count = self._counts[self._begun] * len(range(*self.rows.indices(self.recording.length)))
            stream = _second_stream(args, kwargs, count * self.recording.width) if call.adds else None
            return self._written(call, stream)

        return forward

    def _written(self, call: Written, added_to: Tensor | None) -> Any:
        width, count = self.recording.width, self._counts[self._begun]
        parts = call.parts(self.rows)
        stream = parts.new_zeros(count, parts.shape[1], width)
        first = self._firsts[id(call)]
        stream[first : first + call.count] = parts
        if call.bias is not None:
            stream[BIASES] += call.bias
        if added_to is not None:
            stream += added_to
        return _with_tensor(call.result, self.recording.length * width, stream)


def _modules(block: nn.Module, adapter: Adapter, attends: bool) -> list[tuple[str, nn.Module, Kind]]:
    """The modules of a block that are replaced in a replay: those that write, norms, and those without a use there."""
    existing = dict(block.named_modules())
    densely = [dense for dense in adapter.mlp if dense.name in existing]
    downs = {dense.name for dense in densely if dense.label == "down"}
    ups = {dense.name for dense in densely if dense.label != "down"}
    attention, projection = (adapter.attention, adapter.o.name) if attends else ("", "")
    chosen: list[tuple[str, nn.Module, Kind]] = []

    def contains(path: str, names: set[str]) -> bool:
        return any(name == path or name.startswith(path + ".") for name in names)

    def visit(parent: nn.Module, prefix: str) -> None:
        for child_name, child in parent.named_children():
            path = f"{prefix}{child_name}"
            if path == attention:
                inside = contains(path, {projection})
                chosen.append((path, child, "heads" if inside else "ignored"))
            elif path == projection:
                chosen.append((path, child, "heads"))
            elif attends and contains(path, {attention, projection}):
                visit(child, f"{path}.")
            elif is_norm(child):
                chosen.append((path, child, "norm"))
            elif not any(True for _ in child.parameters()) or "scale" in type(child).__name__.lower():
                continue
            elif path not in downs and contains(path, downs) and any(is_norm(part) for part in child.children()):
                visit(child, f"{path}.")
            elif contains(path, downs):
                chosen.append((path, child, "mlp"))
            elif contains(path, ups):
                chosen.append((path, child, "ignored"))
            else:
                chosen.append((path, child, "mlp" if MLP(path) else "mixer"))

    visit(block, "")
    return chosen


def MLP(path: str) -> bool:
    """Whether a module's name is that of an MLP or of a mixture of experts."""
    return any(word in path.lower() for word in ("mlp", "ffn", "feed_forward", "moe", "experts", "fc2"))


def _copy(tensor: Tensor) -> Tensor:
    """A copy in float64: models may write into their own tensors."""
    return tensor.detach().to(torch.float64, copy=True)


def _restore(module: nn.Module, own: Any) -> None:
    del module.forward
    if own is not None:
        module.forward = own


def _hidden(args: Any, kwargs: Any) -> Tensor:
    hidden = args[0] if args else kwargs.get("hidden_states")
    if not isinstance(hidden, Tensor) or hidden.dim() != 3:
        raise ArmillaryError(
            "a block of this model does not read hidden states of three dimensions: they are not split"
        )
    return hidden


def _second_stream(args: Any, kwargs: Any, numbers: int) -> Tensor | None:
    """The argument `residual`, or the second positional one, if it has as many numbers as the stream."""
    second = kwargs.get("residual", args[1] if len(args) > 1 else None)
    return second if isinstance(second, Tensor) and second.numel() == numbers and second.dim() == 3 else None


def _tensors(result: Any) -> Iterator[Tensor]:
    for item in result if isinstance(result, tuple | list) else (result,):
        if isinstance(item, Tensor):
            yield item


def _tensor_of(result: Any, length: int, width: int, name: str) -> Float[Tensor, "token d"]:
    """What a module wrote, of one sequence."""
    for tensor in _tensors(result):
        if tensor.numel() == length * width and tensor.shape[-1] == width:
            return tensor.detach().reshape(length, width)
    raise ArmillaryError(f"what {name} writes into the stream was not found among its results")


def _with_tensor(result: Any, numbers: int | None, stream: Float[Tensor, "part token d"]) -> Any:
    """A module's result with the tensor of this size (or the first) replaced by the parts."""
    if isinstance(result, Tensor):
        return stream.flatten(0, 1) if result.dim() == 2 and numbers is not None else stream
    items = list(result)
    for place, item in enumerate(items):
        if isinstance(item, Tensor) and (numbers is None or item.numel() == numbers):
            items[place] = stream.flatten(0, 1) if item.dim() == 2 and numbers is not None else stream
            break
    return type(result)(items) if type(result) in (tuple, list) else type(result)(*items)
