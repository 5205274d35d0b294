"""The room that runs: the worker, what it does with one claim, and the pools in which it does it."""
