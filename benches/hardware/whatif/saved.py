"""A run that fails for fragmentation, is explained, and is saved by what the explanation says.

    saved.py GPUTOP FOLDER [SECONDS [GPU]]

`gputop run --trace-allocs` of story/fragment.py, which fails when the card is full; the first change of the incident;
the same program with that change and nothing else. FOLDER has then failed.log and explanation.txt (what the program
and gputop said), incident.json, whatif.txt (every setting), saved.log, verdict.txt. Exit 1 where anything is not as it
was said: it should not have failed, no setting was said to save it, it did not, or it reserved something else.
"""

import json
import os
import re
import subprocess
import sys
import tempfile

STORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "story")
FRAGMENT = "fragment.py" if os.path.exists("fragment.py") else os.path.join(STORY, "fragment.py")
GIB = 1 << 30
# What the measured peak may differ by: libraries take a workspace of their own.
NEAR = 0.01


class Wrong(Exception):
    """One sentence: what is not as it was said."""


def run(words, environment, out, err=subprocess.STDOUT):
    with open(out, "w") as file:
        stderr = err if isinstance(err, int) else open(err, "w")
        return subprocess.run(words, env=environment, stdout=file, stderr=stderr, check=False).returncode


def said(words, environment):
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False).stdout


def peaks(log):
    """Of each step the most that was reserved until its end."""
    with open(log) as file:
        return [int(peak) for peak in re.findall(r"^step \d+ peak (\d+)", file.read(), re.M)]


def remedy(gputop, environment, folder):
    """The change that the newest explained fragmentation names first, and what was said of it."""
    listed = json.loads(said([gputop, "incidents", "list", "--json"], environment) or "{}").get("incidents", [])
    own = [one for one in listed if one["id"] == "oom-fragmentation"]
    if not own:
        raise Wrong(f"no incident is oom-fragmentation: {[one['id'] for one in listed]}")
    newest = max(own, key=lambda one: one["time"])
    with open(f"{folder}/incident.json", "w") as file:
        file.write(said([gputop, "incidents", "export", newest["uid"], "--json"], environment))
    fix = newest["fixes"][0]
    if fix.get("replayed", {}).get("fate") != "fits":
        raise Wrong(f"no fix is said to save it; the first is {fix}")
    return fix["replayed"]


def main(gputop, folder, seconds, gpu):
    os.makedirs(folder, exist_ok=True)
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES=gpu, PYTHONUNBUFFERED="1")
    environment = {name: value for name, value in environment.items() if not name.endswith("_ALLOC_CONF")}
    environment.setdefault("XDG_STATE_HOME", tempfile.mkdtemp())
    program = [sys.executable, FRAGMENT, "0", seconds]
    failed, saved = f"{folder}/failed.log", f"{folder}/saved.log"
    code = run([gputop, "run", "--trace-allocs", *program], environment, failed, f"{folder}/explanation.txt")
    if code == 0:
        raise Wrong("it did not fail")
    with open(f"{folder}/explanation.txt") as file:
        trace = re.findall(r"^gputop: allocation trace: (.*\.oom\..*)$", file.read(), re.M)
    if not trace:
        raise Wrong("no allocation trace was kept")
    run([gputop, "whatif", trace[-1]], environment, f"{folder}/whatif.txt")
    replayed = remedy(gputop, environment, folder)
    conf = replayed["conf"]
    code = run(program, dict(environment, PYTORCH_CUDA_ALLOC_CONF=conf, PYTORCH_ALLOC_CONF=conf), saved)
    if code != 0:
        raise Wrong(f"{conf} was said to save it, and it failed: {saved}")
    # The replay ends with the request that failed, which was made in the step after the last that was told.
    at, then = len(peaks(failed)), peaks(saved)
    said_peak, is_so = replayed["peak_reserved_bytes"], then[min(at, len(then) - 1)]
    if abs(said_peak / is_so - 1) > NEAR:
        raise Wrong(f"{conf}: {said_peak / GIB:.2f} GiB reserved in step {at} were said, {is_so / GIB:.2f} were measured")
    return (
        f"AS FORETOLD: failed in step {at} with {peaks(failed)[-1] / GIB:.2f} GiB reserved; under {conf} it ran to its "
        f"end (step {len(then) - 1}); reserved in step {at}: {said_peak / GIB:.2f} GiB said, {is_so / GIB:.2f} measured"
    )


def verdict(gputop, folder, seconds="12", gpu="0"):
    """Prints and keeps the verdict; whether all was as it was said."""
    try:
        line, is_right = main(os.path.abspath(gputop), os.path.abspath(folder), seconds, gpu), True
    except Wrong as why:
        line, is_right = f"NOT AS FORETOLD: {why}", False
    with open(f"{folder}/verdict.txt", "w") as file:
        file.write(line + "\n")
    print(line, flush=True)
    return is_right


if __name__ == "__main__":
    sys.exit(0 if verdict(*sys.argv[1:]) else 1)
