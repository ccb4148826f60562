"""What a model is shown: images, sound, or a text and what its decoder writes, as tensors for its forward pass."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from armillary.anatomy.checkpoint import expanded, hub_reachable
from armillary.anatomy.devices import input_device
from armillary.anatomy.folder import read_json
from armillary.anatomy.whole import in_one_line
from armillary.errors import ArmillaryError

# Imports inside functions: Pillow is an extra, and scipy and transformers take long to import.

WRITTEN = 64
"""How many tokens of its own output an encoder-decoder writes at most where no target is given."""


def text_inputs(model: Any, tokenizer: Any, text: str) -> dict[str, Tensor]:
    """The tokens of a text."""
    read = tokenizer(text, return_tensors="pt")
    return {name: read[name].to(input_device(model)) for name in ("input_ids", "attention_mask") if name in read}


def image_inputs(
    model: Any, source: str | Path, files: Sequence[Path], revision: str | None = None
) -> dict[str, Tensor]:
    """Images, each resized to the model's own size (not cropped), with the checkpoint's mean and deviation."""
    settings = read_json(_preprocessor(source, revision))
    size, channels = model.config.image_size, int(getattr(model.config, "num_channels", 3))
    high, across = (size, size) if isinstance(size, int) else size
    pixels = torch.stack([_pixels(file, int(high), int(across), channels) for file in files])
    if settings.get("do_normalize", True):
        mean, deviation = (
            torch.tensor(settings.get(name, [0.5] * channels), dtype=pixels.dtype)[:, None, None]
            for name in ("image_mean", "image_std")
        )
        pixels = (pixels - mean) / deviation
    return {"pixel_values": pixels.to(next(model.parameters()))}


def _preprocessor(source: str | Path, revision: str | None) -> Path:
    """The checkpoint's preprocessor_config.json, which says how its images or its sound are read."""
    from transformers.utils import cached_file

    options: dict[str, Any] = {} if revision is None else {"revision": revision}
    if not Path(expanded(source)).is_dir() and not hub_reachable():
        options["local_files_only"] = True
    name = "preprocessor_config.json"
    path = cached_file(str(expanded(source)), name, _raise_exceptions_for_missing_entries=False, **options)
    if path is None:
        raise ArmillaryError(
            f"{source} has no {name}, which says how its images or its sound are read",
            advice="put the model's own beside its config.json",
        )
    return Path(path)


def _pixels(file: Path, high: int, across: int, channels: int) -> Float[Tensor, "channel row column"]:
    """An image in numbers from 0 to 1."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ArmillaryError("images are read with Pillow", advice="pip install 'armillary[images]'") from error
    try:
        with Image.open(file) as image:
            resized = image.convert("L" if channels == 1 else "RGB").resize((across, high), Image.Resampling.BICUBIC)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise ArmillaryError(f"{file} cannot be read as an image: {in_one_line(error, 150)}") from error
    return torch.from_numpy(np.array(resized, dtype=np.float32) / 255).reshape(high, across, channels).permute(2, 0, 1)


def sound_inputs(
    model: Any, source: str | Path, files: Sequence[Path], revision: str | None = None
) -> dict[str, Tensor]:
    """WAV files as the spectrograms that the checkpoint's own feature extractor makes."""
    from transformers import AutoFeatureExtractor

    file = _preprocessor(source, revision)
    try:
        extractor = AutoFeatureExtractor.from_pretrained(str(file.parent))
    except (OSError, ValueError) as error:
        raise ArmillaryError(f"{file} does not say how sound is read ({in_one_line(error, 150)})") from error
    rate = int(extractor.sampling_rate)
    read = extractor([_samples(file, rate) for file in files], sampling_rate=rate, return_tensors="pt")
    return {"input_features": read["input_features"].to(next(model.parameters()))}


def _samples(file: Path, rate: int) -> Float[np.ndarray, "sample"]:
    """One channel of sound, at this many samples a second, from -1 to 1."""
    from scipy.io import wavfile
    from scipy.signal import resample_poly

    try:
        own_rate, samples = wavfile.read(file)
    except (OSError, ValueError) as error:
        raise ArmillaryError(
            f"{file} cannot be read as a WAV file: {in_one_line(error, 150)}",
            advice="convert it, as with ffmpeg -i FILE sound.wav",
        ) from error
    loudest = float(np.iinfo(samples.dtype).max) if np.issubdtype(samples.dtype, np.integer) else 1.0
    sound = samples.astype(np.float64).reshape(len(samples), -1).mean(1) / loudest
    return np.asarray(sound if own_rate == rate else resample_poly(sound, rate, own_rate), dtype=np.float32)


def with_target(model: Any, tokenizer: Any, inputs: dict[str, Tensor], target: str | None) -> dict[str, Tensor]:
    """The inputs and what the decoder reads: a given target, or what the model itself writes, each behind the start."""
    start = _start(model)
    if target is None:
        written = _own_output(model, inputs)
    else:
        ids = tokenizer(target)["input_ids"]
        ids = ids if ids and ids[0] == start else [start, *ids]
        written = torch.tensor([ids], device=input_device(model))
    read = written[:, :-1] if written.shape[1] > 1 else written  # the last token is only predicted
    batch = len(next(iter(inputs.values())))
    return {**inputs, "decoder_input_ids": read.expand(batch, -1)}


def _start(model: Any) -> int:
    for config in (model.config, getattr(model, "generation_config", None)):
        start = getattr(config, "decoder_start_token_id", None)
        if isinstance(start, int):
            return start
    raise ArmillaryError("the configuration has no decoder_start_token_id: where the decoder begins is not known")


@torch.no_grad()
def _own_output(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """What the model writes, always taking the likeliest token."""
    try:
        written: Tensor = model.generate(**inputs, max_new_tokens=WRITTEN, do_sample=False, num_beams=1)
    except Exception as error:  # whatever a model that cannot generate raises
        raise ArmillaryError(
            f"this model writes no text of its own ({in_one_line(error, 150)})", advice="give the decoder's text"
        ) from error
    return written
