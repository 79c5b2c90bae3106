import sys

STARTED = False
NUM_OOMS = 0
_initialized = False
_queued_calls = []
# Blocks of one segment: (size in MiB, state, stream of the segment).
SEGMENTS = [
    (0, "large", [(9000, "active_allocated"), (614, "inactive"), (5438, "active_allocated")]),
    (0, "large", [(100, "inactive"), (1000, "active_awaiting_free"), (400, "inactive")]),
    (7, "large", [(512, "inactive"), (3, "active_allocated")]),
    (0, "small", [(1, "inactive"), (1, "active_allocated")]),
]
MIB = 1 << 20


def is_initialized():
    return _initialized


def _lazy_call(callable):
    if is_initialized():
        callable()
    else:
        _queued_calls.append(callable)


def _lazy_init():
    global STARTED, _initialized
    if _initialized:
        return
    STARTED = True
    for queued in _queued_calls:
        try:
            queued()
        except Exception as error:
            raise SystemError("a queued call failed") from error
    _initialized = True


class _Stream:
    cuda_stream = 0


def current_stream(device=None):
    return _Stream()


def device_count():
    return 1


def get_allocator_backend():
    return "native"


def memory_stats(device=None):
    if not is_initialized():
        return {}
    return {
        "active.all.current": 4,
        "allocated_bytes.all.current": 15139762176,
        "allocated_bytes.all.peak": 16139762176,
        "reserved_bytes.all.current": 23750000000,
        "reserved_bytes.all.peak": 23750000000,
        "active_bytes.all.current": 15139762176,
        "active_bytes.all.peak": 15139762176,
        "inactive_split_bytes.all.current": 8611000000,
        "inactive_split_bytes.all.peak": 8611000000,
        "num_ooms": NUM_OOMS,
        "num_alloc_retries": NUM_OOMS + 2,
    }


def memory_snapshot():
    found = []
    for stream, kind, blocks in SEGMENTS:
        total = sum(size for size, _ in blocks) * MIB
        blocks = [{"size": size * MIB, "requested_size": size * MIB, "state": state} for size, state in blocks]
        found.append({"device": 0, "total_size": total, "stream": stream, "segment_type": kind,
                      "segment_pool_id": (0, 0), "is_expandable": False, "blocks": blocks})
    return found


class memory:
    recorded = None

    @classmethod
    def _record_memory_history(cls, enabled="all", context="all", stacks="all", max_entries=sys.maxsize):
        cls.recorded = (enabled, context, max_entries)

    @classmethod
    def _snapshot(cls):
        return {"segments": memory_snapshot(), "device_traces": [[]], "settings": cls.recorded}
