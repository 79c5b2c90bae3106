"""gputop, a top for NVIDIA GPUs: finds the command `gputop`, and the directory of its Python hook."""

import os
import shutil
import subprocess
import sysconfig


def program():
    """Returns the path of the command that this package installed."""
    installed = os.path.join(sysconfig.get_path("scripts"), "gputop")
    found = installed if os.path.exists(installed) else shutil.which("gputop")
    if found is None:
        raise FileNotFoundError("gputop not found beside this Python or on PATH: reinstall gputop-cuda")
    return found


def hook_path():
    """Installs the hook if it is missing, and returns the directory to add to sys.path or PYTHONPATH."""
    return subprocess.run([program(), "hook", "path"], check=True, stdout=subprocess.PIPE).stdout.decode().rstrip("\n")
