"""Train by Ignite's ``idist.Parallel``, which knows Gloo, and evaluate on all ranks after each epoch."""

import ignite.distributed as idist
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy, EpochMetric, Loss
from torch.utils.data import TensorDataset

from tests.ecosystem.programs.results import show


def correct(scores: torch.Tensor, labels: torch.Tensor) -> float:
    return (scores.argmax(1) == labels).double().mean().item()


def work(local_rank: int) -> None:
    torch.manual_seed(0)
    model = idist.auto_model(torch.nn.Linear(4, 3))
    steps = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1))
    data = TensorDataset(torch.randn(61, 4), torch.randint(0, 3, (61,)))
    loader = idist.auto_dataloader(data, batch_size=8, shuffle=True)
    loss = torch.nn.CrossEntropyLoss()
    trainer = create_supervised_trainer(model, steps, loss)
    metrics = {"accuracy": Accuracy(), "loss": Loss(loss), "correct": EpochMetric(correct)}
    evaluator = create_supervised_evaluator(model, metrics)
    found: list[float] = []

    @trainer.on(Events.EPOCH_COMPLETED)
    def evaluate() -> None:
        evaluator.run(loader)
        found.extend(evaluator.state.metrics.values())

    trainer.run(loader, max_epochs=2)
    # Text of unequal lengths, and objects that one rank alone has.
    texts = idist.all_gather("abc" * (idist.get_rank() + 1))
    assert texts == ["abc", "abcabc"]
    shared = idist.broadcast("abc" if idist.get_rank() == 1 else None, src=1, safe_mode=True)
    assert shared == "abc"
    show(model, *found)


def main() -> None:
    with idist.Parallel(backend="gloo") as parallel:
        parallel.run(work)


if __name__ == "__main__":
    main()
