"""The OpenAI-compatible wire format: what a request may say, what an answer looks like.

Nothing here knows Ray or FastAPI. A request body becomes the engine's nouns
(``engine.types``); turn events become JSON.
"""
