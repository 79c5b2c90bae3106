"""Starts programs of cases.py by hand, as if an hour ago, with gputop watching from outside: live.py GPUTOP [CASE …]

Each runs four times: its output in a file, behind `tee`, in a tmux pane, and to /dev/null. Printed: what was noticed,
how long after the end, and whether it is what it should be. A log's text is needed for all but running out of memory.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
WAITS = (
    "import runpy, sys, time, torch; torch.empty(1, device='cuda'); time.sleep(4); "
    f"sys.argv = ['cases.py', sys.argv[1]]; runpy.run_path({HERE + '/cases.py'!r}, run_name='__main__')"
)
# What is right with text, and without it; None: nothing is to be told.
CASES = {
    "activations": ("oom-capacity", "oom"),
    "fragmentation": ("oom-fragmentation", "oom-fragmentation"),
    "other_process": ("oom-other-process", "oom"),
    "fraction": ("oom-memory-fraction-limit", "oom"),
    "first_step": ("oom-first-step-states", "oom"),
    "assert_embedding": ("assert-embedding-range", "xid"),
    "illegal_access": ("cuda-illegal-address-700", "xid"),
    "key_error": (None, None),
    "trains_well": (None, None),
}


def start(case, mode, folder):
    program = [sys.executable, "-c", WAITS, case]
    log = f"{folder}/{case}-{mode}.log"
    if mode == "file":
        return subprocess.Popen(program, stdout=open(log, "w"), stderr=subprocess.STDOUT)
    if mode == "null":
        return subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    words = " ".join("'" + word.replace("'", "'\\''") + "'" for word in program)
    if mode == "tee":
        return subprocess.Popen(["sh", "-c", f"{words} 2>&1 | tee {log} >/dev/null"])
    subprocess.run(["tmux", "new-session", "-d", "-s", f"{case}", "-x", "160", "-y", "50", "sh"], check=True)
    subprocess.run(["tmux", "send-keys", "-t", case, f"{words}; tmux wait-for -S {case}", "Enter"], check=True)
    return subprocess.Popen(["tmux", "wait-for", case])


def incidents(gputop, environment):
    words = [gputop, "incidents", "list", "--json"]
    told = subprocess.run(words, capture_output=True, text=True, env=environment, check=False).stdout
    return json.loads(told)["incidents"] if told.strip() else []


def main():
    gputop, wanted = sys.argv[1], sys.argv[2:] or list(CASES)
    wrong = 0
    for case in wanted:
        for mode in ("file", "tee", "pane", "null"):
            folder = tempfile.mkdtemp()
            environment = dict(os.environ, XDG_STATE_HOME=folder)
            words = [gputop, "record", "--force", "-o", folder + "/x.gpt.zst"]
            watching = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL)
            time.sleep(1)
            program = start(case, mode, folder)
            program.wait()
            ended, found = time.time(), []
            while time.time() - ended < 4 and not found:
                found = [one for one in incidents(gputop, environment) if one["severity"] != "note"]
                took = time.time() - ended
                time.sleep(0.1)
            time.sleep(1.5 if found else 0)
            found = [one for one in incidents(gputop, environment) if one["severity"] != "note"]
            watching.terminate()
            watching.wait()
            if mode == "pane":
                subprocess.run(["tmux", "kill-session", "-t", case], check=False, stderr=subprocess.DEVNULL)
            expected = CASES[case][mode == "null"]
            ids = [one["id"] for one in found]
            is_right = (not ids) if expected is None else bool(ids) and ids[0].startswith(expected)
            wrong += not is_right
            after = f"{took:.1f} s" if found else "-"
            fields = [(one["severity"], one["detected_by"]) for one in found]
            print(f"{'ok   ' if is_right else 'WRONG'} {case:18} {mode:5} {after:6} {' '.join(ids) or '-':34} {fields}", flush=True)
    print(f"{wrong} wrong")
    sys.exit(wrong > 0)


main()
