"""A cache that goes to pieces: features of odd sizes stay in what larger batches left, until a batch finds no hole.

fragment.py GPU SECONDS: that long until the card is full; with settings under which it never is, a little longer."""

import sys
import time

import torch

MIB = 1 << 20
LARGEST, KEPT = 1200 * MIB, 620 * MIB


def step(device, matrix):
    batch = torch.empty(LARGEST, dtype=torch.uint8, device=device)
    for _ in range(30):
        matrix = (matrix @ matrix).tanh()
    torch.cuda.synchronize(device)
    del batch
    return torch.empty(KEPT, dtype=torch.uint8, device=device)


def main():
    device, seconds = f"cuda:{sys.argv[1]}", float(sys.argv[2])
    free, _ = torch.cuda.mem_get_info(device)
    weights = torch.empty(int(free * 0.3), dtype=torch.uint8, device=device)
    matrix = torch.randn(4096, 4096, device=device)
    steps = int((free - weights.numel()) / LARGEST)
    features = []
    for number in range(steps + 8):
        start = time.time()
        features.append(step(device, matrix))
        print(f"step {number} peak {torch.cuda.max_memory_reserved(device)} reserved", flush=True)
        time.sleep(max(0.0, seconds / steps - (time.time() - start)))


main()
