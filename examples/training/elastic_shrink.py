"""Train on though a rank is killed, and lose no step: the ranks that are left go on among themselves.

    aiodist run -n 3 --keep-going examples/training/elastic_shrink.py --kill 40:1

When a rank is lost, the collectives of the others raise an error. The others call ``shrink``, which gives
them a group without the lost rank, and repeat the interrupted step from what they have in memory. No
process starts and no file is read. Each of them then takes a larger part of the images that the epoch
still has. ``examples/survive.py`` also takes other processes in.

The training is that of ``elastic.py``. aiodist's own reducer averages the gradients, because it can be made
anew for the new group; DistributedDataParallel keeps the group that it was made with.
"""

from __future__ import annotations

import argparse

from elastic import Training

import aiodist.sync as dist
import common
from aiodist.training.sync import GradientReducer

LOST = (dist.PeerLostError, dist.GroupRevokedError, dist.CollectiveCancelledError)


def agree(training: Training, ranks: common.Ranks) -> None:
    """Go on, all ranks, from the state of one that has come farthest.

    A rank may die when some of the others have finished a step and some have not.
    """
    made = ranks.gather([training.made["steps"], training.made["epochs"]])
    farthest = made.index(max(made))
    state = {name: part.state_dict() for name, part in training.parts.items()}
    dist.sync_state(state, group_src=farthest)
    for name, part in training.parts.items():
        part.load_state_dict(state[name])


def train(training: Training, ranks: common.Ranks, checkpoint: common.Checkpoint) -> None:
    """Train to the end over the group that there is now. Raise one of `LOST` when a rank is lost."""
    agree(training, ranks)
    reducer, traffic = GradientReducer(training.model.parameters()), common.Traffic()

    def synchronize(*_: object) -> None:
        with traffic.timed(reducer.bytes_per_step):
            reducer.synchronize()  # the gradients are now the means over all ranks

    before_step = training.optimizer.register_step_pre_hook(synchronize)
    options, trained, result = training.options, None, None
    try:
        while not options.evaluate and training.made["epochs"] < options.epochs:
            trained = training.train_epoch(ranks, training.model, lambda: None)
            result = training.evaluate(ranks)
            checkpoint.save(training.made["epochs"], result.top1)
        result = result or training.evaluate(ranks)
        if ranks.rank == 0:
            print(f"steps          {training.made['steps']}")
        common.finish(options, ranks, training.model, trained, result, traffic)
    finally:
        before_step.remove()
        reducer.close()


def run(options: argparse.Namespace, ranks: common.Ranks) -> None:
    """Do the job of one rank, over one group after the other."""
    training = Training(options, ranks)
    checkpoint = common.Checkpoint(options, ranks, **training.parts)
    checkpoint.resume()
    while True:
        try:
            return train(training, ranks, checkpoint)
        except LOST as error:
            left = (
                dist.shrink().ranks
            )  # from here on, ranks.rank and ranks.size are those of this group
            if ranks.rank == 0:
                made = training.made["steps"]
                print(f"step {made}: {type(error).__name__}, left are ranks {left}", flush=True)


def main() -> None:
    """Read the options, meet the other ranks, train."""
    parser = common.add_rank_options(common.training_options(__doc__))
    parser.add_argument("--kill", metavar="STEP:RANK", help="the rank kills itself in that step")
    options = parser.parse_args()
    dist.init_process_group(**common.rendezvous(options))
    try:
        ranks = common.JobRanks(dist, common.pick_device())
        with common.sampled_to(options.statistics if ranks.rank == 0 else None):
            run(options, ranks)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
