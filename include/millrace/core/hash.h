#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

// XXH3 of xxHash: 64 bits for ids, 128 for the integrity of files.
namespace millrace {

struct Hash128 {
  std::uint64_t high = 0, low = 0;
  bool operator==(const Hash128&) const = default;
  std::string hex() const;
  static Hash128 from_hex(std::string_view hex);  // Error(io) when it is not 32 hex digits
};

std::uint64_t hash64(std::string_view bytes);
Hash128 hash128(std::string_view bytes);

class Hasher128 {
 public:
  Hasher128();
  ~Hasher128();
  Hasher128(Hasher128&&) noexcept;
  Hasher128& operator=(Hasher128&&) noexcept;
  void update(const void* data, std::size_t bytes);
  Hash128 digest() const;

 private:
  void* state_;
};

}  // namespace millrace
