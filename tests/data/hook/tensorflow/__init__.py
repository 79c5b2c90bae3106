"""As much of TensorFlow as the hook knows of, without a GPU."""

from tensorflow.python.eager import context
import tensorflow.keras
