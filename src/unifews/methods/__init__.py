"""Who decides what goes: one file per paper. Start at `registry`; `contract` says what a method has to offer."""
