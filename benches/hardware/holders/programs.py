"""Programs that hold GPU memory in one particular way each, and report their tensors.

    programs.py NAME

NAME: generation, training, compiled, cuda_graph, large_heap, one of the leaks: loss_list, hook, cache, closure, traceback, one of
the distributed programs: ddp, fsdp1, fsdp2, or one of the programs that need another library: huggingface (transformers
and peft), torchao, bitsandbytes, deepspeed. The distributed programs use two GPUs if there are two, and report the tensors
of rank 0. The commands on stdin and the answers are those of target.py. `truth` also contains `grows`, the start of the
name of the group that grows with each step, if the program leaks, and `purposes`, what gputop must recognize by name.
A program whose library is missing prints `{"missing": "LIBRARY"}` and exits.
"""
import json
import os
import subprocess
import sys
import time

import torch
from torch import nn

DEVICE = "cuda"
WIDTH = 1024


def storage(tensor):
    held = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()  # before torch 2.0
    return [held.data_ptr(), held.nbytes()]


def make_model():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)).to(DEVICE)


def parameter_names(prefix, module):
    return {f"{prefix}.{name}": storage(value) for name, value in module.named_parameters()}


def training_names(model, optimizer):
    """Returns the names of the tensors of `program.model` and of its optimizer."""
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    return {
        "parameter": parameter_names("program.model", model),
        "gradient": {f"program.model.{name}.grad": storage(value.grad) for name, value in trained.items()},
        "optimizer_state": {
            f"program.optimizer.state[program.model.{name}]['{key}']": storage(value)
            for name, parameter in trained.items()
            for key, value in optimizer.state[parameter].items()
            if value.is_cuda
        },
    }


class Generation:
    """Greedy decoding with a cache of keys and values for each layer."""

    LAYERS, HEADS, HEAD_WIDTH, BATCH, MAX_TOKENS = 4, 16, 64, 8, 4096

    def __init__(self):
        self.model = nn.ModuleList([nn.Linear(WIDTH, 3 * WIDTH) for _ in range(self.LAYERS)]).to(DEVICE)
        shape = (self.BATCH, self.HEADS, self.MAX_TOKENS, self.HEAD_WIDTH)
        self.past_key_values = [
            (torch.zeros(shape, device=DEVICE), torch.zeros(shape, device=DEVICE)) for _ in range(self.LAYERS)
        ]
        self.position = 0
        self.token = torch.zeros(self.BATCH, WIDTH, device=DEVICE)

    @torch.no_grad()
    def step(self):
        x, at = self.token, self.position % self.MAX_TOKENS
        for layer, (keys, values) in zip(self.model, self.past_key_values):
            query, key, value = layer(x).view(self.BATCH, 3, self.HEADS, self.HEAD_WIDTH).unbind(1)
            keys[:, :, at], values[:, :, at] = key, value
            scores = torch.einsum("bhd,bhtd->bht", query, keys[:, :, : at + 1]).softmax(-1)
            x = torch.einsum("bht,bhtd->bhd", scores, values[:, :, : at + 1]).reshape(self.BATCH, WIDTH)
        self.token, self.position = x, self.position + 1

    def names(self):
        cache = {
            f"program.past_key_values[{layer}][{part}]": storage(tensor)
            for layer, pair in enumerate(self.past_key_values)
            for part, tensor in enumerate(pair)
        }
        return {"parameter": parameter_names("program.model", self.model), "variable": cache}


class Training:
    """Training in a method of an object, during which other functions have the model and the optimizer as `self`."""

    def __init__(self):
        self.model = self.wrapped(make_model())
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.step()

    def wrapped(self, model):
        return model

    def step(self):
        self.model(torch.ones(256, WIDTH, device=DEVICE)).sum().backward()
        self.optimizer.step()

    def names(self):
        return training_names(self.model, self.optimizer)


class Compiled(Training):
    """Training of a module that torch.compile has wrapped."""

    def wrapped(self, model):
        return torch.compile(model)


class CudaGraph:
    """A captured forward pass, which keeps a private pool of memory."""

    def __init__(self):
        self.model = make_model()
        self.input = torch.zeros(512, WIDTH, device=DEVICE)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), torch.no_grad():
            for _ in range(3):
                self.model(self.input)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph), torch.no_grad():
            self.output = self.model(self.input)

    def step(self):
        self.graph.replay()

    def names(self):
        return {
            "parameter": parameter_names("program.model", self.model),
            "variable": {"program.input": storage(self.input), "program.output": storage(self.output)},
        }


class LargeHeap:
    """10,000 tensors among two million Python objects."""

    def __init__(self):
        self.objects = [{"index": index, "values": [index]} for index in range(670_000)]
        # Larger than the rounding of the allocator, so that each tensor has its own size.
        self.model = nn.ParameterList([torch.zeros(1024 + index % 7, device=DEVICE) for index in range(10_000)])

    def step(self):
        self.objects[0]["values"][0] += 1

    def names(self):
        return {"parameter": parameter_names("program.model", self.model)}


class Leak:
    """A model whose activations are kept by mistake. `keep` is the mistake."""

    def __init__(self):
        self.model = make_model()
        self.kept = []

    def run(self):
        return self.model(torch.ones(2048, WIDTH, device=DEVICE))

    def names(self):
        return {"parameter": parameter_names("program.model", self.model)}


class LossList(Leak):
    grows = "program.kept[*]"

    def step(self):
        self.kept.append(self.run().sum())


class Hook(Leak):
    grows = "program.kept[*]"

    def __init__(self):
        super().__init__()
        self.model[0].register_forward_hook(lambda module, inputs, output: self.kept.append(output.detach()))

    def step(self):
        with torch.no_grad():
            self.run()


class Cache(Leak):
    grows = "program.kept['step_*']"

    def __init__(self):
        super().__init__()
        self.kept = {}

    @torch.no_grad()
    def step(self):
        self.kept[f"step_{len(self.kept)}"] = self.run()


class Closure(Leak):
    grows = "program.kept[*].__closure__"

    @torch.no_grad()
    def step(self):
        output = self.run()
        self.kept.append(lambda: output.sum())


class Traceback(Leak):
    grows = "program.kept[*].__traceback__"

    def fail(self):
        activation = self.run()
        raise ValueError("loss is not finite", activation.shape)

    @torch.no_grad()
    def step(self):
        try:
            self.fail()
        except ValueError as error:
            self.kept.append(error)


class Distributed:
    """Training on all ranks of a job. Rank 0 starts the other rank, and has it run each step."""

    def __init__(self):
        rank = int(os.environ.get("RANK", 0))
        world = min(2, torch.cuda.device_count())
        self.peer = None
        if rank == 0:
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29541", WORLD_SIZE=str(world), RANK="0")
            if world == 2:
                words = [sys.executable, *sys.argv]
                environment = dict(os.environ, RANK="1")
                self.peer = subprocess.Popen(
                    words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
                )
        torch.cuda.set_device(rank)
        torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
        self.model = self.wrapped(nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(4)]).to(DEVICE))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        # The other rank takes its first step by itself, as every program does.
        self.is_first = True

    def step(self):
        if self.peer and not self.is_first:
            self.peer.stdin.write("steps 1\n")
            self.peer.stdin.flush()
        self.is_first = False
        self.model(torch.ones(256, WIDTH, device=DEVICE)).sum().backward()
        self.optimizer.step()

    @staticmethod
    def local(tensor):
        return storage(getattr(tensor, "_local_tensor", tensor))

    def names(self):
        parameters = dict(nn.Module.named_parameters(self.model))
        state = self.optimizer.state
        return {
            "parameter": {f"program.model.{name}": self.local(value) for name, value in parameters.items()},
            "gradient": {
                f"program.model.{name}.grad": self.local(value.grad)
                for name, value in parameters.items()
                if value.grad is not None
            },
            "optimizer_state": {
                f"program.optimizer.state[program.model.{name}]['{key}']": self.local(value)
                for name, parameter in parameters.items()
                for key, value in state[parameter].items()
                if value.is_cuda
            },
        }


class Ddp(Distributed):
    def wrapped(self, model):
        return nn.parallel.DistributedDataParallel(model)


class Fsdp1(Distributed):
    def wrapped(self, model):
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(model)


class Fsdp2(Distributed):
    def wrapped(self, model):
        from torch.distributed.fsdp import fully_shard

        for layer in model:
            fully_shard(layer)
        return fully_shard(model)


class HuggingFace:
    """A GPT-2 of transformers with random weights and a LoRA adapter, which trains and then generates with a KV cache."""

    def __init__(self):
        from peft import LoraConfig, get_peft_model
        from transformers import GPT2Config, GPT2LMHeadModel

        # Without eager attention, the model needs kernels that the fake CUDA runtime lacks.
        size = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 128, "n_positions": 64}
        config = GPT2Config(**size, attn_implementation="eager", resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
        base = GPT2LMHeadModel(config).to(DEVICE)
        self.model = get_peft_model(base, LoraConfig(target_modules=["c_attn"], r=4, fan_in_fan_out=True))
        self.optimizer = torch.optim.AdamW([value for value in self.model.parameters() if value.requires_grad])
        self.ids = torch.ones(2, 8, dtype=torch.long, device=DEVICE)
        self.step()
        with torch.no_grad():
            self.cache = self.model(self.ids, use_cache=True).past_key_values

    def step(self):
        self.model(self.ids, labels=self.ids).loss.backward()
        self.optimizer.step()

    def names(self):
        return {
            **training_names(self.model, self.optimizer),
            "variable": {
                "program.ids": storage(self.ids),
                **{
                    f"program.cache.layers[{index}].{part}": storage(getattr(layer, part))
                    for index, layer in enumerate(self.cache.layers)
                    for part in ("keys", "values")
                },
            },
        }

    def purposes(self):
        adapters = (name for name, value in self.model.named_parameters() if value.requires_grad)
        return {
            **{f"program.model.{name}": "PEFT adapter" for name in adapters},
            "program.cache.layers[*].keys": "KV cache",
            "program.cache.layers[*].values": "KV cache",
        }


class Quantized:
    """Two linear layers with quantized weights, for inference."""

    def step(self):
        pass

    def inner_tensors(self):
        """Returns the tensors that each weight consists of, by name."""
        found = {}
        for layer in range(len(self.model)):
            for name, value in vars(self.model[layer].weight).items():
                if isinstance(value, torch.Tensor) and value.is_cuda:
                    found[f"program.model.{layer}.weight.{name}"] = value
        return found

    def names(self):
        biases = {f"program.model.{layer}.bias": storage(self.model[layer].bias) for layer in range(len(self.model))}
        inner = {name: storage(value) for name, value in self.inner_tensors().items()}
        return {"parameter": biases | inner}

    def purposes(self):
        return {name: "quantized tensor" for name in self.inner_tensors()}


class Torchao(Quantized):
    def __init__(self):
        from torchao.quantization import Int8WeightOnlyConfig, quantize_

        self.model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(2)]).to(DEVICE)
        quantize_(self.model, Int8WeightOnlyConfig())


class Bitsandbytes(Quantized):
    """A layer with 8-bit and one with 4-bit weights."""

    def __init__(self):
        from bitsandbytes.nn import Linear4bit, Linear8bitLt

        self.model = nn.Sequential(Linear8bitLt(WIDTH, WIDTH, has_fp16_weights=False), Linear4bit(WIDTH, WIDTH))
        self.model.to(DEVICE)

    def inner_tensors(self):
        state = self.model[1].quant_state
        of_state = {f"program.model.1.quant_state.{name}": getattr(state, name) for name in ("absmax", "code")}
        return {"program.model.0.weight.SCB": self.model[0].weight.SCB, **of_state}

    def names(self):
        inner = {name: storage(value) for name, value in self.inner_tensors().items()}
        variables = {name: inner.pop(name) for name in list(inner) if ".quant_state." in name}
        return {"parameter": {**parameter_names("program.model", self.model), **inner}, "variable": variables}


class DeepSpeed:
    """Training with ZeRO stage 2, whose optimizer keeps the parameters and gradients in flat partitions."""

    def __init__(self):
        import deepspeed

        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29542", WORLD_SIZE="1", RANK="0", LOCAL_RANK="0")
        config = {
            "train_batch_size": 8,
            "bf16": {"enabled": True, "check_grad_overflow": False},
            "zero_optimization": {"stage": 2},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
            "zero_allow_untested_optimizer": True,
        }
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        # The fake CUDA runtime has neither NCCL nor the kernels that the optimizer needs.
        self.is_fake = "FAKE_CUDA_DEVICES" in os.environ
        deepspeed.init_distributed(dist_backend="gloo" if self.is_fake else "nccl")
        self.engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)

    def step(self):
        loss = self.engine(torch.ones(8, WIDTH, device=DEVICE, dtype=torch.bfloat16)).sum()
        self.engine.backward(loss)
        if not self.is_fake:
            self.engine.step()

    def flat(self):
        optimizer = self.engine.optimizer
        return {
            f"program.engine.optimizer.{name}[{index}]": storage(tensor)
            for name in ("single_partition_of_fp32_groups",)
            for index, tensor in enumerate(getattr(optimizer, name))
        }

    def names(self):
        return {"variable": self.flat()}

    def purposes(self):
        return {name: "DeepSpeed partition" for name in self.flat()}


PROGRAMS = {
    "generation": Generation,
    "training": Training,
    "compiled": Compiled,
    "cuda_graph": CudaGraph,
    "large_heap": LargeHeap,
    "loss_list": LossList,
    "hook": Hook,
    "cache": Cache,
    "closure": Closure,
    "traceback": Traceback,
    "ddp": Ddp,
    "fsdp1": Fsdp1,
    "fsdp2": Fsdp2,
    "huggingface": HuggingFace,
    "torchao": Torchao,
    "bitsandbytes": Bitsandbytes,
    "deepspeed": DeepSpeed,
}


def timed_steps(count):
    times = []
    for _ in range(count):
        start = time.perf_counter()
        program.step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1000)
    return times


if __name__ == "__main__":
    try:
        program = PROGRAMS[sys.argv[1]]()
    except ImportError as error:
        print(json.dumps({"missing": error.name or str(error)}), flush=True)
        sys.exit()
    program.step()
    torch.cuda.synchronize()
    print(json.dumps({"pid": os.getpid(), "python": sys.version.split()[0], "torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        words = line.split()
        if words == ["quit"]:
            break
        if words == ["truth"]:
            answer = {
                "allocated": torch.cuda.memory_allocated(),
                "names": program.names(),
                "saved": [],
                "grows": getattr(program, "grows", None),
                "purposes": program.purposes() if hasattr(program, "purposes") else {},
            }
        else:
            answer = timed_steps(int(words[1]))
        print(json.dumps(answer), flush=True)
