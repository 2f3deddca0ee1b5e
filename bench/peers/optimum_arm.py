# SPDX-License-Identifier: Apache-2.0
"""OpenVINO and onnxruntime, by optimum, whose loop is transformers'. The last word says which.

OpenVINO's int8 is what optimum gives for `load_in_8bit`: weights that NNCF has compressed."""

import sys
from typing import Any

import torch
import transformers
from arm import Generate, serve

KIND = sys.argv.pop()
PRECISIONS = {"bfloat16": "bf16", "float32": "f32", "int8": "bf16"}  # of what is no weight, too


def load(directory: str, dtype: str, threads: int) -> Any:
    if KIND == "openvino":
        from optimum.intel import OVModelForCausalLM

        return OVModelForCausalLM.from_pretrained(
            directory,
            export=True,
            load_in_8bit=dtype == "int8",
            torch_dtype=getattr(torch, "bfloat16" if dtype == "int8" else dtype),
            ov_config={
                "INFERENCE_NUM_THREADS": threads,
                "INFERENCE_PRECISION_HINT": PRECISIONS[dtype],
                "PERFORMANCE_HINT": "LATENCY",
            },
        )
    import onnxruntime
    from optimum.onnxruntime import ORTModelForCausalLM

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    return ORTModelForCausalLM.from_pretrained(directory, export=True, session_options=settings)


def open_model(directory: str, dtype: str, threads: int) -> Generate:
    torch.set_num_threads(threads)
    model = load(directory, dtype, threads)

    def generate(prompt: list[int], tokens: int) -> list[int]:
        found = model.generate(
            torch.tensor([prompt]),
            generation_config=transformers.GenerationConfig(
                max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0
            ),
        )
        return [int(token) for token in found[0, len(prompt) :]]

    return generate


if __name__ == "__main__":
    serve(open_model)
