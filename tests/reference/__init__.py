"""Slow, plain re-derivations of what the engine computes. They never call the engine."""
