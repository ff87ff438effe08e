#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace millrace {

// Parcel n of a test: its length and content follow from n and its producer.
inline std::vector<std::byte> make_parcel(int producer, std::uint32_t n, std::size_t longest) {
  std::vector<std::byte> parcel(n * 7919 % (longest + 1));
  for (std::size_t i = 0; i < parcel.size(); ++i) parcel[i] = static_cast<std::byte>(i * 31 + n * 7 + producer);
  return parcel;
}

inline bool is_parcel(std::span<const std::byte> bytes, int producer, std::uint32_t n, std::size_t longest) {
  const auto expected = make_parcel(producer, n, longest);
  return std::vector<std::byte>(bytes.begin(), bytes.end()) == expected;
}

}  // namespace millrace
