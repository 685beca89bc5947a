"""Train a small BERT by transformers' Trainer, which asks torch for Gloo."""

import tempfile

import torch
import torch.distributed as dist
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

from tests.ecosystem.programs.results import show


def main() -> None:
    set_seed(0)
    model = BertForSequenceClassification(
        BertConfig(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            vocab_size=50,
            max_position_embeddings=16,
        )
    )
    words = torch.randint(0, 50, (32, 8), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": number % 2} for number, row in enumerate(words)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            ddp_backend="gloo",
            per_device_train_batch_size=4,
            max_steps=4,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data)
        trainer.train()
        loss = trainer.evaluate()["eval_loss"]
    show(model, loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
