"""Completes and checks the settings of a scan, and reads them back from its record."""

from collections.abc import Iterable
from typing import Any

from armillary.anatomy.options import complete, parameters
from armillary.errors import ArmillaryError
from armillary.files.records import mismatch
from armillary.scanning.options import ScanSettings
from armillary.streams.registry import DEFAULT_STREAMS
from armillary.streams.wanted import Wanted

LENGTH = 128
"""Default tokens of a sequence; fewer for models with fewer positions."""


def scan_settings(**given: Any) -> ScanSettings:
    """The given settings, completed with defaults; an error if one is out of range."""
    settings: ScanSettings = complete(given, ScanSettings, "scan")
    settings["length"] = LENGTH if settings["length"] is None else settings["length"]
    settings["streams"] = named_streams(given.get("streams"))
    for name in ("sequences", "batch", "shard", "second_pass"):
        value = settings.get(name)
        if isinstance(value, int) and value < 1:
            raise ArmillaryError(f"`{name}={value}` is too small", advice="it must be 1 or more", given=value)
    if not 0 <= settings["seed"] < 2**63:
        raise ArmillaryError(f"`seed={settings['seed']}` is out of range", advice="it must be 0 or more, below 2^63")
    wanted_of(settings)
    return settings


def named_streams(names: Iterable[str] | None) -> tuple[str, ...]:
    """The streams with these names, 'default' standing for those of a scan that names none."""
    given = ("default",) if names is None else tuple(names)
    if "default" not in given:
        return given
    return (*DEFAULT_STREAMS, *(name for name in given if name not in ("default", *DEFAULT_STREAMS)))


def wanted_of(settings: ScanSettings) -> Wanted:
    """The settings that the streams need."""
    length = settings["length"]
    assert length is not None
    return Wanted(settings["streams"], settings["skip"], length)


def shard_of(settings: ScanSettings) -> int:
    """Sequences per shard; chosen once the model is loaded."""
    size = settings["shard"]
    if size is None:
        raise ArmillaryError("the record of this scan does not say how many sequences a shard has", advice="scan again")
    return size


def as_record(settings: ScanSettings) -> dict[str, Any]:
    """Plain data for JSON."""
    return {**settings, "streams": list(settings["streams"])}


def settings_of(plain: dict[str, Any]) -> ScanSettings:
    """The reverse of as_record; an error if a setting is unknown or of the wrong type."""
    unknown = [name for name in plain if name not in parameters(ScanSettings)]
    wrong = f"settings.{unknown[0]} is not known" if unknown else mismatch(plain, ScanSettings, "settings")
    if wrong:
        raise ArmillaryError(f"these are not settings of a scan: {wrong}")
    return scan_settings(**plain)
