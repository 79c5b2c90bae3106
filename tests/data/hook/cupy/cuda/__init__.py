import ctypes
import threading

# Devices with a context; to enter any other makes one.
CONTEXTS = set()
_current = threading.local()
_malloc = None


class Device:
    def __init__(self, number):
        self.number = number

    def __enter__(self):
        CONTEXTS.add(self.number)
        _current.device = self.number

    def __exit__(self, *_):
        _current.device = 0


class MemoryPool:
    def __init__(self):
        self.used, self.limit = {}, 0

    def malloc(self, size):
        device = getattr(_current, "device", 0)
        CONTEXTS.add(device)
        self.used[device] = self.used.get(device, 0) + size

    def used_bytes(self):
        return self.used.get(getattr(_current, "device", 0), 0)

    def total_bytes(self):
        return 2 * self.used_bytes()

    def get_limit(self):
        return self.limit


class Driver:
    """libcuda.so.1 by ctypes."""

    def cuDeviceGet(self, device, number):
        device._obj.value = number
        return 0 if number < 2 else 101

    def cuDevicePrimaryCtxGetState(self, device, flags, is_active):
        is_active._obj.value = device.value in CONTEXTS
        return 0


def set_allocator(malloc):
    global _malloc
    _malloc = malloc


def get_allocator():
    return _malloc


_open = ctypes.CDLL
ctypes.CDLL = lambda name, *args, **kwargs: Driver() if name == "libcuda.so.1" else _open(name, *args, **kwargs)
