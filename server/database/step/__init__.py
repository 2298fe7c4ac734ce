"""One step of a run, inside the transaction of the caller: load, decide, write what changed."""
