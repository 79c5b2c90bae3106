"""The programs of predict.py: scripts.py NAME [PICKLE]; the most that was reserved is printed, the history written."""

import json
import random
import sys

import torch

MIB = 1 << 20


def transformer():
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    net = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    for length in [256, 512, 384, 512, 300, 128] * 4:
        net(torch.randn(8, length, 512, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def ragged():
    net = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    dice = random.Random(7)
    for _ in range(60):
        net(torch.randn(dice.randint(100, 20_000), 1024, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def growing():
    dice, kept = random.Random(11), []
    for number in range(400):
        work = [torch.empty(dice.randint(1, 200) * 100_000, dtype=torch.uint8, device="cuda") for _ in range(8)]
        if number % 3 == 0:
            kept.append(torch.empty(dice.randint(1, 40) * 70_000, dtype=torch.uint8, device="cuda"))
        del work
        if len(kept) > 60:
            kept.pop(dice.randrange(60))


def fragments():
    """Under a limit of 12 GiB: what is kept lies in what larger batches left, until the last finds no room."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(12 * 1024 * MIB / total)
    kept = []
    for _ in range(10):
        batch = torch.empty(1200 * MIB, dtype=torch.uint8, device="cuda")
        del batch
        kept.append(torch.empty(700 * MIB, dtype=torch.uint8, device="cuda"))
    torch.empty(1200 * MIB, dtype=torch.uint8, device="cuda")


def main():
    name, pickle = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    torch.manual_seed(1)
    if pickle:
        torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python", context=None)
    failed = None
    try:
        globals()[name]()
    except torch.OutOfMemoryError as error:
        failed = str(error).splitlines()[0][:100]
    torch.cuda.synchronize()
    if pickle:
        torch.cuda.memory._dump_snapshot(pickle)
    reserved = torch.cuda.max_memory_reserved()
    print(json.dumps({"reserved": reserved, "failed": failed, "torch": ".".join(torch.__version__.split(".")[:2])}), flush=True)


main()
