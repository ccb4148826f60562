"""The parameters of a scan: one declaration for functions, commands and the record."""

import inspect

import pytest
import torch

import armillary as arm
from armillary.anatomy.options import ModelOptions, parameters
from armillary.anatomy.samples import sample_model
from armillary.scanning.options import MergeOptions, ScanOptions, TimelineOptions, WeighOptions

TOKENS = torch.randint(5, 99, (4, 16), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("function", "declared"),
    [
        *((arm.scan, ScanOptions), (arm.scan_part, ScanOptions), (arm.merge, MergeOptions)),
        (arm.timeline, TimelineOptions),
        *((arm.weigh, WeighOptions), (arm.load, ModelOptions)),
    ],
)
def test_signatures_show_every_parameter_with_its_default(function: object, declared: object) -> None:
    shown = inspect.signature(function).parameters  # type: ignore[arg-type]
    for name, (kind, facts) in parameters(declared).items():
        assert shown[name].default == facts.default
        assert shown[name].annotation == kind


def test_unknown_parameters_are_named_with_the_nearest_one() -> None:
    with pytest.raises(
        arm.ArmillaryError, match="scan has no parameter 'sequenses': did you mean 'sequences'"
    ) as error:
        arm.scan(sample_model("llama"), TOKENS, sequenses=4)  # type: ignore[call-arg]
    assert error.value.given == "sequenses"
    assert "sequences" in error.value.expected


def test_the_record_holds_every_setting() -> None:
    atlas = arm.scan(sample_model("llama"), TOKENS, streams=("attention",), batch=2)
    from armillary.scanning.options import ScanSettings

    assert set(atlas.settings) == set(parameters(ScanSettings))
    assert atlas.settings["batch"] == 2
    assert atlas.settings["streams"] == ["attention"]
