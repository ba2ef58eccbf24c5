"""Where the bus is and who we are there."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

from hedgerow_shared.errors import StartupError


@dataclass(frozen=True, slots=True)
class BusOptions:
    """How to connect.

    url: one server or several, separated by commas; `tls://` refuses a server without TLS
    credentials: path of a .creds file (needs the `nkeys` package)
    tls_ca, tls_cert, tls_key: PEM files; giving tls_ca or tls_cert also refuses plain text
    inbox_prefix: where replies go; must be a prefix this user may subscribe to
    connect_deadline_s: how long the first connect may take, retries included
    """

    url: str = "nats://127.0.0.1:4222"
    name: str = "hedgerow"
    user: str = ""
    password: str = field(default="", repr=False)
    credentials: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    inbox_prefix: str = "_INBOX"
    connect_deadline_s: float = 10.0

    @property
    def servers(self) -> list[str]:
        return [part.strip() for part in self.url.split(",") if part.strip()]

    @property
    def must_encrypt(self) -> bool:
        return bool(self.tls_ca or self.tls_cert) or self.url.startswith("tls://")

    def ssl_context(self) -> ssl.SSLContext | None:
        """The TLS side of the connection. Raises StartupError naming the file that is wrong."""
        if not self.must_encrypt:
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca or None)
            if self.tls_cert:
                context.load_cert_chain(self.tls_cert, self.tls_key or None)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(f for f in (self.tls_ca, self.tls_cert, self.tls_key) if f)
            raise StartupError(f"bus: TLS files not usable ({files}): {error}") from None
        return context


def without_password(url: str) -> str:
    """The URL as it may be logged."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
