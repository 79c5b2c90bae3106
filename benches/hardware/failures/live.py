"""Starts the programs of cases.py by hand with gputop watching from outside:
live.py GPUTOP [--store DIR] [--early] [--modes file,tee,pane,null,journal] [CASE …]

Each program runs once per mode: its output in a file, behind `tee`, in a tmux pane, to /dev/null, and in the journal
(only if named: it needs journald). Printed: the incidents found, how long after the end of the program, the first
cause with its verdict, the first fix, and whether all of that is right. Without output, a cause other than the actual
one must not be called likely. With --store, an earlier gputop watches already, with DIR as its XDG_STATE_HOME. Programs
that fill the GPU run one after the other, the others side by side.

Normally, each program uses the GPU for three seconds before its case begins. With --early, its case begins at once, 14
programs start together, and those that fill the GPU are left out. A failure must then be explained within 2 s.
"""

import concurrent.futures
import glob
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

import run

HERE = os.path.dirname(os.path.abspath(__file__))
PID = "import os, runpy, sys, time; open(sys.argv[2], 'w').write(str(os.getpid())); "
WARM = "import torch; torch.empty(1, device='cuda'); time.sleep(3); "
CASE = f"sys.argv = ['cases.py', sys.argv[1]]; runpy.run_path({HERE + '/cases.py'!r}, run_name='__main__')"
IS_EARLY = "--early" in sys.argv
# Programs that run side by side.
TOGETHER = 14 if IS_EARLY else 8
MAX_EARLY_DELAY = 2.0
MODES = ("file", "tee", "pane", "null")
# One after the other: they fill the card.
ALONE = """activations large_buffer fragmentation leak other_process no_context first_step eval_no_grad eval_keeps_outputs
    running_loss attention_matrix ranks_on_one_gpu growing_kv_cache swallowed_oom cublas_no_memory jax_oom""".split()
# A minute and more: with a log and without.
SLOW = {
    "slow_leak": (("oom-leak-growth",), ("oom-leak-growth",)),
    "one_large_step": (("oom-spike-step",), ("oom-capacity",)),
}
# What is right without any text; of what is not out of memory an Xid may be told, or nothing.
MEASURED = {
    "activations": ("oom-capacity",),
    "large_buffer": ("oom-capacity",),
    "beyond_card": ("oom-capacity", "oom-absurd-request"),
    "fragmentation": ("oom-fragmentation",),
    "leak": ("oom-capacity", "oom-leak-growth"),
    "other_process": ("oom-other-process",),
    "fraction": ("oom-memory-fraction-limit", "oom-capacity"),
    "first_step": ("oom-first-step-states", "oom-capacity"),
    "eval_no_grad": ("oom-capacity", "oom-eval-no-grad"),
    "eval_keeps_outputs": ("oom-capacity", "oom-leak-growth", "oom-eval-no-grad"),
    "running_loss": ("oom-capacity", "oom-leak-growth"),
    "attention_matrix": ("oom-capacity",),
    "ranks_on_one_gpu": ("oom-other-process",),
    "growing_kv_cache": ("oom-capacity", "oom-leak-growth", "oom-fragmentation"),
    "swallowed_oom": ("oom-capacity",),
    "caught_and_done": ("oom-capacity", "oom-absurd-request"),
}
# A message that a program swallowed is in no log.
SWALLOWED = ("caught_and_done",)


class Store:
    """What a watching gputop has written down, each with the moment it was first seen there."""

    def __init__(self, folder):
        self.files = f"{folder}/gputop/incidents/*.json"
        self.seen, self.ends = {}, False
        self.thread = threading.Thread(target=self.look)
        self.thread.start()

    def look(self):
        while not self.ends:
            for file in glob.glob(self.files):
                self.seen.setdefault(file, time.time())
            time.sleep(0.05)

    def of(self, pids):
        """Incidents beyond a note of one of these processes, and when the first of them was there."""
        found = []
        for file, seen in list(self.seen.items()):
            try:
                with open(file) as text:
                    one = json.load(text)
            except (OSError, ValueError):
                continue
            about = (one.get("observed", {}).get("process") or {}).get("pid")
            if about in pids and one["severity"] != "note":
                found.append((seen, one))
        return [one for _, one in sorted(found, key=lambda pair: pair[0])], min((s for s, _ in found), default=None)


def journal_stream(name):
    """A connection to the journal, as systemd opens it for the output of a service."""
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.connect("/run/systemd/journal/stdout")
    # Name, unit, priority, and whether lines begin with a priority and go to the system log, the kernel log, a console.
    stream.sendall(f"{name}\n\n6\n0\n0\n0\n0\n".encode())
    return stream


def start(case, mode, folder):
    """The program and the file that will hold its PID."""
    own = f"{folder}/{case}-{mode}"
    begins = PID + CASE if IS_EARLY else PID + WARM + CASE
    program = [sys.executable, "-c", begins, case, own + ".pid"]
    log = own + ".log"
    if mode == "file":
        return subprocess.Popen(program, stdout=open(log, "w"), stderr=subprocess.STDOUT), own + ".pid"
    if mode == "null":
        return subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL), own + ".pid"
    if mode == "journal":
        with journal_stream(case) as stream:
            number = os.fstat(stream.fileno())
            env = dict(os.environ, JOURNAL_STREAM=f"{number.st_dev}:{number.st_ino}")
            return subprocess.Popen(program, stdout=stream, stderr=stream, env=env), own + ".pid"
    words = " ".join("'" + word.replace("'", "'\\''") + "'" for word in program)
    if mode == "tee":
        return subprocess.Popen(["sh", "-c", f"{words} 2>&1 | tee {log} >/dev/null"]), own + ".pid"
    name = f"{case}-{os.getpid()}"
    with open(own + ".sh", "w") as script:
        script.write(f"{words}\ntmux wait-for -S {name}\n")
    subprocess.run(["tmux", "new-session", "-d", "-s", name, "-x", "160", "-y", "50", "sh"], check=True)
    subprocess.run(["tmux", "send-keys", "-t", name, f". {own}.sh", "Enter"], check=True)
    return subprocess.Popen(["sh", "-c", f"tmux wait-for {name}; sleep 3; tmux kill-session -t {name}"]), own + ".pid"


def descendants(pid, known):
    """The processes below a living one, added to `known`."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as children:
            below = [int(word) for word in children.read().split()]
    except OSError:
        return
    for one in below:
        known.add(one)
        descendants(one, known)


def held(record):
    """What held the memory, and when that was read relative to the failure."""
    scene = record.get("scene") or {}
    holders = scene.get("holders")
    if not holders:
        return "holders not read"
    classes = sorted(holders["classes"].items(), key=lambda pair: -pair[1])
    shares = (f"{name} {bytes * 100 // max(holders['allocated'], 1)} %" for name, bytes in classes[:3])
    kept = sum(holders.get(name, 0) for name in ("retained_graphs", "retained_tensors"))
    kept = kept * 100 // max(holders["allocated"], 1)
    return f"held at {(holders['at'] - scene['at']) / 1000:+.1f} s: {', '.join(shares)}; in containers {kept} %"


def tried(case, mode, store, folder):
    """One line, and whether it is right."""
    program, pid_file = start(case, mode, folder)
    own, ended = set(), None
    while ended is None:
        if not own and os.path.exists(pid_file):
            with open(pid_file) as file:
                own = {int(file.read() or 0)} - {0}
        alive = [pid for pid in own if os.path.exists(f"/proc/{pid}")]
        for pid in alive:
            descendants(pid, own)
        if program.poll() is not None or (own and not alive):
            ended = time.time()
        time.sleep(0.02)
    until = time.time() + 6
    while time.time() < until and not store.of(own)[0]:
        time.sleep(0.1)
    # What else is said of it comes within seconds.
    time.sleep(2)
    program.wait()
    found, at = store.of(own)
    ids = [one["id"] for one in found]
    if case in SLOW:
        expected, cause = SLOW[case][mode == "null"], None
    else:
        expected, cause = run.CASES[case][:2]
    if case not in SLOW and (mode == "null" or case in SWALLOWED):
        expected, cause = MEASURED.get(case), None
        is_right = (ids[0] in expected) if ids and expected else not expected and all(i.startswith("xid") for i in ids)
    else:
        is_right = (bool(ids) and ids[0] in expected) if expected else not ids
    first = found[0]["causes"][0] if found and found[0].get("causes") else {"id": None, "verdict": None}
    fix = found[0]["fixes"][0]["change"].split("\n")[0] if found and found[0].get("fixes") else ""
    is_right = is_right and cause in (None, first["id"]) and len(ids) <= 1
    if IS_EARLY and at:
        is_right = is_right and at - ended <= MAX_EARLY_DELAY
    if mode == "null" and case not in SLOW and first["verdict"] == "likely":
        actual = run.CASES[case][1]
        is_right = is_right and (first["id"] == actual if actual else ids[0] != "oom-capacity")
    after = f"{at - ended:+.1f} s" if at else "-"
    said = " ".join(f"{one['id']}/{one['severity']}/{one['detected_by']}" for one in found) or "-"
    line = f"{'ok   ' if is_right else 'WRONG'} {case:20} {mode:5} {after:8} {said} {first['id']} ({first['verdict']}): {fix}"
    line += f" | {held(found[0])}" if found and found[0].get("family") == "oom" else ""
    print(line, flush=True)
    return is_right, (at - ended if at else None)


def main():
    words = [word for word in sys.argv[1:] if word != "--early"]
    gputop, given = os.path.abspath(words.pop(0)), None
    if words[:1] == ["--store"]:
        given, words = words[1], words[2:]
    folder = tempfile.mkdtemp()
    state = given or folder
    watching = None
    if not given:
        order = [gputop, "record", "--force", "-o", folder + "/x.gpt.zst"]
        watching = subprocess.Popen(order, env=dict(os.environ, XDG_STATE_HOME=state), stderr=subprocess.DEVNULL)
        time.sleep(2)
    modes = words.pop(1).split(",") if words[:1] == ["--modes"] else MODES
    words = words[1:] if modes is not MODES else words
    wanted = words or [*run.CASES, *SLOW]
    if IS_EARLY:
        wanted = [case for case in wanted if case not in ALONE and case not in SLOW and case not in SWALLOWED]
    is_here = lambda case: case not in run.NEEDS or importlib.util.find_spec(run.NEEDS[case])
    wanted = [case for case in wanted if is_here(case)]
    store, results = Store(state), []
    side_by_side = [(case, mode) for case in wanted if case not in ALONE and case not in SLOW for mode in modes]
    with concurrent.futures.ThreadPoolExecutor(TOGETHER) as pool:
        tries = [pool.submit(tried, case, mode, store, folder) for case, mode in side_by_side]
        results += [one.result() for one in tries]
    for case in wanted:
        if case in ALONE:
            results += [tried(case, mode, store, folder) for mode in modes]
        if case in SLOW:
            results += [tried(case, mode, store, folder) for mode in ("file", "null")]
    store.ends = True
    store.thread.join()
    if watching:
        watching.terminate()
        watching.wait()
    late = sorted(after for _, after in results if after is not None)
    wrong = sum(not is_right for is_right, _ in results)
    if late:
        print(f"noticed after the end: median {late[len(late) // 2]:+.2f} s, latest {late[-1]:+.2f} s, of {len(late)}")
    print(f"{len(results) - wrong} of {len(results)} right")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
