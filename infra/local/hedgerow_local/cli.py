"""The command line: flags to options, errors to one line."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from hedgerow_local.options import (
    DEFAULT_DATA_DIR,
    DEFAULT_MODEL,
    DEFAULT_PORT,
    UpOptions,
    check,
)
from hedgerow_shared import __version__
from hedgerow_shared.errors import StartupError

app = typer.Typer(
    name="hedgerow",
    help="Embeddings and reranking over HTTP and NATS.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


_WHERE = "The NATS server; default: the `hedgerow up` of this folder, else port 4222 here."


def _option(env: str, text: str) -> Any:
    return typer.Option(envvar=f"HEDGEROW_{env}", help=text)


def _many(flags: list[str] | None, env: str) -> tuple[str, ...]:
    """A repeated flag, else the comma-separated variable, as the services read it too."""
    return tuple(flags or [v for v in os.environ.get(f"HEDGEROW_{env}", "").split(",") if v])


def run(argv: Sequence[str]) -> int:
    """Returns the exit status; what a person did wrong becomes one line on stderr and status 2."""
    try:
        status = app(args=list(argv), prog_name="hedgerow", standalone_mode=False)
    except StartupError as error:
        sys.stderr.write(f"hedgerow: {error}\n")
        return 2
    except _Misuse as error:
        return _misuse(error, argv)
    except typer.Abort:
        return 130
    return int(status or 0)


# typer has click inside or beside it, by its version: its own subclass leads to the class.
_Misuse: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "UsageError")


def _misuse(error: Any, argv: Sequence[str]) -> int:
    """One line for flags and arguments that cannot be read; the help where there were none."""
    command = error.ctx.command_path if error.ctx else "hedgerow"
    text = " ".join((_value(error, argv) or error.format_message()).split())
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(error.format_message() + "\n")
    else:
        sys.stderr.write(f"hedgerow: {text.removesuffix('.')}; see {command} --help\n")
    return 2


def _value(error: Any, argv: Sequence[str]) -> str:
    """FLAG VALUE: what is wrong with it; "" where it is not about the value of one flag."""
    if not isinstance(error, typer.BadParameter) or error.param is None:
        return ""
    flags, wrong = error.param.opts, f"{error.message[:1].lower()}{error.message[1:]}"
    for i, word in enumerate(argv):
        flag, eq, value = word.partition("=")
        if flag in flags:
            found = value if eq else "".join(argv[i + 1 : i + 2])
            return f"{flag} {found}: {wrong}"
    variable = str(error.param.envvar)
    return f"{variable}={os.environ[variable]}: {wrong}" if variable in os.environ else ""


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"hedgerow {__version__}")
        raise typer.Exit


_Models = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ALIAS=WHERE",
        help="A folder, an installed package or a hub id; repeatable, the first one answers "
        f"requests that name none. Env HEDGEROW_MODEL (commas). Default: {DEFAULT_MODEL}",
    ),
]
_Lengths = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[ALIAS=]N",
        help="Tokens a text may have; repeatable. Default: what the model's files say. "
        "Env HEDGEROW_MAX_SEQ_LEN (commas).",
    ),
]


@app.command()
def up(
    model: _Models = None,
    host: Annotated[str, _option("HOST", "Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, _option("PORT", "HTTP port; 0 takes any.")] = DEFAULT_PORT,
    max_seq_len: _Lengths = None,
    token_ids: Annotated[
        str, _option("TOKEN_IDS", "'native': accept token ids of the model's own vocabulary.")
    ] = "off",
    dtype: Annotated[str, _option("DTYPE", "auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str, _option("DEVICE", "auto, cpu, cuda or cuda:N.")] = "auto",
    threads: Annotated[int, _option("THREADS", "Threads of a worker; 0 chooses.")] = 0,
    workers: Annotated[int, _option("WORKERS", "Worker processes; 0 chooses.")] = 0,
    gateways: Annotated[int, _option("GATEWAYS", "Gateway processes on the one port.")] = 1,
    together: Annotated[
        bool,
        typer.Option(
            "--together",
            envvar="HEDGEROW_TOGETHER",
            help="A gateway in every worker process: the shortest way for a query.",
        ),
    ] = False,
    cpu_executor: Annotated[str, _option("CPU_EXECUTOR", "auto, native or packed.")] = "auto",
    nats_url: Annotated[str, _option("NATS_URL", "Join this NATS server.")] = "",
    nats_port: Annotated[
        int, _option("NATS_PORT", "Port of the NATS server started here; 0: 4222 if free.")
    ] = 0,
    data_dir: Annotated[str, _option("DATA_DIR", "Where that server stores its streams.")] = str(
        DEFAULT_DATA_DIR
    ),
    budget_tokens: Annotated[
        int, _option("BUDGET_TOKENS", "Tokens of one forward pass; 0: the worker's default.")
    ] = 0,
    log_level: Annotated[str, _option("LOG_LEVEL", "debug, info, warning or error.")] = "info",
) -> None:
    """Start a NATS server, a gateway and workers on this machine; Ctrl-C drains and stops."""
    from hedgerow_local.up import up as serve

    if not data_dir:  # as a Path it would be the current folder
        raise StartupError("--data-dir '': name a folder, or leave it out")
    options = UpOptions(
        models=_many(model, "MODEL") or (DEFAULT_MODEL,),
        host=host,
        port=port,
        max_seq_len=_many(max_seq_len, "MAX_SEQ_LEN"),
        token_ids=token_ids,
        dtype=dtype,
        device=device,
        threads=threads,
        workers=workers,
        gateways=gateways,
        together=together,
        cpu_executor=cpu_executor,
        nats_url=nats_url,
        nats_port=nats_port,
        data_dir=Path(data_dir),
        budget_tokens=budget_tokens,
        log_level=log_level,
    )
    raise typer.Exit(asyncio.run(serve(options)))


@app.command()
def req(
    subject: Annotated[str, typer.Argument(help="For example hedgerow.v1.embed.minilm")],
    body: Annotated[str, typer.Argument(help="JSON; '-' reads it from stdin.")] = "",
    nats_url: Annotated[str, _option("NATS_URL", _WHERE)] = "",
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the reply.")] = 30.0,
    msgpack: Annotated[bool, typer.Option("--msgpack", help="Send and get msgpack.")] = False,
) -> None:
    """Send one request over NATS and print the reply."""
    from hedgerow_local.req import req as send
    from hedgerow_local.target import bus_options

    options = bus_options(nats_url, "hedgerow-req")
    status = asyncio.run(send(subject, body, options, timeout_s=timeout, use_msgpack=msgpack))
    raise typer.Exit(status)


@app.command()
def bulk(
    file: Annotated[Path, typer.Argument(help="JSONL: an id and a text in each line.")],
    out: Annotated[Path, typer.Option(help="Where vectors go: JSONL, or .npz.")],
    model: Annotated[str, typer.Option(help="Alias of the model.")] = DEFAULT_MODEL.partition("=")[
        0
    ],
    job: Annotated[
        str, typer.Option(help="Name of the job, one that no other job has; default: a new one.")
    ] = "",
    id_field: Annotated[
        str, typer.Option(help="Field with the id; default number of the line.")
    ] = "id",
    text_field: Annotated[str, typer.Option(help="Field with the text.")] = "text",
    dtype: Annotated[str, typer.Option(help="float32, float16, int8 or binary.")] = "float32",
    dimensions: Annotated[int, typer.Option(help="Numbers of a vector; 0: all.")] = 0,
    prompt_name: Annotated[str, typer.Option(help="A prompt of the model.")] = "",
    nats_url: Annotated[str, _option("NATS_URL", _WHERE)] = "",
) -> None:
    """Embed a file through the durable lane; the same command goes on where it was stopped, and
    computes all again where it had finished."""
    from hedgerow_local.bulk import bulk as run_job
    from hedgerow_local.bulkbar import Bar
    from hedgerow_local.bulkrows import BulkOptions
    from hedgerow_local.target import bus_options

    options = BulkOptions(
        file=file,
        out=out,
        model=model,
        job=job,
        id_field=id_field,
        text_field=text_field,
        dtype=dtype,
        dimensions=dimensions,
        prompt_name=prompt_name,
    )
    try:
        with Bar() as bar:
            state = asyncio.run(run_job(options, bus_options(nats_url, "hedgerow-bulk"), bar))
    except KeyboardInterrupt:
        sys.stderr.write("hedgerow: stopped; the same command goes on from here\n")
        raise typer.Exit(130) from None
    if len(state.fingerprints) > 1:
        versions = ", ".join(state.fingerprints)
        sys.stderr.write(f"hedgerow: vectors of several versions of the model: {versions}\n")
    typer.echo(f"{state.good} vectors in {out}; {state.failed} rows failed (job {state.job})")
    raise typer.Exit(int(state.failed > 0))


@app.command()
def top(
    nats_url: Annotated[str, _option("NATS_URL", _WHERE)] = "",
    interval: Annotated[float, typer.Option(min=0.5, help="Seconds between looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one table and end.")] = False,
) -> None:
    """Show who serves, how much and how fast, until Ctrl-C."""
    from hedgerow_local.target import bus_options
    from hedgerow_local.top import top as show

    options = bus_options(nats_url, "hedgerow-top")
    try:
        raise typer.Exit(asyncio.run(show(options, interval_s=interval, once=once)))
    except KeyboardInterrupt:
        raise typer.Exit from None


@app.command()
def doctor(
    model: Annotated[
        list[str] | None, typer.Option(metavar="ALIAS=WHERE", help="As for `up`; repeatable.")
    ] = None,
    port: Annotated[int, _option("PORT", "HTTP port that `up` would use.")] = DEFAULT_PORT,
    nats_url: Annotated[str, _option("NATS_URL", "The server that `up` would join.")] = "",
) -> None:
    """Look at this machine; say what `up` would miss and what to do about it."""
    from hedgerow_local.doctor import examine
    from hedgerow_local.machine import look

    models = _many(model, "MODEL") or (DEFAULT_MODEL,)
    options = UpOptions(models=models, port=port, nats_url=nats_url)
    check(options)
    findings = asyncio.run(examine(options, look()))
    for finding in findings:
        mark = "FIX " if finding.fatal else "note" if finding.remedy else "ok  "
        remedy = f" -> {finding.remedy}" if finding.remedy else ""
        typer.echo(f"{mark} {finding.what:<14} {finding.found}{remedy}")
    raise typer.Exit(int(any(finding.fatal for finding in findings)))
