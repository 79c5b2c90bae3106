"""Training that nothing is wrong with, watched from outside: healthy.py GPUTOP SECONDS STATE [STEADY]

Batches of changing lengths, evaluation, checkpoints, workers that load data, a search for the fastest kernels by cuDNN
and torch.compile, a part of the program that ends and a log full of words that are no failures. STATE is the
XDG_STATE_HOME of the gputop that watches. Printed: what was noticed of it beyond notes (nothing should be), the notes,
and what watching cost. After STEADY
seconds the program takes no more memory than it has, so that others may fill the card beside it.
"""

import glob
import json
import os
import subprocess
import sys
import time

HARMLESS = [
    "epoch {n}: error rate 0.{n:03}, no failures in 20 workers",
    "UserWarning: CUDA initialization took long; out of memory errors were not seen",
    "retrying the download (attempt 1 of 5): connection reset",
    "gradient overflow. Skipping step, loss scaler 0 reducing loss scale to 16384.0",
    "[rank0]: NCCL version 2.27.5+cuda12.8",
    "checkpoint {n} written; killed 0 stale workers",
]


def train(seconds, steady):
    import torch
    from torch import nn

    began, n = time.time(), 0
    until, steady = began + seconds, began + steady
    layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, norm_first=True)
    net = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False).cuda()
    vision = nn.Sequential(nn.Conv2d(3, 64, 7), nn.ReLU(), nn.Conv2d(64, 128, 5), nn.ReLU(), nn.Conv2d(128, 64, 3)).cuda()
    optimizer = torch.optim.AdamW([*net.parameters(), *vision.parameters()], 1e-4)
    scaler = torch.amp.GradScaler("cuda")
    torch.backends.cudnn.benchmark = True
    words = torch.utils.data.TensorDataset(torch.randn(4096, 64))
    loader = torch.utils.data.DataLoader(words, batch_size=64, num_workers=2)
    try:
        tuned = torch.compile(lambda a, b: torch.relu(a @ b), mode="max-autotune")
        tuned(torch.randn(2048, 1024, device="cuda"), torch.randn(1024, 512, device="cuda"))
        print("kernels were searched for by torch.compile", flush=True)
    except Exception as error:
        print("no torch.compile here:", type(error).__name__, str(error)[:200].replace("\n", " "), flush=True)
    while time.time() < until:
        for (_batch,) in loader:
            n += 1
            length = [128, 256, 384, 512, 192, 320][n % 6]
            with torch.autocast("cuda", dtype=torch.float16):
                loss = net(torch.randn(16, length, 768, device="cuda")).float().square().mean()
                if n % 16 == 0:
                    loss = loss + vision(torch.randn(4, 3, 96 + 8 * (n // 16 % 12), 128, device="cuda")).float().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            if n % 50 == 0:
                print(HARMLESS[n // 50 % len(HARMLESS)].format(n=n), flush=True)
            if n % 400 == 0:
                net.eval()
                with torch.no_grad():
                    for _ in range(8):
                        net(torch.randn(64, 512, 768, device="cuda"))
                net.train()
                torch.save(net.state_dict(), "/tmp/healthy.pt")
            if n % 800 == 0 and time.time() < steady:
                torch.cuda.empty_cache()
            if n % 2000 == 0 and time.time() < steady:
                ended = subprocess.run([sys.executable, "-c", "import torch; torch.ones(1, device='cuda'); raise SystemExit(0)"], check=False)
                print("evaluation ended with", ended.returncode, flush=True)
            if time.time() > until:
                break
    print(f"{n} steps", flush=True)


def below(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as children:
            own = [int(word) for word in children.read().split()]
    except OSError:
        own = []
    return {pid}.union(*(below(one) for one in own))


def main():
    if sys.argv[1] == "train":
        return train(float(sys.argv[2]), float(sys.argv[3]))
    gputop, seconds, state = os.path.abspath(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    steady = sys.argv[4] if len(sys.argv) > 4 else str(seconds)
    os.makedirs(state, exist_ok=True)
    order = [gputop, "record", "--force", "-o", f"{state}/healthy.gpt.zst"]
    watching = subprocess.Popen(order, env=dict(os.environ, XDG_STATE_HOME=state), stderr=subprocess.DEVNULL)
    time.sleep(2)
    began, log = time.time(), open(f"{state}/healthy.log", "w")
    words = [sys.executable, "-u", os.path.abspath(__file__), "train", str(seconds), steady]
    program, own = subprocess.Popen(words, stdout=log, stderr=log), set()
    while program.poll() is None:
        own |= below(program.pid)
        time.sleep(0.5)
    time.sleep(6)
    with open(f"/proc/{watching.pid}/stat") as stat:
        ticks = sum(int(word) for word in stat.read().rsplit(")", 1)[1].split()[11:13])
    with open(f"/proc/{watching.pid}/status") as status:
        resident = next(line.split(":")[1].strip() for line in status if line.startswith("VmRSS"))
    watched = time.time() - began
    watching.terminate()
    watching.wait()
    told = {"note": [], "more": []}
    for file in glob.glob(f"{state}/gputop/incidents/*.json"):
        with open(file) as text:
            one = json.load(text)
        if (one.get("observed", {}).get("process") or {}).get("pid") in own:
            told["note" if one["severity"] == "note" else "more"].append((one["id"], one["severity"], one.get("count")))
    with open(f"{state}/healthy.log") as text:
        lines = text.read().splitlines()
    print(f"{watched:.0f} s, {len(own)} processes, exit {program.returncode}, {lines[-1] if lines else 'no output'}")
    print("  " + "\n  ".join(line for line in lines if "torch.compile" in line))
    print(f"notes: {told['note'] or 'none'}; beyond notes: {told['more'] or 'none'}")
    print(f"watching: {ticks / os.sysconf('SC_CLK_TCK') / watched * 100:.2f} % of a core, {resident} resident")
    sys.exit(bool(told["more"]) or program.returncode != 0)


main()
