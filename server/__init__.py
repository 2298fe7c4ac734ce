"""The coordinator: HTTP API, state machine, storage, pages."""
