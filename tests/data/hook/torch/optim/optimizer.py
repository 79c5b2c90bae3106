_PRE, _POST = [], []


def register_optimizer_step_pre_hook(hook):
    _PRE.append(hook)


def register_optimizer_step_post_hook(hook):
    _POST.append(hook)


class Optimizer:
    def __init__(self, work=None):
        self.work = work

    def step(self):
        for hook in _PRE:
            assert hook(self, (), {}) is None
        if self.work is not None:
            self.work()
        for hook in _POST:
            hook(self, (), {})
