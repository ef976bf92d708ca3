"""The line under load: `python -m tests.bench.line` (`make bench-line`)."""
