"""A table, as Markdown and as HTML."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from bench.statistics import Interval


@dataclass(frozen=True, slots=True)
class Table:
    """``rows`` have one text per column; ``note`` says what the columns mean."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def markdown(self) -> str:
        lines = [
            _row(self.columns),
            _row(["---", *["---:"] * (len(self.columns) - 1)]),
            *map(_row, self.rows),
        ]
        note = f"\n\n{self.note}" if self.note else ""
        return f"### {self.title}\n\n" + "\n".join(lines) + note + "\n"

    def html(self) -> str:
        head = "".join(f"<th>{escape(text)}</th>" for text in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>"
            for row in self.rows
        )
        note = f"<p>{escape(self.note)}</p>" if self.note else ""
        return (
            f"<h3>{escape(self.title)}</h3><div class='table'><table><thead><tr>{head}</tr></thead>"
            f"<tbody>{body}</tbody></table></div>{note}"
        )


@dataclass(frozen=True, slots=True)
class Lacking:
    """A table or figure that these results do not give, and why."""

    title: str
    why: str

    def __str__(self) -> str:
        return f"{self.title}: not made, {self.why}"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def number(value: float | None, form: str) -> str:
    """A number in a cell; a dash for none."""
    return "–" if value is None else format(value, form)


def interval(found: Interval | None, form: str) -> str:
    """A mean with its interval in brackets, as far as there is one."""
    if found is None:
        return "–"
    mean = format(found.mean, form)
    if found.low is None or found.high is None:
        return mean
    return f"{mean} [{found.low:{form}}, {found.high:{form}}]"
