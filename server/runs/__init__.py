"""What the coordinator does with a run; knows no HTTP and no SQL."""
