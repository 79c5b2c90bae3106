"""A PyTorch program that stops at checkpoints: at each it prints PyTorch's own account of its allocator, as one line of
JSON, and goes on when a line comes in. compare.py holds it against what gputop reads from outside."""

import json
import random
import sys

import torch

SIZES = [300, 5_000, 70_000, 900_000, 3 << 20, 17 << 20, 90 << 20]


def checkpoint(name):
    torch.cuda.synchronize()
    stats = {key: value for key, value in torch.cuda.memory_stats().items() if isinstance(value, int)}
    blocks = [
        [block["address"], block["size"], block["state"]]
        for segment in torch.cuda.memory_snapshot()
        if segment["device"] == 0
        for block in segment["blocks"]
    ]
    print(json.dumps({"name": name, "stats": stats, "blocks": blocks}), flush=True)
    sys.stdin.readline()


def device_bytes(count):
    return torch.empty(count, dtype=torch.uint8, device="cuda")


def train(steps):
    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True)
    net = torch.nn.TransformerEncoder(layer, 6).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(steps):
        batch = torch.randn(8, random.choice([128, 256, 512]), 1024, device="cuda")
        net(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def main():
    random.seed(7)
    if sys.argv[1] == "fraction":
        torch.cuda.set_per_process_memory_fraction(0.5)
    first = device_bytes(1)
    checkpoint("one block")

    kept = [device_bytes(random.choice(SIZES) * random.randint(1, 4)) for _ in range(600)]
    kept[::3] = [None] * len(kept[::3])
    checkpoint("mixed")

    with torch.cuda.stream(torch.cuda.Stream()):
        other = [device_bytes(random.randint(1, 40) << 20) for _ in range(40)]
    other[::2] = [None] * len(other[::2])
    checkpoint("second stream")

    graph, matrix = torch.cuda.CUDAGraph(), torch.randn(2048, 2048, device="cuda")
    matrix @ matrix
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        result = torch.relu(matrix @ matrix) @ matrix
    graph.replay()
    checkpoint("CUDA graph")

    try:
        device_bytes(900 << 30)
    except torch.OutOfMemoryError:
        pass
    checkpoint("after an OOM")

    train(12)
    checkpoint("training")
    torch.cuda.empty_cache()
    checkpoint("emptied cache")
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    kept.clear()
    checkpoint("reset")
    del first, result


main()
