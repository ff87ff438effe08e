"""Golden of the order of samples, which docs/numerics.md and include/millrace/loader/stripe.h describe: the splits that stripes
read in an epoch, and the rows of a block as they are given out.

Run:  .venv-goldens/bin/python scripts/goldens/order.py      (writes tests/golden/order)
"""

import json
import pathlib
import struct

import xxhash

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "order"

SHUFFLE, ASSIGN_SPLITS = 7, 8
SEED = 420 << 32 | 0x9E3779B9  # both words of the key count


def low(number):
    return number & 0xFFFFFFFF


def philox(counter, key):
    """Philox4x32-10 as Random123 has it."""
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [second >> 32 ^ counter[1] ^ key[0], low(second), first >> 32 ^ counter[3] ^ key[1], low(first)]
        key = [low(key[0] + 0x9E3779B9), low(key[1] + 0xBB67AE85)]
    return counter


def check_philox():
    """Known answers of Random123."""
    ones = 0xFFFFFFFF
    assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox([ones] * 4, [ones] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def integer_below(bound, index, purpose, sample, epoch):
    """Number `index` of a sequence: two words of a block make one."""
    block = philox([index // 2, purpose << 24 | epoch, low(sample), sample >> 32], [low(SEED), SEED >> 32])
    word = index % 2 * 2
    return (block[word] | block[word + 1] << 32) * bound >> 64


def shuffled(count, purpose, sample, epoch):
    """Fisher-Yates from the end; place i draws number i."""
    order = list(range(count))
    for last in range(count - 1, 0, -1):
        other = integer_below(last + 1, last, purpose, sample, epoch)
        order[last], order[other] = order[other], order[last]
    return order


def splits(count, stripes, epoch):
    order = shuffled(count, ASSIGN_SPLITS, 0, epoch)
    return {"epoch": epoch, "splits_of": [order[stripe::stripes] for stripe in range(stripes)]}


def block(size, stripe, epoch, split, row):
    place = xxhash.xxh3_64_intdigest(struct.pack("<IIQ", stripe, split, row))
    return {"stripe": stripe, "epoch": epoch, "split": split, "row": row, "rows": shuffled(size, SHUFFLE, place, epoch)}


def main():
    check_philox()
    OUT.mkdir(parents=True, exist_ok=True)
    expected = {
        "seed": SEED,
        "epochs": [splits(20, 3, 0), splits(20, 3, 5)],
        "blocks": [block(12, 0, 0, 0, 0), block(12, 2, 5, 1, 7 << 32 | 128)],
    }
    (OUT / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
