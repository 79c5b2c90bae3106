"""A program with real pools and arrays of CuPy, without a GPU: `cupy_pool.py` prints them as JSON, and waits.

CuPy's modules call each other through tables of function pointers. Those of the CUDA runtime that a pool calls are
replaced here. The memory is made of numbers. Its dump (`gputop allocator PID --dump FILE`) is test data. Needs the packages
cupy-cuda13x and numpy. Given a size on standard input, it prints whether that is the size of the largest free block.
"""

import ctypes
import gc
import json
import os
import random
import sys

import cupy_backends.cuda.api.runtime as runtime
import numpy

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


class Solver:
    pass


class Field(cupy.ndarray):
    """A class that a program derives from CuPy's."""


def array(shape, dtype, kind=cupy.ndarray):
    count = int(numpy.prod(shape, dtype=int))
    return kind(shape, dtype, memptr=pool.malloc(count * numpy.dtype(dtype).itemsize))


weights, solver = {"dense": array((128, 64), "float32")}, Solver()
solver.grid, solver.parts = array((33, 5, 2), "complex64"), [array((7,), "int16"), array((), "float64")]
field = array((11,), "bool", Field)
# A view does not count twice, and keeps its memory. An array in memory that CuPy did not allocate does not count.
solver.view = weights["dense"][2:, ::2]
half = array((1000,), "float64")[500:]
foreign = cupy.ndarray((64,), "float32", memptr=allocate(256))
NAMES = "weights['dense'] solver.grid solver.parts[0] solver.parts[1] field half.base".split()
truth = [
    {"name": name, "shape": list(array.shape), "dtype": str(array.dtype), "blocks": [[0, array.data.mem.size]]}
    for name in NAMES
    for array in [eval(name)]
]
# The search for names then visits all objects, so the dumps do without.
if "--reachable" not in sys.argv:
    gc.disable()
    cycle = [array((13, 17), "uint8")]
    truth.append({"name": "arrays without a name", "shape": [13, 17], "dtype": "uint8", "blocks": [[0, 512]]})
    cycle.append(cycle)
    del cycle


def fits(size):
    """Returns whether an allocation needs no memory from the driver."""
    before = pool.total_bytes()
    block = pool.malloc(size)
    return pool.total_bytes() == before, block


values = {"total": pool.total_bytes(), "used": pool.used_bytes(), "free": pool.free_bytes(), "limit": pool.get_limit()}
values |= {"pid": os.getpid(), "version": cupy.__version__, "arrays": truth}
print(json.dumps(values), flush=True)
# The size that is read as the largest free block.
largest = sys.stdin.readline().strip()
if largest:
    print(json.dumps({"fits": fits(int(largest))[0], "is_largest": not fits(int(largest) + 1)[0]}), flush=True)
    sys.stdin.readline()
