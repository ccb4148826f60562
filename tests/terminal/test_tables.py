"""Tables on the terminal: aligned, as wide as the terminal allows, and with nothing in them that could act on it."""

import pandas as pd
import pytest

from armillary.terminal import tables

HEADS = pd.DataFrame(
    {
        "layer": pd.Series([0, 10], dtype="Int64"),
        "label": ["first-token", None],
        "induction_score": [0.12345, float("nan")],
        "mean_distance": [1234.5, 0.0001],
        "empty": [float("nan")] * 2,
    }
)


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    def show(table: pd.DataFrame, width: int, **asked: object) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(width))
        tables.show(table, **asked)  # type: ignore[arg-type]
        return capsys.readouterr().out.splitlines()

    return show


def test_a_wide_terminal_has_a_line_for_the_header_and_one_for_each_row(printed) -> None:  # type: ignore[no-untyped-def]
    assert printed(HEADS, 80, title="Two [heads]") == [
        "Two [heads]",
        "layer  label        induction score  mean distance",
        "    0  first-token            0.123           1234",
        "   10                                       0.0001",
    ]


def test_a_narrow_one_breaks_headers_between_words(printed) -> None:  # type: ignore[no-untyped-def]
    assert printed(HEADS, 40) == [
        "                    induction      mean",
        "layer  label            score  distance",
        "    0  first-token      0.123      1234",
        "   10                            0.0001",
    ]


def test_what_does_not_fit_is_named(printed) -> None:  # type: ignore[no-untyped-def]
    """A number that lost its last digits would be a lie."""
    assert printed(HEADS, 24) == [
        "layer  label",
        "    0  first-token",
        "   10",
        "no room for induction score, mean distance: use a wider terminal, or --json",
    ]


def test_prose_is_folded(printed) -> None:  # type: ignore[no-untyped-def]
    lines = printed(pd.DataFrame({"layer": [3], "why": ["most of its attention goes to the first token"]}), 30)
    assert [line[5:].strip() for line in lines[1:]] == ["most of its attention", "goes to the first token"]
    assert "3" in lines[1]


def test_wide_characters_keep_the_columns_straight(printed) -> None:  # type: ignore[no-untyped-def]
    table = pd.DataFrame({"token": ["日本", "ab"], "share": [0.5, 0.25]})
    assert printed(table, 80) == ["token  share", "日本   0.500", "ab     0.250"]


def test_a_token_cannot_move_the_cursor(printed) -> None:  # type: ignore[no-untyped-def]
    shown = "\n".join(printed(pd.DataFrame({"token": ["\x1b[2Jgone", "[red]"], "n": [1, 2]}), 80))
    assert "\x1b" not in shown
    assert "[red]" in shown


def test_rows_beyond_the_limit_are_counted(printed) -> None:  # type: ignore[no-untyped-def]
    lines = printed(pd.concat([HEADS] * 3), 80, limit=2)
    assert len(lines) == 4
    assert lines[-1] == "4 more rows: --json has them all"
    assert printed(HEADS.iloc[:0], 80) == []
