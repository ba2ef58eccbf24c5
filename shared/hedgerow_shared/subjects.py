"""Every subject, queue group, stream and header of Hedgerow, and how to build them."""

from __future__ import annotations

import re

from hedgerow_shared.errors import StartupError

QUEUE_GATEWAYS = "gateways"
QUEUE_WORKERS = "workers"

PUBLIC = "hedgerow.v1"
MODELS = "hedgerow.v1.models"
FLEET = "hedgerow.fleet"
"""Workers announce `joined` and `left` here, so that gateways need not wait for a poll."""

STREAM_BULK = "HEDGEROW_BULK"
STREAM_RESULT = "HEDGEROW_RESULT"
STREAM_DEAD = "HEDGEROW_DEAD"
KV_JOBS = "HEDGEROW_JOBS"

HEADER_CONTENT_TYPE = "Content-Type"
HEADER_ERROR_CODE = "Nats-Service-Error-Code"
HEADER_ERROR = "Nats-Service-Error"
HEADER_TTL_MS = "Hedgerow-Ttl-Ms"
HEADER_PARTIAL = "Hedgerow-Partial"
HEADER_TRACE = "traceparent"
HEADER_ROWS = "Hedgerow-Rows"
HEADER_FAILED = "Hedgerow-Failed"
HEADER_TOKENS = "Hedgerow-Tokens"
HEADER_REASON = "Hedgerow-Reason"

SERVICE_NAME = "hedgerow"

INBOXES = ("_INBOX", "_R_.")
"""What a reply subject of a caller begins with: an inbox, also of a user with a prefix of its own,
or what a server makes of one for a caller in another account."""

_TO_DASH = re.compile(r"[./\s]")


def model_token(alias: str) -> str:
    """The one subject token an alias becomes: `.`, `/` and white space turn into `-`."""
    return _TO_DASH.sub("-", alias)


def check_aliases(aliases: list[str]) -> None:
    """Refuse aliases that cannot be subjects or that become the same token.

    Raises StartupError naming the alias and the remedy.
    """
    seen: dict[str, str] = {}
    for alias in aliases:
        if not alias or "*" in alias or ">" in alias or not alias.isprintable():
            raise StartupError(
                f"--model alias {alias!r} cannot be a subject: use letters, digits, '-', '_'"
            )
        token = model_token(alias)
        if token in seen:
            raise StartupError(
                f"--model aliases {seen[token]!r} and {alias!r} both become the subject token "
                f"{token!r}: rename one"
            )
        seen[token] = alias


def embed(alias: str) -> str:
    return f"hedgerow.v1.embed.{model_token(alias)}"


def rerank(alias: str) -> str:
    return f"hedgerow.v1.rerank.{model_token(alias)}"


def tokenize(alias: str) -> str:
    return f"hedgerow.v1.tokenize.{model_token(alias)}"


def chunk(alias: str) -> str:
    """Online work of a model; workers share it through the queue group `workers`."""
    return f"hedgerow.chunk.{model_token(alias)}"


def bulk(alias: str, job: str = "*") -> str:
    """Bulk work of a model and job; with the default, what a model's consumer listens to."""
    return f"hedgerow.bulk.{model_token(alias)}.{job}"


def result(job: str, chunk: str = "*") -> str:
    """The result of one bulk chunk. One subject each, so that a second one can be refused."""
    return f"hedgerow.result.{job}.chunk.{chunk}"


def receipt(job: str, part: str = "*") -> str:
    """The note that a part of a job was stored completely."""
    return f"hedgerow.result.{job}.part.{part}"


def dead(alias: str, job: str, chunk: str) -> str:
    """A bulk chunk that kept on ending workers, with the reason in its headers."""
    return f"hedgerow.dead.{model_token(alias)}.{job}.{chunk}"


def submit_bulk(alias: str) -> str:
    return f"hedgerow.v1.bulk.{model_token(alias)}"


def job(verb: str, job: str = "*") -> str:
    """verb: status, results or cancel."""
    return f"hedgerow.v1.job.{verb}.{job}"


def worker_chunk(worker: str, alias: str) -> str:
    """Work meant for one worker: a retry away from a suspect, or the least loaded one."""
    return f"hedgerow.worker.{worker}.chunk.{model_token(alias)}"


def canary(alias: str) -> str:
    """Workers of a model ask each other here for the vectors of known inputs."""
    return f"hedgerow.canary.{model_token(alias)}"


def is_inbox(reply: str) -> bool:
    """True where an answer may go. The permission to answer overrides every other one, so a
    caller who names a stream's subject as his inbox would borrow the rights of who answers."""
    return reply.startswith(INBOXES)


def worker_cancel(worker: str) -> str:
    return f"hedgerow.worker.{worker}.cancel"


def worker_drain(worker: str) -> str:
    return f"hedgerow.worker.{worker}.drain"
