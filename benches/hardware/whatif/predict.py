"""What-if against what happens: predict.py GPUTOP

Three training scripts run under PyTorch's default settings with their allocations recorded; `gputop whatif` says from
that what each would reserve at most under other settings; then each runs under them. Then a run that fails for
fragmentation under a memory limit: what would have saved it by the model, and whether it does.
"""

import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SETTINGS = ["", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4"]
MIB = 1 << 20


def start(script, setting, folder, *more):
    environment = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=setting, PYTORCH_ALLOC_CONF=setting)
    if not setting:
        environment = {k: v for k, v in environment.items() if not k.endswith("_ALLOC_CONF")}
    words = [sys.executable, f"{HERE}/scripts.py", script, *more]
    return subprocess.Popen(words, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def told(process):
    out, err = process.communicate()
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if not lines:
        sys.exit(err[-2000:])
    return json.loads(lines[-1])


def predicted(gputop, pickle, settings, torch):
    words = [gputop, "whatif", pickle, "--json", "--torch", torch]
    for setting in settings:
        words += ["--conf", setting]
    out = subprocess.run(words, capture_output=True, text=True, check=False)
    if not out.stdout:
        sys.exit(out.stderr)
    return json.loads(out.stdout)["devices"][0]["settings"]


def main():
    gputop = os.path.abspath(sys.argv[1])
    folder = tempfile.mkdtemp()
    scripts = ["transformer", "ragged", "growing"]
    recorders = {script: start(script, "", folder, f"{folder}/{script}.pickle") for script in scripts}
    recorders["fragments"] = start("fragments", "", folder, f"{folder}/fragments.pickle")
    recorded = {script: told(process) for script, process in recorders.items()}
    runs = {(s, c): start(s, c, folder) for s in [*scripts, "fragments"] for c in SETTINGS}
    measured = {key: told(process) for key, process in runs.items()}
    worst = 0.0
    for script in scripts:
        settings = predicted(gputop, f"{folder}/{script}.pickle", SETTINGS, recorded[script]["torch"])
        for setting, run in zip(SETTINGS, settings):
            said, is_so = run["peak_reserved_bytes"], measured[script, setting]["reserved"]
            off = (said / is_so - 1) * 100
            worst = max(worst, abs(off))
            print(f"{script:12} {setting or 'default':28} predicted {said / MIB:9.0f} measured {is_so / MIB:9.0f} MiB  {off:+.2f} %")
    print(f"furthest off: {worst:.2f} %")
    print("fragments:", recorded["fragments"])
    settings = predicted(gputop, f"{folder}/fragments.pickle", SETTINGS, recorded["fragments"]["torch"])
    for setting, run in zip(SETTINGS, settings):
        said = f"fails at {run['oom']['requested_bytes'] / MIB:.0f} MiB" if run["oom"] else "fits"
        is_so = measured["fragments", setting]
        print(
            f"fragments    {setting or 'default':28} predicted {run['peak_reserved_bytes'] / MIB:9.0f} MiB, {said};"
            f" measured {is_so['reserved'] / MIB:9.0f} MiB, {is_so['failed'] or 'fits'}"
        )


main()
