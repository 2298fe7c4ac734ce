"""The state machine of runs and rounds: pure, standard library and ``shared`` only.

``machine.decide`` is the door; ``tables`` has the rules, ``views`` what can be read off a run, and
``sampling.draw`` who takes part in a round.
"""
