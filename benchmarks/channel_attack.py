"""The meeting of two hosts while a stranger without the secret calls the first one: does the run complete?

    python benchmarks/channel_attack.py [--messages 10000] [--json]

Two benches run on loopback. The second reaches the first through this script, which listens in, lets its first calls
fail, and keeps what it said in them. Meanwhile it calls the first with random bytes, with lines of the protocol, whole,
cut off and with nonsense in them, with what it kept, and with one byte a second over hundreds of connections; the
second host is let through when the messages are sent. Counted is how long that host then takes to meet the first: from
its call to the proof of the first.

Both benches must exit with 0, and the meeting may take a second longer than one without an attack.
"""

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from typing import Any

import paired

ALLOWED_S = 1.0
SLOW_CALLERS = 400
KEPT_CALLS = 5
LIMIT_S = 300.0
OPTIONS = ["--workload", "fashion_mlp", "--scenario", "ddp", "--device", "cpu", "--no-parity", "--warmup", "1"]

Address = tuple[str, int]


def main() -> int:
    parser = paired.parser(__doc__)
    parser.add_argument("--messages", type=int, default=10_000, help="how many to send (default: 10000)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    quiet, attacked = met(0, options.seed), met(options.messages, options.seed)
    delay_s = attacked["met_s"] - quiet["met_s"]
    passed = quiet["codes"] == attacked["codes"] == [0, 0] and delay_s <= ALLOWED_S
    found = {"messages": options.messages, "quiet": quiet, "attacked": attacked, "delay_s": delay_s, "passed": passed}
    what = f"{options.messages} messages of a stranger: exit codes {attacked['codes']}, the meeting {delay_s:+.2f} s"
    print(json.dumps(found) if options.json else f"{what}: {'passed' if passed else 'FAILED'}")
    if not passed:
        print(*attacked["said"], sep="\n", file=sys.stderr)
    return 0 if passed else 1


def met(messages: int, seed: int) -> dict[str, Any]:
    """How a run of two hosts ended under this many messages, and how long they took to meet after the last."""
    leader, kept = ("127.0.0.1", free_port()), []
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as proxy:
        first = start(folder, 0, leader[1])
        wait_until_listening(leader)
        second = start(folder, 1, proxy.getsockname()[1])
        for _ in range(KEPT_CALLS):
            kept.append(overheard(proxy.accept()[0], leader))
        crowd = slow(leader, SLOW_CALLERS if messages else 0)
        for number in range(messages):
            say(leader, nonsense(random.Random(f"{seed}-{number}"), kept))
        taken_s: list[float] = []
        threading.Thread(target=relay, args=(proxy, leader, taken_s), daemon=True).start()
        said = [one.communicate(timeout=LIMIT_S)[1] for one in (first, second)]
        crowd.set()
    return {"codes": [first.returncode, second.returncode], "met_s": min(taken_s, default=LIMIT_S), "said": said}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def start(folder: str, index: int, port: int) -> "subprocess.Popen[str]":
    home = os.path.join(folder, str(index))
    os.makedirs(home)
    host = {"RANK": str(index), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    own = {"BENCH_SECRET": "for the attack", "BENCH_LOCK_DIR": home, "PYTHONPATH": paired.ROOT}
    return subprocess.Popen(
        [sys.executable, "-m", "bench", "run", *OPTIONS, "--iters", "3"],
        cwd=home,
        env={**os.environ, **host, **own},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until_listening(address: Address) -> None:
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        with suppress(OSError):
            socket.create_connection(address, timeout=1.0).close()
            return
        time.sleep(0.1)


def overheard(caller: socket.socket, leader: Address) -> bytes:
    """The proof of the second host for one challenge of the first, which never gets it."""
    with caller, socket.create_connection(leader, timeout=20.0) as end:
        caller.settimeout(20.0)
        caller.sendall(end.recv(1 << 16))
        return caller.recv(1 << 16)


def nonsense(chance: random.Random, kept: list[bytes]) -> bytes:
    nonce, proof = (chance.randbytes(size).hex() for size in (16, 32))
    odd: list[Any] = ["\ud800", "", "0" * 3000, None, -1, 1e300, True, [[]], {"event": "proof"}, nonce, proof]
    line = json.dumps({"event": "proof", "nonce": nonce, "proof": proof, "index": 1}).encode() + b"\n"
    match chance.randrange(6):
        case 0:
            return chance.randbytes(chance.randrange(1, 5000))
        case 1:
            return line[: chance.randrange(1, len(line))]
        case 2:
            return chance.choice(kept) * chance.randrange(1, 4)
        case 3:
            said = {name: chance.choice(odd) for name in ("nonce", "proof", "index")}
            return json.dumps({"event": "proof", **said}).encode() + b"\n"
        case 4:
            event = chance.choice(["leader", "secretless", "hello", "end", "refused", "failed", "challenge"])
            return json.dumps({"event": event, "code": 0, "why": "\udfff"}).encode() * chance.randrange(1, 3) + b"\n"
    return b"[" * 4000 + b"\n" + line * 50


def say(leader: Address, message: bytes) -> None:
    with suppress(OSError), socket.create_connection(leader, timeout=5.0) as end:
        end.sendall(message)


def slow(leader: Address, callers: int) -> threading.Event:
    """Hold connections open that say one byte a second, until the event is set."""
    over = threading.Event()

    def hold() -> None:
        ends: list[socket.socket] = []
        while not over.wait(1.0):
            for end in list(ends):
                try:
                    end.sendall(b"{")
                except OSError:
                    ends.remove(end)
            with suppress(OSError):
                while len(ends) < callers:
                    ends.append(socket.create_connection(leader, timeout=1.0))
        for end in ends:
            end.close()

    if callers:
        threading.Thread(target=hold, daemon=True).start()
    return over


def relay(proxy: socket.socket, leader: Address, taken_s: list[float]) -> None:
    """Let the second host through from now on. ``taken_s``: gets how long after its first call it had a proof."""
    began_s = None
    while True:
        caller = proxy.accept()[0]
        began_s = began_s or time.monotonic()
        with suppress(OSError):
            end = socket.create_connection(leader, timeout=20.0)
            for one, other in ((caller, end), (end, caller)):
                threading.Thread(target=pump, args=(one, other, began_s, taken_s), daemon=True).start()


def pump(one: socket.socket, other: socket.socket, began_s: float, taken_s: list[float]) -> None:
    with suppress(OSError):
        one.settimeout(None)
        while data := one.recv(1 << 16):
            if b'"event": "proof", "proof"' in data:
                taken_s.append(time.monotonic() - began_s)
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    sys.exit(main())
