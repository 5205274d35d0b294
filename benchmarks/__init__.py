"""Speed and size beside hand-written code: `make bench` or `python -m benchmarks`. Never a timed test."""
