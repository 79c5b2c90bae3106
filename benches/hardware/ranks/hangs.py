"""Jobs that hang, several at once, and which rank `gputop ranks` names.

    hangs.py GPUTOP FOLDER ROUNDS

Each round starts one job for each way to hang (tests/bed/ranks.py), with a rank on each GPU, and a random rank and step of
the fault. Two more jobs go on. FOLDER/hangs.jsonl gets a line for each job: every sentence with its time after the stall.
Exit 1 if a wrong rank was named, a hang was not, a healthy job was, or a count differs from that of the rank.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time

HANGS = ["skip", "mismatch", "kind", "order", "item", "init", "dead", "pipeline", "stop"]
HEALTHY = ["ok", "slow"]
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tests/bed/ranks.py")
START_SECONDS, WATCH_SECONDS = 90, 20


class Job:
    """A rank on each GPU. In the mode `stop`, a rank of a healthy job is stopped with a signal."""

    def __init__(self, mode, size):
        self.mode, self.size = mode, size
        self.culprit, self.step = random.randrange(size), random.randrange(20, 60)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        environment = dict(os.environ, FAULT_RANK=str(self.culprit), FAULT_STEP=str(self.step))
        program = "ok" if mode == "stop" else mode
        words = [[sys.executable, SCRIPT, str(rank), str(size), str(port), program] for rank in range(size)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.ranks = [subprocess.Popen(line, env=environment, text=True, **pipes) for line in words]
        self.stalled, self.said, self.truth, self.wrong = None, [], {}, []
        for rank in self.ranks:
            rank.stdout.readline()

    def ask(self):
        for number, rank in enumerate(self.ranks):
            if self.mode == "dead" and number == self.culprit or self.mode == "stop" and self.stalled and number == self.culprit:
                continue
            rank.stdin.write("truth\n")
            rank.stdin.flush()
            line = rank.stdout.readline()
            if not line:
                raise EOFError
            self.truth[number] = json.loads(line)
        return self.truth.values()

    def wait(self, deadline):
        try:
            self.wait_for_fault(deadline)
        except (EOFError, BrokenPipeError):
            self.wrong.append("a rank ended before its fault")

    def wait_for_fault(self, deadline):
        while time.time() < deadline:
            truth = self.ask()
            if self.mode in ("stop", *HEALTHY) and all(one["step"] > self.step for one in truth):
                break
            if all(one["is_waiting"] for one in truth):
                break
            time.sleep(0.2)
        else:
            self.wrong.append("did not come to its fault")
        if self.mode == "stop":
            self.ranks[self.culprit].send_signal(signal.SIGSTOP)
        self.stalled = time.time()

    def hear(self, document):
        pids = {rank.pid for rank in self.ranks}
        for job in document["jobs"]:
            if pids & {rank["pid"] for rank in job["ranks"]}:
                now = [(verdict["text"], verdict["culprits"]) for verdict in job["verdicts"]]
                if now and (not self.said or [one[1:] for one in self.said[-len(now):]] != now):
                    self.said += [(round(time.time() - (self.stalled or time.time()), 1), *one) for one in now]

    def check_counts(self, document):
        """Compares the calls that were read with those that the ranks counted. Returns the number of groups."""
        groups = 0
        for reading in document["ranks"]:
            for number, rank in enumerate(self.ranks):
                if rank.pid != reading["process"]["pid"] or number not in self.truth:
                    continue
                truth = self.truth[number]["groups"]
                for group in reading["groups"] if isinstance(reading["groups"], list) else []:
                    called = len(truth[group["name"]]["called"])
                    groups += 1
                    if self.mode not in HEALTHY and self.mode != "stop" and group["called"] != called:
                        self.wrong.append(f"rank {number}, group {group['name']}: {group['called']} read, {called} counted")
        return groups

    def judge(self):
        named = [culprits for _, _, culprits in self.said]
        if self.mode in HEALTHY:
            return "right" if not named else "FALSE ALARM"
        if not named:
            return "SILENT"
        # With two ranks, neither is the majority.
        both = self.size == 2 and self.mode in ("mismatch", "kind", "order")
        fine = [[self.culprit]] + ([[], [0, 1]] if both else [])
        if any(culprits and culprits not in fine for culprits in named):
            return "WRONG"
        return "right" if named[-1] in fine else "unnamed"

    def end(self):
        for rank in self.ranks:
            rank.kill()
            rank.wait()


def one_round(gputop, size, out):
    watch = subprocess.Popen([gputop, "ranks", "--watch", "--json", "-i", "500ms"], stdout=subprocess.PIPE, text=True)
    jobs, last = [Job(mode, size) for mode in HANGS + HEALTHY], {}

    def hear():
        for line in watch.stdout:
            last["document"] = json.loads(line) if line.startswith("{") else {"jobs": [], "ranks": []}
            for job in jobs:
                job.hear(last["document"])

    threading.Thread(target=hear, daemon=True).start()
    deadline = time.time() + START_SECONDS
    waits = [threading.Thread(target=job.wait, args=(deadline,)) for job in jobs]
    for one in waits:
        one.start()
    for one in waits:
        one.join()
    time.sleep(WATCH_SECONDS)
    results = []
    for job in jobs:
        groups = job.check_counts(last.get("document", {"ranks": []}))
        verdict = "COUNTS" if job.wrong else job.judge()
        first = job.said[0][0] if job.said else None
        print(f"{job.mode:9} rank {job.culprit} {verdict:8} first {first} s, {groups} groups: {job.said[-1][1:2]} {job.wrong[:2]}"
              if job.said else f"{job.mode:9} rank {job.culprit} {verdict}, {groups} groups {job.wrong[:2]}", flush=True)
        out.write(json.dumps({"mode": job.mode, "culprit": job.culprit, "verdict": verdict, "said": job.said, "wrong": job.wrong}) + "\n")
        results.append((job.mode, verdict, first, groups))
        job.end()
    watch.kill()
    return results


def main(gputop, folder, rounds):
    import torch

    os.makedirs(folder, exist_ok=True)
    random.seed(int(time.time()))
    results = []
    with open(f"{folder}/hangs.jsonl", "w", buffering=1) as out:
        for _ in range(int(rounds)):
            results += one_round(gputop, torch.cuda.device_count(), out)
    hangs = [one for one in results if one[0] not in HEALTHY]
    right = sum(one[1] == "right" for one in hangs)
    print(f"{right} of {len(hangs)} hangs right, {sum(one[1] == 'WRONG' for one in hangs)} wrong; "
          f"{sum(one[1] == 'right' for one in results) - right} of {len(results) - len(hangs)} healthy jobs without a word; "
          f"{sum(one[3] for one in results)} groups read; first word after {sorted(one[2] for one in hangs if one[2])} s")
    sys.exit(0 if all(one[1] in ("right", "unnamed") for one in results) else 1)


main(*sys.argv[1:])
