"""The bulk lane towards callers: HTTP routes and NATS subjects of the same use cases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from hedgerow_gateway.bulk.lane import Bulk
from hedgerow_gateway.models import Models
from hedgerow_gateway.natsface import Endpoint
from hedgerow_gateway.routes.http import HttpFront
from hedgerow_shared import subjects


def endpoints(bulk: Bulk, models: Models) -> list[Endpoint]:
    """hedgerow.v1.bulk.<model> and hedgerow.v1.job.{status,results,cancel}.<job>."""
    found = [
        Endpoint("bulk", subjects.submit_bulk(model.alias), model.alias, bulk.submit)
        for model in models
    ]
    verbs = {"status": bulk.status, "results": bulk.results, "cancel": bulk.cancel}
    return found + [
        Endpoint(f"job_{verb}", subjects.job(verb), None, serve) for verb, serve in verbs.items()
    ]


def add_bulk(app: web.Application, front: HttpFront, bulk: Bulk) -> None:
    """POST /v1/bulk; GET and DELETE /v1/jobs/{job}; GET /v1/jobs/{job}/results."""
    add = app.router.add_route
    add("POST", "/v1/bulk", front.post("bulk", bulk.submit))
    add("GET", "/v1/jobs/{job}", front.post("job_status", bulk.status, _named))
    add("GET", "/v1/jobs/{job}/results", front.post("job_results", bulk.results, _named))
    add("DELETE", "/v1/jobs/{job}", front.post("job_cancel", bulk.cancel, _named))


def _named(request: web.Request) -> Mapping[str, Any]:
    """The body that a path and its query stand for."""
    return {**request.query, **request.match_info}
