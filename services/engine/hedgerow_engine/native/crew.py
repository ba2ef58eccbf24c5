"""Sharing one pass among threads: tasks are claimed from a counter, and nobody waits for a
thread that has not come.

A program is a row of phases; a phase is a number of tasks that may run in any order on any
thread. Every thread walks all phases and claims tasks until none is left, then waits until all
claimed ones are done. A helper that sleeps, or whose core is busy with something else, claims
nothing and delays nothing: the caller does the work itself. Only a helper stopped in the middle
of a task holds the caller up.

Counters only ever grow, across phases and passes, so a late helper finds every task of an old
pass claimed and walks through. What it reads outside of a task is its job's copy of the frame;
a job's slot is rewritten only when no helper is inside it.

    SHARED, one cache line each          JOB, two slots, used in turn     MEMBER, one per thread
    go        number of the newest job   inside   helpers in this slot    base  first task number
    sleepers  helpers in the futex       base     first task number             of the next phase
    claimed   tasks taken, ever          first, last stage
    finished  tasks done, ever           frame    copy of the frame's words
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Generator
from contextlib import contextmanager

from hedgerow_engine.native.ir import Bool, Int, Kernel, Ptr, Unit
from hedgerow_engine.native.values import I32, I64, PTR, VOID, ir
from hedgerow_engine.native.words import FRAME, WORD_BYTES

LINE = 64
GO, SLEEPERS, CLAIMED, FINISHED = 0, LINE, 2 * LINE, 3 * LINE
JOBS = 4 * LINE
INSIDE, BASE, FIRST, LAST, JOB_FRAME = 0, LINE, LINE + 8, LINE + 16, 2 * LINE
JOB_BYTES = -(-(JOB_FRAME + FRAME.num_bytes) // LINE) * LINE
MEMBERS = JOBS + 2 * JOB_BYTES
STOP = -1

_SPINS_BEFORE_YIELD = 20_000
_SPINS_BEFORE_SLEEP = 6000
_FUTEX = {"x86_64": 202, "aarch64": 98}
_FUTEX_WAIT_PRIVATE, _FUTEX_WAKE_PRIVATE = 128, 129
_EVERYONE = (1 << 31) - 1

RunStages = Callable[[Kernel, Ptr, Ptr, Ptr, Int, Int, Int], None]
"""(kernel, model, crew, frame, first stage, last stage, member) -> emits the walk through them."""


def crew_bytes(threads: int) -> int:
    return MEMBERS + threads * LINE


class Phases:
    """Emits phases inside a stage. Without a crew a phase is a plain loop."""

    def __init__(self, k: Kernel, crew: Ptr, member: Int, *, parallel: bool) -> None:
        self.k, self.crew, self.parallel = k, crew, parallel
        self.base_at = crew + (member * LINE + MEMBERS)

    @contextmanager
    def tasks(self, count: Int) -> Generator[Int]:
        """The body is one task; the yielded number runs over [0, count)."""
        if not self.parallel:
            with self.k.loop(0, count) as loop:
                yield loop.index
            return
        k, b = self.k, self.k.b
        base, before = k.load_int(self.base_at), b.block
        end = base + count
        claim, attempt, body, wait = (k.function.append_basic_block() for _ in range(4))
        b.branch(claim)
        b.position_at_end(claim)
        done = b.phi(I64)
        done.add_incoming(I64(0), before)
        done.add_incoming(done, attempt)
        taken = _load(k, self.crew + CLAIMED)
        b.cbranch((taken < end).v, attempt, wait)
        b.position_at_end(attempt)
        place = (self.crew + CLAIMED).v
        swap = b.cmpxchg(place, taken.v, (taken + 1).v, "seq_cst", "monotonic")
        b.cbranch(b.extract_value(swap, 1), body, claim)
        b.position_at_end(body)
        yield taken - base
        done.add_incoming(b.add(done, I64(1)), b.block)
        b.branch(claim)
        b.position_at_end(wait)
        # Once per thread and phase: the line travels between cores.
        b.atomic_rmw("add", (self.crew + FINISHED).v, done, "seq_cst")
        _spin_until(k, lambda: _load(k, self.crew + FINISHED) >= end)
        k.store_int(end, self.base_at)


def write_caller(unit: Unit, run: RunStages) -> None:
    """Export advance(model, frame, crew, first, last): publish the job, wake helpers, take part
    as member 0."""
    k = unit.kernel("advance", ptrs=3, ints=2, export=True)
    model, frame, crew = k.ptrs
    first, last = k.ints
    number = _load(k, crew + GO) + 1
    job = _job(k, crew, number)
    _spin_until(k, lambda: _load(k, job + INSIDE) <= 0)
    base = _load(k, crew + CLAIMED)
    for value, place in ((base, BASE), (first, FIRST), (last, LAST)):
        k.store_int(value, job + place)
    k.store_int(base, crew + MEMBERS)
    for offset in range(0, FRAME.num_bytes, WORD_BYTES):
        k.store_int(k.load_int(frame + offset), job + JOB_FRAME + offset)
    k.b.atomic_rmw("xchg", (crew + GO).v, number.v, "seq_cst")
    with k.when(_load(k, crew + SLEEPERS) > 0):
        _futex(k, crew + GO, _FUTEX_WAKE_PRIVATE, k.int(_EVERYONE))
    run(k, model, crew, frame, first, last, k.int(0))
    k.done()


def write_dismiss(unit: Unit) -> None:
    """Export dismiss(crew): send every helper home. No pass may be running."""
    k = unit.kernel("dismiss", ptrs=1, export=True)
    crew = k.ptrs[0]
    k.b.atomic_rmw("xchg", (crew + GO).v, I64(STOP), "seq_cst")
    _futex(k, crew + GO, _FUTEX_WAKE_PRIVATE, k.int(_EVERYONE))
    k.done()


def write_rouse(unit: Unit) -> None:
    """Export rouse(crew): helpers that sleep look about once more: a pass is near."""
    k = unit.kernel("rouse", ptrs=1, export=True)
    crew = k.ptrs[0]
    with k.when(_load(k, crew + SLEEPERS) > 0):
        _futex(k, crew + GO, _FUTEX_WAKE_PRIVATE, k.int(_EVERYONE))
    k.done()


def write_helper(unit: Unit, run: RunStages) -> None:
    """Export helper(model, crew, member): serve jobs until `go` is STOP. Spins for some hundred
    microseconds after a job, then sleeps in the kernel."""
    k = unit.kernel("helper", ptrs=2, ints=1, export=True)
    model, crew = k.ptrs
    member = k.ints[0]
    b = k.b
    entry = b.block
    idle, look, asleep, found, serve, leave, stop = (
        k.function.append_basic_block() for _ in range(7)
    )
    b.branch(idle)
    b.position_at_end(idle)
    seen = b.phi(I64)
    seen.add_incoming(I64(0), entry)
    b.branch(look)

    b.position_at_end(look)
    spins = b.phi(I64)
    spins.add_incoming(I64(0), idle)
    _pause(k)
    number = _load(k, crew + GO)
    waiting = b.append_basic_block()
    b.cbranch(b.icmp_signed("==", number.v, seen), waiting, found)
    b.position_at_end(waiting)
    more = b.add(spins, I64(1))
    spins.add_incoming(more, waiting)
    b.cbranch(b.icmp_signed("<", more, I64(_SPINS_BEFORE_SLEEP)), look, asleep)

    b.position_at_end(asleep)
    _add(k, crew + SLEEPERS, 1)
    _futex(k, crew + GO, _FUTEX_WAIT_PRIVATE, Int(b, seen))
    _add(k, crew + SLEEPERS, -1)
    spins.add_incoming(I64(0), asleep)
    b.branch(look)

    b.position_at_end(found)
    entering = b.append_basic_block()
    b.cbranch((number < 0).v, stop, entering)
    b.position_at_end(entering)
    job = _job(k, crew, number)
    _add(k, job + INSIDE, 1)
    # The slot may have been given to a newer job between our two looks.
    b.cbranch(_load(k, crew + GO).equals(number).v, serve, leave)
    b.position_at_end(serve)
    k.store_int(k.load_int(job + BASE), crew + (member * LINE + MEMBERS))
    stages = k.load_int(job + FIRST), k.load_int(job + LAST)
    run(k, model, crew, job + JOB_FRAME, *stages, member)
    served = b.block
    b.branch(leave)
    b.position_at_end(leave)
    now_seen = b.phi(I64)
    now_seen.add_incoming(seen, entering)
    now_seen.add_incoming(number.v, served)
    _add(k, job + INSIDE, -1)
    seen.add_incoming(now_seen, leave)
    b.branch(idle)
    b.position_at_end(stop)
    k.done()


def _job(k: Kernel, crew: Ptr, number: Int) -> Ptr:
    parity = Int(k.b, k.b.and_(number.v, I64(1)))
    return crew + (parity * JOB_BYTES + JOBS)


def _load(k: Kernel, p: Ptr) -> Int:
    return Int(k.b, k.b.load_atomic(p.v, "seq_cst", WORD_BYTES, typ=I64))


def _add(k: Kernel, p: Ptr, amount: int) -> None:
    k.b.atomic_rmw("add", p.v, I64(amount), "seq_cst")


def _spin_until(k: Kernel, condition: Callable[[], Bool]) -> None:
    """Wait a few microseconds hot, then give the core away at every look."""
    b = k.b
    before = b.block
    look, more, give_up, after = (k.function.append_basic_block() for _ in range(4))
    b.branch(look)
    b.position_at_end(look)
    spins = b.phi(I64)
    spins.add_incoming(I64(0), before)
    b.cbranch(condition().v, after, more)
    b.position_at_end(more)
    _pause(k)
    next_spins = b.add(spins, I64(1))
    spins.add_incoming(next_spins, more)
    b.cbranch(b.icmp_signed(">", next_spins, I64(_SPINS_BEFORE_YIELD)), give_up, look)
    b.position_at_end(give_up)
    b.call(k.unit.external("sched_yield", I32, []), [])
    spins.add_incoming(next_spins, give_up)
    b.branch(look)
    b.position_at_end(after)


def _pause(k: Kernel) -> None:
    if k.rung.machine == "x86_64":
        k.b.call(k.unit.external("llvm.x86.sse2.pause", VOID, []), [])
    else:
        k.b.call(k.unit.external("llvm.aarch64.hint", VOID, [I32]), [I32(1)])


def _futex(k: Kernel, place: Ptr, operation: int, value: Int) -> None:
    """futex(place, operation, value): wait while *place is value, or wake so many."""
    syscall = k.unit.external("syscall", I64, [I64, PTR, I64, I64, PTR, PTR, I64])
    number = _FUTEX.get(platform.machine(), _FUTEX["x86_64"])
    null = ir.Constant(PTR, None)
    args = [I64(number), place.v, I64(operation), value.v, null, null, I64(0)]
    k.b.call(syscall, args)
