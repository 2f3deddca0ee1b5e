# SPDX-License-Identifier: Apache-2.0
"""with_djinn.py REPORT SCRIPT ARGUMENTS...

The script as if its first line were `import djinn; djinn.enable()`. The report says how djinn
explains the last call of its `model`, and where that is."""

import json
import runpy
import sys
from pathlib import Path

import djinn

djinn.enable()
report, sys.argv = Path(sys.argv[1]), sys.argv[2:]
model = runpy.run_path(sys.argv[0], run_name="__main__")["model"]
report.write_text(json.dumps({**djinn.explain(model), "device": model.device.type}))
