"""Cells that take no time, in a module of their own: other processes import them from here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from time import sleep

from unifews.errors import InputError


@dataclass(frozen=True)
class Toy:
    """Does as its name says."""

    id: str
    cost: float = 1.0
    seconds: float = 0.0

    @property
    def what(self):
        return f"toy {self.id}"

    def run(self, ledger, advance):
        advance(0.0, "starting")
        sleep(self.seconds)
        if self.id == "impossible":
            raise InputError("this cannot be done; ask for something else.")
        if self.id == "bug":
            raise ZeroDivisionError("a mistake of ours")
        if self.id == "dies":
            os._exit(9)
        advance(0.5, "halfway")
        record = {"id": self.id, "process": os.getpid(), "threads": os.environ.get("OMP_NUM_THREADS")}
        ledger.append(record)
        return record
