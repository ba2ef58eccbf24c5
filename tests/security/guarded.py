"""nats-servers with the rules under test: that of `hedgerow up`, and the production files."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from hedgerow_local import natsconf
from hedgerow_shared import natsserver
from hedgerow_shared.bus import BusOptions

INFRA_NATS = Path(__file__).parents[2] / "infra" / "nats"
ROLES = ("public", "gateway", "worker")


@dataclass
class Guarded:
    """A running server. `options(role)` is how that role comes in."""

    server: natsserver.NatsServer
    url: str
    logins: dict[str, BusOptions]

    def options(self, role: str) -> BusOptions:
        return self.logins[role]

    def env(self, role: str) -> dict[str, str]:
        """The same for a service of ours."""
        options = self.logins[role]
        return {
            "HEDGEROW_NATS_URL": self.url,
            "HEDGEROW_NATS_USER": options.user,
            "HEDGEROW_NATS_PASSWORD": options.password,
            "HEDGEROW_NATS_INBOX_PREFIX": options.inbox_prefix,
            "HEDGEROW_NATS_TLS_CA": options.tls_ca,
        }


def embedded(folder: Path) -> Guarded:
    """As `hedgerow up` writes it."""
    logins = [natsconf.new_login("gateway"), natsconf.new_login("worker")]
    server = natsserver.start(folder, extra=natsconf.guarded(logins))
    found = {
        login.role: BusOptions(
            server.url,
            user=login.role,
            password=login.password,
            inbox_prefix=login.settings["nats_inbox_prefix"],
        )
        for login in logins
    }
    return Guarded(server, server.url, found | {"public": BusOptions(server.url)})


def production(folder: Path) -> Guarded:
    """infra/nats/nats.conf, with a certificate made for it."""
    port = natsserver.free_port()
    env = environment(folder)
    argv = [str(natsserver.find_binary()), "-c", str(INFRA_NATS / "nats.conf")]
    argv += ["-a", "127.0.0.1", "-p", str(port), "-m", str(natsserver.free_port())]
    with (folder / "nats.log").open("wb") as log:
        process = subprocess.Popen(argv, env={**os.environ, **env}, stdout=log, stderr=log)
    server = natsserver.NatsServer(process, "127.0.0.1", port)
    end_s = time.monotonic() + 10
    while not natsserver.greets("127.0.0.1", port):
        assert time.monotonic() < end_s, (folder / "nats.log").read_text()
        time.sleep(0.02)
    url = f"tls://127.0.0.1:{port}"
    return Guarded(server, url, logins_of(url, env))


@dataclass
class Cluster:
    """Three servers from infra/nats/cluster.conf. `url` names all of them."""

    servers: list[natsserver.NatsServer]
    guarded: Guarded

    def stop(self) -> None:
        for server in self.servers:
            server.stop(5)


def cluster(folder: Path) -> Cluster:
    """Started, joined by TLS, and with a leader for its streams."""
    shared = environment(folder)
    ports = [natsserver.free_port() for _ in range(3)]
    routes = [natsserver.free_port() for _ in range(3)]
    urls = [f"nats://cluster:p-cluster-x@127.0.0.1:{port}" for port in routes]
    servers: list[natsserver.NatsServer] = []
    for i in range(3):
        own = {
            "NATS_NAME": f"n{i}",
            "NATS_HOST": "127.0.0.1",
            "NATS_PORT": str(ports[i]),
            "NATS_STORE": str(folder / f"store{i}"),
            "CLUSTER_PORT": str(routes[i]),
            "CLUSTER_ROUTES": json.dumps(urls),
            "CLUSTER_PASSWORD": "p-cluster-x",
        }
        argv = [str(natsserver.find_binary()), "-c", str(INFRA_NATS / "cluster.conf")]
        with (folder / f"n{i}.log").open("wb") as log:
            env = {**os.environ, **shared, **own}
            process = subprocess.Popen(argv, env=env, stdout=log, stderr=log)
        servers.append(natsserver.NatsServer(process, "127.0.0.1", ports[i]))
    end_s = time.monotonic() + 30
    log = folder / "n0.log"
    # "JetStream cluster new metadata leader: ..." on the followers, "Self is new JetStream cluster
    # metadata leader" on whoever it is.
    while not re.search(r"JetStream cluster (new )?metadata leader", log.read_text()):
        if time.monotonic() > end_s:
            for server in servers:
                server.stop()
            raise AssertionError(log.read_text())
        time.sleep(0.05)
    url = ",".join(f"tls://127.0.0.1:{port}" for port in ports)
    logins = logins_of(url, shared)
    return Cluster(servers, Guarded(servers[0], url, logins))


def logins_of(url: str, env: dict[str, str]) -> dict[str, BusOptions]:
    """How each role comes in, by the passwords in the environment of the server."""
    base = BusOptions(url, tls_ca=env["TLS_CA"])
    return {
        role: replace(
            base,
            user=role,
            password=env[f"{role.upper()}_PASSWORD"],
            inbox_prefix=f"_INBOX_{role}",
        )
        for role in ROLES
    }


def environment(folder: Path) -> dict[str, str]:
    """What the files in infra/nats read from the environment."""
    cert, key = certificate(folder)
    names = ("SYSTEM", "PUBLIC", "GATEWAY", "WORKER")
    passwords = {f"{name}_PASSWORD": f"p-{name.lower()}-x" for name in names}
    tls = {"TLS_CERT": cert, "TLS_KEY": key, "TLS_CA": cert}
    return {"NATS_STORE": str(folder / "store"), **tls, **passwords}


def certificate(folder: Path) -> tuple[str, str]:
    """A self-signed certificate for 127.0.0.1: (certificate, key)."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not here to make a certificate")
    folder.mkdir(parents=True, exist_ok=True)
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost "
        f"-addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {cert}".split(),
        check=True,
        capture_output=True,
    )
    return str(cert), str(key)
