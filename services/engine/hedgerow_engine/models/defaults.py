"""What a config.json means by the keys it leaves out: each family's own defaults.

They are those of transformers' config classes, so that a folder means the same here and there.
Sizes without which no tensor has a shape (hidden_size, num_hidden_layers, ...) have none: a
config that lacks one is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hedgerow_shared.modelcard import TOKEN_TYPES

_BERT: Mapping[str, Any] = {
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
    "type_vocab_size": TOKEN_TYPES["bert"],
}
_ROBERTA = {**_BERT, "pad_token_id": 1}
_LLAMA: Mapping[str, Any] = {
    "attention_bias": False,
    "hidden_act": "silu",
    "mlp_bias": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_QWEN: Mapping[str, Any] = {
    "hidden_act": "silu",
    "max_window_layers": 28,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
}
_QWEN3 = {**_QWEN, "attention_bias": False, "head_dim": 128}

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "mpnet": _ROBERTA,
    "distilbert": {
        "activation": "gelu",
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
    },
    "deberta-v2": {
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-7,
        "max_relative_positions": -1,
        "pad_token_id": 0,
        "pooler_hidden_act": "gelu",
        "position_biased_input": True,
        "position_buckets": -1,
        "relative_attention": False,
        "share_att_key": False,
        "tie_word_embeddings": True,
        "type_vocab_size": TOKEN_TYPES["deberta-v2"],
    },
    "modernbert": {
        "attention_bias": False,
        "classifier_activation": "gelu",
        "classifier_bias": False,
        "classifier_pooling": "cls",
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "hidden_activation": "gelu",
        "local_attention": 128,
        "local_rope_theta": 10000.0,
        "mlp_bias": False,
        "norm_bias": False,
        "norm_eps": 1e-5,
        "tie_word_embeddings": True,
    },
    "gte": {
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "rope_theta": 160000.0,
        "tie_word_embeddings": True,
        "type_vocab_size": TOKEN_TYPES["gte"],
    },
    # The older name of gte has a class of its own, outside of transformers.
    "new": {
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "type_vocab_size": TOKEN_TYPES["new"],
    },
    "nomic_bert": {
        "layer_norm_eps": 1e-12,
        "rope_theta": 1000.0,
        "tie_word_embeddings": True,
        "type_vocab_size": TOKEN_TYPES["nomic_bert"],
    },
    "qwen2": _QWEN,
    "qwen3": _QWEN3,
    "bidirectional_pplx_qwen3": _QWEN3,
    "llama": _LLAMA,
    "llama_bidirec": _LLAMA,
    "eurobert": {**_LLAMA, "rms_norm_eps": 1e-5},
    "mistral": {
        "hidden_act": "silu",
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
    },
    "gemma3_text": {
        "attention_bias": False,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-6,
        "rope_local_base_freq": 10000.0,
        "rope_theta": 1000000.0,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "tie_word_embeddings": True,
        "use_bidirectional_attention": False,
    },
}
