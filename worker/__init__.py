"""A worker process: one client next to its data."""
