"""Tests of PACE."""
