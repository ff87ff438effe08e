#!/usr/bin/env python3
"""Reads RUN/tensorboard with TensorBoard's own package and compares it with RUN/metrics.jsonl: every number once, at its
step, under a tag that ends in its field's name; pictures and texts open.
    .venv-goldens/bin/python scripts/check_tensorboard.py RUN
"""
import json
import math
import struct
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def numbers_of(line):
    for name, value in line.items():
        for key, number in value.items() if isinstance(value, dict) else [(None, value)]:
            if isinstance(number, (int, float)) and name not in ("time",):
                yield (f"{name}/{key}" if key else f"/{name}"), number


def main(run):
    unlimited = dict(scalars=0, images=0, tensors=0)
    events = EventAccumulator(str(run / "tensorboard"), size_guidance=unlimited).Reload()
    tags = events.Tags()
    expected = {}
    for text in (run / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        for ending, number in numbers_of(line):
            expected.setdefault(ending, []).append((line["step"], number))
    for ending, points in expected.items():
        matching = [tag for tag in tags["scalars"] if tag.endswith(ending)]
        assert len(matching) == 1, f"{ending}: tags {matching}"
        found = [(event.step, event.value) for event in events.Scalars(matching[0])]
        assert [step for step, _ in found] == [step for step, _ in points], f"{ending}: steps {found} for {points}"
        for (step, got), (_, wanted) in zip(found, points):
            assert math.isclose(got, struct.unpack("f", struct.pack("f", wanted))[0], rel_tol=1e-6), f"{ending} at {step}: {got}, {wanted}"
    known = sum(len(points) for points in expected.values())
    total = sum(len(events.Scalars(tag)) for tag in tags["scalars"])
    assert total == known, f"{total} scalars for {known} numbers"
    for tag in tags["images"]:
        assert all(image.encoded_image_string.startswith(b"\x89PNG") for image in events.Images(tag)), tag
    print(f"{run}: {known} numbers under {len(expected)} tags, {len(tags['images'])} tags of pictures, {len(tags['tensors'])} of texts")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
