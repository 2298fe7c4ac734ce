"""The status pages."""
