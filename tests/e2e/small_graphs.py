# SPDX-License-Identifier: Apache-2.0
"""Small graphs that several tests run."""

# Of dtype {dtype}; its weights are layer.weight and layer.bias.
LINEAR = """srg 1 "one linear"
symbol rows 1..512 batch
weight %w "layer.weight" : {dtype}[64, 96]
weight %b "layer.bias" : {dtype}[64]
input %x : {dtype}[rows, 96]
%y = aten::linear(%x, %w, %b)
output %y
"""

DOUBLE = """srg 1 "double"
symbol n 1..4194304
input %x : float32[n]
%y = aten::add.Tensor(%x, %x)
output %y
"""

# For its operator.
REFUSED = """srg 1 "not allowed"
symbol n 1..1024
input %x : float32[n]
%y = aten::rand_like(%x)
output %y
"""
