"""Loading models safely: safetensors or weights_only pickles, no code from checkpoints unless asked."""

from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from armillary.anatomy.adapter import adapter_for
from armillary.anatomy.checkpoint import Checkpoint, expanded, load_config
from armillary.anatomy.gguf import gguf_file
from armillary.anatomy.source import describe
from armillary.anatomy.weights import bad
from armillary.errors import ArmillaryError
from armillary.identity import config_hash, fingerprint
from armillary.temporary import temporary_folder

WhenNotFinite = Literal["refuse", "allow"]
OF_THE_CONFIG = ("revision", "subfolder", "gguf_file", "token", "cache_dir", "local_files_only")


def load(
    source: str | Path,
    *,
    trust_remote_code: bool = False,
    not_finite: WhenNotFinite = "refuse",
    dtype: torch.dtype | str = "auto",
    **options: Any,
) -> Any:
    """The model of a folder or hub id, in evaluation mode; `options` go to from_pretrained (device_map, ...).

    Its class is the one that its configuration names, else what AutoModelForCausalLM or AutoModel make of it. Weights
    that the checkpoint lacks are an error: nothing is filled up with random numbers.
    """
    if not_finite not in ("refuse", "allow"):
        raise ArmillaryError(f"not_finite={not_finite!r} is not known: it can be 'refuse' or 'allow'")
    source = expanded(source)
    packed = None if "gguf_file" in options else gguf_file(source)
    if packed is not None:
        source, options = packed.parent, {**options, "gguf_file": packed.name}
    chosen = {name: options[name] for name in OF_THE_CONFIG if name in options}
    config = load_config(source, trust_remote_code=trust_remote_code, **chosen)
    if Path(source).is_dir() and list(Path(source).glob("*.safetensors")) and not chosen:
        describe(source, trust_remote_code=trust_remote_code)  # headers tell a damaged or foreign file apart
    if "gguf_file" not in options:
        options = {"config": config, **options}
    try:
        model, info = _loader(config).from_pretrained(
            str(source),
            trust_remote_code=trust_remote_code,
            weights_only=True,
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, by name: transformers only points to a table on the terminal
            **options,
        )
    except Exception as error:
        raise ArmillaryError(f"{source} cannot be loaded: {' '.join(str(error).split())[:300]}") from error
    lacking = sorted(key for key in info["missing_keys"] if "pooler" not in str(key))
    _refuse_other_shapes(source, info.get("mismatched_keys", ()))
    if lacking:
        more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        raise ArmillaryError(
            f"{source} lacks weights that the model needs ({', '.join(map(str, lacking[:3]))}{more}): "
            "weights and config.json do not belong together"
        )
    model.eval()
    if getattr(config, "armillary_rotary", None):
        from armillary.interventions.frequencies import apply

        apply(model, config.armillary_rotary)
    if not_finite == "refuse":
        refuse_not_finite(model)
    return model


def _refuse_other_shapes(source: str | Path, unlike: Iterable[tuple[str, Sequence[int], Sequence[int]]]) -> None:
    """Raise where tensors have other shapes than the configuration gives them; `unlike` are (name, stored, given)."""
    told = [f"{name} is {tuple(stored)}, not {tuple(given)}" for name, stored, given in sorted(unlike)]
    if told:
        more = f", and {len(told) - 3} more" if len(told) > 3 else ""
        raise ArmillaryError(
            f"{source} holds weights of other shapes than its configuration describes ({'; '.join(told[:3])}{more}): "
            "weights and config.json do not belong together"
        )


def load_on(
    source: str | Path,
    *,
    device: str = "auto",
    dtype: str = "auto",
    trust_remote_code: bool = False,
    device_map: Any = None,
    gpus: range | None = None,
) -> Any:
    """The model on a device, or spread over several as `device_map` says; with "auto" over these `gpus`."""
    if device_map is None:
        place = pick_device(device)
        return load(source, trust_remote_code=trust_remote_code, dtype=pick_dtype(dtype, place)).to(place)
    if find_spec("accelerate") is None:
        raise ArmillaryError("a device map needs the package accelerate: pip install 'armillary[big]'")
    if device not in ("auto", "cuda"):
        raise ArmillaryError(f"--device {device} and a device map contradict each other: give one of them")
    chosen = pick_dtype(dtype, pick_device("auto"))
    spill = temporary_folder()  # for what fits on no device, and is not read from the checkpoint itself
    options = {"device_map": device_map, "offload_folder": str(spill)}
    if isinstance(device_map, str) and gpus is not None:
        from accelerate.utils import get_max_memory

        room = get_max_memory()
        kept = [place for place in room if not isinstance(place, int) or place in gpus]
        options["max_memory"] = {place: room[place] for place in kept}
    return load(source, trust_remote_code=trust_remote_code, dtype=chosen, **options)


def pick_device(device: str) -> str:
    """The device that 'auto' means here, or the one that was asked for, if it is there."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ArmillaryError(f"there is no device {device!r} here: {str(error).splitlines()[0]}") from error
    return device


def pick_dtype(dtype: str, device: str) -> torch.dtype | str:
    """'auto' is float32 on a CPU and as stored elsewhere."""
    if dtype == "auto":
        return torch.float32 if device == "cpu" else "auto"
    named = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}
    if dtype not in named:
        raise ArmillaryError(f"there is no dtype {dtype!r}: there are auto, {', '.join(named)}")
    return named[dtype]


def load_tokenizer(source: str | Path, *, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a folder or hub id."""
    from transformers import AutoTokenizer

    packed = gguf_file(expanded(source))
    options = {} if packed is None else {"gguf_file": packed.name}
    place = expanded(source) if packed is None else packed.parent
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(place), trust_remote_code=trust_remote_code, **options)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ArmillaryError(f"{source} has no tokenizer that can be loaded ({reason}): text needs one") from error
    if not tokenizer("a b", add_special_tokens=False)["input_ids"]:  # transformers makes an empty one out of nothing
        raise ArmillaryError(f"{source} has no tokenizer: text needs one; tokens or builtin:random do not")
    return tokenizer


def load_for(recorded: dict[str, Any], source: str, *, trust_remote_code: bool = False) -> Any:
    """The model that an atlas was made with, from where it was or from another place; refused if it is another."""
    if "dtype" not in recorded:
        raise ArmillaryError("this atlas was made from weights alone: scan the model to look at a text with it")
    try:
        dtype = getattr(torch, recorded["dtype"])
        model = load(source, trust_remote_code=trust_remote_code, dtype=dtype, not_finite="allow")
    except ArmillaryError as error:
        raise ArmillaryError(f"the atlas's model is needed for this, but {error}; name it with --model") from error
    refuse_other(model, recorded, source)
    return model


def refuse_other(model: nn.Module, recorded: dict[str, Any], source: str) -> None:
    """Raise if this is not the model that an atlas was made with, to the last byte of its weights."""
    if "config" not in recorded:
        raise ArmillaryError(
            "this atlas was made by an earlier Armillary, whose hash of the model did not cover all of its weights, so "
            "that another model could be taken for it: scan the model again"
        )
    if fingerprint(model) != recorded["weights"]:
        raise ArmillaryError(f"{source} has other weights than the model that the atlas was made with")
    if config_hash(model) != recorded["config"]:
        raise ArmillaryError(f"{source} has another config.json than the model that the atlas was made with")


def refuse_not_finite(source: nn.Module | str | Path) -> None:
    """Raise if weights hold a NaN or an infinity, named by layer and head; a folder is read a layer at a time."""
    found = not_finite_weights(source)
    if found:
        shown = "; ".join(found[:5]) + (f"; and {len(found) - 5} more" if len(found) > 5 else "")
        raise ArmillaryError(
            f"the weights hold NaN or infinite numbers in {shown}: repair the checkpoint, or go on all the same with "
            "--allow-not-finite (not_finite='allow')"
        )


def not_finite_weights(source: nn.Module | str | Path) -> list[str]:
    """Whatever holds a NaN or an infinity: attention as 'layer 2: W_q of head 3', the rest by its tensor's name."""
    anatomy = describe(source)
    adapter = adapter_for(anatomy.family)
    found: list[str] = []
    if adapter is not None:
        for layer in anatomy.layers:
            found += [f"layer {layer.index}: {what}" for what in anatomy.weights(layer.index).not_finite()]
    told = () if adapter is None else (adapter.q.name, adapter.k.name, adapter.v.name, adapter.o.name)
    return found + [name for name, tensor in _tensors(source) if not any(t in name for t in told) and bad(tensor)]


def _tensors(source: nn.Module | str | Path) -> Iterator[tuple[str, Tensor]]:
    """The floating-point tensors of a model or a folder, one at a time."""
    if isinstance(source, nn.Module):
        yield from ((name, p.detach()) for name, p in source.named_parameters() if p.is_floating_point())
        return
    checkpoint = Checkpoint(source)
    for name in checkpoint.names():
        tensor = checkpoint.read(name)
        if tensor is not None and tensor.is_floating_point() and tensor.dtype.itemsize > 1:
            yield name, tensor


def _loader(config: Any) -> Any:
    """The class that the configuration names, if transformers has it, else an Auto class."""
    import transformers

    for name in getattr(config, "architectures", None) or ():
        named = getattr(transformers, name, None)
        if isinstance(named, type) and issubclass(named, transformers.PreTrainedModel):
            return named
    if type(config) in transformers.AutoModelForCausalLM._model_mapping and not config.is_encoder_decoder:
        return transformers.AutoModelForCausalLM
    return transformers.AutoModel
