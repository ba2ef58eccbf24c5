"""One model's weights, packed for one rung, and the MODEL words that point to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hedgerow_engine.native.approx import LOG2_E
from hedgerow_engine.native.memory import Memory, address, padded
from hedgerow_engine.native.packing import Packer
from hedgerow_engine.native.rungs import Rung
from hedgerow_engine.native.tensors import (
    EVERYWHERE,
    Affine,
    Floats,
    LayerTensors,
    ModelTensors,
    Norm,
    Rope,
)
from hedgerow_engine.native.words import LAYER, MODEL, TAIL, Layout, Words

_WIDEST = 1 << 16


class PackedModel:
    """Everything a program reads of a model. Word embeddings stay in their mapped file.

    kinds: the first layer of each kind: layers of one kind differ in their numbers only
    narrow_tokens: no longer sequence may be in a pass that is `narrow`: where the last layer's
        window begins inside a sequence, a row's sums are paired from there, and a row that has
        a tile of its own would come out a bit different
    """

    def __init__(
        self, tensors: ModelTensors, rung: Rung, packer: Packer, *, max_positions: int
    ) -> None:
        self._rung, self._geometry, self._packer = rung, tensors.geometry, packer
        self.num_layers, self.max_positions = tensors.num_layers, max_positions
        self._kept: list[npt.NDArray[Any]] = [tensors.word.data]
        self._scale = tensors.scale or tensors.geometry.head_dim**-0.5
        self._ropes: dict[Rope, int] = {}
        self._biases: dict[int, tuple[int, int]] = {}
        self._zeros = np.zeros(_WIDEST, np.float32)
        self._ones = np.ones(_WIDEST, np.float32)
        self._memory = Memory(tensors.num_layers * self._layer_bytes())
        self._layers = LAYER.new(tensors.num_layers)
        firsts: dict[object, int] = {}
        self.narrow_tokens = 0
        for i in range(tensors.num_layers):
            layer = tensors.layer(i)
            firsts.setdefault(self._pack_layer(self._layers[i], layer), i)
            self.narrow_tokens = 1 + min(layer.back, layer.ahead or EVERYWHERE)
        self.kinds = tuple(firsts.values())
        self.words = MODEL.new()[0]
        self._put_model(tensors)

    @property
    def num_bytes(self) -> int:
        return self._memory.num_bytes

    def layer_words(self, i: int) -> Words:
        """A copy of one layer's words."""
        return self._layers[i].copy()

    def _layer_bytes(self) -> int:
        """Matrices of one layer, packed."""
        g = self._geometry
        up = g.intermediate * (2 if g.gated else 1)
        sizes = (
            g.qkv_width * g.hidden,
            g.hidden * g.context_width,
            up * g.hidden,
            g.hidden * g.intermediate,
        )
        return sum(padded(size * self._rung.act_bytes) for size in sizes)

    def _put_model(self, tensors: ModelTensors) -> None:
        MODEL.put(
            self.words,
            word=address(tensors.word.data),
            table=self._keep(tensors.table),
            layers=address(self._layers),
            num_layers=tensors.num_layers,
        )
        for name, norm in (
            ("embed_norm", tensors.embed_norm),
            ("final_norm", tensors.final_norm),
        ):
            self._put_norm(MODEL, self.words, name, norm)
        steps = TAIL.new(max(1, len(tensors.tail)))
        for words, part in zip(steps, tensors.tail):
            if isinstance(part, Affine):
                weight, bias = self._keep(part.weight.float32()), self._keep(part.bias)
                TAIL.put(words, weight=weight, bias=bias)
            else:
                self._put_norm(TAIL, words, "weight", part, "bias")
        MODEL.put(self.words, tail=address(steps))
        self._kept.append(steps)

    def _pack_layer(self, words: Words, layer: LayerTensors) -> object:
        """-> the layer's kind."""
        g = self._geometry
        # The softmax runs in powers of two, and its scale is part of the queries.
        scale = np.float32(LOG2_E * self._scale)
        q_rows, q_norm = self._ones[: g.qkv_width].copy(), layer.q_norm
        if q_norm is None:
            q_rows[: g.context_width] = scale
        else:
            q_norm = q_norm * scale
        qkv_bias = None if layer.qkv.bias is None else layer.qkv.bias * q_rows
        self._put_matrix(words, "qkv", Affine(layer.qkv.weight, qkv_bias), q_rows)
        self._put_matrix(words, "o", layer.o)
        if layer.gate is None:
            self._put_matrix(words, "up", layer.up)
        else:
            self._put_gated(words, layer.gate, layer.up)
        self._put_matrix(words, "down", layer.down)
        self._put_norm(LAYER, words, "attention_norm", layer.attention_norm)
        self._put_norm(LAYER, words, "mlp_norm", layer.mlp_norm)
        LAYER.put(
            words,
            q_norm=self._keep(q_norm),
            k_norm=self._keep(layer.k_norm),
            after_attention_norm=self._keep(layer.after_attention_norm),
            after_mlp_norm=self._keep(layer.after_mlp_norm),
            rope=self._rope(layer.rope),
            back=layer.back,
            ahead=layer.ahead,
        )
        if layer.bias is not None:
            place, step = self._bias(layer.bias)
            LAYER.put(words, bias=place, bias_step=step)
        return layer.kind

    def _put_matrix(
        self, words: Words, name: str, affine: Affine, rows: Floats | None = None
    ) -> None:
        """rows: what each row is multiplied with."""
        n, k = affine.weight.shape
        target = self._memory.take(n * k * self._rung.act_bytes)
        self._packer.matrix(affine.weight, self._ones[:n] if rows is None else rows, target)
        bias = affine.bias if affine.bias is not None else self._zeros[:n]
        LAYER.put(words, **{name: address(target), f"{name}_bias": self._keep(bias)})

    def _put_gated(self, words: Words, gate: Affine, up: Affine) -> None:
        n, k = gate.weight.shape
        target = self._memory.take(2 * n * k * self._rung.act_bytes)
        self._packer.gated(gate.weight, up.weight, self._ones[:n], target)
        bias = self._zeros[: 2 * n]
        if gate.bias is not None and up.bias is not None:
            half = self._rung.columns // 2
            pairs = [part.reshape(n // half, 1, half) for part in (gate.bias, up.bias)]
            bias = np.concatenate(pairs, axis=1).reshape(2 * n)
        LAYER.put(words, up=address(target), up_bias=self._keep(bias))

    def _put_norm(
        self, layout: Layout, words: Words, name: str, norm: Norm | None, bias_name: str = ""
    ) -> None:
        """A layer norm without bias adds zeros."""
        if norm is None:
            return
        bias = norm.bias if norm.bias is not None else self._zeros[: norm.weight.shape[0]]
        places = {name: self._keep(norm.weight), bias_name or f"{name}_bias": self._keep(bias)}
        layout.put(words, **places)

    def _rope(self, rope: Rope | None) -> int:
        if rope is None:
            return 0
        if rope not in self._ropes:
            table = rope.table(self._geometry.head_dim, self.max_positions)
            self._ropes[rope] = self._keep(table)
        return self._ropes[rope]

    def _bias(self, bias: Floats) -> tuple[int, int]:
        """(address of distance 0 of the first head, bytes from head to head); in powers of two,
        with room for the keys that fill up the last vector. Layers may share one array."""
        if id(bias) not in self._biases:
            padded = np.pad(bias * np.float32(LOG2_E), ((0, 0), (0, self._rung.lanes)))
            middle = self._keep(padded) + (bias.shape[1] // 2) * 4
            self._kept.append(bias)
            self._biases[id(bias)] = middle, padded.shape[1] * 4
        return self._biases[id(bias)]

    def _keep(self, array: Floats | None) -> int:
        """The address of a float32 array that now lives as long as this model; 0 = none."""
        if array is None:
            return 0
        kept = np.ascontiguousarray(array, np.float32)
        self._kept.append(kept)
        return address(kept)
