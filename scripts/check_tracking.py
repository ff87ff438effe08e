#!/usr/bin/env python3
"""Compares what other tools read with RUN/metrics.jsonl. RUN/tensorboard, by TensorBoard's own package: every number once,
at its step, under a tag that ends in its field's name; pictures and texts open. FILE.prom, by Prometheus' own parser: the
last line's numbers. RUN/wandb, where scripts/wandb_import was run offline, by W&B's own messages: every number once, with the pictures
and the scores of evaluation.jsonl as they stand there now, each line sent once however often its step was scored anew.
    .venv-goldens/bin/python scripts/check_tracking.py RUN [FILE.prom]
"""
import json
import math
import struct
import sys
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto import wandb_internal_pb2


def fields_of(line, or_null=False):
    """(field, key of an object or None, number)."""
    for name, value in line.items():
        for key, number in value.items() if isinstance(value, dict) else [(None, value)]:
            if isinstance(number, (int, float)) or (or_null and number is None):
                yield name, key, number


def numbers_of(line, or_null=False):
    for name, key, number in fields_of(line, or_null):
        yield (f"/{key}/{name}" if key else f"/{name}"), number


def wandb_numbers_of(line):
    for name, key, number in fields_of(line):
        yield (f"{name}/{key}" if key else name), number


def close(got, wanted):
    return math.isclose(got, wanted, rel_tol=1e-6, abs_tol=1e-30)


def check_tensorboard(run, lines):
    events = EventAccumulator(str(run / "tensorboard"), size_guidance=dict(scalars=0, images=0, tensors=0)).Reload()
    tags = events.Tags()
    expected = {}
    for line in lines:
        for ending, number in numbers_of(line):
            expected.setdefault(ending, []).append((line["step"], number))
    for ending, points in expected.items():
        matching = [tag for tag in tags["scalars"] if tag.endswith(ending)]
        assert len(matching) == 1, f"{ending}: tags {matching}"
        found = [(event.step, event.value) for event in events.Scalars(matching[0])]
        assert [step for step, _ in found] == [step for step, _ in points], f"{ending}: steps {found} for {points}"
        for (step, got), (_, wanted) in zip(found, points):
            assert close(got, struct.unpack("f", struct.pack("f", wanted))[0]), f"{ending} at {step}: {got}, {wanted}"
    known = sum(len(points) for points in expected.values())
    total = sum(len(events.Scalars(tag)) for tag in tags["scalars"])
    assert total == known, f"{total} scalars for {known} numbers"
    for tag in tags["images"]:
        assert all(image.encoded_image_string.startswith(b"\xff\xd8") for image in events.Images(tag)), tag
    texts = [tag for tag in tags["tensors"] if events.SummaryMetadata(tag).plugin_data.plugin_name == "text"]
    assert "config" in texts and b"duration" in events.Tensors("config")[-1].tensor_proto.string_val[0]
    print(f"{run}: TensorBoard reads {known} numbers under {len(expected)} tags, {len(tags['images'])} tags of pictures, {len(texts)} of texts")


def check_prometheus(path, run, lines):
    samples = {}
    for family in text_string_to_metric_families(path.read_text()):
        assert family.documentation, family.name
        for sample in family.samples:
            assert sample.timestamp is None and sample.labels["run"] == run.name, sample
            assert sample.name == family.name + ("_total" if family.type == "counter" else ""), sample
            field = family.name.removeprefix("millrace_")
            key = sample.labels.get("of")
            samples[f"/{key}/{field}" if key else f"/{field}"] = sample.value
    assert samples.pop("/running") == 0, "the run has ended"
    wanted = {ending: math.nan if number is None else number for ending, number in numbers_of(lines[-1], or_null=True)}
    for line in reversed(lines):  # what was measured last by validation stays there until it is measured again
        for ending, number in numbers_of(line, or_null=True):
            if ending in samples and ending.rsplit("/", 1)[1].startswith("validation_"):
                wanted.setdefault(ending, math.nan if number is None else number)
    assert samples.keys() == wanted.keys(), samples.keys() ^ wanted.keys()
    for ending, number in wanted.items():
        assert close(samples[ending], number) or math.isnan(number) and math.isnan(samples[ending]), ending
    print(f"{path}: Prometheus reads {len(samples)} numbers")


def records_of(path):
    """The messages of a .wandb file: LevelDB's log format behind a header of 7 bytes."""
    data, at, message = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        _, length, kind = struct.unpack_from("<IHB", data, at)
        if 32768 - at % 32768 < 7:  # no header fits in the rest of a block
            at += 32768 - at % 32768
            continue
        message += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(message)
            yield record
            message = b""


def is_scores(row):
    return any(key.startswith("evaluation") for key in row)


def check_scores(run, rows):
    """The newest row of each step and guidance scale has the numbers of its line."""
    sent = {}
    for row in rows:
        scores = {key: value for key, value in row.items() if key.startswith("evaluation")}
        group = next(iter(scores)).split("/")[0]
        step = None if group.startswith("evaluation_of_") else row["step"]  # W&B gives a row without one the last step
        newest = sent.setdefault((step, group), [])
        assert scores not in newest, f"sent twice: {row}"
        newest.append(scores)
    scored = run / "evaluation.jsonl"
    if not scored.exists():
        assert not rows, f"{len(rows)} rows of scores without an evaluation.jsonl"
        print(f"{run}: no evaluation.jsonl: W&B's scores are not compared")
        return 0, 0
    lines = [json.loads(text) for text in scored.read_text().splitlines()]
    assert len(sent) == len(lines), f"{len(sent)} sets of scores for {len(lines)} lines"
    for line in lines:
        scale = f"_guidance_{line['guidance_scale']:g}" if "guidance_scale" in line else ""
        raw = "_raw" if line.get("weights") == "raw" else ""
        group = ("evaluation" if "step" in line else f"evaluation_of_{Path(line['checkpoint']).name}") + raw + scale
        newest = sent[line.get("step"), group][-1]
        numbers = {f"{group}/{key}": number for key, number in wandb_numbers_of({k: v for k, v in line.items() if k not in ("step", "weights", "guidance_scale", "protocol")})}
        assert numbers, line
        for key, number in numbers.items():
            assert close(newest[key], number), f"{key} of {line.get('step')}: {newest}"
    return len(lines), len(rows)


def check_wandb(run, lines):
    found, pictures, ids, numbers, scores = {}, set(), set(), [], []
    for path in sorted(run.glob("wandb/offline-run-*/run-*.wandb")):
        for record in records_of(path):
            if record.HasField("run"):
                ids.add(record.run.run_id)
            if not record.HasField("history"):
                continue
            row = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            numbers.append(record.history.step.num)
            if is_scores(row):
                scores.append(row)
                continue
            step = row["step"]
            pictures |= {step for key, value in row.items() if key.endswith("/_type") and value == "image-file"}
            if "loss" in row or "lr" in row:
                assert step not in found, f"step {step} twice"
                found[step] = row
    assert len(ids) == 1, ids
    assert numbers == sorted(set(numbers)), "rows in order, over all imports"
    assert list(found) == [line["step"] for line in lines], f"steps {list(found)}"
    for line in lines:
        for key, number in wandb_numbers_of(line):
            assert close(found[line["step"]][key], number), f"{key} at {line['step']}"
    there = {int(path.stem.removeprefix("step-")) for path in run.glob("samples/step-*.png")}
    assert pictures == there, f"pictures of {pictures}, there are {there}"
    if not there:
        print(f"{run}: no pictures in samples/: W&B's are not compared")
    kept, sent = check_scores(run, scores)
    print(f"{run}: W&B's offline files have {len(found)} steps, {len(pictures)} pictures and the scores of {kept} lines, sent in {sent} rows, one run")


def main(run, prometheus=None):
    lines = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
    check_tensorboard(run, lines)
    if prometheus:
        check_prometheus(prometheus, run, lines)
    if (run / "wandb").exists():
        check_wandb(run, lines)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(*map(Path, sys.argv[1:]))
