"""Models of transformers that fit into a test: random weights, hidden 32, two layers, made here."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import torch

__all__ = ["WORDS", "make_text_base", "make_vit_base", "write_texts"]

TextKind = Literal["bert", "roberta", "distilbert", "gpt2"]
WORDS = ("good", "fine", "glad", "bad", "poor", "sad", "the", "a", "day", "film", "is", "was", "very", "it")


def make_text_base(
    folder: Path, *, kind: TextKind = "bert", seed: int = 0, words: Iterable[str] = WORDS
) -> Path:
    """A BERT with a tokenizer that knows ``words``, as ``save_pretrained`` leaves it.

    Of the other kinds RoBERTa and DistilBERT have a layer before their classifier that a base lacks, GPT-2
    has no padding and reads from left to right.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing
    from transformers import (
        BertConfig,
        BertModel,
        DistilBertConfig,
        DistilBertModel,
        GPT2Config,
        GPT2Model,
        PreTrainedModel,
        PreTrainedTokenizerFast,
        RobertaConfig,
        RobertaModel,
    )

    numbers = {word: number for number, word in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", *words))}
    tokenizer = Tokenizer(WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = (
        {"eos_token": "[SEP]", "unk_token": "[UNK]"}
        if kind == "gpt2"
        else {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    sizes: dict[str, Any] = {"vocab_size": len(numbers), "max_position_embeddings": 64}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2}
    # a random base is to tell words apart, as a trained one does
    wide: dict[str, Any] = {"hidden_size": 32, "initializer_range": 0.2}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model: PreTrainedModel
        if kind == "bert":
            model = BertModel(BertConfig(**sizes, **wide, intermediate_size=64))
        elif kind == "roberta":
            model = RobertaModel(RobertaConfig(**sizes, **wide, intermediate_size=64, pad_token_id=0))
        elif kind == "distilbert":
            model = DistilBertModel(DistilBertConfig(**sizes, **wide, hidden_dim=64))
        else:
            model = GPT2Model(GPT2Config(**sizes, **wide, bos_token_id=2, eos_token_id=3))
        model.save_pretrained(folder)
    return folder


def make_vit_base(folder: Path, *, side: int = 16) -> Path:
    """A vision transformer for images of ``side`` pixels, in patches of 4."""
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=side,
        patch_size=4,
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        ViTModel(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.25, 0.3], "size": {"height": side}})
    )
    return folder


def write_texts(folder: Path, *, examples: int, seed: int = 0) -> None:
    """``train.csv`` and ``test.csv`` with the columns said and mood: two words of four tell up from down."""
    draws = random.Random(seed)
    for name, number in (("train", examples), ("test", examples // 2)):
        lines = ["said,mood"]
        for _ in range(number):
            mood = draws.choice(("up", "down"))
            own = WORDS[:3] if mood == "up" else WORDS[3:6]
            words = [draws.choice(own), draws.choice(own), *(draws.choice(WORDS[6:]) for _ in range(2))]
            draws.shuffle(words)
            lines.append(f"{' '.join(words)},{mood}")
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
