"""Experiments: runs that belong together, each done once, in worker processes, and recorded."""
