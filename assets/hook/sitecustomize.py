# gputop's place in a Python process: Python imports `sitecustomize` when it starts, if it finds one.
#
# It starts the hook beside it, gets out of the way, and lets Python import the `sitecustomize` that it would have
# found without us. Readable by every Python, because every Python that starts finds it; the hook itself wants 3.8.
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
    # The program's own path is as it would be without us; PYTHONPATH stays, so that children have the hook as well.
    sys.path[:] = [entry for entry in sys.path if not entry or os.path.abspath(entry) != here]
    sys.path_importer_cache.pop(here, None)
    return sys.modules.pop(__name__, None)


# Kept until the end: Python 2 empties a module that nobody holds.
_this = _step_aside()

# Nothing is caught: that there is none, or that it fails, is Python's to tell as ever.
import sitecustomize  # noqa: E402,F401
