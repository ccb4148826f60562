"""The viewer's lists of what feeds a head and what it feeds."""

import armillary as arm
from armillary.viewer.dossiers import Dossiers
from handmade import copies, copying_llama


def test_a_dossier_lists_what_feeds_the_head() -> None:
    dossiers = Dossiers(arm.scan(copying_llama(), copies(16), streams=("positions", "attention", "sources")))
    fed = dossiers.of(1, 0)["circuit"]
    assert fed["key"][0][0] == "L0H0"
    assert fed["key"][0][1] > 0.9
    assert ["L1H0", fed["key"][0][1], "key"] in dossiers.of(0, 0)["circuit"]["feeds"]


def test_without_sources_there_are_no_lists() -> None:
    dossiers = Dossiers(arm.scan(copying_llama(), copies(16), streams=("positions", "attention")))
    assert dossiers.of(1, 0)["circuit"] == {}
