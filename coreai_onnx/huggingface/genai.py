"""``genai_config.json``, by which onnxruntime-genai runs an exported decoder.

The format is that of https://onnxruntime.ai/docs/genai/reference/config.html.
"""

from __future__ import annotations

from typing import Any

from coreai_onnx.huggingface.decoders import Decoder

CONFIG = "genai_config.json"
_OWN_TYPES = {
    *("chatglm", "ernie4_5", "gemma", "gemma2", "gemma3_text", "granite", "internlm2"),
    *("llama", "mistral", "nemotron", "olmo", "phi", "phi3", "qwen2", "qwen3", "smollm3"),
}
"""Types of decoders that onnxruntime-genai names; it runs all of them in the same way."""
# The type selects the kind of pipeline only, which is that of Llama for all decoders of text.
_ANY_TYPE = "llama"
_DEFAULT_LENGTH = 2048


def genai_config(decoder: Decoder, file: str) -> dict[str, Any]:
    """Return the configuration of a decoder for onnxruntime-genai.

    Args:
        decoder: The decoder.
        file: Name of the model file in the folder.
    """
    model: Any = decoder.model
    # Models of text and images have the settings of the decoder in a configuration inside of
    # theirs.
    config = model.config.get_text_config(decoder=True)
    settings = getattr(model, "generation_config", None)
    length = getattr(config, "max_position_embeddings", None) or _DEFAULT_LENGTH
    ends = _token(settings, config, "eos_token_id")
    # onnxruntime-genai takes several tokens that end a text, but one for padding.
    first = ends[0] if isinstance(ends, list) else ends
    padding = _token(settings, config, "pad_token_id")
    inputs = {"input_ids": "input_ids", "attention_mask": "attention_mask"}
    if decoder.takes_positions:
        inputs["position_ids"] = "position_ids"
    inputs |= {f"past_{part}_names": f"past_key_values.%d.{part}" for part in ("key", "value")}
    outputs = {"logits": "logits"}
    outputs |= {f"present_{part}_names": f"present.%d.{part}" for part in ("key", "value")}
    return {
        "model": {
            "type": config.model_type if config.model_type in _OWN_TYPES else _ANY_TYPE,
            "vocab_size": config.vocab_size,
            "context_length": length,
            "bos_token_id": _token(settings, config, "bos_token_id") or 0,
            "eos_token_id": ends if ends is not None else 0,
            "pad_token_id": padding if padding is not None else first or 0,
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "filename": file,
                "head_size": decoder.slots[0].shape[-1],
                "hidden_size": config.hidden_size,
                "num_attention_heads": config.num_attention_heads,
                # From the cache, because configurations without groups of queries leave the setting
                # out.
                "num_key_value_heads": decoder.slots[0].shape[0],
                "num_hidden_layers": len(decoder.slots) // 2,
                "inputs": inputs,
                "outputs": outputs,
            },
        },
        "search": {
            "do_sample": False,
            "max_length": length,
            "num_beams": 1,
            # A shared buffer needs a fixed capacity.
            "past_present_share_buffer": decoder.slots[0].is_static,
        },
    }


def _token(settings: Any, config: Any, name: str) -> Any:
    """Return a token id from the generation settings, or else from the configuration."""
    value = getattr(settings, name, None)
    return getattr(config, name, None) if value is None else value
