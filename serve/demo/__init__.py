"""The demo: agent sessions played against a running server, and what was measured on the way.

It is a client like any other: it knows the wire (openai, httpx), not the engine's insides.
"""
