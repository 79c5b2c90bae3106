"""A far host once for real: an agent behind a pipe, watched while a training process runs out of memory. remote.py GPUTOP

`gputop record via:…` sees it as a near side does. Printed: how many frames came and how many bytes the pipe carried, what
was read inside the process's allocator, and which incident was kept.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time

FAILS = """
import time, torch
kept = [torch.empty(1 << 30, dtype=torch.uint8, device='cuda') for _ in range(8)]
time.sleep(6)
try:
    torch.empty(1 << 45, dtype=torch.uint8, device='cuda')
finally:
    time.sleep(1)
"""


def main():
    gputop = os.path.abspath(sys.argv[1])
    folder = tempfile.mkdtemp()
    environment = dict(os.environ, XDG_STATE_HOME=folder)
    wire = f"{folder}/wire"
    # The far side's output is counted on its way.
    via = f"via:{shlex.quote(gputop)} agent | tee {wire}"
    recording = f"{folder}/far.gpt.zst"
    near = subprocess.Popen(
        [gputop, "record", "--for", "14s", "-o", recording, via], env=environment, stderr=subprocess.PIPE, text=True
    )
    time.sleep(2)
    log = open(f"{folder}/train.log", "w")
    subprocess.run([sys.executable, "-c", FAILS], stdout=log, stderr=log, check=False)
    print(near.communicate()[1].strip())
    print("bytes on the wire:", os.path.getsize(wire))
    listed = subprocess.run([gputop, "incidents", "list", "--json"], env=environment, capture_output=True, text=True)
    for incident in json.loads(listed.stdout)["incidents"]:
        print("incident:", incident["id"], incident["severity"], incident.get("detected_by"), incident.get("host"))


main()
