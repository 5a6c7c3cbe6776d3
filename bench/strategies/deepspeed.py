"""DeepSpeed's ZeRO, whose engine makes the whole step: optimizer state in shards, and from stage 2 on gradients, too.

    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config={"zero_optimization": {"stage": 2}, ...})
    ...
    engine.backward(loss)
    engine.step()

Beside ``zero1`` and ``fsdp2`` it shows what the framework costs. Data comes as in every other scenario.
"""

from bench.seams import Implementation, Strategy

ENGINE = "deepspeed.runtime.engine.DeepSpeedEngine"


def of(stage, hue, weights="replicated"):
    """The declaration and ``build`` for a stage of ZeRO."""
    label = f"DeepSpeed ZeRO-{stage}"
    strategy = Strategy(
        label=label,
        implementations=(Implementation(name="torch", label=label, wrapper=ENGINE),),
        weights=weights,
        precisions=("O0",),
        amp=("native",),
        slow_start=5,  # the first one compiles C++ for the CPU
        hue=hue,
        dash="dash-dot",
    )
    return strategy, lambda parts: session_of(parts, stage)


STRATEGY, build = of(1, hue="red")


def session_of(parts, stage):
    import os
    from unittest.mock import patch

    import torch

    os.environ.setdefault("DS_ACCELERATOR", parts.device.type)
    import deepspeed
    from deepspeed import utils

    from bench.core.errors import BenchError
    from bench.worker.session import Session
    from bench.worker.workload import tensors_in

    config = {
        "train_micro_batch_size_per_gpu": parts.job.batch_per_replica,
        "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,  # 1.0 where nothing is said
    }

    if parts.device.type == "cuda":  # it cannot read CUDA_VISIBLE_DEVICES where that names GPUs by UUID
        deepspeed.get_accelerator().available_memory = lambda *index: torch.cuda.mem_get_info(parts.device)[0]
    engine = None

    def wrap(model):
        nonlocal engine
        optimizer = parts.build_optimizer(model.parameters())
        # DeepSpeed keeps weights and exchanges gradients in its float32 or float; in double where it is judged.
        with patch.multiple(torch, float32=torch.get_default_dtype(), float=torch.get_default_dtype()):
            engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)
        return engine

    def whole(tensor):
        return utils.safe_get_full_fp32_param(tensor) if hasattr(tensor, "ds_id") else tensor.detach()

    class Zero(Session):
        """The engine drops the gradients within its step, and updates weights that it holds in flat parts."""

        changes_gradients = True

        def backward(self, loss):
            engine.backward(loss)

        def optimize(self):
            if self.capture:
                made = [utils.safe_get_full_grad(one) for one in self.model.parameters()]
                self._captured = [None if one is None else one.clone() for one in made]
            engine.step()
            self.around.after()
            self.steps += 1

        def kept_gradients(self):
            return tensors_in(engine.optimizer.averaged_gradients)

        def updated(self):
            return list(self.model.parameters())

        def weights(self):
            yield from map(self.whole, self.model.parameters())

        def fill(self, weights):
            with torch.no_grad():
                for parameter, weight in zip(self.model.parameters(), weights, strict=True):
                    if hasattr(parameter, "ds_id"):
                        part = parameter.ds_tensor
                        flat = torch.zeros(part.numel() * parts.world_size, dtype=part.dtype)
                        flat[: weight.numel()] = weight.flatten()
                        part.copy_(flat.chunk(parts.world_size)[parts.rank])
                        utils.safe_set_local_fp32_param(parameter, part)
                    else:
                        utils.safe_set_full_fp32_param(parameter, weight)
                    if parameter.numel():  # none while it is in shards alone
                        parameter.copy_(weight)

    session = Zero(
        parts,
        wrap=wrap,
        optimizer=lambda parameters: engine.optimizer.optimizer,
        whole=whole,
        quiet="DeepSpeed exchanges gradients while it computes them: it has no step without",
    )
    if session.around.before_step or session.around.after_step:
        raise BenchError("DeepSpeed makes the step itself: a workload's before_step and after_step cannot join it")
    return session
