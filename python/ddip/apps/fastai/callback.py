"""The callback that every Learner gets while the app is on. The Learner's model stays the user's own: gradients are averaged
by hooks on its parameters, so there is nothing to unwrap for save, export, a GAN's switch() or an error in the middle."""

from __future__ import annotations

import math
import random
from typing import Any

import torch
from fastai.callback.core import Callback
from fastai.learner import load_model
from fastai.torch_core import apply, noop

from ddip import replicas
from ddip.apps.fastai import options, parts, session
from ddip.communicators import engine
from ddip.data_parallel import DataParallel

# They draw, print, or write a file: once is enough.
SHOWN_ONCE = ("ProgressCallback", "ShowGraphCallback", "CSVLogger")


class DdipCallback(Callback):
    order = 11  # after mixed precision (10), which makes predictions floats; before Recorder (50) and who reads it (60)
    joint: Any = None  # the fit that is under way on all ranks
    broken = False  # the last one has not ended: ranks may have stopped at different steps

    def after_create(self) -> None:
        session.know(self.learn)
        if session.together():
            session.make_process_group()

    def before_fit(self) -> None:
        if self.joint is not None:
            self.joint.close()  # an error of the last one was caught in this cell
        if not session.together():
            return
        session.make_process_group()
        self.joint = JointFit(self)
        self.joint.agree(self.broken)
        self.broken = True

    def before_train(self) -> None:
        if self.joint is not None:
            self.joint.take_part(training=True)

    def before_validate(self) -> None:
        if self.joint is not None:
            self.joint.take_part(training=False)

    def before_batch(self) -> None:
        if self.joint is not None and self.training:
            self.joint.replica._dp.before_forward()

    def after_pred(self) -> None:
        if self.joint is not None and not self.training:
            self.joint.join_predictions()

    def after_loss(self) -> None:
        if self.joint is not None and self.training:
            self.joint.join_loss()

    def after_epoch(self) -> None:
        if self.joint is not None:
            self.joint.share_record()

    def after_fit(self) -> None:
        if self.joint is not None:
            self.joint.undo_search()
            self.joint.close()
        self.broken = False

    def __reduce__(self) -> Any:
        """An exported Learner is loaded where ddip may not be: there this is a callback that does nothing."""
        return Callback, ()


class JointFit:
    """From before_fit to after_fit, or to the end of the cell if that never comes."""

    def __init__(self, callback: DdipCallback) -> None:
        self.callback, self.learn = callback, callback.learn
        self.ranks, self._name = session.meet()
        session.opened(self)
        self.replica: Any = None
        self._part: parts.Part | None = None
        self._random = own_random(self.ranks.rank)
        self._silenced: list[Any] = []
        if self.ranks.rank > 0:
            self._silence()

    def _silence(self) -> None:
        self._logger, self.learn.logger = self.learn.logger, noop
        self._silenced = [callback for callback in self.learn.cbs if type(callback).__name__ in SHOWN_ONCE]
        for callback in self._silenced:
            callback.run = False

    def agree(self, broken: bool) -> None:
        """Rank 0's model is everybody's; and its optimizer's state, if the last fit ended at different steps."""
        self._share_model()
        if any(replicas.gather_objects(broken, self.ranks)):
            self._share_optimizer()
            if self.learn.opt is not None:
                self.learn.opt.zero_grad()  # of a step that was never done
        finder = getattr(self.learn, "lr_finder", None)
        if finder is not None:
            # lr_find counted the batches of one process.
            batches = math.ceil(len(self.learn.dls.train) / self.ranks.world_size)
            self.learn.n_epoch = finder.num_it // max(batches, 1) + 1

    def _share_model(self) -> None:
        model = self.learn.model
        if tensors := [tensor.detach() for tensor in (*model.parameters(), *model.buffers())]:
            engine().broadcast_all(self.ranks, tensors, 0)

    def _share_optimizer(self) -> None:
        optimizer = self.learn.opt
        if optimizer is None:
            return
        state = replicas.broadcast_object(replicas.on_cpu(optimizer.state_dict()), 0, self.ranks)
        device = next((parameter.device for parameter in self.learn.model.parameters()), "cpu")
        optimizer.load_state_dict(apply(lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, state))

    def undo_search(self) -> None:
        """lr_find puts back the model that it saved. It saved on rank 0 only, and would wait there for the others, which
        have no file to load. So rank 0 loads here, and the others have it from rank 0."""
        learn, finder = self.learn, getattr(self.learn, "lr_finder", None)
        if finder is None:
            return
        learn.opt.zero_grad()
        file = learn.path / learn.model_dir / finder.tmp_p / "_tmp.pth"
        if self.ranks.rank == 0:
            load_model(file, learn.model, learn.opt, device=getattr(learn.dls, "device", None))
        self._share_model()
        self._share_optimizer()
        finder.tmp_d.cleanup()  # without the file it loads nothing
        bar = getattr(getattr(learn, "progress", None), "pbar", None)
        if self.ranks.rank == 0 and bar is not None:
            bar.prefix = ""  # the search ends in the middle of an epoch: nobody else takes its bar away
            bar.on_iter_end()

    def take_part(self, training: bool) -> None:
        learn = self.learn
        if training and (self.replica is None or self.replica.module is not learn.model):
            self.replica = DataParallel(learn.model, ranks=self.ranks, **options)
        if not training and (buffers := [buffer.detach() for buffer in learn.model.buffers()]):
            engine().broadcast_all(self.ranks, buffers, 0)  # running statistics of the last step are each rank's own
        self._part = None
        gather = getattr(learn, "gather_preds", None)
        if not training and gather is not None and gather.with_input:
            return  # inputs are kept before they can be joined, so each rank takes all of them
        self._part = parts.part_of(learn.dl, self.ranks, training)
        if self._part is not None:
            learn.dl = self._part.loader

    def join_predictions(self) -> None:
        if self._part is not None:
            sizes = self._part.sizes[self.learn.iter]
            self.learn.pred = joined(self.learn.pred, sizes, self.ranks)
            self.learn.yb = joined(self.learn.yb, sizes, self.ranks)

    def join_loss(self) -> None:
        """`loss` becomes that of the joint batch, the same on all ranks, so that whoever stops by it stops everywhere."""
        learn = self.learn
        if not len(learn.yb):
            return
        weight = 1.0 if self._part is None else self._part.weight(learn.iter, self.ranks.rank)
        if weight != 1.0:
            learn.loss_grad = learn.loss_grad * weight
        loss = learn.loss_grad.detach().as_subclass(torch.Tensor).mean()
        learn.loss = self.ranks.all_reduce(loss.clone(), "mean")

    def share_record(self) -> None:
        """Rank 0's numbers are everybody's: early stopping and the like decide alike."""
        recorder = getattr(self.learn, "recorder", None)
        if recorder is not None and hasattr(recorder, "log"):
            recorder.log = replicas.broadcast_object(recorder.log, 0, self.ranks)

    def close(self) -> None:
        """Not a collective: others may have ended elsewhere."""
        session.closed(self)
        self.callback.joint = None
        if self.replica is not None:
            self.replica._dp.retire()
            for parameter in self.learn.model.parameters():
                if parameter.grad is not None:
                    parameter.grad = parameter.grad.clone()  # it lay in the communicator's memory
        if self._silenced or self.ranks.rank > 0:
            self.learn.logger = self._logger
        for callback in self._silenced:
            callback.run = True
        restore_random(self._random)
        session.part(self._name)
        self.ranks = self.replica = self._part = None


def joined(value: Any, sizes: list[int], ranks: Any) -> Any:
    """The batch of all ranks: every tensor whose first dimension is this rank's samples."""
    mine, most = sizes[ranks.rank], max(sizes)

    def one(tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor) or tensor.ndim == 0 or tensor.shape[0] != max(mine, 1):
            return tensor
        plain = tensor.detach().as_subclass(torch.Tensor)
        padded = plain.new_zeros((most, *plain.shape[1:]))
        padded[:mine] = plain[:mine]
        every = ranks.all_gather(padded).view(len(sizes), *padded.shape)
        return torch.cat([every[rank, :size] for rank, size in enumerate(sizes)])

    return apply(one, value)


def own_random(rank: int) -> Any:
    """Each rank has random numbers of its own from here on. Returns the state for restore_random."""
    import numpy

    seed = random.getrandbits(31) + rank
    before = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    return before


def restore_random(before: Any) -> None:
    import numpy

    random.setstate(before[0])
    numpy.random.set_state(before[1])
    torch.set_rng_state(before[2])


__all__ = ["DdipCallback"]
