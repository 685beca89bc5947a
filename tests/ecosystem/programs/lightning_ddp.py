"""Train Lightning's own example model by its DDP strategy: ``lightning_ddp BACKEND START_METHOD``."""

import sys

import lightning
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.strategies import DDPStrategy

from tests.ecosystem.programs.results import show


class Shown(lightning.Callback):
    """Prints the figures in the rank that has trained: it may be a process of Lightning's."""

    def on_fit_end(self, trainer: lightning.Trainer, model: lightning.LightningModule) -> None:
        show(model)


def main() -> None:
    backend, start_method = sys.argv[1:]
    lightning.seed_everything(0)
    lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend=backend, start_method=start_method),
        callbacks=[Shown()],
        max_epochs=1,
        limit_train_batches=4,
        limit_val_batches=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(BoringModel())


if __name__ == "__main__":
    main()
