"""The generated CPU executor: our Python writes LLVM IR, llvmlite compiles it, models run in it.

Start reading at `executor`, then `program` (a whole model), `layer`, `gemm`, `attention`; `ir`
is the language they are written in, `rungs` the instruction sets they are written for.
"""
