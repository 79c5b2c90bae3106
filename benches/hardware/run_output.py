"""What `gputop run` costs 100 MB of output on a terminal, beside script(1), which does as little: run_output.py GPUTOP [ROUNDS]

Bare, watched and recorded by script take turns. Printed: the least and the median of each, and how much slower that is.
"""

import os
import pty
import shutil
import sys
import time

OUTPUT = "yes 'step 1200 loss 2.3018 lr 0.00030 tokens/s 18234 mem 41.2 GiB' | head -c 100000000"


def seconds(words):
    start = time.monotonic()
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(words[0], words)
    try:
        while os.read(terminal, 1 << 16):
            pass
    except OSError:
        pass
    os.waitpid(pid, 0)
    os.close(terminal)
    return time.monotonic() - start


def main():
    gputop, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 7
    ways = {"bare": ["sh", "-c", OUTPUT], "gputop run": [gputop, "run", "--", "sh", "-c", OUTPUT]}
    if shutil.which("script"):
        ways["script"] = ["script", "-q", "-c", OUTPUT, "/dev/null"]
    times = {name: [] for name in ways}
    for _ in range(rounds):
        for name, words in ways.items():
            times[name].append(seconds(words))
    bare = sorted(times["bare"])
    for name, taken in times.items():
        taken.sort()
        least, median = taken[0], taken[len(taken) // 2]
        slower = [(least / bare[0] - 1) * 100, (median / bare[len(bare) // 2] - 1) * 100]
        print(f"{name:12} least {least:.2f} s ({slower[0]:+.0f} %)  median {median:.2f} s ({slower[1]:+.0f} %)")


main()
