"""Loads models and tokenizers from safetensors or GGUF: no pickles, no code from checkpoints by default."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from armillary.anatomy.checkpoint import INDEX, expanded, hub_reachable, load_config
from armillary.anatomy.description import Anatomy
from armillary.anatomy.devices import input_device, moved, pick_device, pick_dtype
from armillary.anatomy.folder import index_names, refuse_outside, refuse_special_files
from armillary.anatomy.gguf import gguf_file
from armillary.anatomy.gguf_header import check_gguf
from armillary.anatomy.identity import config_hash, fingerprint
from armillary.anatomy.lora import merge_adapter
from armillary.anatomy.opening import open_tensors
from armillary.anatomy.options import ModelOptions, complete, keywords, of, parameters
from armillary.anatomy.registry import adapter_for
from armillary.anatomy.restoring import restore_schemes
from armillary.anatomy.source import describe, load_config_of, of_files
from armillary.anatomy.tokenizer_flags import honor_config, honor_gguf
from armillary.anatomy.versions import attention_options
from armillary.anatomy.weights import bad
from armillary.anatomy.whole import in_one_line, loader_of, refuse_incomplete
from armillary.errors import ArmillaryError
from armillary.machine.quiet import quiet
from armillary.machine.temporary import temporary_folder

# Imports inside functions: transformers takes seconds to import.

WhenNotFinite = Literal["refuse", "allow"]
CONFIG_OPTIONS = ("revision", "subfolder", "gguf_file", "token", "cache_dir", "local_files_only")

ARGUMENTS = ("dtype", "quantization_config", "attn_implementation")
"""Arguments of from_pretrained that are also names in a configuration."""


@keywords(ModelOptions)
def load(source: str | Path, *, not_finite: WhenNotFinite = "refuse", gpus: range | None = None, **options: Any) -> Any:
    """The model of a folder, a GGUF file or a hub id, in evaluation mode, on its device.

    anatomy/options.py describes the options; others go to from_pretrained, as `model_args` do. A `device_map` spreads
    the model over several devices, "auto" over these `gpus`. The class is the one that the configuration names, else
    that of AutoModelForCausalLM or AutoModel. Missing weights raise an error; they are never initialized at random.
    """
    if not_finite not in ("refuse", "allow"):
        raise ArmillaryError(f"not_finite={not_finite!r} is unknown", advice="it can be 'refuse' or 'allow'")
    chosen: ModelOptions = complete(of(ModelOptions, options), ModelOptions, "load")
    given = {name: value for name, value in options.items() if name not in chosen}
    device = pick_device(chosen["device"])
    model = _in_place(source, chosen, _arguments(chosen, given, device, gpus))
    if chosen["device_map"] is None:
        model = moved(model, device)
    if chosen["adapter"] is not None:
        merge_adapter(model, chosen["adapter"])
    if not_finite == "refuse":
        refuse_not_finite(model)
    return model


def _arguments(chosen: ModelOptions, given: dict[str, Any], device: str, gpus: range | None) -> dict[str, Any]:
    """The arguments of from_pretrained."""
    arguments = {**given, **_model_args(chosen["model_args"])}
    for name in ("revision", "attn_implementation", "device_map"):
        if chosen[name] is not None:
            arguments[name] = chosen[name]
    device_map = chosen["device_map"]
    if device_map is None:
        return {**arguments, "dtype": pick_dtype(chosen["dtype"], device)}
    if chosen["device"] not in ("auto", "cuda"):
        raise ArmillaryError(
            f"`device={chosen['device']}` and a device map contradict each other", advice="give one of them"
        )
    arguments.setdefault("offload_folder", str(temporary_folder()))  # for weights that fit on no device
    if isinstance(device_map, str) and gpus is not None:
        from accelerate.utils import get_max_memory

        room = get_max_memory()
        allowed = [where for where in room if not isinstance(where, int) or where in gpus]
        arguments["max_memory"] = {where: room[where] for where in allowed}
    return {**arguments, "dtype": pick_dtype(chosen["dtype"], device)}


def _model_args(given: dict[str, Any] | None) -> dict[str, Any]:
    """`model_args`, without names that are options of their own."""
    for name in given or {}:
        if name in parameters(ModelOptions):
            raise ArmillaryError(f"{name} is an option of its own", advice=f"give `{name}={given[name]}`")  # type: ignore[index]
        if name in ("config", "state_dict", "weights_only", "use_safetensors", "output_loading_info"):
            raise ArmillaryError(f"the argument {name} of from_pretrained is Armillary's own", advice="leave it out")
    return dict(given or {})


def _in_place(source: str | Path, chosen: ModelOptions, options: dict[str, Any]) -> Any:
    """The model as from_pretrained places it, checked: complete, in evaluation mode, with its rotary frequencies."""
    trusted = chosen["trust_remote_code"]
    source = expanded(source)
    if "gguf_file" in options and Path(source).is_dir():
        source = Path(source) / str(options.pop("gguf_file"))
        if not source.is_file():
            raise ArmillaryError(f"there is no file {source}", advice="give a GGUF file that exists")
    of_config = {name: options[name] for name in CONFIG_OPTIONS if name in options}
    packed = gguf_file(source)
    if packed is not None:
        config = load_config_of(source, trust_remote_code=trusted)
    else:
        config = load_config(source, trust_remote_code=trusted, **of_config)
    for name in [name for name in options if name in config.to_dict() and name not in ARGUMENTS]:
        setattr(config, name, options.pop(name))  # as from_pretrained does without a configuration
    place = Path(source) / str(options.get("subfolder") or "")
    if packed is not None or place.is_dir():
        of_files(config, packed or place)  # checks the headers before the weights are loaded
    if packed is not None:
        source, options = packed.parent, {**options, "gguf_file": packed.name}
    elif "gguf_file" not in options:
        options = {"config": config, **options}
    if getattr(config, "quantization_config", None) and packed is None and chosen["device_map"] is None:
        options = {**options, "device_map": {"": pick_device(chosen["device"])}}  # it cannot be moved later
    model, info = _loaded(source, config, {"trust_remote_code": trusted, **attention_options(config), **options})
    refuse_incomplete(source, model, info)
    model.eval()
    restore_schemes(model, source)
    return model


def _loaded(source: str | Path, config: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The model as transformers loads it, from safetensors only, and its loading info."""
    if not Path(source).is_dir():
        _check_index_on_hub(source, options)
    try:
        with quiet():
            loaded: tuple[Any, dict[str, Any]] = loader_of(config).from_pretrained(
                str(source),
                weights_only=True,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused afterward, with names
                **options,
            )
    except Exception as error:
        if not Path(source).is_dir() and isinstance(error, OSError):
            raise ArmillaryError(
                f"{source} cannot be loaded from the hub ({in_one_line(error, 150)}): if it has no "
                "safetensors but pytorch_model.bin, download it into a folder and run  armillary convert FOLDER"
            ) from error
        raise ArmillaryError(f"{source} cannot be loaded: {in_one_line(error)}") from error
    return loaded


def _check_index_on_hub(source: str | Path, options: dict[str, Any]) -> None:
    """Raise if an index on the hub names files outside its repository."""
    from transformers.utils import cached_file

    chosen = {name: options[name] for name in CONFIG_OPTIONS if name in options and name != "gguf_file"}
    if not hub_reachable():
        chosen["local_files_only"] = True
    index = cached_file(str(source), INDEX, _raise_exceptions_for_missing_entries=False, **chosen)
    if index is not None:
        for name in index_names(Path(index)):
            refuse_outside(Path(index), name)


def load_tokenizer(source: str | Path, *, trust_remote_code: bool = False, revision: str | None = None) -> Any:
    """The tokenizer of a folder or hub id."""
    from transformers import AutoTokenizer

    packed = gguf_file(expanded(source))
    options: dict[str, Any] = {} if packed is None else {"gguf_file": packed.name}
    options |= {} if revision is None else {"revision": revision}
    place = expanded(source) if packed is None else packed.parent
    if Path(place).is_dir():
        refuse_special_files(Path(place))
    if packed is not None:
        check_gguf(packed)
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(str(place), trust_remote_code=trust_remote_code, **options)
        is_empty = not tokenizer("a b", add_special_tokens=False)["input_ids"]  # transformers may create an empty one
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # the Rust code panics on some files, which is not an Exception
        reason = in_one_line(error, 200)
        raise ArmillaryError(f"{source} has no tokenizer that can be loaded ({reason}): text needs one") from error
    if is_empty:
        raise ArmillaryError(f"{source} has no tokenizer: text needs one; tokens or builtin:random do not")
    if packed is None:
        honor_config(tokenizer, str(place))
    else:
        honor_gguf(tokenizer, packed)
    return tokenizer


def load_with_tokenizer(source: str | Path, **options: Any) -> tuple[Any, Any]:
    """The model with these options (those of `load`), and its tokenizer."""
    return load(source, **options), tokenizer_of(source, options)


def tokenizer_of(source: str | Path, options: Any) -> Any:
    """The tokenizer of a model that is loaded with these options."""
    named = {name: options[name] for name in ("trust_remote_code", "revision") if name in options}
    return load_tokenizer(source, **named)


@keywords(ModelOptions)
def load_for(recorded: dict[str, Any], source: str, **options: Any) -> Any:
    """The model of an atlas, loaded from `source`; raises if it is a different model.

    It is compared in the atlas's precision, and converted afterward if `dtype` is another one.
    """
    if "dtype" not in recorded:
        raise ArmillaryError("this atlas was made from weights alone", advice="scan the model to use it on a text")
    chosen = as_recorded(recorded, options)
    try:
        dtype = pick_dtype(recorded["dtype"], "cpu")
        model = load(source, **{**chosen, "dtype": dtype}, not_finite="allow")
    except ArmillaryError as error:
        raise ArmillaryError(f"this needs the atlas's model, but {error}; name it with `model`") from error
    refuse_other(model, recorded, source)
    wanted = chosen.get("dtype", "auto")
    return model if wanted == "auto" else model.to(pick_dtype(wanted, str(input_device(model))))


def as_recorded(recorded: dict[str, Any], options: Any) -> dict[str, Any]:
    """The options with the revision and the adapter of the atlas, where they do not name others."""
    ours = {name: recorded[name] for name in ("revision", "adapter") if recorded.get(name)}
    return {**ours, **{name: value for name, value in options.items() if value is not None or name not in ours}}


def refuse_other(model: nn.Module, recorded: dict[str, Any], source: str) -> None:
    """Raise if this is not the model of the atlas, to the last byte of its weights."""
    if "config" not in recorded:
        raise ArmillaryError(
            "this atlas was made by an earlier Armillary, whose hash of the model did not cover all of its "
            "weights, so the model cannot be verified",
            advice="scan the model again",
        )
    if fingerprint(model) != recorded["weights"]:
        raise ArmillaryError(f"{source} has other weights than the model that the atlas was made with")
    if config_hash(model) != recorded["config"]:
        raise ArmillaryError(f"{source} has another config.json than the model that the atlas was made with")


def refuse_not_finite(source: nn.Module | str | Path) -> None:
    """Raise if weights contain NaN or infinity, named by layer and head; a folder is read a layer at a time."""
    names = not_finite_weights(source)
    if names:
        shown = "; ".join(names[:5]) + (f"; and {len(names) - 5} more" if len(names) > 5 else "")
        raise ArmillaryError(
            f"the weights contain NaN or infinite numbers in {shown}",
            advice="repair the checkpoint, or continue anyway with `not_finite=allow`",
        )


def not_finite_weights(source: nn.Module | str | Path) -> list[str]:
    """Weights with NaN or infinity: attention as 'layer 2: W_q of head 3', others by tensor name."""
    anatomy = describe(source)
    adapter = adapter_for(anatomy.family)
    names: list[str] = []
    if adapter is not None and _has_numbers(source, anatomy):
        for layer in anatomy.layers:
            names += [f"layer {layer.index}: {what}" for what in anatomy.weights(layer.index).not_finite()]
    attention = () if adapter is None else (adapter.q.name, adapter.k.name, adapter.v.name, adapter.o.name)
    tensors = _tensors(source, len(anatomy.layers))
    return names + [name for name, tensor in tensors if not any(part in name for part in attention) and bad(tensor)]


def _has_numbers(source: nn.Module | str | Path, anatomy: Anatomy) -> bool:
    """Whether the heads' weights can be read; not those of a loaded model in a format that is not decoded here."""
    try:
        anatomy.weights(0)
    except ArmillaryError:
        if not getattr(source, "is_quantized", False):
            raise
        return False
    return True


def _tensors(source: nn.Module | str | Path, layers: int) -> Iterator[tuple[str, Tensor]]:
    """The floating-point tensors of a model, a folder or a GGUF file, one at a time."""
    if isinstance(source, nn.Module):
        yield from ((name, p.detach()) for name, p in source.named_parameters() if p.is_floating_point())
        return
    packed = gguf_file(expanded(source))
    checkpoint = open_tensors(Path(expanded(source)), packed, load_config_of(source), layers)
    for name in checkpoint.names():
        tensor = checkpoint.read(name)
        if tensor is not None and tensor.is_floating_point() and tensor.dtype.itemsize > 1:
            yield name, tensor
