#!/usr/bin/env python3
"""Writes html_entities_table.cpp: HTML's named characters (the WHATWG list, as Python's html.entities has it).

    python3 scripts/html_entities.py OUT      the build does (src/text/CMakeLists.txt)
"""
import sys
from html.entities import html5

HEAD = """// Made by scripts/html_entities.py.
#include "html_entities.h"

// clang-format off
namespace millrace {

namespace {
constexpr HtmlEntity table[] = {"""
TAIL = """};
}  // namespace

std::span<const HtmlEntity> html_entity_table() { return table; }

}  // namespace millrace"""
WIDTH = 118


def literal(text):
    """A C++ string literal; universal names may not spell what ASCII has."""
    known = {"\t": "\\t", "\n": "\\n", '"': '\\"', "\\": "\\\\"}
    spell = lambda c: known.get(c) or (c if c < "\x7f" else f"\\u{ord(c):04X}" if c <= "\uffff" else f"\\U{ord(c):08X}")
    return '"' + "".join(map(spell, text)) + '"'


def main():
    lines = [HEAD]
    line = "   "
    for name in sorted(name[:-1] for name in html5 if name.endswith(";")):
        entry = f" {{{literal(name)}, {literal(html5[name + ';'])}, {'true' if name in html5 else 'false'}}},"
        if len(line) + len(entry) > WIDTH:
            lines.append(line)
            line = "   "
        line += entry
    with open(sys.argv[1], "w", encoding="ascii") as out:
        out.write("\n".join([*lines, line, TAIL, ""]))


if __name__ == "__main__":
    main()
