"""Measurements that can be repeated: ``python -m benchmarks.<name> --json``.

Each benchmark proves on small data that what it times is right before it times anything, and gives no figures where
that fails. One is timed at a time (`harness.locked`); the machine and how busy it was are written down with the
figures. `docs/guide/benchmarks.md` says what each figure means.
"""
