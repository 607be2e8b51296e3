"""Tables of a GPU campaign, for docs/benchmarks/: reads its results.json, prints Markdown."""

import json
import sys


def table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def number(value, digits=1):
    return "–" if value is None else f"{value:.{digits}f}"


def link(report):
    print(f"Links of {report['ranks']} ranks on {report['devices']} × {report['device']}, {report['driver']}.")
    if report["emulated"]:
        print("Emulated: the figures mean nothing.")
    if report["shared"]:
        print("Ranks share a device: a peer's window is other memory of the same device.")
    print()
    rows = [
        [row["arm"].replace("_", " "), row["pattern"].replace("_", " "), number(row["median_us"], 2),
         number(row["p99_us"], 2), number(row["gbps"])]
        for row in report["rows"]
    ]
    barrier = report["barrier"]
    rows.append(["barrier, of many in a launch", "", number(barrier["in_launch_us"], 2),
                 number(barrier["in_launch_p99_us"], 2), f"{number(barrier['of_flag'])} × flag one way"])
    rows.append(["barrier, launches in a graph", "", number(barrier["in_graph_us"], 2),
                 number(barrier["in_graph_p99_us"], 2), ""])
    table(["link", "who", "median µs", "p99 µs", "GB/s of a GPU"], rows)


def phase(values):
    """Kernel µs, µs from the first rank's call to the last one's return, and the share of the link's limit."""
    ratio = values.get("ratio")
    share = "–" if ratio is None else f"{100 * ratio:.0f} %"
    return [number(values.get("kernel_us")), number(values.get("end_to_end_us")), share]


def moe(steps, nccl):
    theirs = {(row["tokens"], row["dtype"]): row for row in (nccl or {}).get("rows", [])}
    rows = []
    for step in steps:
        report = step["output"]
        other = theirs.get((report["tokens"], report["dtype"]), {})
        for name in ("dispatch", "combine"):
            rows.append([
                str(report["tokens"]), report["dtype"], str(report.get("sms") or "–"), name, *phase(report[name]),
                number(report.get("round_us")), number(other.get(f"{name}_us")),
            ])
    print("MoE: medians in µs. The share is wire GB/s over the limit of the same run; a round is a dispatch and a combine")
    print("in a graph of many. NCCL moves the payload only.")
    print()
    table(["tokens", "type", "SMs", "", "kernel", "end to end", "of limit", "round", "NCCL"], rows)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        results = json.load(file)
    by_name = {step["step"]: step for step in results["steps"]}

    def output(name):
        return by_name.get(name, {}).get("output")

    print(f"# GPU campaign of {results['date']}\n")
    print(f"{results['gpus']} GPUs ({results['device']}), {results['ranks']} ranks, {results['seconds']} s.\n")
    if output("link"):
        link(output("link"))
    benches = [step for step in results["steps"] if step["step"].startswith("bench_") and step["output"]]
    if benches:
        moe(benches, output("nccl"))
    if output("litmus"):
        litmus = output("litmus")
        must = [case for case in litmus["results"] if case["must_hold"]]
        failing = [case for case in litmus["results"] if not case["must_hold"] and case["wrong_rows"]]
        print(f"Litmus: {len(must)} cases that must hold, {'all did' if litmus['held'] else 'NOT ALL DID'}.")
        for case in failing:
            print(f"Without a rule ({case['case']}, {case['devices']}): {case['wrong_rows']} wrong rows.")
        print()
    table(["step", "status", "s", ""], [
        [step["step"], step["status"], str(step["seconds"]), step["reason"].replace("|", "/")] for step in results["steps"]
    ])


main()
