"""Parse, call, answer: no SQL and no transition in here."""
