"""Goldens of module io: archives, weights and tables made by the reference tools, and what those tools read in them.

Run:  .venv-goldens/bin/python scripts/goldens/io.py      (writes tests/golden/io)
"""

import gzip
import io
import itertools
import json
import lzma
import os
import pathlib
import platform
import shutil
import tarfile
import tempfile

import braceexpand
import numpy
import pyarrow
import pyarrow.parquet
import safetensors
import safetensors.torch
import torch
import webdataset
from webdataset import shardlists, tariterators

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "io"

# ---------------------------------------------------------------------------------------------------------------- tars


def member(name, data=b"", kind=tarfile.REGTYPE, link="", mtime=0):
    info = tarfile.TarInfo(name)
    info.size = len(data) if kind == tarfile.REGTYPE else 0
    info.type, info.linkname, info.mtime = kind, link, mtime
    return info, data


def tar_bytes(members, tar_format=tarfile.USTAR_FORMAT):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def webdataset_samples(path):
    """What webdataset reads; a sample = [key, [[field, text], ...]]."""

    def stop_quietly(exception):
        return False

    with open(path, "rb") as stream:
        files = tariterators.tar_file_expander([dict(url="x", stream=stream)], handler=stop_quietly)
        samples = list(tariterators.group_by_keys(files, handler=stop_quietly))
    return [
        [sample["__key__"], [[k, v.decode("latin-1")] for k, v in sample.items() if not k.startswith("__")]]
        for sample in samples
    ]


def without_leading_dot(samples):
    """Our one change of keys: a leading `./` is not part of an id."""
    return [[key.removeprefix("./"), fields] for key, fields in samples]


def plain_members():
    for i in range(5):
        yield member(f"{i:05d}.jpg", f"image {i} ".encode() * 100)
        yield member(f"{i:05d}.json", b'{"width": %d}' % i)
        yield member(f"{i:05d}.txt", f"caption {i}".encode())


def webdataset_written():
    """As webdataset's own writer does it: PAX headers with a float mtime for every member."""
    buffer = io.BytesIO()
    with webdataset.TarWriter(buffer, encoder=False, mtime=1700000000.25) as sink:
        for i in range(3):
            sink.write({"__key__": f"sub/{i:03d}", "jpg": b"J" * (700 + i), "txt": f"words {i}".encode(), "cls": b"7"})
    return buffer.getvalue()


def make_tars():
    odd_names = [
        "000.jpg", "./001.jpg", "a.b/002.jpg", "x.tar/y.Z.JPG", "foo.", "no_extension", ".hidden", "a/.hidden",
        "a/b/..jpg", "a.b/.hidden", "c.d/e/.hidden", "./.hidden", "__meta__.json", "__meta__/000.jpg", "__a.json",
        "a/__meta__.json", "__x__y/1.jpg", "./__meta__.json", "A/B.SEG.Png", "ünï/日本.TXT", "sp ace/k e y.txt", "a//b.c",
        "dir.with.dots/x/y.tar.gz", "/abs/1.jpg", "..//2.jpg", "____/1.jpg", "___/1.jpg", "a/...x", "-.x", "k.é",
    ]
    files = {
        "plain.tar": tar_bytes(plain_members()),
        "pax.tar": webdataset_written(),
        "odd_names.tar": tar_bytes([member(n, n.encode()) for n in odd_names]),
        "odd_names_pax.tar": tar_bytes([member(n, n.encode(), mtime=1.5) for n in odd_names], tarfile.PAX_FORMAT),
        "long_names_gnu.tar": tar_bytes(
            [member("d" * 60 + "/" + "k" * 150 + "." + e, e.encode()) for e in ("jpg", "txt")], tarfile.GNU_FORMAT),
        "long_names_pax.tar": tar_bytes(
            [member("d/" * 80 + "é" * 150 + "." + e, e.encode()) for e in ("jpg", "txt")], tarfile.PAX_FORMAT),
        "kinds.tar": tar_bytes([
            member("d.x", kind=tarfile.DIRTYPE), member("1.jpg", b"one"), member("1.txt", kind=tarfile.SYMTYPE, link="1.jpg"),
            member("1.lnk", kind=tarfile.LNKTYPE, link="1.jpg"), member("1.dev", kind=tarfile.CHRTYPE),
            member("1.fifo", kind=tarfile.FIFOTYPE), member("1.json", b"{}"), member("2.jpg", b"")]),
        "interleaved.tar": tar_bytes([member(n, n.encode()) for n in ("a.jpg", "b.jpg", "a.txt", "b.txt", "b.JSON", "c.txt", "a.jpg")]),
        "only_meta.tar": tar_bytes([member("__meta__.json", b"{}")]),
        "no_members.tar": tar_bytes([]),
    }
    files["plain.tar.gz"] = gzip.compress(files["plain.tar"], mtime=0)
    files["plain.tar.xz"] = lzma.compress(files["plain.tar"])
    files["plain.tar.bz2"] = __import__("bz2").compress(files["plain.tar"])
    files["plain.tar.zst"] = pyarrow.compress(files["plain.tar"], codec="zstd", asbytes=True)
    # A gzip file may consist of several; tools that compress in parallel write such.
    half = len(files["plain.tar"]) // 2
    files["two_parts.tar.gz"] = b"".join(gzip.compress(p, mtime=0) for p in (files["plain.tar"][:half], files["plain.tar"][half:]))

    expected = {}
    for name, data in files.items():
        path = OUT / "tar" / name
        path.write_bytes(data)
        # Python's streaming tarfile knows no zstd and stops after the first of several gzip parts; the content is the same.
        source = OUT / "tar" / "plain.tar" if name in ("plain.tar.zst", "two_parts.tar.gz") else path
        expected[name] = without_leading_dot(webdataset_samples(source))
    return expected


# -------------------------------------------------------------------------------------------------------------- braces

PATTERNS = [
    "plain", "", "{a,b}", "x{1..3}y", "{01..10}", "{1..010}", "{-2..2}", "{-02..2}", "{2..-1}", "{0..9..3}", "{9..0..4}",
    "{0..9..0}", "{0..9..-3}", "{a..e}", "{e..a}", "{c..A}", "{X..c}", "{a..z..5}", "{A..A}", "{3..3}", "{a,b}{1,2}",
    "{a,b{1..3},c}", "{{a,b},{c,d}}", "{x}", "{}", "a{}b", "{,x}", "{x,}", "{,}", "pre{,.backup}post", r"\{a,b\}",
    r"{a\,b,c}", r"a\\{b,c}", r"{1\{2,3}", r"{a..\c}", "{1..a}", "{aa..c}", "{1.5..2}", "{1..}", "{..2}", "{1..2..}",
    "{{1..3}}", "{a{b}c}", "{a{b,c}d}", "$x{1..2}", "s3://b/{00000..00002}.tar", "pipe:cat {0..1}.tar -", "}{", r"\\",
    "trailing\\", "a,b", "{a,b},c", "{00..05..2}", "{5..00}", "{-0..2}", "{1..2}{3..4}{x,y}", "{a..c..b}", "{1..3..1.5}",
    "{é,ü}", "{a, b}", "{0..00}", "{-01..-10..4}",
]
UNBALANCED = ["{", "}", "{a,b", "a,b}", "{1{2,3}", "{a,{b}", "}{a,b}", r"{a,b\}"]


def make_braces():
    for pattern in UNBALANCED:
        try:
            list(braceexpand.braceexpand(pattern))
            raise SystemExit(f"{pattern} was expected to be unbalanced")
        except braceexpand.UnbalancedBracesError:
            pass
    # A scheme keeps the names from being looked for on disk.
    os.environ.update(WDS_BASE="s3://data/{a,b}", WDS_DEEP="${BASE}/x")
    urls = ["s3://a.tar::s3://b{1..2}.tar", "${BASE}/{0..1}.tar", "${DEEP}.tar::s3://c", "s3://$BASE ${BASE}", "pipe:cat {a,b}"]
    return {
        "expand": {p: list(braceexpand.braceexpand(p)) for p in PATTERNS},
        "unbalanced": UNBALANCED,
        "environment": {"WDS_BASE": os.environ["WDS_BASE"], "WDS_DEEP": os.environ["WDS_DEEP"]},
        "urls": {u: shardlists.expand_urls(u) for u in urls},
    }


# --------------------------------------------------------------------------------------------------------- safetensors


def ramp(shape, dtype):
    count = int(numpy.prod(shape, dtype=numpy.int64))
    width = torch.empty(0, dtype=dtype).element_size()
    raw = torch.arange(count * width, dtype=torch.int64).mul(7).remainder(251).to(torch.uint8)
    if dtype == torch.bool:
        return (raw % 2).to(torch.bool).reshape(shape)
    return raw.view(dtype).reshape(shape)


def make_safetensors():
    dtypes = ["bool", "uint8", "int8", "float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz",
              "int16", "uint16", "float16", "bfloat16", "int32", "uint32", "float32", "complex64", "float64", "int64", "uint64"]
    every = {}
    for dtype in dtypes:
        every[f"b.{dtype}"] = ramp((3, 2), getattr(torch, dtype))
        every[f"a.{dtype}"] = ramp((5,), getattr(torch, dtype))
    shapes = {"scalar": ramp((), torch.float32), "empty": ramp((0,), torch.float32), "empty2": ramp((4, 0, 2), torch.int64),
              "one": ramp((1, 1, 1, 1), torch.float16), "Ünï \"quoted\"\\\n\t\x01/": ramp((2,), torch.float32)}
    unet_like = {f"down_blocks.{b}.resnets.{r}.conv{c}.{p}": ramp((2, 3, 1, 1) if p == "weight" else (2,), torch.float32)
                 for b, r, c, p in itertools.product(range(12), range(2), (1, 2), ("weight", "bias"))}
    sets = {"every_dtype": every, "shapes": shapes, "unet_like": unet_like, "nothing": {}}
    for name, tensors in sets.items():
        safetensors.torch.save_file(tensors, OUT / "safetensors" / f"{name}.safetensors", metadata={"format": "pt"})
    (OUT / "safetensors" / "no_metadata.safetensors").write_bytes(safetensors.torch.save(shapes))
    # An old file: names in any order, header not padded, so that the data lies unaligned.
    header = b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[1,9]},"__metadata__":{},"y":{"data_offsets":[0,1],"shape":[1],"dtype":"U8"}}'
    header += b" " * (3 - len(header) % 8)
    old = len(header).to_bytes(8, "little") + header + b"\x07" + numpy.array([1.5, -2], "<f4").tobytes()
    loaded = safetensors.torch.load(old)
    assert loaded["x"].tolist() == [1.5, -2] and loaded["y"].tolist() == [7], "the reference must read it too"
    (OUT / "safetensors" / "unaligned.safetensors").write_bytes(old)


# ------------------------------------------------------------------------------------------------------------- parquet


def make_parquet():
    import datetime
    from decimal import Decimal

    n = 150
    some = lambda values: [None if i % 7 == 3 else v for i, v in enumerate(values)]
    images = [bytes([i]) * (i + 1) for i in range(n)]
    table = pyarrow.table({
        "jpg": pyarrow.array(some(images), pyarrow.binary()),
        "large": pyarrow.array(some(images), pyarrow.large_binary()),
        "fixed": pyarrow.array([b"%04d" % i for i in range(n)], pyarrow.binary(4)),
        "image": pyarrow.array(some([{"bytes": b, "path": f"{i}.jpg"} for i, b in enumerate(images)]),
                               pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])),
        "caption": pyarrow.array(some([f"caption {i} é" for i in range(n)])),
        "category": pyarrow.array(some([["cat", "dog"][i % 2] for i in range(n)])).dictionary_encode(),
        "width": pyarrow.array(some(list(range(n))), pyarrow.int32()),
        "small": pyarrow.array(range(n), pyarrow.uint8()),
        "hash": pyarrow.array([-(2**63) + i for i in range(n)], pyarrow.int64()),
        "huge": pyarrow.array([2**64 - 1 - i for i in range(n)], pyarrow.uint64()),
        "punsafe": pyarrow.array(some([i / 8 for i in range(n)]), pyarrow.float64()),
        "score": pyarrow.array([float("nan") if i == 5 else i / 4 for i in range(n)], pyarrow.float32()),
        "ok": pyarrow.array(some([i % 3 == 0 for i in range(n)])),
        "when": pyarrow.array([datetime.date(2024, 1, 1 + i % 28) for i in range(n)]),
        "tags": pyarrow.array([[i, i + 1] for i in range(n)], pyarrow.list_(pyarrow.int64())),
    })
    path = OUT / "parquet" / "rows.parquet"
    pyarrow.parquet.write_table(table, path, row_group_size=40, compression="zstd")
    empty = pyarrow.table({"jpg": pyarrow.array([], pyarrow.binary()), "caption": pyarrow.array([], pyarrow.string())})
    pyarrow.parquet.write_table(empty, OUT / "parquet" / "empty.parquet")

    other = pyarrow.table({
        "jpg": pyarrow.array([b"J\xff", None, b"x" * 40], pyarrow.binary_view()),
        "caption": pyarrow.array(["short", "a caption of more than twelve bytes", None], pyarrow.string_view()),
        "score": pyarrow.array([Decimal("0.25"), None, Decimal("-7.5")], pyarrow.decimal128(10, 4)),
        "wide": pyarrow.array([Decimal("1.5"), Decimal("1e40"), None], pyarrow.decimal256(50, 4)),
    })
    pyarrow.parquet.write_table(other, OUT / "parquet" / "views_decimals.parquet")

    lists = pyarrow.table({
        "jpg": pyarrow.array([b"J"] * 4, pyarrow.binary()),
        "texts": pyarrow.array([["a hen", "une \"poule\" é"], [], None, ["one", None]], pyarrow.list_(pyarrow.string())),
        "large": pyarrow.array([["x"], ["", "y"], ["z"], None], pyarrow.large_list(pyarrow.large_string())),
        "pair": pyarrow.array([["p", "q"], ["v", "w"], ["r", "s"], ["t", "u"]], pyarrow.list_(pyarrow.string(), 2)),
        "odd": pyarrow.ListArray.from_arrays([0, 1, 3, 4, 5], pyarrow.Array.from_buffers(
            pyarrow.string(), 5, pyarrow.array([b"caf\xe9", b"b", b"c", b"d", b"e"], pyarrow.binary()).buffers())),
    })
    pyarrow.parquet.write_table(lists, OUT / "parquet" / "captions.parquet")

    # Texts that are no UTF-8, within other values.
    texts = pyarrow.Array.from_buffers(pyarrow.string(), 3, pyarrow.array([b"caf\xe9", b"b", b"c"], pyarrow.binary()).buffers())
    numbers = pyarrow.array([1, 2, 3])
    odd = pyarrow.table({
        "row": numbers,
        "struct": pyarrow.StructArray.from_arrays([texts, numbers], ["text", "number"]),
        "map": pyarrow.MapArray.from_arrays([0, 1, 2, 3], texts, numbers),
        "maps": pyarrow.ListArray.from_arrays([0, 1, 2, 3], pyarrow.MapArray.from_arrays([0, 1, 2, 3], numbers, texts)),
    })
    pyarrow.parquet.write_table(odd, OUT / "parquet" / "odd_texts.parquet")

    dictionaries = pyarrow.table({
        "jpg": pyarrow.array([b"J\xff", None, b"x", b"J\xff"], pyarrow.binary()).dictionary_encode(),
        "caption": pyarrow.array(["a cat", "a dog", None, "a cat"]).dictionary_encode(),
        "place": pyarrow.array(["0.jpg", "1.jpg", "0.jpg", None], pyarrow.large_string()).dictionary_encode(),
        "class": pyarrow.array([3, 4, None, 3]).dictionary_encode(),
    })
    pyarrow.parquet.write_table(dictionaries, OUT / "parquet" / "dictionaries.parquet")

    stored = pyarrow.ExtensionArray.from_storage
    words = pyarrow.array(["a hen", "a hen", None])
    uuids = pyarrow.array([bytes(range(16)), b"\xff" * 16, None], pyarrow.binary(16))
    extensions = pyarrow.table({
        "jpg": pyarrow.array([b"J"] * 3, pyarrow.binary()),
        "json": stored(pyarrow.json_(), words),
        "uuid": stored(pyarrow.uuid(), uuids),
        "bool8": stored(pyarrow.bool8(), pyarrow.array([1, 0, None], pyarrow.int8())),
        "opaque": stored(pyarrow.opaque(pyarrow.list_(pyarrow.int32()), "t", "v"),
                         pyarrow.array([[1, 2], [], None], pyarrow.list_(pyarrow.int32()))),
        "jsons": pyarrow.ListArray.from_arrays([0, 2, 3, 3], stored(pyarrow.json_(), words)),
        "uuids": pyarrow.ListArray.from_arrays([0, 2, 3, 3], stored(pyarrow.uuid(), uuids)),
        "dictionaries": pyarrow.ListArray.from_arrays([0, 2, 3, 3], words.dictionary_encode()),
    })
    pyarrow.parquet.write_table(extensions, OUT / "parquet" / "extensions.parquet")
    # As writers other than Arrow's have it: Parquet's own types alone.
    pyarrow.parquet.write_table(extensions.select(["json", "uuid"]), OUT / "parquet" / "logical_types.parquet",
                                store_schema=False)

    def plain(name, value):
        if name == "image" and value is not None:
            value = value["bytes"]
        if name in ("when", "tags"):
            return None
        return value.decode("latin-1") if isinstance(value, bytes) else None if value != value else value

    rows = [[plain(name, row[name]) for name in table.column_names] for row in pyarrow.parquet.read_table(path).to_pylist()]
    return {"columns": table.column_names, "rows": rows}


def make_nested_parquet():
    """Several values in a cell; the reference is pyarrow's to_pylist, in JSON as img2dataset writes it."""
    pa = pyarrow
    struct = pa.struct([("z", pa.int32()), ("a", pa.string())])
    table = pa.table({
        "lists": pa.array([[[1.5, 2.0], [3.0]], [], None, [None, [float("nan")]]], pa.list_(pa.list_(pa.float64()))),
        "ints": pa.array([[1, -2], [None], None, []], pa.list_(pa.int64())),
        "bools": pa.array([[True, None], [], None, [False]], pa.list_(pa.bool_())),
        "texts": pa.array([[["x", 'q"é']], [], None, [None, []]], pa.large_list(pa.large_list(pa.large_string()))),
        "fixed": pa.array([[0.5, 2.0], [3.0, 4.0], [1.0, -1.0], [5.0, None]], pa.list_(pa.float32(), 2)),
        "struct": pa.array([{"z": 1, "a": 'x"y'}, {"z": None, "a": None}, None, {"z": 4, "a": ""}], struct),
        "structs": pa.array([[{"z": 1, "a": "b"}, None], [], None, [{"z": 2, "a": None}]], pa.list_(struct)),
        "map": pa.array([[("k", 1), ("k", None)], [], None, [("l", 2)]], pa.map_(pa.string(), pa.int64())),
        "maps": pa.array([{"m": [(7, [1])]}, {"m": []}, None, {"m": None}],
                         pa.struct([("m", pa.map_(pa.int32(), pa.list_(pa.int8())))])),
    })
    path = OUT / "parquet" / "nested.parquet"
    pyarrow.parquet.write_table(table, path, row_group_size=3)

    def plain(value):
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        if isinstance(value, dict):
            return {name: plain(item) for name, item in value.items()}
        return None if value != value else value

    rows = [plain(list(row.values())) for row in pyarrow.parquet.read_table(path).to_pylist()]
    return {"columns": table.column_names, "rows": rows}


def write_json(name, value):
    (OUT / name).write_text(json.dumps(value, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    for part in ("tar", "safetensors", "parquet"):
        (OUT / part).mkdir(parents=True)
    write_json("tar.json", make_tars())
    write_json("braces.json", make_braces())
    make_safetensors()
    write_json("parquet.json", make_parquet())
    write_json("nested.json", make_nested_parquet())
    write_json("versions.json", {
        "python": platform.python_version(), "webdataset": webdataset.__version__, "braceexpand": braceexpand.__version__,
        "safetensors": safetensors.__version__, "torch": torch.__version__, "pyarrow": pyarrow.__version__})


if __name__ == "__main__":
    main()
