"""Algorithms: the file name is the registry."""
