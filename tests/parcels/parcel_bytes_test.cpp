#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>

#include "millrace/core/error.h"
#include "unpack_parcel.h"

namespace millrace {
namespace {

using test::unpack_parcel;

ParcelContent small_parcel() {
  ParcelContent content;
  content.stripe = 5;
  content.report.images = 123;
  content.report.readers.tokenize = 4.5;
  content.report.send_wait_seconds = 0.25;
  content.ledger_delta = std::string("delta\0of the ledger", 18);
  for (const char* id : {"a.tar/0001", "a.tar/\xc3\xa4 long name", ""}) {
    SampleRef ref;
    ref.id = id;
    ref.hash = 0xfedcba9876543210u + content.batch.refs.size();
    ref.epoch = 3;
    ref.stripe = 5;
    ref.after = {
        .epoch = 3, .split = 7, .row = 1ull << 40, .given = static_cast<std::uint32_t>(content.batch.refs.size())};
    content.batch.refs.push_back(ref);
  }
  content.batch.moments = torch::arange(3 * 8 * 2 * 3, torch::kFloat32).view({3, 8, 2, 3}).to(torch::kHalf);
  content.batch.text = torch::arange(3 * 4 * 5, torch::kFloat32).view({3, 4, 5}).neg().to(torch::kHalf);
  return content;
}

// encode.text_on=trainer
ParcelContent small_parcel_of_tokens() {
  auto content = small_parcel();
  content.batch.text = torch::arange(3 * 4, torch::kInt32).view({3, 4}) * 4000;
  return content;
}

void expect_equal(const ParcelContent& a, const ParcelContent& b) {
  EXPECT_EQ(a.stripe, b.stripe);
  EXPECT_EQ(a.ledger_delta, b.ledger_delta);
  EXPECT_EQ(a.report.images, b.report.images);
  EXPECT_EQ(a.report.readers.tokenize, b.report.readers.tokenize);
  EXPECT_EQ(a.report.send_wait_seconds, b.report.send_wait_seconds);
  ASSERT_EQ(a.batch.refs.size(), b.batch.refs.size());
  for (std::size_t i = 0; i < a.batch.refs.size(); ++i) {
    const auto &x = a.batch.refs[i], &y = b.batch.refs[i];
    EXPECT_EQ(x.id, y.id);
    EXPECT_EQ(x.hash, y.hash);
    EXPECT_EQ(x.epoch, y.epoch);
    EXPECT_EQ(x.stripe, y.stripe);
    EXPECT_EQ(x.after, y.after);
  }
  EXPECT_TRUE(torch::equal(a.batch.moments, b.batch.moments));
  EXPECT_TRUE(torch::equal(a.batch.text, b.batch.text));
}

// What is not a whole parcel is an Error(io) or, where only values changed, another parcel of the right shapes.
void expect_refused_or_sound(const std::vector<std::byte>& bytes) {
  try {
    const auto content = unpack_parcel(bytes);
    const auto count = static_cast<std::int64_t>(content.batch.refs.size());
    EXPECT_EQ(content.batch.moments.size(0), count);
    EXPECT_EQ(content.batch.text.size(0), count);
    EXPECT_LE(content.batch.moments.nbytes() + content.batch.text.nbytes(), bytes.size());
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::io) << error.what();
  }
}

TEST(Parcel, ComesOutAsItWentIn) {
  const auto content = small_parcel();
  const auto bytes = pack_parcel(content);
  expect_equal(unpack_parcel(bytes), content);
  EXPECT_LE(bytes.size(), parcel_capacity_bytes(3, {{8, 2, 3}, {4, 5}}, 32, content.ledger_delta.size()));
}

TEST(Parcel, MayHoldTokensInPlaceOfTextEmbeddings) {
  const auto content = small_parcel_of_tokens();
  const auto bytes = pack_parcel(content);
  expect_equal(unpack_parcel(bytes), content);
  EXPECT_EQ(pack_parcel(small_parcel()).size() - bytes.size(),
            3 * (4 * 5 * sizeof(std::uint16_t) - 4 * sizeof(std::int32_t)));
  EXPECT_LE(bytes.size(), parcel_capacity_bytes(3, {{8, 2, 3}, {4}}, 32, content.ledger_delta.size()));
}

TEST(Parcel, OwnsItsMemoryWhereverTheBytesLay) {
  const auto content = small_parcel();
  const auto packed = pack_parcel(content);
  std::vector<std::byte> shifted(packed.size() + 1);
  std::memcpy(shifted.data() + 1, packed.data(), packed.size());
  const auto out = unpack_parcel(std::span(shifted).subspan(1));
  std::fill(shifted.begin(), shifted.end(), std::byte{0xff});
  expect_equal(out, content);
}

TEST(Parcel, MayHoldNoSample) {
  ParcelContent content;
  content.ledger_delta = "only delta";
  content.batch.moments = torch::zeros({0, 8, 2, 2}, torch::kHalf);
  content.batch.text = torch::zeros({0, 77, 4}, torch::kHalf);
  auto bytes = pack_parcel(content);
  expect_equal(unpack_parcel(bytes), content);
  // Sides that no tensor has, not even an empty one.
  std::fill(bytes.begin() + 16, bytes.begin() + 28, std::byte{0xFF});
  EXPECT_THROW(unpack_parcel(bytes), Error);
}

TEST(Parcel, EveryTruncationIsRefused) {
  for (const auto& bytes : {pack_parcel(small_parcel()), pack_parcel(small_parcel_of_tokens())}) {
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      try {
        unpack_parcel(std::span(bytes).first(size));
        ADD_FAILURE() << size << " of " << bytes.size() << " bytes were taken for a parcel";
      } catch (const Error& error) {
        EXPECT_EQ(error.exit(), Exit::io) << error.what();
      }
    }
    auto longer = bytes;
    longer.push_back(std::byte{0});
    EXPECT_THROW(unpack_parcel(longer), Error);
  }
}

TEST(Parcel, NoSingleWrongByteBreaksTheReader) {
  for (const auto& bytes : {pack_parcel(small_parcel()), pack_parcel(small_parcel_of_tokens())})
    for (std::size_t at = 0; at < bytes.size(); ++at)
      for (const std::byte flip : {std::byte{0x01}, std::byte{0x80}, std::byte{0xff}}) {
        auto damaged = bytes;
        damaged[at] ^= flip;
        expect_refused_or_sound(damaged);
      }
}

}  // namespace
}  // namespace millrace
