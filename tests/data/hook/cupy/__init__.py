"""As much of CuPy as the hook knows of, without a GPU: the driver below it has a context on device 1 once it is used."""

from cupy import cuda
import cupy.random

_pool = cuda.MemoryPool()
cuda.set_allocator(_pool.malloc)


def get_default_memory_pool():
    return _pool


def empty(size):
    return cuda.get_allocator()(size)
