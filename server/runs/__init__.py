"""The application layer: what the coordinator does with a run. No HTTP, no SQL; ``server.api`` calls it."""
