"""Goldens of io/lists.h: text lists and the rows that Python's csv and json modules read in them.

Run:  python3 scripts/goldens/lists.py      (standard library only; writes tests/golden/io/lists)
"""

import csv
import gzip
import io
import json
import pathlib
import random

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "io" / "lists"

HEADER = ["url", "TEXT", "width", "note"]
ROWS = [
    ["http://a/1.jpg", "plain", "512", ""],
    ["http://a/2.jpg?x=1,2", 'a "quoted", caption', "007", "-"],
    ["http://a/3.jpg", "two\nlines", "", "tab\there"],
    ["http://a/4.jpg", "windows\r\nline", "1e3", '"'],
    ["http://a/5.jpg", "naïve 日本 🎈", "-3.5", " spaces "],
    ["", "", "", ""],
    ["http://a/7.jpg", 'inner"quote', "x", "'"],
]


def random_rows(count=200):
    draw = random.Random(420)
    alphabet = ['"', ",", "\n", "\r\n", "\t", " ", "a", "é", "'", "0"]
    return [["".join(draw.choice(alphabet) for _ in range(draw.randrange(6))) + "." for _ in HEADER] for _ in range(count)]


def table(name, dialect, rows, line_end="\n", quoting=csv.QUOTE_MINIMAL, bom=False, last_line_end=True, extra=""):
    text = io.StringIO(newline="")
    writer = csv.writer(text, dialect=dialect, lineterminator=line_end, quoting=quoting)
    writer.writerow(HEADER)
    writer.writerows(rows)
    text = text.getvalue() + extra
    if not last_line_end:
        text = text.removesuffix(line_end)
    data = (b"\xef\xbb\xbf" if bom else b"") + text.encode()
    (OUT / name).write_bytes(gzip.compress(data, mtime=0) if name.endswith(".gz") else data)
    read = [row for row in csv.reader(io.StringIO(text, newline=""), dialect=dialect) if row]
    return {"header": read[0], "rows": read[1:]}


def json_lines(name):
    rows = [
        {"url": "http://a/1", "text": "é \u2028 \"x\"", "n": 1, "f": 0.5, "big": 2**63, "t": True, "none": None},
        {"url": "http://a/2", "list": [1, "a", None], "map": {"k": [1.5]}},
        {"text": "only this"},
        {},
    ]
    text = "\n\n".join(json.dumps(row, ensure_ascii=i % 2 == 0) for i, row in enumerate(rows)) + "\n"
    data = text.encode()
    (OUT / name).write_bytes(gzip.compress(data, mtime=0) if name.endswith(".gz") else data)
    return {"rows": [json.loads(line) for line in text.split("\n") if line]}


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    expected = {
        "plain.csv": table("plain.csv", "excel", ROWS),
        "windows.csv": table("windows.csv", "excel", ROWS, line_end="\r\n", bom=True),
        "all_quoted.csv": table("all_quoted.csv", "excel", ROWS, quoting=csv.QUOTE_ALL, last_line_end=False),
        "random.csv.gz": table("random.csv.gz", "excel", random_rows()),
        "plain.tsv": table("plain.tsv", "excel-tab", ROWS),
        "random.tsv.gz": table("random.tsv.gz", "excel-tab", random_rows(), line_end="\r\n"),
        "empty_lines.csv": table("empty_lines.csv", "excel", ROWS, extra="\n\nhttp://a/8.jpg,x,y,z\n\n"),
        "header_only.csv": table("header_only.csv", "excel", []),
        "rows.jsonl": json_lines("rows.jsonl"),
        "rows.jsonl.gz": json_lines("rows.jsonl.gz"),
    }
    (OUT / "lists.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
