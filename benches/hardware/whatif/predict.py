"""What-if against what happens: predict.py GPUTOP [FOLDER]

Three training scripts run under PyTorch's default settings with their allocations recorded; `gputop whatif` says from
that what each would reserve at most under other settings; then each runs under them. So does a run that fails for
fragmentation under a memory limit: what would save it by the model, and whether it does. At last a real card is filled
until the run fails, with its explanation (saved.py). The last lines are the verdicts; exit 1 where a run fits that was
said to fail or the other way round, or a peak is further off than `NEAR`. FOLDER keeps what saved.py says.
"""

import json
import os
import subprocess
import sys
import tempfile

import saved

HERE = os.path.dirname(os.path.abspath(__file__))
SETTINGS = ["", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4"]
SCRIPTS = ["transformer", "ragged", "growing", "fragments"]
MIB = 1 << 20
# In percent.
NEAR = 1.0


def start(script, setting, folder, *more):
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_ALLOC_CONF")}
    if setting:
        environment.update(PYTORCH_CUDA_ALLOC_CONF=setting, PYTORCH_ALLOC_CONF=setting)
    words = [sys.executable, f"{HERE}/scripts.py", script, *more]
    return subprocess.Popen(words, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def told(process):
    out, err = process.communicate()
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if not lines:
        sys.exit(err[-2000:])
    return json.loads(lines[-1])


def predicted(gputop, pickle, torch):
    words = [gputop, "whatif", pickle, "--json", "--torch", torch]
    for setting in SETTINGS:
        words += ["--conf", setting]
    out = subprocess.run(words, capture_output=True, text=True, check=False)
    if not out.stdout:
        sys.exit(out.stderr)
    return json.loads(out.stdout)["devices"][0]["settings"]


def compare(script, setting, said, is_so):
    """Prints one line; how far off the peak was, in percent, and whether what fits was said to fit."""
    peak, measured = said["peak_reserved_bytes"], is_so["reserved"]
    off = (peak / measured - 1) * 100
    fate = f"fails at {said['oom']['requested_bytes'] / MIB:.0f} MiB" if said["oom"] else "fits"
    same = bool(said["oom"]) == bool(is_so["failed"])
    print(
        f"{script:12} {setting or 'default':28} said {peak / MIB:9.0f} MiB, {fate:20} "
        f"measured {measured / MIB:9.0f} MiB, {'fails' if is_so['failed'] else 'fits':5} {off:+.2f} % {'' if same else 'WRONG'}"
    )
    return abs(off), same


def main(gputop, kept):
    folder = tempfile.mkdtemp()
    recorders = {script: start(script, "", folder, f"{folder}/{script}.pickle") for script in SCRIPTS}
    recorded = {script: told(process) for script, process in recorders.items()}
    runs = {(script, setting): start(script, setting, folder) for script in SCRIPTS for setting in SETTINGS}
    measured = {key: told(process) for key, process in runs.items()}
    compared = []
    for script in SCRIPTS:
        settings = predicted(gputop, f"{folder}/{script}.pickle", recorded[script]["torch"])
        compared += [compare(script, conf, said, measured[script, conf]) for conf, said in zip(SETTINGS, settings)]
    worst, wrong = max(off for off, _ in compared), sum(not same for _, same in compared)
    is_right = wrong == 0 and worst <= NEAR
    print(f"{'AS FORETOLD' if is_right else 'NOT AS FORETOLD'}: {len(compared) - wrong} of {len(compared)} fit or fail as said; the furthest peak is {worst:.2f} % off")
    is_saved = saved.verdict(gputop, kept)
    return is_right and is_saved


if __name__ == "__main__":
    sys.exit(0 if main(os.path.abspath(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp()) else 1)
