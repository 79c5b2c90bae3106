"""As much of JAX as the hook knows of, without a GPU."""

from jax._src import xla_bridge
import jax.numpy


def local_devices():
    """Starts it, as the real one does."""
    return next(iter(xla_bridge.backends().values())).local_devices()
