"""Secure sums: a coordinator that learns the sum over its clients and nothing of one of them.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning (CCS 2017), with double
masking and signed agreement on who is left; above 64 clients the sparse graph of Bell et al., Secure
Single-Server Aggregation with (Poly)Logarithmic Overhead (CCS 2020). The primitives are those of
``cryptography`` and of ``pycryptodome`` (secret sharing); none is our own.

``ring`` numbers as integers that are summed exactly; ``keys``, ``sharing``, ``masks``, ``graph`` what hides
them; ``messages`` what the parties send; ``client`` and ``coordinator`` the two state machines.
"""
