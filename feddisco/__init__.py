"""The console script and the demo: thin, decides nothing."""
