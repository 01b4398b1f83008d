"""Training and evaluating models: the loop, metrics, runs and their ledger."""
