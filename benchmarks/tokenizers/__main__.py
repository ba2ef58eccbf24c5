"""`python -m benchmarks.tokenizers`: the same as `python -m benchmarks tokenizers`."""

from __future__ import annotations

import sys

from benchmarks.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["tokenizers", *sys.argv[1:]]))
