"""One of the modules that PyTorch imports after those that the hook waits for."""
