"""Where graphs stop paying: the token count at which the card needs longer than the launches.

Below it the card would wait for Python; above it the launches hide behind the kernels, and a
graph only costs memory. Pure: times come from outside.
"""

from __future__ import annotations

from collections.abc import Callable

CANDIDATES = (512, 1024, 2048, 4096, 8192)


def inflection(time: Callable[[int], tuple[float, float]], *, highest: int) -> int:
    """The largest candidate (up to `highest`) whose launches take longer than its kernels.

    time: tokens -> (seconds to launch eagerly, seconds to run as a graph); (0, 0) where a shape
        cannot be recorded. The smallest candidate is always worth a graph.
    """
    best = min(CANDIDATES[0], highest)
    for tokens in CANDIDATES:
        if tokens > highest:
            break
        launched, ran = time(tokens)
        if ran >= launched:
            break
        best = tokens
    return best
