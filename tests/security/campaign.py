"""Sends wrong requests to a real server and judges every answer.

Only 2xx and 4xx, 501 for a transfer coding, and a 503 that says it is one of ours; no traceback,
no source file and no path of the machine in any body. Beside it a polite tenant works, and
every request of its must succeed.
"""

from __future__ import annotations

import http.client
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
import msgspec
import psutil

from tests.security.mutations import mutate
from tests.security.surface import REQUESTS, Call, RouteKey
from tests.security.things import Things
from tests.server.driving import MODEL, Http
from tests.support.soak import amount
from tinkex.server.embedded import EmbeddedServer

THINGS_LAST = 400
"""Requests after which the attacker gets new things: some requests end or delete them."""

_SECRETS = (b"Traceback", b'File "', b"site-packages", b".py:", b"sqlalchemy", b"sqlite3")


class Problem(Exception):
    """An answer that must not be."""


@dataclass
class Attacker:
    """One tenant that sends whatever it likes over one connection at a time."""

    server: EmbeddedServer
    key: str
    timeout_s: float = amount(20, 600)
    statuses: Counter[int] = field(default_factory=Counter)
    _connection: http.client.HTTPConnection | None = None

    def send(self, call: Call) -> tuple[int, bytes]:
        """The status and body of the answer.

        Raises:
            Problem: there is none, or it is not one that may be.
        """
        status, headers, body = self._exchange(call)
        self.statuses[status] += 1
        judge(call, status, headers, body)
        return status, body

    def close(self) -> None:
        """Lets go of the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(self, call: Call) -> tuple[int, http.client.HTTPMessage, bytes]:
        # A server may close a connection whenever an answer is out, so a second try is fair.
        for is_last in (False, True):
            connection = self._connection or self._connect()
            try:
                self._put(connection, call)
                answer = connection.getresponse()
                body = answer.read()
                if answer.will_close:
                    self.close()
                return answer.status, answer.headers, body
            except (http.client.HTTPException, OSError) as error:
                self.close()
                if is_last:
                    raise Problem(f"no answer: {error!r}") from error
        raise AssertionError("unreachable")

    def _connect(self) -> http.client.HTTPConnection:
        address = self.server.base_url.removeprefix("http://")
        self._connection = http.client.HTTPConnection(address, timeout=self.timeout_s)
        return self._connection

    def _put(self, connection: http.client.HTTPConnection, call: Call) -> None:
        body = call.body
        connection.putrequest(
            call.method, call.target, skip_host="host" in call.headers, skip_accept_encoding=True
        )
        connection.putheader("X-API-Key", self.key)
        connection.putheader("Content-Type", call.content_type.encode("latin-1"))
        for name, value in call.headers.items():
            connection.putheader(name, value.encode("latin-1"))
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)


def judge(call: Call, status: int, headers: http.client.HTTPMessage, body: bytes) -> None:
    """Refuses an answer that must not be.

    Raises:
        Problem: with the request that gave it.
    """
    is_allowed = 200 <= status < 500 or status in {501, 503}
    if not is_allowed:
        raise Problem(f"{status} {body[:300]!r} for {shown(call)}")
    if status >= 400 and any(word in body for word in _SECRETS):
        raise Problem(f"internals in {body[:500]!r} for {shown(call)}")
    if status >= 400 and headers.get("content-type") == "application/json":
        error = msgspec.json.decode(body)
        # What is no HTTP is refused before there is a path.
        if call.prefix != "/api/v1" and error.get("code") != "malformed-request":
            if error.keys() != {"error"} or not error["error"]["message"]:
                raise Problem(f"{status} not in OpenAI's form: {body[:300]!r} for {shown(call)}")
            return
        if status == 408 and "queue_state" in error:
            return
        if error.keys() != {"detail", "code", "hint"} or not error["detail"]:
            raise Problem(f"{status} without its reason: {body[:300]!r} for {shown(call)}")
        if status == 501 and error["code"] != "unknown-transfer-coding":
            raise Problem(f"501 {error} for {shown(call)}")
        if status == 503 and error["code"] not in {"not-ready", "store-failed", "over-capacity"}:
            raise Problem(f"503 {error} for {shown(call)}")


def shown(call: Call) -> str:
    """A call for a message."""
    body = call.body
    size = "" if body is None else f" ({len(body)} bytes)"
    return (
        f"{call.method} {call.target[:300]} {call.content_type[:60]} {call.headers} "
        f"{(body or b'')[:600]!r}{size}"
    )


def attack(
    server: EmbeddedServer,
    key: str,
    routes: list[RouteKey],
    *,
    count: int,
    seed: str,
    new_key: Callable[[], str],
) -> Counter[int]:
    """How often each status was answered to `count` wrong requests over these routes.

    Raises:
        AssertionError: with the seed, the number of the request and what was wrong.
    """
    attacker, problems = Attacker(server, key), []
    things: Things | None = None
    with httpx.Client(base_url=server.base_url, timeout=amount(60, 600)) as client:
        for number in range(count):
            if number % THINGS_LAST == 0:
                things = Things.make(Http(client, key))
            assert things is not None
            rng = random.Random(f"{seed}-{number}")  # each request can be made again alone
            call = mutate(rng, REQUESTS[rng.choice(routes)].make(things))
            if ends_key(call):
                attacker.key = new_key()
            try:
                attacker.send(call)
            except Problem as problem:
                problems.append(f"request {number}: {problem}")
                if len(problems) >= 5:
                    break
            attacker.key = key
    attacker.close()
    assert not problems, f"seed {seed}\n" + "\n".join(problems)
    return attacker.statuses


def ends_key(call: Call) -> bool:
    """Whether the key that sends this call is of no use afterwards."""
    return call.method == "DELETE" and call.path == "/auth/apikey/me"


@contextmanager
def polite_tenant(server: EmbeddedServer, key: str) -> Iterator[Counter[str]]:
    """What a tenant got done that works beside; it must not notice anything.

    Raises:
        AssertionError: one of its requests failed.
    """
    done: Counter[str] = Counter()
    failures: list[BaseException] = []
    stop = threading.Event()

    def work() -> None:
        with httpx.Client(base_url=server.base_url, timeout=amount(60, 600)) as client:
            http = Http(client, key)
            while not stop.is_set():
                try:
                    _one_loop(http)
                    done["loops"] += 1
                except BaseException as error:
                    failures.append(error)
                    return
                stop.wait(0.1)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join()
    assert not failures, repr(failures[0])
    assert done["loops"] > 0, "the polite tenant got nothing done"


def _one_loop(http: Http) -> None:
    """Trains, saves, samples and ends, as a client does."""
    session = http.session()
    model = http.model(session)
    trained = http.train(model, 1)
    assert trained.status_code == 200, trained.text
    http.result(trained.json()["request_id"])
    assert "metrics" in http.result(http.step(model, 2)["request_id"])
    request = {"model_id": model, "sampling_session_seq_id": 0, "seq_id": 3}
    saved = http.result(http.post("save_weights_for_sampler", request)["request_id"])
    sample = {
        "sampling_session_id": saved["sampling_session_id"],
        "seq_id": 0,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]},
        "sampling_params": {"max_tokens": 2},
    }
    assert http.result(http.post("asample", sample)["request_id"])["sequences"]
    assert http.get(f"training_runs/{model}")["base_model"] == MODEL
    http.post(f"sessions/{session}/finish", {"reason": {"type": "success"}})


def memory_bytes(server: EmbeddedServer) -> int:
    """What the server's process holds in memory."""
    return int(psutil.Process(server.pid).memory_info().rss)
