"""Loading models safely: safetensors or weights_only pickles, no code from checkpoints unless asked."""

import hashlib
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from armillary.anatomy.checkpoint import Checkpoint, load_config
from armillary.anatomy.description import Anatomy
from armillary.anatomy.source import describe
from armillary.errors import ArmillaryError

WhenNotFinite = Literal["refuse", "allow"]


def load(
    source: str | Path,
    *,
    trust_remote_code: bool = False,
    not_finite: WhenNotFinite = "refuse",
    dtype: torch.dtype | str = "auto",
    **options: Any,
) -> nn.Module:
    """The model of a folder or hub id, in evaluation mode; `options` go to from_pretrained (device_map, ...).

    The class is the one its configuration names where it can predict words or causes no harm: a causal language
    model, then a masked one, then an encoder, then whatever AutoModel gives.
    """
    import transformers

    config = load_config(source, trust_remote_code=trust_remote_code)
    if Path(source).is_dir() and list(Path(source).glob("*.safetensors")):
        Checkpoint(source)  # a damaged file is told apart from every other failure here
    loader = getattr(transformers, _loader_name(config))
    try:
        model: nn.Module = loader.from_pretrained(
            str(source),
            config=config,
            trust_remote_code=trust_remote_code,
            weights_only=True,
            dtype=dtype,
            **options,
        )
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise ArmillaryError(f"{source} cannot be loaded: {reason}") from error
    model.eval()
    if not_finite == "refuse":
        refuse_not_finite(describe(model))
    return model


def refuse_not_finite(anatomy: Anatomy) -> None:
    """Raise, by layer and head, if attention weights hold a NaN or an infinity; reads one layer at a time."""
    if anatomy.missing:
        return
    found = not_finite_weights(anatomy)
    if found:
        shown = "; ".join(found[:5]) + (f"; and {len(found) - 5} more" if len(found) > 5 else "")
        raise ArmillaryError(
            f"the weights hold NaN or infinite numbers in {shown}: repair the checkpoint, or go on all the same with "
            "--allow-not-finite (not_finite='allow')"
        )


def not_finite_weights(anatomy: Anatomy) -> list[str]:
    """Every attention matrix with a NaN or an infinity, as 'layer 2: W_q of head 3'."""
    return [
        f"layer {layer.index}: {what}" for layer in anatomy.layers for what in anatomy.weights(layer.index).not_finite()
    ]


def load_tokenizer(source: str | Path, *, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a folder or hub id."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(source), trust_remote_code=trust_remote_code)
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise ArmillaryError(f"{source} has no tokenizer that can be loaded ({reason}): text needs one") from error


def fingerprint(model: nn.Module) -> str:
    """A hash of the weights: every tensor's name, shape and at most 4096 of its numbers, evenly spaced, as float32.

    It tells models apart at the cost of a glance; it is not a checksum of every byte.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        flat = tensor.detach().flatten()
        sample = flat[:: max(1, flat.numel() // 4096)].to("cpu", torch.float32)
        digest.update(f"{name} {tuple(tensor.shape)} ".encode())
        digest.update(sample.numpy().tobytes())
    return digest.hexdigest()


def _loader_name(config: Any) -> str:
    """The transformers Auto class that fits the configuration's own architecture."""
    named = (getattr(config, "architectures", None) or [""])[0]
    if config.is_encoder_decoder:
        return "AutoModelForSeq2SeqLM" if named.endswith("ForConditionalGeneration") else "AutoModel"
    if named.endswith(("ForCausalLM", "LMHeadModel")):
        return "AutoModelForCausalLM"
    if named.endswith("ForMaskedLM"):
        return "AutoModelForMaskedLM"
    return "AutoModel"
