"""As much of PyTorch as the hook knows of, without a GPU: the same names, the same order of events."""

__version__ = "2.11.0+pretended"


class OutOfMemoryError(RuntimeError):
    pass


OutOfMemoryError.__module__ = "torch"

from torch import _C  # noqa: E402
import torch.cuda  # noqa: E402
import torch.optim  # noqa: E402
import torch.hub  # noqa: E402,F401

SEGMENT = 2 << 30
TEXT = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB of which 1.06 GiB is free. "
    "Process 418 has 22.60 GiB memory in use. Of the allocated memory 14.10 GiB is allocated by PyTorch, and 8.02 GiB "
    "is reserved by PyTorch but unallocated."
)


def empty(size, device="cuda"):
    """Fails as the allocator does: the observers first, then the exception."""
    torch.cuda._lazy_init()
    torch.cuda.NUM_OOMS += 1
    for observer in _C.OBSERVERS:
        if observer(0, size, 25438126080, 1138166333) is not None:
            raise SystemError("an observer returned something")
    raise OutOfMemoryError(TEXT)
