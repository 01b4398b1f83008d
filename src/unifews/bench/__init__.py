"""Benchmarks that ship with the package: ratios against the real rival, from one interleaved run, with the spread."""
