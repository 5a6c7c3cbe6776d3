"""A parameter server: one process more keeps the weights; trainers send it gradients and get weights back, by RPC.

Each trainer computes the gradients of its part of a batch. When all of them have come, the server takes their mean,
makes the optimizer's step, and answers with the weights, so that it trains what DDP does, over N to 1 connections in
place of a ring. The server is a process of its own on the CPU, beside as many trainers as there are devices.
"""

from bench.seams import Rank, Strategy, rank_per_device


def obstacle(device, devices):
    if device == "cuda":
        return "its server would share a GPU with a trainer, which NCCL refuses; use --device cpu"
    return None


STRATEGY = Strategy(
    label="parameter server",
    ranks=lambda devices: (*rank_per_device(devices), Rank(role="server", devices=(0,), replicas=0)),
    rpc=True,
    obstacle=obstacle,
    precisions=("O0", "O1"),
    amp=("native",),
    hue="magenta",
    dash="solid",
)
NAME = "server"


def build(parts):
    import torch

    trainers = parts.world_size - 1
    if parts.rank == trainers:
        return serving(parts, trainers)
    join(parts, trainers)
    from torch.distributed import rpc
    from torch.profiler import record_function

    def optimizer(parameters):
        updated = list(parameters)  # in the model's order, as the server has them, whatever their groups
        made = parts.build_optimizer(updated)

        def step(self):
            """In place of the optimizer's own: the server makes it."""
            gradients = [parameter.grad for parameter in updated]
            with record_function("rpc: gradients for weights"):
                weights = rpc.rpc_sync(NAME, push, args=(parts.rank, session.loss, gradients), timeout=0)
            with torch.no_grad():
                torch._foreach_copy_(updated, weights)

        made.step = step.__get__(made)  # bound, for a schedule
        return made

    session = parts.session(optimizer=optimizer, updates=False, **usual(trainers))
    backward = session.backward

    def noted(loss):
        session.loss = loss.detach()
        backward(loss)

    session.backward = noted
    session.gradients = lambda: averaged(session, trainers)
    return session


def usual(trainers):
    return {"replicas": lambda module: trainers, "quiet": "trainers get their weights from the server in every step"}


def averaged(session, server):
    """The gradients of the last step that the server made its step with; all ranks call it, outside of windows."""
    from torch import contiguous_format, distributed

    gradients = []
    for gradient in session.held_gradients():
        gradients.append(None if gradient is None else gradient.clone(memory_format=contiguous_format))
        if gradients[-1] is not None:
            distributed.broadcast(gradients[-1], src=server)
    return gradients


def join(parts, trainers):
    """Meet the others, in the store of the process group."""
    import os

    from torch import distributed
    from torch.distributed import rpc
    from torch.distributed.distributed_c10d import _get_default_store

    os.environ.setdefault("TP_SOCKET_IFNAME", os.environ.get("GLOO_SOCKET_IFNAME", "lo"))
    scheme = "bench-rpc"
    store = distributed.PrefixStore(scheme, _get_default_store())
    distributed.register_rendezvous_handler(scheme, lambda url, **_: iter([(store, parts.rank, parts.world_size)]))
    options = rpc.TensorPipeRpcBackendOptions(  # a trainer's call waits in one of the threads
        num_worker_threads=trainers + 4, rpc_timeout=parts.job.rendezvous_timeout_s, init_method=f"{scheme}://"
    )
    name = NAME if parts.rank == trainers else f"trainer{parts.rank}"
    rpc.init_rpc(name, rank=parts.rank, world_size=parts.world_size, rpc_backend_options=options)


def serving(parts, trainers):
    """The server's session: its forward pass waits for the gradients, and its step answers with the weights."""
    from queue import SimpleQueue

    import torch

    from bench.core.errors import BenchError

    def serve():
        came = sorted((inbox.get() for _ in range(trainers)), key=lambda one: one["rank"])  # so that sums are the same
        waiting.extend(one["answer"] for one in came)
        for number, parameter in enumerate(session.model.parameters()):
            of_each = [one["gradients"][number] for one in came]
            parameter.grad = None if of_each[0] is None else torch.stack(of_each).mean(0)
        return torch.stack([one["loss"] for one in came]).mean()

    def answer():
        weights = [parameter.detach() for parameter in session.model.parameters()]
        while waiting:
            waiting.pop().put(weights)

    inbox, waiting = SimpleQueue(), []
    session = parts.session(serve=serve, after_step=answer, **usual(trainers))
    if session._weight is not None:
        why = "whose parts of a batch weigh differently in the mean"
        raise BenchError(f"the parameter server cannot train a workload with weight(batch), {why}; leave it out")
    session.gradients = lambda: averaged(session, trainers)
    server["inbox"] = inbox
    join(parts, trainers)
    return session


server = {}
"""In the server: the inbox for what trainers send."""


def push(rank, loss, gradients):
    """In the server, called by a trainer: take its gradients, and return the weights after the step of all."""
    from queue import SimpleQueue

    answer = SimpleQueue()
    server["inbox"].put({"rank": rank, "loss": loss, "gradients": gradients, "answer": answer})
    return answer.get()
