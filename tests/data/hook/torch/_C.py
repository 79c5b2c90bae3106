OBSERVERS = []


def _cuda_attach_out_of_memory_observer(observer):
    import torch

    if not torch.cuda.STARTED:
        # The real one would initialize CUDA.
        raise SystemError("an observer was attached before CUDA was initialized")
    OBSERVERS.append(observer)
