"""Waking what waits: long polls and event streams, in one process and across several."""
