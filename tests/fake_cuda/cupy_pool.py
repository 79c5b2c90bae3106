"""A program with real pools of CuPy, without a GPU: `cupy_pool.py` prints the values of its pool as JSON, and waits.

CuPy's modules call each other through tables of function pointers. Those of the CUDA runtime that a pool calls are
replaced here. The memory is made of numbers. Its dump (`gputop allocator PID --dump FILE`) is test data. Needs the packages
cupy-cuda13x and numpy.
"""

import ctypes
import json
import os
import random
import sys

import cupy_backends.cuda.api.runtime as runtime

GRANULE = 2 << 20
_kept = []


def replace(name, function):
    """Replaces a function of the runtime by one that returns an int."""
    set_pointer = ctypes.pythonapi.PyCapsule_SetPointer
    set_pointer.argtypes = [ctypes.py_object, ctypes.c_void_p]
    call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int)(function)
    _kept.append(call)
    set_pointer(runtime.__pyx_capi__[name], ctypes.cast(call, ctypes.c_void_p))


replace("getDevice", lambda _: 0)
replace("getDeviceCount", lambda _: 1)

import cupy  # noqa: E402

memory = cupy.cuda.memory
_next = 0x7F0000000000


def allocate(size):
    global _next
    address, _next = _next, _next + (size + GRANULE - 1) // GRANULE * GRANULE
    return memory.MemoryPointer(memory.UnownedMemory(address, size, None, 0), 0)


pool, empty = memory.MemoryPool(allocate), memory.MemoryPool(allocate)
empty.total_bytes()
pattern, live = random.Random(2), {}
for number in range(900):
    if pattern.random() < 0.6 or not live:
        live[number] = pool.malloc(int(2 ** pattern.uniform(4, 24)))
    else:
        live.pop(pattern.choice(list(live)))
values = {"total": pool.total_bytes(), "used": pool.used_bytes(), "free": pool.free_bytes(), "limit": pool.get_limit()}
print(json.dumps(dict(values, pid=os.getpid(), cupy=cupy.__version__)), flush=True)
sys.stdin.readline()
