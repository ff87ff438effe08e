#!/usr/bin/env python3
"""Trains with many combinations of objective, strategy, ranks and accumulation, and compares each with PyTorch and with ddp.

    scripts/check_layouts.py --millrace build/release/bin/millrace [--cases 8] [--seed 1] [--all AXIS...]
    scripts/check_layouts.py --millrace ... --all ranks accumulation parallel.strategy      every layout: 48 cases

A case trains 20 steps, which check_replay.py replays in PyTorch, and trains them once more with ddp on one rank, one pass and
no checkpointing, which must give the same samples, losses, gradient norms and weights. First come the cases of FIXED, then as
many as asked for: drawn by the seed so that each has as many pairs of values as can be that no case before it had. With --all,
every combination of the values of these axes instead, the other values drawn so.
Needs what check_replay.py needs, and mpirun.
"""
import argparse
import itertools
import math
import random
import shutil
import sys
import time
from pathlib import Path

import diffusers

import check_replay

STEPS = 20
GLOBAL_BATCH = 16
LAYOUT_LIMIT = 1e-3         # relative: loss and grad_norm
LAYOUT_WEIGHT_LIMIT = 1e-4  # absolute
EXACT = ("noise", "timesteps", "weight")  # recorded tensors that have the same bits in every layout

# Of the keys that stand here, a case has one value each; the first is what FIXED leaves out.
AXES = {
    "ranks": [1, 2, 3, 4],  # of three, one gets more samples
    "accumulation": [1, 2, 4],
    "parallel.strategy": ["ddp", "shard_grad_op", "full_shard", "hybrid"],
    "parallel.bucket_mb": [64, 0.05],  # one bucket, or some 250
    "model.gradient_checkpointing": ["false", "true"],
    "objective.prediction": ["epsilon", "v_prediction"],
    "objective.zero_terminal_snr": ["false", "true"],
    "objective.snr_gamma": ["null", 5],
    "objective.noise_offset": [0, 0.1],
    "objective.input_perturbation": [0, 0.1],
    "objective.caption_dropout": [0, 0.5],
    "objective.timesteps": ["uniform", "stratified"],
    "optim.schedule": ["constant", "linear", "cosine"],
    "optim.warmup": ["0 steps", "5 steps"],
    "optim.clip": [1, 0.3, "null"],
    "ema.warmup": ["true", "false"],
    "ema.decay": [0.9999, 0.6],
}
LAYOUT = ("ranks", "accumulation", "parallel.strategy", "parallel.bucket_mb", "model.gradient_checkpointing")

FIXED = [
    {"accumulation": 2, "objective.snr_gamma": 5},
    {"ranks": 4, "accumulation": 4, "parallel.strategy": "full_shard", "parallel.bucket_mb": 0.05,
     "model.gradient_checkpointing": "true", "objective.prediction": "v_prediction", "objective.zero_terminal_snr": "true"},
    # Passes on the ranks: 6, 5, 5.
    {"ranks": 3, "accumulation": 4, "parallel.strategy": "full_shard", "objective.caption_dropout": 0.5},
    {"ranks": 4, "accumulation": 2, "parallel.strategy": "hybrid", "parallel.bucket_mb": 0.05, "optim.schedule": "cosine"},
]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True, type=Path, help="the program")
    parser.add_argument("--cases", type=int, default=8, help="besides the fixed ones")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--all", nargs="+", default=[], choices=AXES, metavar="AXIS", help="every combination of their values")
    parser.add_argument("--keep", type=Path, help="work here and leave the files of cases that fail")
    return parser.parse_args()


def is_possible(values):
    return values.get("objective.zero_terminal_snr") != "true" or values.get("objective.prediction") != "epsilon"


def pairs(case):
    return set(itertools.combinations(case.items(), 2))


def draw_case(rng, given):
    while True:
        case = {axis: rng.choice(values) for axis, values in AXES.items()} | given
        if is_possible(case):
            return case


def choose_cases(arguments):
    rng = random.Random(arguments.seed)
    if arguments.all:
        combinations = itertools.product(*(AXES[axis] for axis in arguments.all))
        cases, given = [], list(filter(is_possible, (dict(zip(arguments.all, values)) for values in combinations)))
    else:
        cases = [{axis: values[0] for axis, values in AXES.items()} | case for case in FIXED]
        given = [{}] * arguments.cases
    seen = set().union(*map(pairs, cases))
    for values in given:
        candidates = [draw_case(rng, values) for _ in range(300)]
        cases.append(max(candidates, key=lambda case: len(pairs(case) - seen)))
        seen |= pairs(cases[-1])
    possible = sum(len(one) * len(other) for one, other in itertools.combinations(AXES.values(), 2)) - 1  # see is_possible
    print(f"{len(cases)} cases of seed {arguments.seed} have {len(seen)} of the {possible} possible pairs of values")
    return cases


def micro_batch(case):
    """So that the trainer with most samples needs as many passes as the case says, or a few more where that cannot be."""
    share = math.ceil(GLOBAL_BATCH / case["ranks"])
    return max(size for size in (1, 2, 4, 8, 16) if size * case["accumulation"] <= share)


def overrides(case, seed):
    keys = {axis: value for axis, value in case.items() if "." in axis}
    keys |= {"run.seed": seed, "batch.global": GLOBAL_BATCH, "batch.micro": micro_batch(case),
             **({"parallel.shard_size": math.gcd(case["ranks"], 2)} if case.get("parallel.strategy") == "hybrid" else {})}
    return [f"{key}={value}" for key, value in keys.items()]


def check_layout(table, folder, reference):
    """The run in `folder` against the one in `reference`."""
    def lines(run, name):
        return check_replay.read_json_lines(run / "run" / name)

    table.add("layout", "ids", float(lines(folder, "ids.jsonl") != lines(reference, "ids.jsonl")), 0)
    for mine, other in zip(lines(folder, "metrics.jsonl"), lines(reference, "metrics.jsonl"), strict=True):
        where = f"step {mine['step']}"
        for key in ("loss", "grad_norm"):
            table.add(where, f"layout: {key}", abs(mine[key] / other[key] - 1), LAYOUT_LIMIT)
        tensors, others = (check_replay.read_record(run / "run", mine["step"])[0] for run in (folder, reference))
        for name in EXACT:
            table.add(where, f"layout: {name}", (tensors[name] - others[name]).abs().max().item(), 0)
    for name in ("raw", "ema"):
        weights, others = (check_replay.exported_weights(run, name) for run in (folder, reference))
        table.add("export", f"layout: {name} weights: largest", check_replay.largest_difference(weights, others),
                  LAYOUT_WEIGHT_LIMIT)


class Workshop:
    """What all cases have in common: program, model and data."""

    def __init__(self, millrace, folder):
        self.millrace, self.folder = millrace, folder
        self.archives = check_replay.make_archives(millrace, folder)
        self.samples = check_replay.read_samples(self.archives)
        check_replay.make_pipeline(millrace, folder)
        self.pipeline = diffusers.StableDiffusionPipeline.from_pretrained(folder / "pipeline")

    def train(self, case, seed, folder):
        check_replay.train(self.millrace, self.folder / "pipeline", self.archives, STEPS, overrides(case, seed), folder, case["ranks"])

    def check(self, case, number):
        """Leaves the files of a case that fails."""
        table, folder = check_replay.Table(only_failures=True), self.folder / f"case-{number}"
        run, reference = folder / "layout", folder / "one-rank"
        self.train(case, number, run)
        self.train(case | {axis: AXES[axis][0] for axis in LAYOUT}, number, reference)
        check_replay.replay(table, run, self.pipeline, self.samples)
        check_layout(table, run, reference)
        if table.failures == 0:
            shutil.rmtree(folder)
        return table


def print_worst(rows):
    """For each kind of comparison the one that came nearest to its limit: (case, row)."""
    worst = {}
    for number, row in rows:
        if row.what not in worst or row.difference > worst[row.what][1].difference:
            worst[row.what] = number, row
    print(f"{'compared':42} {'worst':>10} {'limit':>8}  where")
    for what, (number, row) in worst.items():
        print(f"{what:42} {row.difference:10.2e} {row.limit:8.0e}  case {number}, {row.where}")


def check_cases(arguments, folder):
    cases, rows, failed = choose_cases(arguments), [], []
    workshop = Workshop(arguments.millrace.resolve(), folder)
    for number, case in enumerate(cases, start=1):
        started = time.monotonic()
        print(f"case {number}: {' '.join(f'{axis}={value}'.replace(' ', '_') for axis, value in case.items())}", flush=True)
        try:
            table = workshop.check(case, number)
        except RuntimeError as error:
            print(error)
            failed.append(number)
            continue
        rows += [(number, row) for row in table.rows]
        if table.failures:
            failed.append(number)
        seconds = time.monotonic() - started
        print(f"    {len(table.rows)} comparisons, {table.failures} beyond their limits, {seconds:.0f} s", flush=True)
    print_worst(rows)
    print(f"{len(cases)} cases, {len(rows)} comparisons: {f'FAILED {failed}' if failed else 'ok'}")
    return 1 if failed else 0


def main():
    arguments = parse_arguments()
    check_replay.silence()
    with check_replay.workshop(arguments.keep) as folder:
        return check_cases(arguments, folder)


if __name__ == "__main__":
    sys.exit(main())
