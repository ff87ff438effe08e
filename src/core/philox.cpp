#include "millrace/core/philox.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "millrace/core/error.h"
#include "millrace/core/philox_math.h"

namespace millrace {

namespace {

// Sixteen blocks at a time, one array per word, is what the compiler turns into vector instructions.
constexpr std::size_t lanes = 16;
constexpr std::size_t lane_numbers = 4 * lanes;

struct Words {
  alignas(64) std::uint32_t w[4][lanes];
};

PhiloxCounter counter_of(const RngKey& key, Purpose purpose, std::uint32_t block) {
  return {block, philox_math::purpose_and_epoch(static_cast<std::uint32_t>(purpose), key.epoch),
          static_cast<std::uint32_t>(key.sample), static_cast<std::uint32_t>(key.sample >> 32)};
}

PhiloxKey key_of(const RngKey& key) {
  return {static_cast<std::uint32_t>(key.seed), static_cast<std::uint32_t>(key.seed >> 32)};
}

// No clone has fused multiply-add, so all of them give the same bits.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define MILLRACE_VECTOR_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define MILLRACE_VECTOR_CLONES
#endif

// Unit normals of blocks counter[0], counter[0] + 1, ...: numbers 4 i .. 4 i + 3 of `out` come from block i.
MILLRACE_VECTOR_CLONES
void normals_of_blocks(const PhiloxCounter& counter, const PhiloxKey& key, float* out) {
  Words words;
  for (std::size_t i = 0; i < lanes; ++i) {
    std::uint32_t c0 = counter[0] + static_cast<std::uint32_t>(i), c1 = counter[1], c2 = counter[2], c3 = counter[3];
    philox_math::rounds(c0, c1, c2, c3, key[0], key[1]);
    words.w[0][i] = c0;
    words.w[1][i] = c1;
    words.w[2][i] = c2;
    words.w[3][i] = c3;
  }
  alignas(64) float normals[4][lanes];
  for (std::size_t pair = 0; pair < 4; pair += 2) {
    for (std::size_t i = 0; i < lanes; ++i) {
      const float radius = std::sqrt(philox_math::squared_radius(words.w[pair][i]));
      float cosine, sine;
      philox_math::cos_sin_turn(words.w[pair + 1][i], cosine, sine);
      normals[pair][i] = radius * cosine;
      normals[pair + 1][i] = radius * sine;
    }
  }
  for (std::size_t i = 0; i < lanes; ++i) {
    for (std::size_t j = 0; j < 4; ++j) out[4 * i + j] = normals[j][i];
  }
}

}  // namespace

PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key) {
  philox_math::rounds(counter[0], counter[1], counter[2], counter[3], key[0], key[1]);
  return counter;
}

PhiloxWords philox_words(const RngKey& key, Purpose purpose) {
  const auto counter = counter_of(key, purpose, 0);
  const auto philox_key = key_of(key);
  return {philox_key[0], philox_key[1], counter[1], counter[2], counter[3]};
}

PhiloxCounter random_block(const RngKey& key, Purpose purpose, std::uint32_t block) {
  return philox4x32(counter_of(key, purpose, block), key_of(key));
}

float uniform(const RngKey& key, Purpose purpose, std::uint32_t index) {
  return philox_math::unit_interval(random_block(key, purpose, index / 4)[index % 4]);
}

std::uint64_t uniform_int(const RngKey& key, Purpose purpose, std::uint64_t bound, std::uint32_t index) {
  ensure(bound > 0, "uniform_int needs a positive bound");
  const PhiloxCounter block = random_block(key, purpose, index / 2);
  const std::size_t word = index % 2 * 2;
  const std::uint64_t random = block[word] | std::uint64_t{block[word + 1]} << 32;
  return static_cast<std::uint64_t>(static_cast<unsigned __int128>(random) * bound >> 64);
}

void fill_normal(const RngKey& key, Purpose purpose, std::span<float> out, std::uint32_t first) {
  ensure(first % 4 == 0, "normals start at a whole block");
  PhiloxCounter counter = counter_of(key, purpose, first / 4);
  const PhiloxKey philox_key = key_of(key);
  while (out.size() >= lane_numbers) {
    normals_of_blocks(counter, philox_key, out.data());
    counter[0] += lanes;
    out = out.subspan(lane_numbers);
  }
  if (out.empty()) return;
  float rest[lane_numbers];
  normals_of_blocks(counter, philox_key, rest);
  std::copy_n(rest, out.size(), out.begin());
}

void keyed_shuffle(const RngKey& key, Purpose purpose, std::span<std::uint32_t> values) {
  for (std::size_t i = values.size(); i > 1; --i) {
    const auto last = static_cast<std::uint32_t>(i - 1);
    std::swap(values[last], values[uniform_int(key, purpose, i, last)]);
  }
}

}  // namespace millrace
