"""Benchmarks: eviction methods side by side, in-process or over HTTP."""
