import os

_backends = {}

STATISTICS = {
    "num_allocs": 12,
    "bytes_in_use": 3 << 30,
    "peak_bytes_in_use": 5 << 30,
    "largest_alloc_size": 1 << 30,
    "bytes_limit": 100 << 30,
    "bytes_reserved": 0,
    "peak_bytes_reserved": 0,
    "largest_free_block_bytes": 0,
    "pool_bytes": 90 << 30,
    "peak_pool_bytes": 90 << 30,
}


class Device:
    def __init__(self, platform, number):
        # In a job of several processes the id goes on where the process before ended.
        self.platform, self.id, self.local_hardware_id = platform, 8 + number, number

    def memory_stats(self):
        chosen = os.environ.get("XLA_PYTHON_CLIENT_ALLOCATOR")
        return STATISTICS if self.platform == "gpu" and chosen != "platform" else None


class Client:
    def __init__(self, platform, count):
        self.platform = platform
        self.devices = [Device(platform, number) for number in range(count)]

    def local_devices(self):
        return self.devices


def backends():
    if not _backends:
        if not os.environ.get("JAX_PLATFORMS"):
            _backends["cuda"] = Client("gpu", 1)
        _backends["cpu"] = Client("cpu", 1)
    return _backends
