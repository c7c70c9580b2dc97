"""Small tokenizers of every kind, trained on the sample texts."""

from __future__ import annotations

import json
from typing import Any

import transformers
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from coreai_onnx.huggingface.surroundings.tokenizers import SAMPLE_TEXTS

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def bert(*, lower: bool = True) -> Any:
    """Return a WordPiece tokenizer of the tokens of BERT."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.normalizer = transformers.BertTokenizer(
        do_lower_case=lower
    ).backend_tokenizer.normalizer
    trained.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    # Half of the alphabet: the others are unknown.
    trainer = trainers.WordPieceTrainer(
        vocab_size=900, limit_alphabet=150, special_tokens=special, show_progress=False
    )
    trained.train_from_iterator(SAMPLE_TEXTS, trainer)
    return transformers.BertTokenizer(vocab=trained.get_vocab(), do_lower_case=lower)


def byte_level(*, llama: bool = False) -> Any:
    """Return a byte-level BPE that splits as GPT-2 or Llama 3."""
    trained = Tokenizer(models.BPE())
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not llama)
    trained.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA_3), "isolated"), split])
        if llama
        else split
    )
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|begin|>", "<|end|>"],
        show_progress=False,
    )
    trained.train_from_iterator(SAMPLE_TEXTS, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=trained, eos_token="<|end|>", pad_token="<|end|>"
    )


def unigram(*, multilingual: bool = False) -> Any:
    """Return the tokenizer of T5, or of XLM-RoBERTa."""
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=500, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    trained.train_from_iterator(SAMPLE_TEXTS, trainer)
    pieces = [tuple(one) for one in json.loads(trained.to_str())["model"]["vocab"]][1:]
    if multilingual:
        first = [(name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>")]
        return transformers.XLMRobertaTokenizer(vocab=[*first, *pieces, ("<mask>", 0.0)])
    return transformers.T5Tokenizer(
        vocab=[(name, 0.0) for name in ("<pad>", "</s>", "<unk>")] + pieces
    )


def llama_2() -> Any:
    """Return a BPE of pieces with ``▁`` for spaces, and bytes for unknown characters."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    trainer = trainers.BpeTrainer(
        vocab_size=500, limit_alphabet=90, show_progress=False, special_tokens=["<unk>"]
    )
    trained.train_from_iterator([" ".join(SAMPLE_TEXTS)], trainer)
    model = json.loads(trained.to_str())["model"]
    pieces = [text for text, _ in sorted(model["vocab"].items(), key=lambda one: one[1])]
    all_bytes = [f"<0x{value:02X}>" for value in range(256)]
    names = ["<unk>", "<s>", "</s>", *all_bytes, *pieces[1:]]
    merges = [tuple(pair) for pair in model["merges"]]
    return transformers.LlamaTokenizer(
        vocab={name: i for i, name in enumerate(names)}, merges=merges, pad_token="<unk>"
    )
