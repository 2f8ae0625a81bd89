"""Live view of sessions, drawn from the HTTP API alone."""
