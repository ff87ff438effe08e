#pragma once
#include <array>
#include <cstdint>
#include <span>

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11): random numbers as a pure
// function of who asks, so that no generator object travels and any rank count draws the same numbers.
namespace millrace {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key);

// What a number is for. Part of the counter, so two purposes never share numbers. Values are part of the format: only
// append.
enum class Purpose : std::uint32_t {
  crop = 1,
  flip = 2,
  posterior = 3,
  noise = 4,
  timestep = 5,
  caption_drop = 6,
  shuffle = 7,
  assign_splits = 8,
  noise_offset = 9,
  input_perturbation = 10,
  weights = 11,
  initial_latents = 12,
  timestep_part = 13,
  caption_choice = 14,
};

// Key = (seed low, seed high); counter = (block, purpose << 24 | epoch (24 bits), id low, id high).
struct RngKey {
  std::uint64_t seed = 0;
  std::uint64_t sample = 0;  // XXH3-64 of the sample's id string
  std::uint32_t epoch = 0;
};

// What determines a key's numbers for one purpose, on the host and on a GPU: the two words of the key, then the last
// three of the counter, whose first is the number of the block.
using PhiloxWords = std::array<std::uint32_t, 5>;
PhiloxWords philox_words(const RngKey& key, Purpose purpose);
// Four 32-bit numbers of block `block`.
PhiloxCounter random_block(const RngKey& key, Purpose purpose, std::uint32_t block);
// 0 <= x < 1, 24 bits: number `index` of the sequence.
float uniform(const RngKey& key, Purpose purpose, std::uint32_t index = 0);
// 0 <= n < bound, without modulo bias beyond 2^-64 (64-bit multiply-shift of two words).
std::uint64_t uniform_int(const RngKey& key, Purpose purpose, std::uint64_t bound, std::uint32_t index = 0);
// Fills `out` with unit normals (Box-Muller, two per pair of words, fp32), numbers first, first + 1, ...; first
// divisible by 4.
void fill_normal(const RngKey& key, Purpose purpose, std::span<float> out, std::uint32_t first = 0);
// Keyed permutation of 0..n-1 (Fisher-Yates over uniform_int).
void keyed_shuffle(const RngKey& key, Purpose purpose, std::span<std::uint32_t> values);

}  // namespace millrace
