# SPDX-License-Identifier: Apache-2.0
"""Models as ghosts: outputs bit for bit, tokens one by one, those of the CPU, in both dtypes.

`./dev matrix` does the same with all of the zoo, and with longer prompts.
"""

from pathlib import Path

import compare
import djinn
import pytest
from private_daemon import Daemon

pytest.importorskip("djinn.torch", exc_type=ImportError)
if not hasattr(djinn, "enable"):
    pytest.skip("this djinn has the device, but no ghosts", allow_module_level=True)

QUICK = ["bert", "llama"]
CI = ["gpt2", "qwen2", "t5", "vit", "clip", "whisper", "mixtral", "mamba"]
EXPERTS = ["qwen2_moe", "granitemoe", "DeepseekV3ForCausalLM", "GptOssForCausalLM"]


@pytest.mark.parametrize(
    "name",
    [
        *QUICK,
        *(pytest.param(name, marks=pytest.mark.ci) for name in CI),
        *(pytest.param(name, marks=pytest.mark.full) for name in EXPERTS),
    ],
)
def test_a_ghost_equals_the_local_model(
    forks: compare.Forks, daemon: Daemon, tmp_path: Path, name: str
) -> None:
    result = forks.compared(name, daemon, tmp_path)
    assert result.passed, result.reasons
