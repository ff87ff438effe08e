#pragma once

namespace millrace {

// U+0080 to U+009F are control characters that nobody means; where they turn up, a byte of Windows-1252 was taken for
// one of Latin-1. Gives the character that the byte stands for; every other character, and the five bytes without one,
// stay.
constexpr char32_t from_windows_1252(char32_t c) {
  constexpr char32_t characters[32] = {0x20AC, 0x81,   0x201A, 0x192,  0x201E, 0x2026, 0x2020, 0x2021,
                                       0x2C6,  0x2030, 0x160,  0x2039, 0x152,  0x8D,   0x17D,  0x8F,
                                       0x90,   0x2018, 0x2019, 0x201C, 0x201D, 0x2022, 0x2013, 0x2014,
                                       0x2DC,  0x2122, 0x161,  0x203A, 0x153,  0x9D,   0x17E,  0x178};
  return c >= 0x80 && c <= 0x9F ? characters[c - 0x80] : c;
}

}  // namespace millrace
