"""How long the encoder takes to open beyond the library, in a process of its own.

python -m benchmarks.tokenizers.startup TOKENIZER_JSON      (prints one JSON line)
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import orjson


def main() -> None:
    from hedgerow_gateway.tokenizer.file import TokenizerFile, disarm
    from hedgerow_gateway.tokenizer.hf import HfEncoder
    from hedgerow_gateway.tokenizer.unigram.store import cache_folder

    path, digest = Path(sys.argv[1]), sys.argv[2]
    wall, cpu = time.perf_counter(), time.process_time()
    document = orjson.loads(path.read_bytes())
    file = TokenizerFile(path, document, disarm(document), digest)
    library = HfEncoder(file)
    library.encode(["a"])
    opened_wall, opened_cpu = time.perf_counter(), time.process_time()
    from hedgerow_gateway.tokenizer.unigram.encoder import UnigramEncoder

    UnigramEncoder.load(file, library.library, cache_folder(), log=lambda _: None).encode(["a"])
    figures = {
        "library_wall_s": opened_wall - wall,
        "library_cpu_s": opened_cpu - cpu,
        "beyond_wall_s": time.perf_counter() - opened_wall,
        "beyond_cpu_s": time.process_time() - opened_cpu,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
