#include "millrace/io/finite.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "millrace/core/error.h"
#include "millrace/io/half.h"

namespace millrace {

namespace {

template <class Word>
Word word_at(std::span<const std::byte> bytes, std::size_t element) {
  Word word;
  std::memcpy(&word, bytes.data() + element * sizeof word, sizeof word);
  return word;
}

// The first element whose exponent bits are all set. Block by block without a branch inside, so that the compiler makes
// vector instructions of it and memory is what takes the time.
template <class Word>
std::optional<std::size_t> find_full_exponent(std::span<const std::byte> bytes, Word exponent) {
  constexpr std::size_t block = 4096;
  const std::size_t size = bytes.size() / sizeof(Word);
  for (std::size_t begin = 0; begin < size; begin += block) {
    const std::size_t end = std::min(size, begin + block);
    Word found = 0;
    for (std::size_t i = begin; i < end; ++i) found |= (word_at<Word>(bytes, i) & exponent) == exponent;
    if (!found) continue;
    for (std::size_t i = begin; i < end; ++i) {
      if ((word_at<Word>(bytes, i) & exponent) == exponent) return i;
    }
  }
  return std::nullopt;
}

// `value_of` makes a number of the bits.
template <class Word, class Function>
std::optional<NonFinite> find(std::span<const std::byte> bytes, Word exponent, Function value_of) {
  const auto element = find_full_exponent(bytes, exponent);
  if (!element) return std::nullopt;
  return NonFinite{*element, value_of(word_at<Word>(bytes, *element))};
}

}  // namespace

std::optional<NonFinite> find_non_finite(DType dtype, std::span<const std::byte> bytes) {
  const auto from_single = [](std::uint32_t bits) { return std::bit_cast<float>(bits); };
  switch (dtype) {
    case DType::f16:
      return find<std::uint16_t>(bytes, 0x7C00, from_half);
    case DType::bf16:
      return find<std::uint16_t>(bytes, 0x7F80,
                                 [&](std::uint16_t bits) { return from_single(std::uint32_t{bits} << 16); });
    case DType::f32:
      return find<std::uint32_t>(bytes, 0x7F800000, from_single);
    case DType::f64:
      return find<std::uint64_t>(bytes, 0x7FF0000000000000,
                                 [](std::uint64_t bits) { return std::bit_cast<double>(bits); });
    default:
      return std::nullopt;
  }
}

void refuse_non_finite(const fs::path& file, std::string_view tensor, DType dtype, std::span<const std::byte> bytes) {
  const auto found = find_non_finite(dtype, bytes);
  if (!found) return;
  throw Error(Exit::io,
              fmt::format("{}: '{}' holds {} (element {})", file.string(), tensor, found->value, found->element),
              "the weights come from a run that diverged, or the file is damaged: take an older one");
}

}  // namespace millrace
