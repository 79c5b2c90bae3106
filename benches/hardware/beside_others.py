"""What monitors cost on this machine, each in its own tmux pane of 200x50, one after the other:

beside_others.py SECONDS NAME=COMMAND …

First frame: from the start of tmux until the pane shows a GPU's name and a percentage. CPU: of the whole process tree,
over SECONDS, four seconds after that.
"""

import subprocess
import sys
import time

import psutil

PATIENCE = 25


def tmux(*words):
    return subprocess.run(["tmux", "-L", "monitors", *words], capture_output=True, text=True, check=False).stdout


def tree(pid):
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def total(processes, of):
    result = 0
    for process in processes:
        try:
            result += of(process)
        except psutil.Error:
            pass
    return result


def cpu_seconds(processes):
    return total(processes, lambda p: sum(p.cpu_times()[:4]))


def first_frame(name, since):
    while time.perf_counter() - since < PATIENCE:
        screen = tmux("capture-pane", "-p", "-t", name)
        if any(gpu in screen for gpu in ("H200", "H100", "A100", "RTX", "NVIDIA")) and "%" in screen:
            return f"{time.perf_counter() - since:.2f}"
        time.sleep(0.01)
    return "never"


def measure(name, command, seconds):
    since = time.perf_counter()
    tmux("new-session", "-d", "-s", name, "-x", "200", "-y", "50", "exec " + command)
    pid = int(tmux("display", "-p", "-t", name, "#{pane_pid}").strip() or 0)
    first = first_frame(name, since)
    time.sleep(4)
    before, started = cpu_seconds(tree(pid)), time.perf_counter()
    time.sleep(seconds)
    processes = tree(pid)
    share = 100 * (cpu_seconds(processes) - before) / (time.perf_counter() - started)
    resident = total(processes, lambda p: p.memory_info().rss) / 2**20
    print(f"{name:16}{first:>14}{share:>18.2f}{resident:>10.1f}", flush=True)
    tmux("kill-session", "-t", name)


def main():
    print(f"{'monitor':16}{'first frame s':>14}{'CPU % of a core':>18}{'RSS MiB':>10}")
    for spec in sys.argv[2:]:
        name, command = spec.split("=", 1)
        measure(name, command, float(sys.argv[1]))


main()
