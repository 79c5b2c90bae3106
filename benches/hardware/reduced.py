"""A host without gputop, seen through its own nvidia-smi: held against NVML. reduced.py GPUTOP FOLDER [SECONDS]

An `ssh` that runs on this very host stands for the connection: what gputop would run over there runs here, where it finds
no gputop. Beside it a process keeps a GPU busy. Printed: what each call of nvidia-smi costs, and figures of the last frame
beside those of `gputop once`. Where there is no zstd, `reduced.py --compare FOLDER` prints those elsewhere.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

SSH = """#!/bin/sh
case " $* " in *" -G "*|*" -O "*) exit 0;; esac
for last; do :; done
exec env -i HOME=/nonexistent "PATH=$NVIDIA_SMI:/usr/bin:/bin" sh -c "$last"
"""

BUSY = """
import time, torch
kept = torch.empty(10 << 30, dtype=torch.uint8, device='cuda')
a = torch.randn(8192, 8192, device='cuda', dtype=torch.bfloat16)
end = time.time() + float(__import__('sys').argv[1])
print('busy', flush=True)
while time.time() < end:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
"""

CALLS = [
    ["-L"],
    ["--version"],
    ["pmon", "-c", "1", "-s", "um"],
    ["--query-gpu=uuid,memory.used,utilization.gpu", "--format=csv"],
    ["--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv"],
]


def costs():
    for arguments in CALLS:
        begin = time.time()
        said = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True).stdout
        print(f"{time.time() - begin:6.3f} s  nvidia-smi {' '.join(arguments)}")
        print("         " + "\n         ".join(said.splitlines()[:6]))


def value(reading):
    return reading.get("is", reading) if isinstance(reading, dict) else reading


def figures(frame):
    gpus = [(value(gpu["memory"].get("used_bytes")), value(gpu.get("sm"))) for gpu in frame["gpus"]]
    processes = {}
    for gpu in frame["gpus"]:
        listed = value(gpu.get("processes")) or []
        for process in listed:
            processes[process["pid"]] = (value(process.get("vram_bytes")), value(process.get("sm")), process.get("kind"))
    return gpus, processes


def compare(folder):
    text = subprocess.run(["zstd", "-dcq", f"{folder}/far.gpt.zst"], capture_output=True, text=True, check=False).stdout
    lines = [json.loads(line) for line in text.splitlines()]
    frames = [line["frame"] for line in lines if "frame" in line]
    whole = [frame for frame in frames if frame.get("gpus")]
    print("frames:", len(frames))
    print("driver:", whole[-1].get("driver"))
    here = json.load(open(f"{folder}/here.json"))
    for name, frame in (("nvidia-smi", whole[-1]), ("NVML", here.get("frame", here))):
        gpus, processes = figures(frame)
        print(f"{name}: GPUs {gpus}; processes {processes}")


def main():
    if sys.argv[1] == "--compare":
        return compare(sys.argv[2])
    gputop, folder = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    seconds = sys.argv[3] if len(sys.argv) > 3 else "20"
    ways = tempfile.mkdtemp()
    ssh = f"{ways}/ssh"
    with open(ssh, "w") as file:
        file.write(SSH)
    os.chmod(ssh, 0o755)
    environment = dict(
        os.environ,
        PATH=f"{ways}:{os.environ['PATH']}",
        NVIDIA_SMI=os.path.dirname(shutil.which("nvidia-smi")),
        XDG_STATE_HOME=ways,
    )
    busy = subprocess.Popen([sys.executable, "-c", BUSY, str(float(seconds) + 25)], stdout=subprocess.PIPE, text=True)
    busy.stdout.readline()
    costs()
    record = [gputop, "record", "--no-push", "--for", f"{seconds}s", "-o", f"{folder}/far.gpt.zst", "far"]
    near = subprocess.Popen(record, env=environment, stderr=subprocess.PIPE, text=True)
    time.sleep(float(seconds) - 2)
    with open(f"{folder}/here.json", "w") as here:
        subprocess.run([gputop, "once", "--json"], stdout=here, check=False)
    print(near.communicate()[1].strip())
    busy.kill()
    if shutil.which("zstd"):
        compare(folder)


main()
