#!/usr/bin/env python3
"""Our store and torch's TCPStore, against each other, in both directions, and torchrun with one of our programs.

Needs torch (any build of 2.4 or newer; queues, list_keys and barrier are checked where it has them), so it is no part
of `cargo test`:

    cargo build -p campanile-bootstrap -p campanile-examples --examples --bins
    python3 -m venv /tmp/torch && /tmp/torch/bin/pip install torch
    /tmp/torch/bin/python tests/torch_store.py

Prints a line for each check; exits with 1 at the first that fails.
"""

import datetime
import os
import pathlib
import subprocess
import sys
import threading

# A connection that ends is no news here.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

TARGET = pathlib.Path(__file__).resolve().parent.parent / "target" / "debug"
PROBE = TARGET / "campanile-launch-probe"
EXAMPLE = TARGET / "examples" / "07_launched"
TIMEOUT = datetime.timedelta(seconds=20)


def check(what, given, expected):
    if given != expected:
        sys.exit(f"FAILED {what}: {given!r}, expected {expected!r}")
    print(f"ok {what}")


def fails(what, call, *errors):
    try:
        call()
    except errors:
        print(f"ok {what}")
    else:
        sys.exit(f"FAILED {what}: no error")


def their_client(store, other):
    """All that torch's client can do. `other` is a second connection to the same store."""
    store.set("key", "value")
    check("set, get", other.get("key"), b"value")
    large = bytes(range(256)) * (8 << 12)
    store.set("large", large)
    check("8 MiB", other.get("large") == large, True)
    check("add", (store.add("sum", 5), store.add("sum", -7), store.get("sum")), (5, -2, b"-2"))
    check("compare_set, absent", store.compare_set("fresh", "expected", "new"), b"expected")
    check("compare_set, first", store.compare_set("fresh", "", "first"), b"first")
    check("compare_set, other", store.compare_set("fresh", "other", "second"), b"first")
    check("compare_set, same", store.compare_set("fresh", "first", "second"), b"second")
    check("check", (store.check(["key", "sum"]), store.check(["key", "none"])), (True, False))
    store.append("key", "+")
    check("append", store.get("key"), b"value+")
    store.multi_set(["m1", "m2"], ["1", "22"])
    check("multi_set, multi_get", store.multi_get(["m2", "m1"]), [b"22", b"1"])
    keys = store.num_keys()
    check("delete_key", (store.delete_key("m1"), store.delete_key("m1")), (True, False))
    check("num_keys", store.num_keys(), keys - 1)
    short = datetime.timedelta(milliseconds=100)
    fails("wait that times out", lambda: store.wait(["never"], short), dist.DistStoreError)
    check("after a cancelled wait", store.get("key"), b"value+")
    timer = threading.Timer(0.2, lambda: other.set("late", "now"))
    timer.start()
    store.wait(["late", "key"], TIMEOUT)
    timer.join()
    check("wait for a late key", store.get("late"), b"now")
    prefixed = dist.PrefixStore("p", store)
    prefixed.set("key", "inner")
    check("PrefixStore", (prefixed.get("key"), store.get("p/key"), store.get("key")), (b"inner", b"inner", b"value+"))
    check("clone", store.clone().get("key"), b"value+")
    if hasattr(store, "queue_push"):
        store.queue_push("q", "a")
        store.queue_push("q", "b")
        check("queue_len", store.queue_len("q"), 2)
        check("queue_pop", (other.queue_pop("q"), store.queue_pop("q"), store.queue_len("q")), (b"a", b"b", 0))
        fails("queue_pop of nothing", lambda: store.queue_pop("q", False), dist.QueueEmptyError)
        timer = threading.Timer(0.2, lambda: other.queue_push("q", "c"))
        timer.start()
        check("queue_pop that waits", store.queue_pop("q"), b"c")
        timer.join()
    if hasattr(store, "list_keys"):
        listed = store.list_keys()
        check("list_keys", (len(listed) == store.num_keys(), "key" in listed, "m1" in listed), (True, True, False))
    if hasattr(store, "barrier"):
        thread = threading.Thread(target=lambda: other.barrier("all", 2, TIMEOUT))
        thread.start()
        store.barrier("all", 2, TIMEOUT)
        thread.join()
        check("barrier", store.get("all"), b"2")
        fails("barrier that times out", lambda: store.barrier("alone", 2, short), dist.DistStoreError)


def torch_against_our_server(host):
    server = subprocess.Popen([PROBE, "serve", f"tcp://{host}:0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    port = int(server.stdout.readline().decode().rsplit(":", 1)[1])
    name = host.strip("[]")
    connect = lambda: dist.TCPStore(name, port, None, False, TIMEOUT, wait_for_workers=False)
    print(f"-- torch's client, our server at {host}")
    store = connect()
    their_client(store, connect())
    server.stdin.close()
    check("the server ends", server.wait(20), 0)
    fails("a store that is gone", lambda: store.get("key"), RuntimeError)


def ours_against_torch(libuv):
    print(f"-- our client, torch's server, {'libuv' if libuv else 'legacy'} backend")
    server = dist.TCPStore("localhost", 0, None, True, TIMEOUT, wait_for_workers=False, use_libuv=libuv)
    queues = ["queues"] if libuv and hasattr(server, "queue_push") else []
    command = [PROBE, "exercise", f"tcp://localhost:{server.port}", *queues]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    check("exercise", (result.stdout, result.stderr), ("exercised\n", ""))
    # Ranks that come to a store of torch's rank 0.
    environment = dict(os.environ, MASTER_ADDR="localhost", MASTER_PORT=str(server.port), WORLD_SIZE="3")
    gather = [PROBE, "gather", "20s"]
    ranks = [
        subprocess.Popen(gather, env=dict(environment, RANK=str(rank)), stdout=subprocess.PIPE, text=True)
        for rank in range(3)
    ]
    said = [rank.communicate(timeout=60)[0] for rank in ranks]
    check("ranks join", said, [f"rank {rank}: [0, 10, 20] on one node\n" for rank in range(3)])
    check("under a prefix", dist.PrefixStore("campanile/job/1", server).get("numbers/1"), b"\n")


def torchrun():
    for options in [["--standalone"], ["--master-port", "29512"]]:
        print(f"-- torchrun {' '.join(options)}")
        command = [sys.executable, "-m", "torch.distributed.run", *options, "--nproc-per-node", "3", "--no-python"]
        result = subprocess.run([*command, EXAMPLE], capture_output=True, text=True, timeout=120)
        said = sorted(line.split(" is process")[0] for line in result.stdout.splitlines())
        check("07_launched", (result.returncode, said), (0, [f"rank {rank} of 3" for rank in range(3)]))


print(f"torch {torch.__version__}")
torch_against_our_server("127.0.0.1")
torch_against_our_server("[::1]")
ours_against_torch(libuv=True)
ours_against_torch(libuv=False)
torchrun()
