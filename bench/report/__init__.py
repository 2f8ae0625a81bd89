"""Reports of result files: ``tables.md`` to paste, ``report.html`` to look at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import chain
from pathlib import Path

from bench.report.figures import Figure, figures
from bench.report.pool import Pool
from bench.report.sweeps import sweep_tables
from bench.report.table import Lacking, Table
from bench.report.tables import Arms, arm_tables
from bench.results import ResultError, ResultLine

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
.table{overflow-x:auto}th,td{padding:.3rem .7rem;text-align:right;border-bottom:1px solid #ddd}
th,td{white-space:nowrap}th:first-child,td:first-child{text-align:left}p,li{color:#555}h2{margin-top:3rem}
"""


def write_report(
    lines: Sequence[ResultLine],
    folder: Path,
    *,
    baseline: str | None = None,
    ours: str | None = None,
) -> tuple[list[Path], list[Lacking]]:
    """Write ``tables.md`` and ``report.html`` (self-contained) into ``folder``, made when absent.

    Args:
        lines: pooled (``bench.merge``); several tasks and models get sections of their own.
        baseline: the arm the others are compared with; None: h2o, or else the first.
        ours: the arm that is compared with all others; None: pace.

    Returns:
        The files, and what could not be made of these results.

    Raises:
        ResultError: no lines, or ``baseline`` or ``ours`` is in none of them.
    """
    if not lines:
        raise ResultError("there are no results to report")
    known = Pool(tuple(lines)).arms
    for arm in (baseline, ours):
        if arm is not None and arm not in known:
            raise ResultError(f"no result is of the arm {arm!r}; there are {', '.join(known)}")
    markdown, page, lacking = ["# Results\n"], ["<h1>Results</h1>"], list[Lacking]()
    scripts = True
    sections = Pool(tuple(lines)).split(lambda line: (line.task, line.model))
    for (task, model), pool in sections.items():
        heading = f"{task}, {model}"
        markdown += [f"## {heading}\n", *(f"- {fact}" for fact in _about(pool)), ""]
        items = "".join(f"<li>{escape(fact)}</li>" for fact in _about(pool))
        page.append(f"<h2>{escape(heading)}</h2><ul>{items}</ul>")
        missing = []
        usual = "h2o" if "h2o" in pool.arms else pool.arms[0]
        for part in _parts(pool, Arms(baseline or usual, ours or "pace")):
            if isinstance(part, Table):
                markdown.append(part.markdown())
                page.append(part.html())
            elif isinstance(part, Figure):
                page.append(f"{part.html(scripts)}<p>{escape(part.note)}</p>")
                scripts = False
            else:
                missing.append(part)
        if missing:
            markdown += ["Not made of these results:\n", *(f"- {one}" for one in missing), ""]
            items = "".join(f"<li>{escape(str(one))}</li>" for one in missing)
            page.append(f"<h3>Not made of these results</h3><ul>{items}</ul>")
        lacking += [Lacking(f"{heading}: {one.title}", one.why) for one in missing]
    folder.mkdir(parents=True, exist_ok=True)
    tables, report = folder / "tables.md", folder / "report.html"
    tables.write_text("\n".join(markdown), encoding="utf-8")
    report.write_text(
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>PACE: results</title>"
        f"<style>{_STYLE}</style></head><body>{''.join(page)}</body></html>",
        encoding="utf-8",
    )
    return [tables, report], lacking


def _parts(pool: Pool, arms: Arms) -> Iterator[Table | Figure | Lacking]:
    return chain(arm_tables(pool, arms), sweep_tables(pool, arms), figures(pool))


def _about(pool: Pool) -> list[str]:
    """What a reader has to know of the results before the numbers."""
    lines = pool.lines
    first = lines[0]
    versions = ", ".join(sorted({line.pace_version for line in lines}))
    seeds = sorted({line.seed for line in lines})
    settings = ", ".join(f"{name} {value}" for name, value in sorted(first.engine.items()))
    return [
        f"{len(lines)} sessions of {len(seeds)} seeds ({seeds[0]} to {seeds[-1]}), arms: "
        + ", ".join(pool.arms),
        f"dtype {first.dtype}; engine: {settings or 'no settings recorded'}",
        f"templates {first.template_fingerprint}; PACE {versions}",
    ]
