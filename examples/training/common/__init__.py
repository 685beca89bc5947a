"""What the recipes share: options, data, models, meters, checkpoints. A recipe is what is left.

One recipe is one script beside this package, so ``from common import ...`` finds it.
"""

from common.checkpoint import Checkpoint
from common.data import Batches, Data, Digits, ImageFolder, load_data
from common.evaluation import count, evaluate
from common.meters import Meters, Result, progress
from common.models import (
    ARCHITECTURES,
    build_model,
    fingerprint,
    learning_rate_schedule,
    settle_buckets,
    sgd,
)
from common.options import (
    add_rank_options,
    pick_device,
    rank_batch_size,
    rendezvous,
    training_options,
)
from common.ranks import (
    BadInput,
    JobRanks,
    OneProcess,
    Ranks,
    agree,
    agreement,
    complain,
    first_problem,
)
from common.statistics import sampled_to
from common.summary import finish
from common.traffic import Traffic

__all__ = [
    "ARCHITECTURES",
    "BadInput",
    "Batches",
    "Checkpoint",
    "Data",
    "Digits",
    "ImageFolder",
    "JobRanks",
    "Meters",
    "OneProcess",
    "Ranks",
    "Result",
    "Traffic",
    "add_rank_options",
    "agree",
    "agreement",
    "build_model",
    "complain",
    "count",
    "evaluate",
    "fingerprint",
    "finish",
    "first_problem",
    "learning_rate_schedule",
    "load_data",
    "pick_device",
    "progress",
    "rank_batch_size",
    "rendezvous",
    "sampled_to",
    "settle_buckets",
    "sgd",
    "training_options",
]
