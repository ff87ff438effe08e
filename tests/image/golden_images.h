#pragma once
#include <openssl/sha.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "millrace/image/image.h"
#include "test_data.h"

// The images of scripts/goldens/transform.py and what Pillow makes of them.
namespace millrace {

inline std::string golden_file(const std::string& name) {
  std::ifstream file(test::data_dir() / "transform" / name, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

// File name -> expectation.
inline const nlohmann::json& golden_images() {
  static const nlohmann::json expected = nlohmann::json::parse(golden_file("expected.json"));
  return expected["files"];
}

inline std::string sha256(const Image& image) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(image.pixels.data(), image.pixels.size(), digest);
  std::string hex;
  for (unsigned char byte : digest) {
    for (int nibble : {byte >> 4, byte & 15}) hex += "0123456789abcdef"[nibble];
  }
  return hex;
}

// The first pixels of the middle row, as in expected.json.
inline std::vector<int> probe_pixels(const Image& image) {
  const auto* row = image.pixels.data() + static_cast<std::size_t>(image.height / 2) * image.width * 3;
  return {row, row + 3 * std::min(image.width, 4)};
}

}  // namespace millrace
