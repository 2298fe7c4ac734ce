"""The figures of docs/benchmarks.md and docs/privacy.md; not part of the installed package.

A package with a file of its own: libraries that install a folder of this name would come before one without.
"""
