"""Fused kernels: one signature each, three ways to compute it.

`twins` says in plain torch what each kernel is (and runs on any device), `fused` launches Triton
kernels, `flashinfer` replaces some of those where FlashInfer is installed.
"""

from __future__ import annotations

import os

# Triton 3.10 changes this default; sums of products keep being fused whatever it is.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
