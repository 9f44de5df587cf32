"""BERT's last hidden states at a few places of each sentence, without computing them anywhere else.

A masked language model is asked at one place in seven. What the last layer makes of the other places nobody looks at,
so there its keys and values alone are needed, which attention at the masked places reads; queries, the output of the
attention and the feed-forward part, five sixths of the layer, are computed at the masked places only. The numbers are
the same, and so are the gradients: elsewhere they are zero.
"""

from typing import Any

from torch import Tensor
from torch.nn import functional


def hidden_at(bert: Any, batch: Any, positions: Tensor) -> Tensor:
    """Return what transformers' `BertModel` gives as last hidden states, at `positions` (n, k): (n, k, hidden)."""
    names = ("input_ids", "position_ids", "token_type_ids")
    hidden: Tensor = bert.embeddings(**{name: batch[name] for name in names})
    there = batch["attention_mask"].bool()
    seen = None if bool(there.all()) else there[:, None, None, :]
    *layers, last = bert.encoder.layer
    for layer in layers:
        hidden = _layer(layer, hidden, hidden, seen)
    asked = hidden.gather(1, positions.unsqueeze(2).expand(-1, -1, hidden.shape[2]))
    return _layer(last, asked, hidden, seen)


def _layer(layer: Any, asked: Tensor, hidden: Tensor, seen: Tensor | None) -> Tensor:
    """Apply a layer at the places `asked`, which attend to all of `hidden` that is `seen`."""
    attention = layer.attention.self
    heads = (attention.num_attention_heads, attention.attention_head_size)
    query, key, value = (
        linear(states).unflatten(-1, heads).transpose(1, 2)
        for linear, states in ((attention.query, asked), (attention.key, hidden), (attention.value, hidden))
    )
    dropout = attention.dropout.p if attention.training else 0.0
    mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen, dropout_p=dropout)
    attended = layer.attention.output(mixed.transpose(1, 2).flatten(2), asked)
    result: Tensor = layer.output(layer.intermediate(attended), attended)
    return result
