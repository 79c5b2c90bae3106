#!/usr/bin/env python3
"""One rank of a job that goes wrong in a chosen way, with three process groups.

    ranks.py RANK SIZE PORT MODE

Each step reduces in the default group and gathers in the group `tp`. At the step FAULT_STEP (30), the rank FAULT_RANK (1) does
as MODE says:

    ok        nothing; all ranks go on
    slow      sleeps 50 ms in each step
    skip      leaves the reduction out
    mismatch  reduces another number of elements
    kind      gathers where the others reduce
    order     uses the two groups in the other order
    item      stays in its data loader, and has forked a worker
    init      does not come to the first collective of the group `late`
    dead      exits
    pipeline  does not pass the activation on; each step sends from each rank to the next, and reduces

MASTER_ADDR names the host of rank 0. The first line of the output is the PID. Another thread answers the command `truth` with the rank's own counting.
"""
import json
import os
import sys
import threading
import time

STEP_OF_FAULT, FAULT_RANK = (int(os.environ.get(name, default)) for name, default in (("FAULT_STEP", 30), ("FAULT_RANK", 1)))
# Truth about each group by name, and about this rank.
groups = {}
state = {"step": 0, "is_waiting": False}


def answer():
    for line in sys.stdin:
        if line.strip() == "quit":
            os._exit(0)
        # The main thread appends to the lists meanwhile.
        print(json.dumps({**state, "groups": {name: dict(group) for name, group in groups.items()}}), flush=True)
    os._exit(0)


class Group:
    """A process group that counts the calls of this rank."""

    def __init__(self, group, description, members):
        from torch.distributed import distributed_c10d

        self.group, self.name = group, distributed_c10d._world.pg_names[group]
        self.calls = {"called": [], "returned": 0, "sent": 0, "completed": 0}
        groups[self.name] = {"description": description, "members": members, **self.calls}

    def call(self, operation, elements, function, *arguments):
        """Calls a collective and adds `[operation, input elements, output elements, time before, time after]`."""
        truth = groups[self.name]
        entry = [operation, *elements, time.clock_gettime_ns(time.CLOCK_BOOTTIME), None]
        truth["called"] = truth["called"] + [entry]
        work = function(*arguments, group=self.group)
        entry[-1] = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        truth["returned"] += 1
        return work

    def pass_on(self, function, tensor, peer):
        """Calls a point-to-point operation and waits for it."""
        groups[self.name]["sent"] += 1
        function(tensor, peer, group=self.group).wait()


def fork_worker():
    """Forks a process that exits with this one."""
    parent = os.getpid()
    state["worker"] = os.fork()
    while state["worker"] == 0:
        time.sleep(0.1)
        if os.getppid() != parent:
            os._exit(0)


def run(rank, size, port, mode):
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group("nccl", init_method=f"tcp://{address}:{port}", rank=rank, world_size=size)

    def new_group(members, description):
        try:
            return dist.new_group(members, group_desc=description)
        except TypeError:  # before torch 2.4
            return dist.new_group(members)

    everyone = list(range(size))
    # The last two ranks form a group, so that the ranks in the job differ from those in the group.
    some = everyone[-2:]
    world = Group(dist.group.WORLD, "default_pg", everyone)
    tp_group = new_group(some, "tp")
    tp = Group(tp_group, "tp", some) if rank in some else None
    late = Group(new_group(everyone, "late"), "late", everyone)
    state["torch"] = torch.__version__

    large, small = torch.ones(1 << 16, device=device), torch.ones(1 << 10, device=device)

    def reduce(group=world, tensor=large):
        group.call("ALLREDUCE", [tensor.numel()] * 2, dist.all_reduce, tensor)

    def gather(group, members):
        gathered = torch.empty(small.numel() * len(members), device=device)
        elements = [small.numel(), gathered.numel()]
        group.call("_ALLGATHER_BASE", elements, dist.all_gather_into_tensor, gathered, small)

    def gather_in_tp():
        if tp:
            gather(tp, some)

    def pass_activation():
        if rank > 0:
            world.pass_on(dist.irecv, small, rank - 1)
        if mode == "pipeline" and rank == FAULT_RANK and step == STEP_OF_FAULT:
            sleep()
        if rank < size - 1:
            world.pass_on(dist.isend, small, rank + 1)

    def sleep():
        state["is_waiting"] = True
        time.sleep(10_000)

    while True:
        step = state["step"] + 1
        for truth in groups.values():
            truth["completed"] = truth["returned"]
        is_odd = rank == FAULT_RANK and step == STEP_OF_FAULT
        state["step"] = step
        if mode == "slow" and rank == FAULT_RANK:
            time.sleep(0.05)
        if is_odd and mode == "item":
            fork_worker()
        if is_odd and mode in ("item", "init"):
            sleep()
        if is_odd and mode == "dead":
            os._exit(1)
        if mode == "init" and step == STEP_OF_FAULT:
            state["is_waiting"] = True
            reduce(late, small)
        if mode == "pipeline":
            state["is_waiting"] = step == STEP_OF_FAULT
            pass_activation()
        if is_odd and mode == "order":
            gather_in_tp()
            reduce()
        elif is_odd and mode == "mismatch":
            reduce(tensor=small)
            gather_in_tp()
        elif is_odd and mode == "kind":
            gather(world, everyone)
            gather_in_tp()
        else:
            if not (is_odd and mode == "skip"):
                reduce()
            gather_in_tp()
        state["is_waiting"] = step == STEP_OF_FAULT and mode not in ("ok", "slow")
        small[0].item()
        time.sleep(0.002)


if __name__ == "__main__":
    print(json.dumps({"pid": os.getpid()}), flush=True)
    threading.Thread(target=answer, daemon=True).start()
    rank, size, port, mode = sys.argv[1:]
    run(int(rank), int(size), int(port), mode)
