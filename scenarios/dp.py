"""``torch.nn.DataParallel``: one process, one thread per GPU.

Each step copies the weights from the first GPU to the others, cuts the batch up, runs the replicas in threads under
one GIL, and gathers outputs and gradients on the first GPU, which therefore uses more memory than the rest. On the
CPU torch makes it a pass-through: the module is called as it is, and the report says so.

With several GPUs cuDNN's autotuning is off: torch keeps its findings by thread, and each step has new ones.
"""

from bench.seams import Scenario

SCENARIO = Scenario(summary="torch DataParallel: one process, a thread per GPU, fp32", strategy="dp")
