"""Hands claimed jobs and rows to another engine: `base.py` does not know which, each target is one file."""
