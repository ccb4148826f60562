"""What older versions of transformers lack: which attention can be observed since when, and what to do below it."""

import re
from typing import Any

from armillary.errors import ArmillaryError

# Imports inside functions: transformers takes seconds to import.

SINCE = {
    **dict.fromkeys(("gemma4", "gemma4_text", "modernbert"), "5.7"),
    **dict.fromkeys(("ctrl", "diffllama", "nemotron", "recurrent_gemma"), "5.13"),
    **dict.fromkeys(("longt5", "mt5", "pix2struct", "pop2piano", "switch_transformers", "t5", "udop", "umt5"), "5.15"),
}
"""Model types that older versions of transformers have too (Gemma 4 since 5.5, others in 5.1), and the version since
which they ask for their attention function at AttentionInterface.get_interface, where the tap stands."""

INVERSE_LAYER_SCALE = "5.4"
"""Before, GPT-2 divides logits by the layer's number where the tap does not see it, and under sdpa not at all."""

PROPORTIONAL = "5.5"
"""rope_type 'proportional' exists since this version."""

SOFTCAP = "5.21"
"""Before, sdpa leaves out a soft-cap of the logits without a word. Since then such models run under eager attention."""


def installed() -> str:
    """The version of transformers that runs."""
    import transformers

    return str(transformers.__version__)


def below(version: str, other: str) -> bool:
    """Whether a version comes before another, by its first two numbers."""
    first, second = ([int(number) for number in re.findall(r"\d+", one)[:2]] for one in (version, other))
    return first < second


def refuse_missing_type(kind: str) -> None:
    """Raise if this version of transformers has no models of a type."""
    from transformers import CONFIG_MAPPING

    if kind not in CONFIG_MAPPING:
        raise ArmillaryError(
            f"transformers {installed()} has no {kind} models",
            advice="install a newer version of transformers",
            given=f"transformers {installed()}",
        )


def refuse_too_old(config: Any, version: str | None = None) -> None:
    """Raise if this version of transformers computes the attention of such a model where no tap can read it."""
    version, kind = version or installed(), config.model_type
    if below(version, SINCE.get(kind, "0.0")):
        raise _too_old(f"attention of {kind} models", SINCE[kind], version)
    if getattr(config, "scale_attn_by_inverse_layer_idx", False) and below(version, INVERSE_LAYER_SCALE):
        raise _too_old("a GPT-2 with scale_attn_by_inverse_layer_idx", INVERSE_LAYER_SCALE, version)
    if _sdpa_drops_softcap(config, version) and config._attn_implementation == "sdpa":
        raise ArmillaryError(
            f"this {kind} model has a soft-cap of its logits, which transformers {version} leaves out under sdpa",
            advice=f"load it with attn_implementation='eager', or install transformers>={SOFTCAP}",
            given=f"transformers {version}",
            expected=f"transformers>={SOFTCAP}",
        )


def _too_old(what: str, since: str, version: str) -> ArmillaryError:
    return ArmillaryError(
        f"{what} can be observed since transformers {since}, and {version} is installed",
        advice=f"install transformers>={since}",
        given=f"transformers {version}",
        expected=f"transformers>={since}",
    )


def attention_options(config: Any, version: str | None = None) -> dict[str, Any]:
    """Options of from_pretrained and from_config: eager attention where sdpa would leave out the soft-cap."""
    return {"attn_implementation": "eager"} if _sdpa_drops_softcap(config, version or installed()) else {}


def _sdpa_drops_softcap(config: Any, version: str) -> bool:
    return bool(getattr(config, "attn_logit_softcapping", None)) and below(version, SOFTCAP)
