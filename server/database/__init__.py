"""Tables, sessions, queries and the transactional store."""
