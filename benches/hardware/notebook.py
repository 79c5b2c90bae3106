"""Somebody else's notebook on the same card: takes memory in steps, rests, leaves. notebook.py GPU STEPS [REST]"""

import sys
import time

import torch

device, steps = f"cuda:{sys.argv[1]}", int(sys.argv[2])
kept = []
for _ in range(steps):
    kept.append(torch.empty(int(2.5 * 2**30), dtype=torch.uint8, device=device))
    matrix = torch.randn(4096, 4096, device=device)
    (matrix @ matrix).sum().item()
    time.sleep(4)
time.sleep(float(sys.argv[3]) if len(sys.argv) > 3 else 6)
