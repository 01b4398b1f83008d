"""Torch starts here: layers that prune their own weights (and, with `sparsify`, their own messages)."""
