#!/usr/bin/env python3
"""Compares what other tools read with RUN/metrics.jsonl. RUN/tensorboard, by TensorBoard's own package: every number once,
at its step, under a tag that ends in its field's name; pictures and texts open. FILE.prom, by Prometheus' own parser: the
last line's numbers.
    .venv-goldens/bin/python scripts/check_tracking.py RUN [FILE.prom]
"""
import json
import math
import struct
import sys
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def numbers_of(line, or_null=False):
    for name, value in line.items():
        for key, number in value.items() if isinstance(value, dict) else [(None, value)]:
            if isinstance(number, (int, float)) or (or_null and number is None):
                yield (f"/{key}/{name}" if key else f"/{name}"), number


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
        assert all(image.encoded_image_string.startswith(b"\x89PNG") for image in events.Images(tag)), tag
    texts = [tag for tag in tags["tensors"] if events.SummaryMetadata(tag).plugin_data.plugin_name == "text"]
    assert "config" in texts and b"duration" in events.Tensors("config")[-1].tensor_proto.string_val[0]
    print(f"{run}: TensorBoard reads {known} numbers under {len(expected)} tags, {len(tags['images'])} tags of pictures, {len(texts)} of texts")


def check_prometheus(path, run, line):
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
    wanted = {ending: math.nan if number is None else number for ending, number in numbers_of(line, or_null=True)}
    assert samples.keys() == wanted.keys(), samples.keys() ^ wanted.keys()
    for ending, number in wanted.items():
        assert close(samples[ending], number) or math.isnan(number) and math.isnan(samples[ending]), ending
    print(f"{path}: Prometheus reads {len(samples)} numbers")


def main(run, prometheus=None):
    lines = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
    check_tensorboard(run, lines)
    if prometheus:
        check_prometheus(prometheus, run, lines[-1])


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(*map(Path, sys.argv[1:]))
