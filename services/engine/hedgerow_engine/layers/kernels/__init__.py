"""Fused kernels: one signature each, three ways to compute it.

`twins` says in plain torch what each kernel is (and runs on any device), `fused` launches Triton
kernels, `flashinfer` replaces some of those where FlashInfer is installed.
"""
