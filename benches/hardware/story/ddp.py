"""A language model on every GPU, trained on random text. torchrun --nproc-per-node N ddp.py

From STALL_AT on (Unix seconds), the worker of rank 1 waits for STALL_SECONDS as if for its storage, so that rank 1 holds up
the others. Ends at UNTIL. All memory is taken in the first steps, so that other programs can fill the GPU.
"""

import os
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

WORDS = 50304
WIDTH, LAYERS, HEADS = 2048, 16, 16
LENGTHS = [256, 384, 512, 768, 1024, 1536]
RANK = int(os.environ["RANK"])
STALL_AT, STALL_SECONDS, UNTIL = (float(os.environ[name]) for name in ("STALL_AT", "STALL_SECONDS", "UNTIL"))


class Texts(Dataset):
    stalls = RANK == 1

    def __len__(self):
        return 1 << 30

    def __getitem__(self, index):
        if self.stalls and time.time() > STALL_AT:
            self.stalls = False
            self.read_slowly()
        length = LENGTHS[-1] if index < 4 else random.choice(LENGTHS)
        return torch.randint(0, WORDS, (4, length))

    def read_slowly(self):
        time.sleep(STALL_SECONDS)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, LAYERS)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens)))


def train_step(net, optimizer, tokens):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = net(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def main():
    torch.cuda.set_device(RANK)
    dist.init_process_group("nccl")
    random.seed(RANK)
    net = DistributedDataParallel(Model().cuda())
    optimizer = torch.optim.AdamW(net.parameters(), 1e-4)
    for step, tokens in enumerate(DataLoader(Texts(), batch_size=None, num_workers=1, pin_memory=True)):
        loss = train_step(net, optimizer, tokens.cuda(non_blocking=True))
        dist.all_reduce(loss)
        if RANK == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        over = torch.tensor([float(time.time() >= UNTIL)], device="cuda")
        dist.all_reduce(over)
        if over.item() > 0:
            break
    os._exit(0)


main()
