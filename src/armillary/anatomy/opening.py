"""Opens the weights of a folder or a GGUF file: quantized ones are decoded, an adapter is merged, all when read."""

from pathlib import Path
from typing import Any

from armillary.anatomy.checkpoint import Checkpoint
from armillary.anatomy.gguf import GgufCheckpoint
from armillary.anatomy.lora import AdaptedTensors, LowRank
from armillary.anatomy.quantized import decoded
from armillary.anatomy.tensors import Tensors
from armillary.errors import ArmillaryError


def open_tensors(
    place: Path, packed: Path | None, config: Any, layers: int, adapter: Any = None, delta: bool = False
) -> Tensors:
    """The tensors of a folder, or of the GGUF file `packed`; with `delta`, what the adapter changes alone."""
    tensors: Tensors
    if packed is not None:
        tensors = GgufCheckpoint(packed, config, layers)
    else:
        checkpoint = Checkpoint(place)
        settings = getattr(config, "quantization_config", None)
        tensors = checkpoint if settings is None else decoded(checkpoint, settings, str(config.model_type))
    if adapter is not None:
        return AdaptedTensors(tensors, adapter if isinstance(adapter, LowRank) else LowRank(adapter), delta)
    if delta:
        raise ArmillaryError("`delta=True` shows what an adapter changes", advice="give `adapter` with it")
    return tensors
