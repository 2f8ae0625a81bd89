"""Test support: models, fakes and helpers shared by tests."""
