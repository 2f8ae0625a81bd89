"""Tests of the engine, against references that are derived without it."""
