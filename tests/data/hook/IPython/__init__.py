"""As much of a notebook as the hook knows of: a cell that fails is shown by the shell, and Python never hears of it."""


class _Events:
    def __init__(self):
        self.after = []

    def register(self, name, callback):
        assert name == "post_run_cell"
        self.after.append(callback)


class _Shell:
    events = _Events()

    def run_cell(self, cell):
        class Result:
            error_in_exec = None

        try:
            cell()
        except Exception as error:
            Result.error_in_exec = error
        for callback in self.events.after:
            callback(Result)


_shell = _Shell()


def get_ipython():
    return _shell
