"""A broken model folder is one line that names the file and the remedy, before anything runs."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hedgerow_engine.load import EngineSettings, ModelSpec, load_engines
from hedgerow_engine.weights import Weights
from hedgerow_shared.errors import StartupError
from tests.engine.conftest import OpenEngine
from tests.engine.tiny import patch_json, save, seeded, transformers


def tiny_bert(folder: Path) -> Path:
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    return save(folder, seeded(transformers.BertModel, config))


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-400])


def cut_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 40) + b"{}")


def not_json(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 4) + b"nope")


def empty(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def wrong_shape(folder: Path) -> None:
    patch_json(folder / "config.json", intermediate_size=128)


def missing_layer(folder: Path) -> None:
    patch_json(folder / "config.json", num_hidden_layers=2)


def unused_layer(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors | {"surprise.weight": torch.ones(3)})


def odd_dtype(folder: Path) -> None:
    def change(header: dict) -> dict:
        header["embeddings.LayerNorm.bias"]["dtype"] = "F8_E4M3"
        return header

    edit_header(folder, change)


def edit_tensors(folder: Path, change: Callable[[dict], dict]) -> None:
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file)


def edit_header(folder: Path, change: Callable[[dict], dict]) -> None:
    file = folder / "model.safetensors"
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.dumps(change(json.loads(data[8 : 8 + length]))).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + length :])


def shared_bytes(folder: Path) -> None:
    edit_header(
        folder, lambda header: header | {"surprise.weight": header["embeddings.LayerNorm.bias"]}
    )


def header_shape(*shape: object) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        def change(header: dict) -> dict:
            header["embeddings.LayerNorm.bias"]["shape"] = list(shape)
            return header

        edit_header(folder, change)

    damage.__name__ = f"header_shape {shape}"
    return damage


def two_lines(folder: Path) -> None:
    edit_header(folder, lambda header: header | {"two\nlines": {}})


def deep_header(folder: Path) -> None:
    deep = b"[" * 200_000
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(deep)) + deep)


def integers(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        edit_tensors(folder, lambda tensors: tensors | {name: tensors[name].to(torch.int8)})

    damage.__name__ = f"integers {name}"
    return damage


def two_names(folder: Path) -> None:
    def change(tensors: dict) -> dict:
        return tensors | {"embeddings.LayerNorm.gamma": torch.ones(32)}

    edit_tensors(folder, change)


def two_copies(folder: Path) -> None:
    file = folder / "model.safetensors"
    (folder / "a.safetensors").write_bytes(file.read_bytes())
    file.rename(folder / "b.safetensors")


def index(*names: object) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
        weight_map = {str(i): name for i, name in enumerate(names)}
        patch_json(folder / "model.safetensors.index.json", weight_map=weight_map)

    damage.__name__ = f"index {names}"
    return damage


def dangling_link(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("../blobs/nothing")


def dangling_index(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").symlink_to("../blobs/nothing")


def weights_are_a_folder(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()


def text_ids(folder: Path) -> None:
    patch_json(folder / "tokenizer.json", model={"vocab": {"a": "1"}}, added_tokens=[])


def unknown_family(folder: Path) -> None:
    patch_json(folder / "config.json", model_type="jina_bert")


def unknown_activation(folder: Path) -> None:
    patch_json(folder / "config.json", hidden_act="mish")


def big_tokenizer(folder: Path) -> None:
    patch_json(folder / "tokenizer.json", model={"vocab": {"a": 0, "b": 50}}, added_tokens=[])


def missing_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    patch_json(folder / "model.safetensors.index.json", weight_map={"a": "model-1.safetensors"})


CASES: list[tuple[Callable[[Path], None], str]] = [
    (truncate, r"model\.safetensors: truncated.*download it again"),
    (cut_header, r"model\.safetensors: truncated or not safetensors"),
    (not_json, r"model\.safetensors: not safetensors"),
    (empty, r"model\.safetensors: cannot be read.*download"),
    (pickled, r"pytorch_model\.bin: a pickle may run code.*convert"),
    (no_weights, r"no \*\.safetensors here; give the folder"),
    (
        wrong_shape,
        r"intermediate\.dense\.weight is \[64, 32\], but the config asks for \[128, 32\]",
    ),
    (missing_layer, r"tensor encoder\.layer\.1\.\S+ is missing"),
    (unused_layer, r"unexpected tensor surprise\.weight"),
    (odd_dtype, r"F8_E4M3; supported"),
    (unknown_family, r"config\.json: model_type 'jina_bert' is not supported"),
    (unknown_activation, r"config\.json: hidden_act is 'mish'"),
    (big_tokenizer, r"tokenizer\.json: has token id 50, but the embeddings have 50 rows"),
    (missing_shard, r"model-1\.safetensors: missing, though model\.safetensors\.index\.json names"),
    (shared_bytes, r"tensors embeddings\.LayerNorm\.bias and surprise\.weight share bytes"),
    (header_shape(-8, -4), r"entry for embeddings\.LayerNorm\.bias is broken; download"),
    (header_shape(float("inf")), r"entry for embeddings\.LayerNorm\.bias is broken; download"),
    (header_shape(32.5), r"entry for embeddings\.LayerNorm\.bias is broken; download"),
    (header_shape("32"), r"entry for embeddings\.LayerNorm\.bias is broken; download"),
    (header_shape(*[1] * 31, 32), r"entry for embeddings\.LayerNorm\.bias is broken; download"),
    (two_lines, r"entry for 'two\\nlines' is broken"),
    (deep_header, r"not safetensors \(the header is not JSON\)"),
    (integers("embeddings.word_embeddings.weight"), r"word_embeddings\.weight is I8.*take.*F32"),
    (integers("encoder.layer.0.output.dense.weight"), r"output\.dense\.weight is I8.*take.*F32"),
    (two_names, r"has embeddings\.LayerNorm\.weight under its old name too.*remove one"),
    (two_copies, r"b\.safetensors: tensor \S+ is in a\.safetensors too; remove one"),
    (index("../outside.safetensors"), r"index\.json: file '\.\./outside\S+' leads out of"),
    (index("/outside.safetensors"), r"index\.json: file '/outside\S+' leads out of the model's"),
    (index("x" * 300), r"x: missing, though model\.safetensors\.index\.json names it"),
    (index("two\nlines"), r"index\.json: weight_map names no files"),
    (index(5), r"index\.json: weight_map names no files"),
    (index(), r"index\.json: weight_map names no files"),
    (dangling_link, r"model\.safetensors: a link to \.\./blobs/nothing, which is not there"),
    (dangling_index, r"index\.json: a link to \.\./blobs/nothing, which is not there"),
    (weights_are_a_folder, r"model\.safetensors: a folder, not a file"),
    (text_ids, r"tokenizer\.json: not a tokenizer\.json with a vocabulary"),
]


@pytest.mark.parametrize("executor", ["auto", "packed"])
@pytest.mark.parametrize(("damage", "message"), CASES, ids=[c[0].__name__[:60] for c in CASES])
def test_a_damaged_folder_is_refused_in_one_line(
    tmp_path: Path, damage: Callable[[Path], None], message: str, executor: str
) -> None:
    folder = tiny_bert(tmp_path / "m")
    damage(folder)
    with pytest.raises(StartupError, match=message) as caught:
        load_engines(
            [ModelSpec(alias="m", folder=folder)],
            EngineSettings(dtype="float32", warmup_s=0, cpu_executor=executor),  # type: ignore[arg-type]
            log=lambda line: None,
        )
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_a_model_bigger_than_memory_is_refused(
    tmp_path: Path, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_bert(tmp_path / "m")
    monkeypatch.setattr(Weights, "num_bytes", property(lambda self: 1 << 60))
    with pytest.raises(StartupError, match=r"MiB of memory are free; take a smaller model"):
        open_engine(folder)


def test_the_undamaged_folder_loads(tmp_path: Path, open_engine: OpenEngine) -> None:
    assert open_engine(tiny_bert(tmp_path / "m")).max_seq_len == 64


def test_the_fingerprint_depends_on_what_changes_a_number(
    tmp_path: Path, open_engine: OpenEngine
) -> None:
    a, b = tiny_bert(tmp_path / "a"), tiny_bert(tmp_path / "b")
    one = open_engine(a).fingerprint
    assert open_engine(b).fingerprint == one
    assert open_engine(b, dtype="bfloat16").fingerprint != one
    config = json.loads((b / "config.json").read_text())
    for change, same in (({"_name_or_path": "elsewhere"}, True), ({"layer_norm_eps": 1e-3}, False)):
        (b / "config.json").write_text(json.dumps(config | change))
        assert (open_engine(b).fingerprint == one) is same, change
    (b / "config.json").write_text(json.dumps(config))
    data = bytearray((b / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (b / "model.safetensors").write_bytes(bytes(data))
    assert open_engine(b).fingerprint != one
