"""All SQL of the coordinator. The way in is ``store.Store``: one method, one transaction.

A module a noun holds its reads and its writes; ``step/`` moves a run by one event of the state machine.
"""
