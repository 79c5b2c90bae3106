"""A program with real arrays of JAX, without a GPU: `jax_arrays.py` prints its arrays as JSON, and waits.

The arrays are on four devices of the CPU backend. jaxlib's objects are the same as for a GPU, except for the text that
describes a device, and the kind of its memory. Both are replaced here, after the arrays were created: the devices are
`cuda(id=0)` to `cuda(id=3)`. Needs the package jax.
"""

import ctypes
import gc
import json
import math
import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding  # noqa: E402


class Trainer:
    def __init__(self):
        self.step = jnp.int32(7)
        self.moments = (jnp.zeros((256, 64)), {"scale": jnp.ones((33,), jnp.float16)})
        self.history = [jnp.full((5, number + 1), number, jnp.float32) for number in range(3)]


class Slotted:
    __slots__ = ("cache",)


def parts(array):
    """Returns the number of each device, and the bytes on it."""
    size = math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
    return [[device.id, size] for device in sorted(array.sharding.device_set, key=lambda device: device.id)]


devices = jax.devices()
mesh = Mesh(numpy.array(devices).reshape(2, 2), ("data", "model"))


def divided(*spec, shape=(64, 96)):
    return jax.device_put(jnp.ones(shape), NamedSharding(mesh, PartitionSpec(*spec)))


params = {"dense": {"kernel": jnp.ones((128, 64)), "bias": jnp.zeros((64,), jnp.bfloat16)}, "mask": jnp.ones((9, 9), bool)}
trainer, slotted = Trainer(), Slotted()
slotted.cache = jnp.ones((3, 4, 5, 6, 7, 2), jnp.int8)
other_device = jax.device_put(jnp.ones((17, 3)), devices[2])
both_axes, one_axis, joined_axes = divided("data", "model"), divided(None, "model"), divided(("data", "model"))
replicated = divided()
compiled = jax.jit(lambda x: (x @ x.T).sum(axis=0))(divided("data"))
empty = jnp.zeros((0, 5))
NAMES = (
    "params['dense']['kernel'] params['dense']['bias'] params['mask'] trainer.step trainer.moments[0] trainer.moments[1]['scale'] "
    "trainer.history[0] trainer.history[1] trainer.history[2] slotted.cache other_device both_axes one_axis joined_axes "
    "replicated compiled"
).split()
truth = [
    {"name": name, "shape": list(array.shape), "dtype": str(array.dtype), "blocks": parts(array)}
    for name in NAMES
    for array in [eval(name)]
]
# A second name of an array, a deleted array, and one that only a cycle of garbage holds.
trainer.extra = {"tied": [params["dense"]["kernel"]]}
deleted = jnp.ones((1000, 1000))
deleted.delete()
# The search for names then visits all objects, so the dumps do without.
if "--reachable" not in sys.argv:
    gc.disable()
    cycle = [jnp.ones((11, 13))]
    truth.append({"name": "arrays without a name", "shape": [11, 13], "dtype": "float32", "blocks": [[0, 572]]})
    cycle.append(cycle)
    del cycle
packed = jnp.ones((3,), "int4")
LIMITS = [
    "1 array is not listed: data type of less than a byte, or unknown.",
    "Pool memory outside arrays is not listed: no JAX, TensorFlow or CuPy with CUDA found in this process.",
]


def word(address):
    return ctypes.c_uint64.from_address(address)


def replace_device(device, number):
    """Replaces the text of the C++ object of a device, to which a word of the Python object points."""
    text = f"CpuDevice(id={number})".encode()
    for pointer in (word(id(device) + offset).value for offset in (24, 32)):
        if pointer in (0, id(device.client)):
            continue
        for offset in range(8, 256, 8):
            at, length = word(pointer + offset).value, word(pointer + offset + 8)
            if length.value == len(text) and at > 1 << 16 and ctypes.string_at(at, len(text)) == text:
                new = f"cuda(id={number})".encode()
                ctypes.memmove(at, new + b"\0", len(new) + 1)
                length.value = len(new)
                return
    sys.exit("The text of a device was not found.")


def replace_kind(kind):
    """Replaces the text of the `str` that is the kind of memory of all shardings."""
    header = sys.getsizeof("") - 1
    word(id(kind) + 16).value = len("device")
    ctypes.memmove(id(kind) + header, b"device\0", len("device") + 1)


def wait():
    batch = jnp.ones((21, 2))
    truth.append({"name": "batch", "shape": [21, 2], "dtype": "float32", "blocks": parts(batch)})
    kinds = {id(kind): kind for kind in (array.sharding.memory_kind for array in jax.live_arrays())}
    for number, device in enumerate(devices):
        replace_device(device, number)
    for kind in kinds.values():
        if kind not in (None, "device"):
            replace_kind(kind)
    gc.freeze()
    print(json.dumps({"pid": os.getpid(), "version": jax.__version__, "arrays": truth, "limit": " ".join(LIMITS)}), flush=True)
    sys.stdin.readline()
    os._exit(0)


wait()
