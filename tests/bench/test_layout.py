"""Where definitions and probes stand."""

from __future__ import annotations

import pytest

from bench.layout import arrange
from engine.errors import ConfigError


def test_single_puts_definitions_and_probes_where_the_paper_does() -> None:
    found = arrange("single", 102_000, None, 2000, 3, 2000)
    assert (found.size, found.chunks) == (2000, 50)
    assert found.before == 10  # 20 %
    places = [sum(found.between[: i + 1]) + found.before for i in range(3)]
    assert places == [26, 37, 50]  # 52 %, 74 %, the end
    assert found.groups == ((0,), (1,), (2,))


def test_more_probes_are_divided_among_the_three_places() -> None:
    groups = arrange("single", 102_000, None, 2000, 10, 2000).groups
    assert [len(group) for group in groups] == [4, 3, 3]
    assert [i for group in groups for i in group] == list(range(10))


@pytest.mark.parametrize("distance", [2000, 4000, 6000, 12_000, 24_000])
def test_distance_is_met_to_the_nearest_chunk(distance: int) -> None:
    found = arrange("distance", 28_000, distance, 600, 10, 2000)
    assert abs(found.between[0] * found.size - distance) <= found.size / 2
    assert found.chunks * found.size == pytest.approx(27_400, abs=found.chunks)
    assert found.groups == (tuple(range(10)),)
    other = arrange("distance", 28_000, 2000, 600, 10, 2000)
    assert (found.size, found.chunks) == (other.size, other.chunks)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="leaves no room for filler"):
        arrange("single", 1500, None, 600, 3, 2000)
    with pytest.raises(ConfigError, match="does not fit a session of 8000"):
        arrange("distance", 8000, 12_000, 600, 3, 2000)
