"""The commands, by file; ``feddisco.main`` imports the one file that a call needs."""
