"""Starting workers as users do."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace


def torchrun(workers, *command, restarts=0, cwd=None, **environment):
    """Exit code, stdout and stderr of a command (a script, or -m module) that torchrun starts `workers` times."""
    line = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={workers}",
        f"--max-restarts={restarts}",
        *map(str, command),
    ]
    # As many threads as the process that the results are compared with: products are rounded by how they are divided.
    threads = os.environ.get("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "OMP_WAIT_POLICY": "PASSIVE", **environment}
    done = subprocess.run(line, capture_output=True, text=True, timeout=400, cwd=cwd, env=environment)
    return SimpleNamespace(code=done.returncode, out=done.stdout, err=done.stderr)
