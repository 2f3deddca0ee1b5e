# SPDX-License-Identifier: Apache-2.0
"""llama.cpp, as llama-cpp-python builds it from source, with its defaults but for the threads.

In int8 the model is its Q8_0, which it makes itself of one in bfloat16. It reads the prompt of that
token by token, and once: where it multiplies Q8_0 of several tokens by AMX, it crashes. A token's
time, which is a difference, has no part of the prompt in it."""

import ctypes
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
from arm import Generate, serve

CONTEXT = 512
ARCHITECTURES = {"qwen2": gguf.MODEL_ARCH.QWEN2, "gpt2": gguf.MODEL_ARCH.GPT2}
TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # GPT-2 has its inputs first


def write_settings(writer: gguf.GGUFWriter, config: dict) -> None:
    if config["model_type"] == "gpt2":
        width, heads = config["n_embd"], config["n_head"]
        writer.add_context_length(config["n_positions"])
        writer.add_feed_forward_length(4 * width)
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    else:
        width, heads = config["hidden_size"], config["num_attention_heads"]
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        rope = config.get("rope_parameters") or config
        writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_embedding_length(width)
    writer.add_head_count(heads)
    writer.add_block_count(layers_of(config))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")


def layers_of(config: dict) -> int:
    return config["n_layer"] if config["model_type"] == "gpt2" else config["num_hidden_layers"]


def tensors_of(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """In float32, of a file of safetensors, which numpy has no bfloat16 for."""
    data = np.memmap(path, np.uint8, "r")
    begin = 8 + int.from_bytes(data[:8].tobytes(), "little")
    header = json.loads(data[8:begin].tobytes())
    header.pop("__metadata__", None)
    for name, one in header.items():
        raw = data[begin + one["data_offsets"][0] : begin + one["data_offsets"][1]]
        if one["dtype"] == "BF16":
            values = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            assert one["dtype"] == "F32", name
            values = raw.view(np.float32)
        yield name, values.reshape(one["shape"])


def convert(directory: str, dtype: str, path: Path) -> None:
    """The tensors as they are but for vectors, which llama.cpp wants in float32."""
    config = json.loads((Path(directory) / "config.json").read_text())
    kind = ARCHITECTURES[config["model_type"]]
    names = gguf.get_tensor_name_map(kind, layers_of(config))
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[kind])
    write_settings(writer, config)
    wanted = {
        "bfloat16": gguf.GGMLQuantizationType.BF16,
        "float32": gguf.GGMLQuantizationType.F32,
    }[dtype]
    for name, tensor in tensors_of(Path(directory) / "model.safetensors"):
        told = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert told is not None, name
        if name.endswith(TRANSPOSED):
            tensor = np.ascontiguousarray(tensor.T)
        if tensor.ndim == 1:
            writer.add_tensor(told, tensor)
        else:
            writer.add_tensor(told, gguf.quants.quantize(tensor, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantize(path: Path, threads: int) -> Path:
    """To 8 bits. Gives the new file, which takes the place of the other."""
    told = llama_cpp.llama_model_quantize_default_params()
    told.ftype, told.nthread = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, threads
    found = path.with_suffix(".q8_0.gguf")
    failed = llama_cpp.llama_model_quantize(bytes(path), bytes(found), ctypes.byref(told))
    if failed:
        raise RuntimeError(f"llama.cpp made no Q8_0 of {path}: error {failed}")
    path.unlink()
    matrices = [one for one in gguf.GGUFReader(found).tensors if len(one.shape) > 1]
    others = [one.name for one in matrices if one.tensor_type != gguf.GGMLQuantizationType.Q8_0]
    if others:
        raise RuntimeError(f"llama.cpp left matrices in another form than Q8_0: {others}")
    return found


def open_model(directory: str, dtype: str, threads: int) -> Generate:
    with tempfile.TemporaryDirectory(prefix="djinn-bench.") as made:
        path = Path(made) / "model.gguf"
        convert(directory, "bfloat16" if dtype == "int8" else dtype, path)
        if dtype == "int8":
            path = quantize(path, threads)
        model = llama_cpp.Llama(
            str(path),
            n_ctx=CONTEXT,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
            **({"n_batch": 1} if dtype == "int8" else {}),
        )

    def generate(prompt: list[int], tokens: int) -> list[int]:
        found: list[int] = []
        if dtype != "int8":
            model.reset()
        for token in model.generate(prompt, temp=0.0):
            found.append(int(token))
            if len(found) == tokens:
                break
        return found

    return generate


if __name__ == "__main__":
    serve(open_model)
