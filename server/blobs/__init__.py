"""Content-addressed, immutable files."""
