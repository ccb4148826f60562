"""The adapters by family: those that ship with Armillary, and registered ones."""

from armillary.anatomy.adapter import Adapter
from armillary.anatomy.families import bert, gpt, llama, t5
from armillary.errors import ArmillaryError

_ADAPTERS: dict[str, Adapter] = {
    adapter.family: adapter for module in (bert, gpt, llama, t5) for adapter in module.ADAPTERS
}


def register(adapter: Adapter) -> None:
    """Use an adapter for models whose config.model_type is `adapter.family`; it replaces an earlier one."""
    if not isinstance(adapter, Adapter):
        raise ArmillaryError(f"register takes an Adapter, not a {type(adapter).__name__}")
    _ADAPTERS[adapter.family] = adapter


def adapter_for(family: str) -> Adapter | None:
    """The adapter of that family, or None."""
    return _ADAPTERS.get(family)


def known_families() -> tuple[str, ...]:
    """Every family that has an adapter, in alphabetical order."""
    return tuple(sorted(_ADAPTERS))
