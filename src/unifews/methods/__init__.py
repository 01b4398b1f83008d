"""Pruning methods, one file per paper: `base` has the contracts they fulfil, `registry` finds them by name."""
