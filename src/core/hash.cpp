#include "millrace/core/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <new>
#include <utility>

#include "millrace/core/error.h"
#include "millrace/core/text.h"

namespace millrace {

namespace {

Hash128 from_xxh(XXH128_hash_t hash) {
  return {hash.high64, hash.low64};
}

}  // namespace

std::string Hash128::hex() const {
  return fmt::format("{:016x}{:016x}", high, low);
}

Hash128 Hash128::from_hex(std::string_view hex) {
  if (hex.size() == 32) {
    const auto high = parse_number<std::uint64_t>(hex.substr(0, 16), 16);
    const auto low = parse_number<std::uint64_t>(hex.substr(16), 16);
    if (high && low) return {*high, *low};
  }
  fail(Exit::io, "'{}' is not a digest of 32 hexadecimal digits", hex);
}

std::uint64_t hash64(std::string_view bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

Hash128 hash128(std::string_view bytes) {
  return from_xxh(XXH3_128bits(bytes.data(), bytes.size()));
}

Hasher128::Hasher128() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  XXH3_128bits_reset(static_cast<XXH3_state_t*>(state_));
}

Hasher128::~Hasher128() {
  XXH3_freeState(static_cast<XXH3_state_t*>(state_));
}

Hasher128::Hasher128(Hasher128&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}

Hasher128& Hasher128::operator=(Hasher128&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}

void Hasher128::update(const void* data, std::size_t bytes) {
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state_), data, bytes);
}

Hash128 Hasher128::digest() const {
  return from_xxh(XXH3_128bits_digest(static_cast<const XXH3_state_t*>(state_)));
}

}  // namespace millrace
