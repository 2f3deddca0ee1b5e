# SPDX-License-Identifier: Apache-2.0
"""Models generate on a GPU by our own kernels, as on the host: djinnd, its mover and its worker are
real, the driver and CUDA's runtime are fakes. Our own kernels are emulated, what PyTorch's compute
is computed by the host (tests/fake_cuda/torch), and so tokens are true."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import djinn
import pytest
import torch
from private_daemon import BIN, Daemon, running, wait_until
from test_gpu_sessions import FAKES, RUNTIME, gpu_of, program_on_fakes, workers
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 160
PROMPT = [7, 100, 45, 2, 19, 150, 133, 8, 91, 64, 12]
TOKENS = 12
OPTIONS: dict[str, Any] = {"max_new_tokens": TOKENS, "stop_tokens": []}
PRELOADED = [*RUNTIME, FAKES / "runtime/libfake-torch.so"]
IMAGE = BIN / "kernels.fatbin"

pytestmark = [
    pytest.mark.skipif(
        not (BIN / "djinn-cuda-worker").exists() or not all(map(Path.exists, [*PRELOADED, IMAGE])),
        reason="the fakes of a GPU are not built, or PyTorch is without CUDA, or there is no nvcc",
    ),
    pytest.mark.ci,
]


def make_model() -> LlamaForCausalLM:
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.15,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config)


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", str(FAKES))
        patch.setenv("DJINN_FAKE_CUDA", "memory=4G")
        patch.setenv("DJINN_FAKE_NVML", "driver=580.7")
        worker = program_on_fakes(tmp_path_factory.mktemp("gpu"))
        preload = " ".join(map(str, RUNTIME))
        worker.write_text(worker.read_text().replace(preload, " ".join(map(str, PRELOADED))))
        with running("--devices", "cuda:0", "--cuda-worker", str(worker)) as daemon:
            wait_until(lambda: gpu_of(daemon)["state"] == "ready", "the GPU is ready")
            yield daemon


def test_a_model_says_on_a_gpu_what_transformers_says_on_the_host(
    gpu: Daemon, tmp_path: Path
) -> None:
    model = make_model().eval()
    model.save_pretrained(tmp_path)
    said = model.generate(
        torch.tensor([PROMPT]), do_sample=False, max_new_tokens=TOKENS, pad_token_id=0
    )
    expected = said[0, len(PROMPT) :].tolist()
    assert len(set(expected)) > 3, "the model must not go round in a small circle"
    with gpu.connect("gpu", device="cuda:0") as session:
        generator = djinn.Generator(session, tmp_path, numerics="fast")
        assert generator.generate([PROMPT], **OPTIONS).tokens == [expected]


def test_workers_that_are_killed_in_mid_sentence_change_no_token(
    gpu: Daemon, tmp_path: Path
) -> None:
    make_model().save_pretrained(tmp_path)
    with gpu.connect("gpu", device="cuda:0") as session:
        generator = djinn.Generator(session, tmp_path, numerics="fast")
        seeded = {**OPTIONS, "temperature": 0.8, "top_p": 0.95, "seed": 5}
        for options in (OPTIONS, seeded):
            expected = generator.generate([PROMPT], **options).tokens
            killed: list[int] = []

            def kill(token: djinn.Token, killed: list[int] = killed) -> None:
                if token.index not in (2, 7):
                    return
                wait_until(lambda: len(set(workers(gpu)) - set(killed)) == 1, "there is another")
                (worker,) = set(workers(gpu)) - set(killed)
                os.kill(worker, signal.SIGKILL)
                killed.append(worker)

            said = generator.generate([PROMPT], on_token=kill, **options).tokens
            assert said == expected
            assert len(set(killed)) == 2
