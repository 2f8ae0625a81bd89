"""Retention policies, one module each; a preset of ``configs/policies`` names one.

A module holds ``keep(policy, candidates)``: which tokens stay, as ``engine.retention.select_keep``
returns them. It may set ``OBSERVED_QUERIES``: how many of the last queries of a prefill chunk make
the scores, which then replace the earlier ones; without it all attention ever received is summed.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

NO_EVICTION = "none"


def retention_names() -> list[str]:
    """Names a preset's ``retention`` may have."""
    return sorted([NO_EVICTION, *(module.name for module in pkgutil.iter_modules(__path__))])


def keep_function(retention: str) -> Callable[..., Any]:
    """``keep`` of a policy that evicts."""
    found: Callable[..., Any] = _module(retention).keep
    return found


def observed_queries(retention: str) -> int | None:
    """``OBSERVED_QUERIES`` of a policy; None: all queries, summed over the session."""
    if retention == NO_EVICTION:
        return None
    found: int | None = getattr(_module(retention), "OBSERVED_QUERIES", None)
    return found


def _module(retention: str) -> Any:
    return importlib.import_module(f"{__name__}.{retention}")
