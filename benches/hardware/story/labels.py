"""A classifier whose data has a label too many. labels.py GPU SECONDS"""

import sys
import time

import torch


def main():
    device, until = f"cuda:{sys.argv[1]}", time.time() + float(sys.argv[2])
    torch.cuda.set_device(device)
    net = torch.nn.Sequential(torch.nn.Linear(4096, 16384), torch.nn.GELU(), torch.nn.Linear(16384, 1000)).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    step = 0
    while True:
        step += 1
        labels = torch.randint(0, 1000, (16384,), device="cuda")
        if time.time() > until:
            labels[7] = 1000
        logits = net(torch.randn(16384, 4096, device="cuda"))
        loss = torch.nn.functional.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


main()
