_context = None


class Context:
    def __init__(self):
        self._initialized = False

    def ensure_initialized(self):
        self._initialized = True

    def list_logical_devices(self, kind):
        self.ensure_initialized()
        return ["/device:%s:0" % kind, "/device:%s:1" % kind]

    def get_memory_info(self, name):
        self.ensure_initialized()
        if name != "GPU:0":
            raise ValueError("Allocator stats not available for device '%s'" % name)
        return {"current": 2 << 30, "peak": 4 << 30}


def context():
    global _context
    _context = _context or Context()
    return _context


def context_safe():
    return _context
