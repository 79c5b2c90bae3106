"""Programs that fail on one GPU, each for a reason of its own: cases.py NAME.

Plain allocations only, and no setting of a GPU is touched. What a case should be explained as is in run.py.
"""

import os
import subprocess
import sys
import time

import torch

GIB = 1 << 30


def block(size):
    return torch.empty(int(size), dtype=torch.uint8, device="cuda")


# -- Out of memory ---------------------------------------------------------------------------------------------------


def activations():
    """What the backward pass will want is kept, layer after layer."""
    hidden = torch.ones(GIB // 8, device="cuda", requires_grad=True)
    for _ in range(2000):
        hidden = torch.sin(hidden)
    hidden.sum().backward()


def large_buffer():
    """Two thirds of the GPU are in use, and attention over a long sequence requests almost half of it."""
    total = torch.cuda.mem_get_info()[1]
    weights = block(total * 2 // 3)
    heads = 32
    length = int((total * 0.45 / heads / 2) ** 0.5)
    tokens = torch.ones(1, heads, length, 64, dtype=torch.float16, device="cuda")
    scores = tokens @ tokens.transpose(-1, -2)
    print(scores.shape, weights.shape)


def beyond_card():
    torch.empty(400 * GIB, dtype=torch.uint8, device="cuda")


def fragmentation():
    """Segments of 8 GiB, each pinned by 0.6 GiB near its end, the rest free: holes of 7 GiB and none of 7.5."""
    count = int(torch.cuda.mem_get_info()[0] // (8 * GIB))
    segments = [block(8 * GIB) for _ in range(count)]
    segments.clear()
    halves = [block(3.5 * GIB) for _ in range(2 * count)]
    pins = [block(0.6 * GIB) for _ in range(count)]
    halves.clear()
    batch = block(7.5 * GIB)
    print(len(pins), batch.shape)


def leak():
    """Losses are kept with their graphs."""
    weight = torch.ones(GIB // 4, device="cuda", requires_grad=True)
    losses = []
    for _ in range(1000):
        losses.append((weight * 2).exp().sum())
    print(sum(losses))


def slow_leak(kept_a_step=1, large_at=None):
    """Steps that come down to where they began, and every step keeps a GiB more: a minute and more to see it."""
    kept, step = [block(4 * GIB)], 0
    while step < 400:
        work = [block(2 * GIB) for _ in range(3)]
        time.sleep(0.5)
        work.clear()
        time.sleep(0.2)
        step += 1
        if kept_a_step:
            kept.append(block(kept_a_step * GIB))
        if step == large_at:
            work = [block(3.5 * GIB) for _ in range(40)]
    print(len(kept))


def one_large_step():
    """A minute of steps like each other, then a batch that is many times as large."""
    slow_leak(kept_a_step=0, large_at=85)


HOLD = """
import sys, torch
free = torch.cuda.mem_get_info()[0]
kept, size = [], int(float(sys.argv[1]) * free)
while size >= 2 << 20:
    try: kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError: pass
    if sys.argv[1] != "1": break
    size = min(size // 2, torch.cuda.mem_get_info()[0])
print("held", flush=True)
sys.stdin.read()
"""


def hold(share):
    """Another process that holds this share of the card until its input ends."""
    command = [sys.executable, "-c", HOLD, str(share)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "held\n"
    return other


def other_process():
    other = hold(0.8)
    model = block(40 * GIB)
    print(other, model)


def no_context():
    """Nothing is left for the context itself."""
    other = hold(1)
    torch.ones(1, device="cuda")
    print(other)


def fraction():
    torch.cuda.set_per_process_memory_fraction(0.05)
    layers = [block(2 * GIB) for _ in range(20)]
    print(len(layers))


def first_step():
    """Weights and gradients fit; what Adam keeps for them does not."""
    total = torch.cuda.mem_get_info()[1]
    count = int(total * 0.29) // GIB
    weights = [torch.nn.Parameter(torch.zeros(GIB // 4, device="cuda")) for _ in range(count)]
    optimizer = torch.optim.AdamW(weights, foreach=False)
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    optimizer.step()


def evaluate(net, batches):
    results = []
    for _ in range(batches):
        results.append(net(torch.ones(64, 1 << 20, device="cuda")))
    return results


def eval_no_grad():
    """The graph of every batch is recorded, and kept by the results."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(1, device="cuda"))

        def forward(self, x):
            return torch.sin(x * self.scale).exp()

    net = Net().eval()
    evaluate(net, 1000)


def eval_keeps_outputs():
    """An evaluation without graphs collects all outputs on the GPU."""
    net = torch.nn.Linear(4096, 16384, device="cuda").eval()
    outputs = []
    with torch.no_grad():
        for _ in range(10000):
            outputs.append(net(torch.ones(4096, 4096, device="cuda")))
    print(torch.cat(outputs).shape)


def running_loss():
    """The sum of the losses keeps the graph of every step."""
    weight = torch.ones(GIB // 4, device="cuda", requires_grad=True)
    total_loss = 0
    for _ in range(1000):
        loss = (weight * 2).exp().sum()
        total_loss += loss
    print(total_loss.item())


def pinned_memory():
    """A page-locked buffer is many times larger than the memory of the host."""
    torch.ones(1, device="cuda")
    host_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    staging = torch.empty(64 * host_bytes, dtype=torch.uint8, pin_memory=True)
    print(staging.shape)


def attention_matrix():
    """The unfused attention kernel stores a score matrix of half the GPU."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    total = torch.cuda.mem_get_info()[1]
    heads = 32
    length = int((total / 2 / heads / 2) ** 0.5)
    weights = block(total * 0.6)
    tokens = torch.ones(1, heads, length, 64, dtype=torch.float16, device="cuda")
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        mixed = torch.nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)
    print(mixed.shape, weights.shape)


def load_on_first_gpu(rank, total):
    """A rank that ignores its local rank."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="4")
    weights = block(total * 0.3)
    print(f"rank {rank}: loaded {weights.numel() >> 30} GiB on {weights.device}", flush=True)
    time.sleep(30)


def ranks_on_one_gpu():
    """Every rank loads its weights on GPU 0."""
    total = torch.cuda.mem_get_info()[1]
    torch.multiprocessing.spawn(load_on_first_gpu, args=(total,), nprocs=4)


def growing_kv_cache():
    """Generation without a length limit appends to the cache of each layer."""
    layers = 32
    cache = [torch.ones(8, 0, 4096, dtype=torch.float16, device="cuda") for _ in range(layers)]
    with torch.no_grad():
        for _ in range(1000):
            new_keys = torch.ones(8, 4096, 4096, dtype=torch.float16, device="cuda")
            for layer in range(layers):
                cache[layer] = torch.cat([cache[layer], new_keys], dim=1)
    print(cache[0].shape)


def swallowed_oom():
    """The training loop logs an out-of-memory error and continues without a loss."""
    weights = block(torch.cuda.mem_get_info()[0] * 0.8)
    loss = None
    for step in range(3):
        try:
            loss = block(torch.cuda.mem_get_info()[1] * 0.5).sum()
        except RuntimeError as error:
            print(f"step {step}: skipping batch: {error}", flush=True)
    print("loss", loss.item(), weights.shape)


def caught_and_done():
    try:
        block(400 * GIB)
    except torch.OutOfMemoryError:
        print("smaller it is")


def cublas_no_memory():
    a = torch.ones(1024, 1024, device="cuda")
    kept = []
    while torch.cuda.mem_get_info()[0] > 8 << 20:
        kept.append(block(torch.cuda.mem_get_info()[0] - (6 << 20)))
    print((a @ a).sum())


def cupy_oom():
    import cupy

    kept = [cupy.empty(10 * GIB, dtype=cupy.uint8), cupy.empty(160 * GIB, dtype=cupy.uint8)]
    print(len(kept))


def jax_oom():
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax.numpy as jnp

    kept = []
    for n in range(200):
        kept.append(jnp.ones((GIB,), jnp.float32) + n)
        kept[-1].block_until_ready()


# -- Assertions of kernels -------------------------------------------------------------------------------------------


def synchronized(work):
    print(work())
    torch.cuda.synchronize()


def assert_embedding():
    words = torch.nn.Embedding(100, 8).cuda()
    synchronized(lambda: words(torch.tensor([1, 2, 100], device="cuda")).sum().item())


def assert_cross_entropy():
    logits, target = torch.randn(8, 10, device="cuda"), torch.tensor([0, 1, 2, 3, 4, 5, 6, 10], device="cuda")
    synchronized(lambda: torch.nn.functional.cross_entropy(logits, target).item())


def assert_nll_2d():
    logits = torch.randn(2, 19, 4, 4, device="cuda").log_softmax(1)
    target = torch.full((2, 4, 4), 255, device="cuda")
    synchronized(lambda: torch.nn.functional.nll_loss(logits, target).item())


def assert_gather():
    synchronized(lambda: torch.ones(4, 4, device="cuda").gather(1, torch.full((4, 1), 9, device="cuda")).sum().item())


def assert_scatter():
    index = torch.full((4, 1), 9, device="cuda")
    ones = torch.ones(4, 1, device="cuda")
    synchronized(lambda: torch.zeros(4, 4, device="cuda").scatter_(1, index, ones).sum().item())


def assert_index():
    synchronized(lambda: torch.ones(10, device="cuda")[torch.tensor([3, 10], device="cuda")].sum().item())


def assert_multinomial():
    odds = torch.full((1, 10), float("nan"), device="cuda")
    synchronized(lambda: torch.multinomial(odds, 1).item())


def assert_bce():
    odds, target = torch.full((4,), 1.5, device="cuda"), torch.ones(4, device="cuda")
    synchronized(lambda: torch.nn.functional.binary_cross_entropy(odds, target).item())


def sampling_overflow():
    """Half-precision logits overflow, so the probabilities are NaN."""
    hidden = torch.full((1, 4096), 300.0, dtype=torch.float16, device="cuda")
    lm_head = torch.full((4096, 100), 300.0, dtype=torch.float16, device="cuda")

    def generate():
        probabilities = torch.softmax(hidden @ lm_head, dim=-1)
        return torch.multinomial(probabilities, num_samples=1).item()

    synchronized(generate)


def padding_label():
    """The padding of the masks is 255, but the loss ignores another label."""
    logits = torch.randn(2, 19, 4, 4, device="cuda")
    masks = torch.randint(0, 19, (2, 4, 4), device="cuda")
    masks[:, 0] = 255
    criterion = torch.nn.CrossEntropyLoss(ignore_index=-1)
    synchronized(lambda: criterion(logits, masks).item())


def triton_kernel(source):
    """Triton reads a kernel's source from a file."""
    import importlib.util
    import tempfile

    path = os.path.join(tempfile.mkdtemp(), "kernels.py")
    with open(path, "w") as file:
        file.write("import triton\nimport triton.language as tl\n\n\n@triton.jit\n" + source)
    spec = importlib.util.spec_from_file_location("kernels", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


def triton_assert():
    os.environ["TRITON_DEBUG"] = "1"
    kernel = triton_kernel(
        "def kernel(x, n, SIZE: tl.constexpr):\n"
        "    at = tl.arange(0, SIZE)\n"
        "    value = tl.load(x + at, mask=at < n)\n"
        '    tl.device_assert(value < 5, "a value is too large")\n'
        "    tl.store(x + at, value + 1, mask=at < n)\n"
    )
    kernel[(1,)](torch.arange(16, device="cuda"), 16, SIZE=16, debug=True)
    torch.cuda.synchronize()


def triton_resources():
    kernel = triton_kernel(
        "def kernel(a, b, c, N: tl.constexpr):\n"
        "    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]\n"
        "    x = tl.load(a + i * N + j)\n"
        "    y = tl.load(b + i * N + j)\n"
        "    tl.store(c + i * N + j, tl.dot(x, y))\n"
    )
    a = torch.ones(256, 256, device="cuda", dtype=torch.float32)
    kernel[(1,)](a, a, torch.empty_like(a), N=256, num_warps=8)
    torch.cuda.synchronize()


# -- Faults of kernels -----------------------------------------------------------------------------------------------


def launched(body, argument):
    source = 'extern "C" __global__ void fault(unsigned long long p) { ' + body + " }"
    import cupy

    cupy.RawKernel(source, "fault")((1,), (1,), (cupy.uint64(argument),))
    torch.cuda.synchronize()


def illegal_access():
    x = torch.ones(4, device="cuda")
    launched("*(volatile int*)p = 1;", x.data_ptr() + (1 << 40))


def misaligned():
    x = torch.ones(4, device="cuda")
    launched("*(volatile int*)p = 1;", x.data_ptr() + 1)


def launch_failure():
    torch.ones(4, device="cuda")
    launched('asm("trap;");', 0)


def triton_out_of_bounds():
    """A Triton kernel stores without a mask, far behind its buffer."""
    kernel = triton_kernel(
        "def kernel(x, offset, SIZE: tl.constexpr):\n"
        "    at = tl.arange(0, SIZE)\n"
        "    tl.store(x + offset + at, at)\n"
    )
    x = torch.zeros(16, dtype=torch.int32, device="cuda")
    kernel[(1,)](x, 1 << 40, SIZE=16)
    torch.cuda.synchronize()


# -- Everything else -------------------------------------------------------------------------------------------------


def in_child(rank):
    print(rank, torch.ones(1, device="cuda"))


def fork_after_init():
    torch.ones(1, device="cuda")
    import multiprocessing

    child = multiprocessing.get_context("fork").Process(target=in_child, args=(0,))
    child.start()
    child.join()
    sys.exit(child.exitcode)


def nccl_rank(rank):
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("nccl", rank=rank, world_size=2)
    dist.all_reduce(torch.ones(1, device="cuda:0"))
    torch.cuda.synchronize()


def nccl_duplicate_gpu():
    os.environ["MASTER_PORT"] = str(20000 + os.getpid() % 10000)
    torch.multiprocessing.spawn(nccl_rank, nprocs=2)


def graph_capture():
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        print(y.sum().item())


def internal_assert():
    torch.ones(1, device="cuda")
    torch._C._cuda_releasePool(0, (0, 123))


def invalid_device():
    torch.ones(1, device="cuda:63")


# -- In the first second on the GPU ----------------------------------------------------------------------------------


def first_batch():
    """A label outside the classes of the first batch."""
    net, images = torch.nn.Linear(32, 10).cuda(), torch.ones(4, 32, device="cuda")
    labels = torch.tensor([1, 2, 3, 11], device="cuda")
    torch.nn.functional.cross_entropy(net(images), labels).backward()
    torch.cuda.synchronize()


def first_tokens():
    """A tokenizer with more words than the embedding has rows."""
    table = torch.nn.Embedding(100, 8).cuda()
    print(table(torch.tensor([[5, 100]], device="cuda")).sum().item())


def first_weights():
    """A model of 4 TB."""
    torch.nn.Linear(1 << 20, 1 << 20, device="cuda")


def no_visible_gpu():
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.nn.Linear(8, 8).cuda()


def rank_without_gpu():
    """More ranks than GPUs."""
    torch.cuda.set_device(torch.cuda.device_count() + 3)


def wrong_setting():
    """A setting of the allocator that PyTorch does not know."""
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "max_split_mb:128"
    torch.ones(1, device="cuda")


def other_machines_checkpoint():
    """A checkpoint that was saved on a GPU with a higher number."""
    import io

    buffer, tensor = io.BytesIO(), torch.ones(1, device="cuda")
    torch.save(tensor, buffer)
    buffer = io.BytesIO(buffer.getvalue().replace(b"cuda:0", b"cuda:9"))
    torch.load(buffer)


def early_fork():
    """Workers that inherit CUDA."""
    torch.cuda.init()
    loader = torch.utils.data.DataLoader(OnGpu(), num_workers=2)
    next(iter(loader))


class OnGpu(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, at):
        return torch.ones(1, device="cuda") * at


def sampled_nan():
    """Probabilities of a model whose weights were never loaded."""
    logits = torch.full((1, 50), float("nan"), device="cuda")
    print(torch.multinomial(torch.softmax(logits, -1), 1).item())


def wrong_index():
    """Positions beyond the cache."""
    cache = torch.zeros(16, 8, device="cuda")
    cache.index_add_(0, torch.tensor([3, 16], device="cuda"), torch.ones(2, 8, device="cuda"))
    torch.cuda.synchronize()


def typo():
    """No CUDA call at all."""
    print({"input": 1}["label"])


def wrong_argument():
    import argparse

    argparse.ArgumentParser("train.py").parse_args(["--learning-rate", "3"])


# -- Not failures of the GPU -----------------------------------------------------------------------------------------


def key_error():
    batch = {"input": torch.ones(1, device="cuda")}
    print(batch["labels"])


def wrong_shapes():
    print(torch.ones(2, 3, device="cuda") @ torch.ones(2, 3, device="cuda"))


def two_devices():
    print(torch.ones(2, device="cuda") + torch.ones(2))


def exit_code_3():
    torch.ones(1, device="cuda")
    sys.exit(3)


def trains_well():
    net = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(50):
        net(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
