# Starts gputop's hook: Python imports `sitecustomize` at startup.
#
# This file starts the hook in the same directory, removes that directory from the path, and imports the
# `sitecustomize` that Python would have found without it. The syntax must be valid in every Python version, because every
# Python process imports this file. The hook itself requires Python 3.8.
import sys


def _step_aside():
    import os

    here = os.path.dirname(os.path.abspath(__file__))
    try:
        if sys.version_info >= (3, 8) and os.environ.get("GPUTOP_HOOK") != "0":
            import gputop_hook

            gputop_hook.start()
    except Exception:
        pass
    # Restores the program's own path. PYTHONPATH stays set, so that child processes load the hook as well.
    sys.path[:] = [entry for entry in sys.path if not entry or os.path.abspath(entry) != here]
    sys.path_importer_cache.pop(here, None)
    return sys.modules.pop(__name__, None)


# Keeps a reference, because Python 2 clears a module without references.
_this = _step_aside()

# Exceptions are not caught: Python reports a missing or failing module as usual.
import sitecustomize  # noqa: E402,F401
