"""NCCL's all-to-all through PyTorch, at the shapes of `campanile bench moe`: the rows of a MoE dispatch and combine, payload
only. Rows arrive packed; routing, permutation, scales and the sum are not part of it, so it is a bound in its favour.

    python3 nccl_all_to_all.py GPUS        # one process a GPU, this machine only

Values are device times between two events, medians over iterations, of the slowest rank. The last line is JSON.
"""

import json
import os
import socket
import statistics
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

HIDDEN, TOPK, EXPERTS = 7168, 8, 256
ITERATIONS, WARMUP = 20, 5


def counts_of(tokens, rank, ranks):
    """Tokens of `rank` that each rank owns an expert of, for uniform routing."""
    generator = torch.Generator(device="cuda").manual_seed(rank)
    experts = torch.rand(tokens, EXPERTS, device="cuda", generator=generator).topk(TOPK).indices
    owners = torch.zeros(tokens, ranks, device="cuda", dtype=torch.bool)
    # Experts that do not divide evenly go to the last ranks, as elsewhere.
    return owners.scatter_(1, experts // -(-EXPERTS // ranks), True).sum(0)


def microseconds(work):
    """Device time of each iteration."""
    for _ in range(WARMUP):
        work()
    times = []
    for _ in range(ITERATIONS):
        torch.cuda.synchronize()
        dist.barrier()
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return times


def measure(tokens, element_bytes, rank, ranks):
    """[dispatch, combine] in µs, and the rows that cross a link from this rank."""
    counts = counts_of(tokens, rank, ranks)
    every = torch.empty(ranks * ranks, device="cuda", dtype=counts.dtype)
    dist.all_gather_into_tensor(every, counts)
    out, back = counts.tolist(), every.view(ranks, ranks)[:, rank].tolist()

    def rows(number, bytes_each):
        return torch.ones(number, HIDDEN * bytes_each, device="cuda", dtype=torch.uint8)

    sent, received = rows(sum(out), element_bytes), rows(sum(back), element_bytes)
    results, sums = rows(sum(back), 2), rows(sum(out), 2)
    medians = []
    for work in (
        lambda: dist.all_to_all_single(received, sent, back, out),
        lambda: dist.all_to_all_single(sums, results, out, back),
    ):
        slowest = torch.tensor(microseconds(work), device="cuda")
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        medians.append(statistics.median(slowest.tolist()))
    return medians, sum(out) - out[rank]


def run(rank, ranks, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=ranks)
    found = []
    for tokens in (4096, 128, 1):
        for name, element_bytes in (("f8_e4m3", 1), ("bf16", 2)):
            (dispatch, combine), crossing = measure(tokens, element_bytes, rank, ranks)
            found.append(
                {
                    "tokens": tokens,
                    "dtype": name,
                    "dispatch_us": dispatch,
                    "combine_us": combine,
                    "dispatch_wire_gbps": crossing * HIDDEN * element_bytes / dispatch / 1e3,
                    "combine_wire_gbps": crossing * HIDDEN * 2 / combine / 1e3,
                }
            )
    if rank == 0:
        version = ".".join(map(str, torch.cuda.nccl.version()))
        print(json.dumps({"ranks": ranks, "torch": torch.__version__, "nccl": version, "rows": found}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(run, args=(int(sys.argv[1]), port), nprocs=int(sys.argv[1]))
