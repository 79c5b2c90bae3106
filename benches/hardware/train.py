"""A language model on random text: sequences of varying length, an evaluation and a checkpoint now and then.

torchrun --nproc-per-node N train.py, with the time to stop at (Unix seconds) in UNTIL.
"""

import os
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

WORDS = 50304
WIDTH, LAYERS, HEADS = 2048, 16, 16


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, LAYERS)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens)))


def tokens(batch, length):
    return torch.randint(0, WORDS, (batch, length), device="cuda")


def train_step(net, optimizer, length):
    batch = tokens(8, length)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = net(batch)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def evaluate(net, rank):
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        for _ in range(6):
            net.module(tokens(24, 1536))
    torch.cuda.synchronize()
    if rank == 0:
        torch.save(net.module.state_dict(), "/tmp/checkpoint.pt")
    time.sleep(2)


def main():
    rank, local, until = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"]), float(os.environ["UNTIL"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl")
    random.seed(rank)
    net = DistributedDataParallel(Model().cuda())
    optimizer = torch.optim.AdamW(net.parameters(), 1e-4)
    step, kept = 0, []
    while True:
        train_step(net, optimizer, random.choice([256, 384, 512, 768, 1024, 1536]) if step > 30 else 256)
        step += 1
        if step % 40 == 0:  # something that grows, until it is let go of all at once
            kept.append(torch.empty((1 << 30) + rank * (1 << 26), dtype=torch.uint8, device="cuda"))
        if step % 120 == 0:
            evaluate(net, rank)
        if len(kept) > 12:
            kept.clear()
            torch.cuda.empty_cache()
        over = torch.tensor([float(time.time() >= until)], device="cuda")
        dist.all_reduce(over)
        if over.item() > 0:
            break
    dist.destroy_process_group()


main()
