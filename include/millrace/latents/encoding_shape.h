#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace millrace {

// Of one sample's encoding: moments in half precision, and what is kept of its caption.
struct EncodingShape {
  std::vector<std::int64_t> moments;  // (channels, h, w)
  std::vector<std::int64_t> text;     // (77, C): text embeddings in half precision; (77): tokens, i32
  bool operator==(const EncodingShape&) const = default;

  // Text embeddings are made by trainers.
  bool has_tokens() const { return text.size() == 1; }
  // In files.
  const char* text_name() const { return has_tokens() ? "tokens" : "text"; }
};

// The numbers in a tensor of this shape.
std::size_t count_of(const std::vector<std::int64_t>& shape);
std::size_t encoding_bytes(const EncodingShape& shape);

}  // namespace millrace
