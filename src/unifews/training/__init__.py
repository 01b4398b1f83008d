"""Training and judging models: the loop, metrics, runs and their ledger."""
