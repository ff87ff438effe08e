#!/usr/bin/env python3
"""Archives to ready batches, this program against WebDataset + DataLoader (and Ray Data), in turns on the same tars.

    compare_loader.py PIPELINE TAR... [--rounds 5] [--sides millrace1,wds0] [--cores 0] [--transform sdtransform]
                      [--resolution 256] [--batch 32] [--shuffle 1000] [--ray-python PYTHON]
                      [--millrace build/release/bin/millrace]

A side is millraceN (N threads), wdsN (N DataLoader workers, 0 = none) or rayN (a pool of N). --cores pins every side to these
cores. Prints each side's rate, the time it takes of a core, and the peak of the memory that all its processes hold together
(PSS, shared pages counted once), then the ratios of the first side to every other one. Ray starts its pool anew in every
pass, so its rate is that after the first batch, and its processes end before their time can be read; the others' is that of
whole passes. The Python that runs this runs the wds sides: it needs webdataset, torch, torchvision, transformers, opencv and
Pillow; Ray's may be another one (--ray-python). --json: a line for each figure of each round, which scripts/bench/record keeps;
the first side is then the one that the others are compared with.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict

HERE = pathlib.Path(__file__).resolve().parent


def descendants(pid):
    """The process and all below it, those included that started a session of their own."""
    children = defaultdict(list)
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = pathlib.Path("/proc", entry, "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            children[int(fields[1])].append(int(entry))
    found = [pid]
    for parent in found:
        found += children[parent]
    return found


def held_mib(pid):
    total = 0
    for process in descendants(pid):
        try:
            for line in pathlib.Path("/proc", str(process), "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
        except OSError:
            continue
    return total / 1024


def run_measured(command, environment):
    """JSON lines of the command, and its peak memory in MiB, looked at five times a second."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    peak = 0.0
    output = {}
    reader = threading.Thread(target=lambda: output.update(zip(("out", "err"), process.communicate())))
    reader.start()
    while reader.is_alive():
        peak = max(peak, held_mib(process.pid))
        time.sleep(0.2)
    reader.join()
    if process.returncode:
        sys.exit(f"{' '.join(command)}\n{output['err']}")
    return [json.loads(line) for line in output["out"].splitlines() if line.startswith("{")], peak


def command_of(side, options):
    count = side.lstrip("abcdefghijklmnopqrstuvwxyz")
    name = side[:len(side) - len(count)]
    if name == "millrace":
        command = [options.millrace, "bench", "loader", "--json", f"threads={count}", f"data.threads={count}",
                   f"model.pipeline={options.pipeline}", f"data.train.path=[{','.join(options.tars)}]",
                   f"data.shuffle_block={max(1, options.shuffle // options.batch)}",  # a batch has one sample of each stripe
                   f"batch.micro={options.batch}", f"transform.resolution={options.resolution}", "bench.runs=1"]
    else:
        python = options.ray_python if name == "ray" else sys.executable
        command = [python, str(HERE / "loader_bench.py"), *options.tars, "--tokenizer", str(pathlib.Path(options.pipeline) / "tokenizer"),
                   "--side", name, "--workers", count, "--transform", options.transform, "--shuffle", str(options.shuffle),
                   "--batch", str(options.batch), "--resolution", str(options.resolution), "--runs", "1"]
    return (["taskset", "-c", options.cores] if options.cores else []) + command


def words_of(side, options):
    """What a side is, in a table."""
    count = side.lstrip("abcdefghijklmnopqrstuvwxyz")
    workers = f"{count} worker{'' if count == '1' else 's'}" if count != "0" else "no workers"
    return {"millrace": "millrace", "wds": f"webdataset + DataLoader, {options.transform}, {workers}",
            "ray": f"Ray Data, {options.transform}, {workers}"}[side[:len(side) - len(count)]]


def spread(values, digits=1):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pipeline")
    parser.add_argument("tars", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sides", default="millrace1,wds0")
    parser.add_argument("--cores", default="")
    parser.add_argument("--transform", default="sdtransform")
    parser.add_argument("--resolution", type=int, default=256)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--shuffle", type=int, default=1000)
    parser.add_argument("--ray-python", default=sys.executable)
    parser.add_argument("--millrace", default=str(HERE / "../../build/release/bin/millrace"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.tars = [os.path.abspath(tar) for tar in options.tars]
    environment = dict(os.environ, PYTHONPATH=str(HERE), TOKENIZERS_PARALLELISM="false")

    sides = options.sides.split(",")
    rates, processor, memory, loads = defaultdict(list), defaultdict(list), defaultdict(list), []
    for number in range(options.rounds):
        for side in sides:
            loads.append(os.getloadavg()[0])
            lines, peak = run_measured(command_of(side, options), environment)
            figure = "steady" if side.startswith("ray") else "samples"
            rates[side].append(next(line["median"] for line in lines if line["figure"] == figure))
            if not side.startswith("ray"):
                processor[side].append(next(line["median"] for line in lines if line["figure"] == "processor"))
            memory[side].append(peak)
            if options.json:
                for figure, unit, values in (("samples", "samples/s", rates), ("processor", "ms/sample", processor), ("peak memory", "MiB", memory)):
                    if values[side]:
                        print(json.dumps({"bench": "loader", "side": words_of(side, options), "figure": figure, "unit": unit, "median": values[side][-1]}))
        print(f"round {number + 1} of {options.rounds}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    if options.json:
        return
    print(f"{options.transform}, {options.resolution} px, batches of {options.batch}, shuffled by {options.shuffle}, cores {options.cores or 'all'} "
          f"of {os.cpu_count()}, load when a side began {min(loads):.1f} to {max(loads):.1f}")
    for side in sides:
        print(f"{side:<10} {spread(rates[side])} samples/s   peak {spread(memory[side], 0)} MiB"
              + (f"   {spread(processor[side], 2)} ms of a core per sample" if processor[side] else ""))
    first = sides[0]
    for side in sides[1:]:
        faster = [a / b for a, b in zip(rates[first], rates[side])]
        cheaper = [b / a for a, b in zip(processor[first], processor[side])]  # empty for Ray
        smaller = [a / b for a, b in zip(memory[first], memory[side])]
        print(f"ratio {first} / {side}: rate {spread(faster, 2)}, fastest against fastest {max(rates[first]) / max(rates[side]):.2f}; "
              f"memory {spread(smaller, 2)}" + (f"; samples per second of a core {spread(cheaper, 2)}" if cheaper else ""))


if __name__ == "__main__":
    main()
