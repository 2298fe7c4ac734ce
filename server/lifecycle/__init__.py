"""The state machine of runs and rounds: pure, standard library and ``shared`` only."""
