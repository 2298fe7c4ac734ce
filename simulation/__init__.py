"""Many clients on one machine, the same core without HTTP."""
