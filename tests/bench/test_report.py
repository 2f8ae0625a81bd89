"""Tables and figures from result lines whose numbers are known.

``HEADLINE`` is made so that its counts are those of the paper's table 2: 145, 94, 94 and 63 of 150
checks, and pace better/worse/tied 22/0/8, 17/0/13 and 19/1/10.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bench.report import write_report
from bench.report.figures import Figure, figures, gap_bins
from bench.report.pool import Pool
from bench.report.sweeps import sweep_tables
from bench.report.table import Lacking, Table
from bench.report.tables import Arms, arm_tables
from bench.results import ResultError, ResultLine, write_results
from serve.cli import main
from tests.bench.support import line, probe, session

ARMS = Arms("h2o", "pace")
# checks passed of p1, p2, p3 in ten sessions
HEADLINE: dict[str, tuple[list[int], list[int], list[int]]] = {
    "pace": ([7] * 9 + [5], [3] * 10, [2] + [5] * 9),
    "h2o": ([3] * 10, [3] * 7 + [0] * 3, [2, 2] + [1] * 8),
    "retention-only": ([7] + [3] * 9, [3] * 10, [2, 5] + [3] * 7 + [2]),
    "positions-only": ([3] * 7 + [4] * 3, [3] * 10, [4] + [3] * 9),
}


def headline() -> list[ResultLine]:
    return [
        session(arm, seed, passed)
        for arm, counts in HEADLINE.items()
        for seed, passed in enumerate(zip(*counts, strict=True))
    ]


def sweep() -> list[ResultLine]:
    """retention-only falls from 15 to 9 of 15 checks as the gap grows; pace does not."""
    found = []
    for distance, passed, gap in ((2000, (7, 3, 5), 2500.0), (90_000, (3, 3, 3), 80_000.0)):
        for seed in (1, 2):
            for arm, counts, at in (("retention-only", passed, gap), ("pace", (7, 3, 5), 5000.0)):
                probes = [
                    probe(name, count, total, missing=count < total, rotary_gap=at, residency=0.995)
                    for name, count, total in zip(
                        ("p1", "p2", "p3"), counts, (7, 3, 5), strict=True
                    )
                ]
                found.append(
                    line(arm, seed, probes, layout="distance", distance=distance,
                         prompts_checksum=f"{seed} at {distance}")
                )  # fmt: skip
    return found


def facts() -> list[ResultLine]:
    """Two sessions of two questions at two distances; pace recalls half of them."""
    found = []
    for distance in (1000, 8000):
        for seed in (1, 2):
            for arm, known, mean in (("pace", 1, -1.0 - seed), ("h2o", 0, -9.0)):
                target = {"text": "x", "sum": 2 * mean, "mean": mean, "tokens": 2}
                probes = [
                    probe(name, right, 1, missing=1 - right, facts=1, targets=[target])
                    for name, right in (("city", known), ("port", 0))
                ]
                found.append(
                    line(arm, seed, probes, task="facts", layout="distance", distance=distance,
                         session_tokens=12_000, prompts_checksum=f"{seed} at {distance}")
                )  # fmt: skip
    return found


def tables(lines: list[ResultLine], arms: Arms = ARMS) -> dict[str, Table]:
    pool = Pool(tuple(lines))
    parts = [*arm_tables(pool, arms), *sweep_tables(pool, arms)]
    return {part.title: part for part in parts if isinstance(part, Table)}


def the(found: dict[str, Any], words: str) -> Any:
    (one,) = [part for title, part in found.items() if words in title]
    return one


def rows(table: Table) -> dict[str, dict[str, str]]:
    return {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}


def test_table_2_is_the_papers() -> None:
    found = rows(the(tables(headline()), "(table 2)"))
    assert list(found) == ["h2o", "positions-only", "retention-only", "pace"]
    shown = {arm: (row["Checks"], row["Full"]) for arm, row in found.items()}
    assert shown == {
        "h2o": ("63/150 (42%)", "7/30"),
        "positions-only": ("94/150 (63%)", "10/30"),
        "retention-only": ("94/150 (63%)", "12/30"),
        "pace": ("145/150 (97%)", "28/30"),
    }
    assert found["pace"]["Paired vs. h2o"] == "22/0/8, p < 1e-6"
    assert found["h2o"]["Paired vs. h2o"] == "–"
    assert {arm: row["Foresight"] + row["L"] for arm, row in found.items()} == {
        "h2o": "––", "positions-only": "–8,192", "retention-only": "✓–", "pace": "✓8,192",
    }  # fmt: skip


def test_its_lower_panel_is_the_papers() -> None:
    table = the(tables(headline()), "lower panel")
    found = rows(table)
    assert found["retention-only"]["Paired"] == "17/0/13, p = 1.5e-5"
    assert found["positions-only"]["Paired"] == "19/1/10, p = 4.0e-5"
    assert found["retention-only"]["Full pass p1"] == "9/10 vs. 1/10, p = 0.001"
    assert found["retention-only"]["Full pass p3"] == "9/10 vs. 1/10, p = 0.001"
    assert found["positions-only"]["Full pass p3"] == "9/10 vs. 0/10, p = 1.2e-4"
    # by hand: mean fractions of p1, p2, p3 over the sessions, both − second − first + neither
    p1, p2, p3 = (68 - 33 - 34 + 30) / 70, (30 - 30 - 30 + 21) / 30, (47 - 31 - 30 + 12) / 50
    assert f"{100 * (p1 + p2 + p3) / 3:+.1f} points, 95% CI [" in table.note


def test_how_probes_ended() -> None:
    lines = [
        line(
            "pace", 1, [probe("a", 2, 2, missing=1), probe("b", 1, 2), probe("c", 0, 2, missing=2)]
        )
    ]
    (row,) = the(tables(lines), "How probes ended").rows
    assert row == ("pace", "1", "1", "1", "f0 (2), f1 (1)")


def test_distance_tables_have_a_row_per_distance() -> None:
    found = tables(sweep(), Arms("retention-only", "pace"))
    third = rows(the(found, "(table 3)"))
    assert "with foresight: 0.995 to 0.995." in the(found, "(table 3)").note
    assert list(third) == ["2,000", "90,000"]
    assert third["90,000"] == {
        "D": "90,000",
        "retention-only": "60%",
        "pace": "100%",
        "gap retention-only": "80,000",
        "gap pace": "5,000",
        "pace vs. retention-only": "4/0/2, p = 0.12",
    }
    fourth = rows(the(found, "(table 4)"))["90,000"]
    assert (fourth["retention-only"], fourth["recall retention-only"]) == ("60%", "90%")
    assert rows(the(found, "(table 7)"))["90,000"]["retention-only"] == "87%"  # 13 of 15


def test_table_5_has_a_row_per_length_and_arm() -> None:
    longer = [
        session("pace", seed, (7, 3, 5), session_tokens=1_000_000, prompts_checksum=f"long {seed}")
        for seed in range(5)
    ]
    table = the(tables(headline() + longer), "(table 5)")
    assert [row[:5] for row in table.rows][-2:] == [
        ("100,000", "10", "pace", "97%", "28/30"),
        ("1,000,000", "5", "pace", "100%", "15/15"),
    ]


def test_the_cache_at_the_probes() -> None:
    resident = {"sink": 4, "needed": 400, "other_old": 470, "recent": 1200}
    lines = [
        line("pace", seed, [
            probe("a", 1, 1, composition=resident | {"needed": 400 + 200 * seed},
                  highest_unprotected_score=10.0 * seed)
        ])
        for seed in (0, 1)
    ]  # fmt: skip
    table = the(tables(lines), "Resident tokens")
    assert table.rows == (("pace", "4", "500", "470", "1,200", "10.0"),)


def test_recall_and_logprobs_of_facts() -> None:
    table = the(tables(facts()), "log-probability")
    assert table.rows[0] == ("12,000", "1,000", "h2o", "2", "0% [0%, 0%]", "-9.00 [-9.00, -9.00]")
    assert table.rows[3] == (
        "12,000",
        "8,000",
        "pace",
        "2",
        "50% [50%, 50%]",
        "-2.50 [-3.00, -2.00]",
    )


def test_figure_1_has_a_line_per_arm() -> None:
    drawn = {f.title: f for f in figures(Pool(tuple(sweep()))) if isinstance(f, Figure)}
    first = the(drawn, "(figure 1)").drawing
    assert {line.name: (tuple(line.x), tuple(line.y)) for line in first.data} == {
        "retention-only": ((2000, 90_000), (100, 60)),
        "pace": ((2000, 90_000), (100, 100)),
    }
    assert len(drawn) == 2


def test_figure_3_pools_arms_with_foresight_by_gap() -> None:
    other = session("h2o", 1, (0, 0, 0), layout="distance", distance=2000)
    drawn = {f.title: f for f in figures(Pool((*sweep(), other))) if isinstance(f, Figure)}
    bars, resident = the(drawn, "(figure 3)").drawing.data
    assert list(bars.x) == ["0 to 4,096", "4,096 to 8,192", "65,536 to 131,072"]
    assert list(bars.y) == [100, 100, 60] and list(bars.customdata) == [6, 12, 6]
    assert list(resident.y) == pytest.approx([99.5] * 3)


def test_bins_shrink_with_the_models_range_and_lose_no_probe() -> None:
    def bins(*gaps: float) -> list[tuple[int, int, int]]:
        probes = [p for g in gaps for p in line("pace", 1, [probe("a", 1, 1, rotary_gap=g)]).probes]
        return [(one.low, one.high, len(one.probes)) for one in gap_bins(probes)]

    assert bins(0, 511, 512, 9000) == [(0, 512, 2), (512, 1024, 1), (8192, 16_384, 1)]
    assert bins(200_000) == [(65_536, 200_001, 1)]
    assert bins() == []


def test_facts_are_drawn_too() -> None:
    drawn = {f.title: f for f in figures(Pool(tuple(facts()))) if isinstance(f, Figure)}
    lines = {line.name: tuple(line.y) for line in the(drawn, "Log-probability").drawing.data}
    assert lines == {"h2o": (-9.0, -9.0), "pace": (-2.5, -2.5)}
    assert [tuple(line.y) for line in the(drawn, "Recall by").drawing.data] == [(0, 0), (50, 50)]


def test_the_command_writes_a_page_that_needs_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two, out = tmp_path / "one.jsonl", tmp_path / "two.jsonl", tmp_path / "new" / "out"
    write_results(one, sweep())
    write_results(two, facts())
    command = ["bench", "report", str(one), str(two), "--out", str(out)]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "coding, qwen3-8b: By session length (table 5): not made, it needs two session" in said
    assert str(out / "report.html") in said
    page = (out / "report.html").read_text()
    assert not re.search(r"<link|<script[^>]+src|<img|@import", page)
    assert page.count("<h2>") == 2 and page.count("Plotly.newPlot(") >= 5
    assert page.count("plotly.js v") == 1
    markdown = (out / "tables.md").read_text()
    assert "| 90,000 | 60% | 100% | 80,000 | 5,000 | 4/0/2, p = 0.12 |" in markdown
    assert main([*command, "--baseline", "h20"]) == 1
    assert "no result is of the arm 'h20'; there are h2o, retention-only, pace" in (
        capsys.readouterr().err
    )


def test_what_the_results_lack_is_said(tmp_path: Path) -> None:
    _, lacking = write_report([session("h2o", 1, (7, 3, 5))], tmp_path)
    said = "\n".join(map(str, lacking))
    for words in (
        "pace against each other arm: 100,000-token sessions, single layout (table 2, lower "
        "panel): not made, it needs the arm pace and another one",
        "By distance (tables 3, 4 and 7, figure 1): not made, it needs sessions of one length in "
        "the distance layout at two distances or more; distances here: none",
        "By session length (table 5): not made, it needs two session lengths; here is only 100,000",
        "Recall and log-probability of the true values: not made, no probe has targets",
        "Checks passed by rotary gap (figure 3): not made, it needs probes of arms with foresight",
        "Resident tokens at the probes: not made, no probe says what was resident",
    ):
        assert words in said, words
    assert (tmp_path / "tables.md").read_text().count("not made") == len(lacking) == 7
    with pytest.raises(ResultError, match="no results"):
        write_report([], tmp_path)


def test_variants_follow_the_arm_they_are_named_after() -> None:
    names = ["pace-recall-0.9", "own", "retention-only-range", "pace", "h2o-range", "h2o"]
    lines = [session("h2o", 1, (7, 3, 5)).model_copy(update={"arm": name}) for name in names]
    assert Pool(tuple(lines)).arms == [
        "h2o", "h2o-range", "retention-only-range", "pace", "pace-recall-0.9", "own",
    ]  # fmt: skip


def test_cells_are_escaped() -> None:
    table = Table("a <b>", ("x|y",), (("<script>",),), "n & m")
    assert "| x\\|y |" in table.markdown()
    assert "<script>" not in table.html() and "n &amp; m" in table.html()
    assert str(Lacking("figure", "it is not there")) == "figure: not made, it is not there"
