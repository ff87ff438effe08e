#include <array>

#include "millrace/core/storage_error.h"
#include "millrace/io/safetensors.h"
#include "support.h"

namespace millrace::test {
namespace {

std::string file_bytes(const std::string& header, std::size_t data_bytes) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i));
  return bytes + header + std::string(data_bytes, 'd');
}

std::string with_length(std::uint64_t length, const std::string& rest) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i));
  return bytes + rest;
}

constexpr const char* good = R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

TEST(Safetensors, ReadsAFile) {
  const SafetensorsHeader header = parse_safetensors(as_bytes(file_bytes(good, 8)), "x");
  ASSERT_EQ(header.tensors.size(), 1u);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[0].dtype, DType::f32);
  EXPECT_EQ(header.tensors[0].shape, std::vector<std::int64_t>{2});
  EXPECT_EQ(header.metadata.at("format"), "pt");
}

TEST(Safetensors, ReadsOldUnpaddedFiles) {
  const SafetensorsFile file(golden("safetensors/unaligned.safetensors"));
  std::array<float, 2> x{};
  ASSERT_EQ(file.bytes("x").size(), sizeof x);
  std::memcpy(x.data(), file.bytes("x").data(), sizeof x);
  EXPECT_EQ(x, (std::array<float, 2>{1.5f, -2.0f}));
  const auto header = read_safetensors_header(InputFile(file.path().string()), "x");
  EXPECT_NE((header.data_offset + file.info("x").begin) % 4, 0u) << "the point of this file";
  EXPECT_EQ(std::to_integer<int>(file.bytes("y")[0]), 7);
  EXPECT_TRUE(file.metadata().empty());
  EXPECT_EQ(file.tensors().front().name, "y");
}

TEST(Safetensors, ReadsEveryDtypeShapeAndName) {
  const SafetensorsFile all(golden("safetensors/every_dtype.safetensors"));
  EXPECT_EQ(all.tensors().size(), 38u);
  EXPECT_EQ(all.info("b.complex64").dtype, DType::c64);
  EXPECT_EQ(all.bytes("b.bfloat16").size(), 12u);
  const SafetensorsFile shapes(golden("safetensors/shapes.safetensors"));
  EXPECT_EQ(shapes.bytes("scalar").size(), 4u);
  EXPECT_EQ(shapes.info("empty2").shape, (std::vector<std::int64_t>{4, 0, 2}));
  EXPECT_TRUE(shapes.contains("Ünï \"quoted\"\\\n\t\x01/"));
  EXPECT_TRUE(SafetensorsFile(golden("safetensors/nothing.safetensors")).tensors().empty());
}

TEST(Safetensors, AnAbsentTensorIsNamedWithItsFile) {
  const SafetensorsFile file(golden("safetensors/shapes.safetensors"));
  const Error error = error_of([&] { file.bytes("conv_in.weight"); });
  EXPECT_EQ(error.exit(), Exit::io);
  EXPECT_NE(std::string(error.what()).find("shapes.safetensors"), std::string::npos);
  EXPECT_NE(std::string(error.what()).find("'conv_in.weight'"), std::string::npos);
}

struct Hostile {
  const char* what;
  std::string bytes;
};

std::vector<Hostile> hostile_files() {
  const auto tensor = [](const std::string& inside, std::size_t data_bytes) {
    return file_bytes("{\"a\":{" + inside + "}}", data_bytes);
  };
  return {
      {"nothing", ""},
      {"too short for a length", "1234567"},
      {"a length of zero", with_length(0, "")},
      {"a length beyond the file", with_length(1000, good)},
      {"a length of 2^64 - 1", with_length(~0ull, good)},
      {"a length that wraps when 8 is added", with_length(~0ull - 7, good)},
      {"a length above the limit", with_length(100'000'001, good)},
      {"a header that is a list", file_bytes("[]", 0)},
      {"a header that starts with a space", file_bytes(std::string(" ") + good, 8)},
      {"a header behind a byte order mark", file_bytes(std::string("\xef\xbb\xbf") + good, 8)},
      {"a header that ends early", file_bytes(R"({"a":{"dtype":"F32","shape":[2],)", 8)},
      {"two values", file_bytes(std::string(good) + "{}", 8)},
      {"zeros as padding", file_bytes(std::string(good) + std::string(3, '\0'), 8)},
      {"invalid UTF-8", file_bytes("{\"\xff\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1)},
      {"a name twice",
       file_bytes(
           R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
           2)},
      {"a name twice, once escaped",
       file_bytes(
           R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\u0061":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
           2)},
      {"metadata twice", file_bytes(R"({"__metadata__":{},"__metadata__":{}})", 0)},
      {"a metadata key twice", file_bytes(R"({"__metadata__":{"a":"1","a":"2"}})", 0)},
      {"a number in the metadata", file_bytes(R"({"__metadata__":{"a":1}})", 0)},
      {"an object in the metadata", file_bytes(R"({"__metadata__":{"a":{}}})", 0)},
      {"metadata that is text", file_bytes(R"({"__metadata__":"pt"})", 0)},
      {"a tensor that is a list", file_bytes(R"({"a":[]})", 0)},
      {"a tensor that is null", file_bytes(R"({"a":null})", 0)},
      {"an unknown dtype", tensor(R"("dtype":"F128","shape":[1],"data_offsets":[0,16])", 16)},
      {"a dtype in lower case", tensor(R"("dtype":"f32","shape":[1],"data_offsets":[0,4])", 4)},
      {"a dtype that is a number", tensor(R"("dtype":4,"shape":[1],"data_offsets":[0,4])", 4)},
      {"no dtype", tensor(R"("shape":[1],"data_offsets":[0,4])", 4)},
      {"no shape", tensor(R"("dtype":"F32","data_offsets":[0,4])", 4)},
      {"no offsets", tensor(R"("dtype":"F32","shape":[1])", 4)},
      {"a dtype twice", tensor(R"("dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4])", 4)},
      {"an unknown key", tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"strides":[1])", 4)},
      {"a negative dimension", tensor(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])", 4)},
      {"a fractional dimension", tensor(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])", 4)},
      {"a dimension as text", tensor(R"("dtype":"F32","shape":["1"],"data_offsets":[0,4])", 4)},
      {"a nested shape", tensor(R"("dtype":"F32","shape":[[1]],"data_offsets":[0,4])", 4)},
      {"a dimension of 2^63", tensor(R"("dtype":"U8","shape":[9223372036854775808,0],"data_offsets":[0,0])", 0)},
      {"a dimension of 2^64", tensor(R"("dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,0])", 0)},
      {"a product that wraps to 0", tensor(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])", 0)},
      {"a product that wraps before a 0",
       tensor(R"("dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0])", 0)},
      {"a size that wraps with the dtype",
       tensor(R"("dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0])", 0)},
      {"half a byte", tensor(R"("dtype":"F4","shape":[3],"data_offsets":[0,2])", 2)},
      {"one offset", tensor(R"("dtype":"U8","shape":[1],"data_offsets":[0])", 1)},
      {"three offsets", tensor(R"("dtype":"U8","shape":[1],"data_offsets":[0,1,1])", 1)},
      {"a negative offset", tensor(R"("dtype":"U8","shape":[1],"data_offsets":[-1,0])", 1)},
      {"offsets in reverse", tensor(R"("dtype":"U8","shape":[1],"data_offsets":[1,0])", 1)},
      {"offsets beyond the file", tensor(R"("dtype":"U8","shape":[8],"data_offsets":[0,8])", 4)},
      {"offsets near 2^64", tensor(R"("dtype":"U8","shape":[1],"data_offsets":[18446744073709551615,0])", 1)},
      {"too few bytes for the shape", tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])", 4)},
      {"too many bytes for the shape", tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,8])", 8)},
      {"a hole at the start", tensor(R"("dtype":"U8","shape":[1],"data_offsets":[1,2])", 2)},
      {"a hole between",
       file_bytes(
           R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
           3)},
      {"an overlap",
       file_bytes(
           R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
           3)},
      {"two names for the same bytes",
       file_bytes(
           R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
           1)},
      {"bytes left over", tensor(R"("dtype":"U8","shape":[1],"data_offsets":[0,1])", 2)},
      {"bytes and no tensor", file_bytes("{}", 1)},
      {"a comment", file_bytes("{/* */}", 0)},
      {"nesting of a million levels", file_bytes("{\"a\":" + std::string(1'000'000, '['), 0)},
      {"objects of a million levels",
       [] {
         std::string deep = "{\"a\":";
         for (int i = 0; i < 1'000'000; ++i) deep += "{\"a\":";
         return file_bytes(deep, 0);
       }()},
  };
}

TEST(Safetensors, RefusesHostileFiles) {
  const auto files = hostile_files();
  EXPECT_GE(files.size(), 25u);
  for (const Hostile& file : files) {
    const Error error = error_of([&] { parse_safetensors(as_bytes(file.bytes), "model.safetensors"); });
    EXPECT_EQ(error.exit(), Exit::io) << file.what;
    EXPECT_TRUE(std::string(error.what()).starts_with("model.safetensors: ")) << file.what << ": " << error.what();
  }
}

TEST(Safetensors, ErrorsNameTheTensor) {
  const std::string bytes = file_bytes(R"({"mid_block.weight":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8);
  const Error error = error_of([&] { parse_safetensors(as_bytes(bytes), "x"); });
  EXPECT_NE(std::string(error.what()).find("'mid_block.weight'"), std::string::npos) << error.what();
}

TEST(Safetensors, ASubByteTensorCountsBits) {
  const std::string bytes = file_bytes(
      R"({"a":{"dtype":"F4","shape":[3,4],"data_offsets":[0,6]},"b":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[6,9]}})",
      9);
  EXPECT_EQ(parse_safetensors(as_bytes(bytes), "x").tensors.size(), 2u);
}

TEST(Safetensors, AMissingFileIsAnError) {
  const Error error = error_of([] { SafetensorsFile("/nowhere/model.safetensors"); });
  EXPECT_EQ(error.exit(), Exit::io);
  EXPECT_NE(std::string(error.what()).find("/nowhere/model.safetensors"), std::string::npos);
  for (const auto* folder : {"/tmp", "/proc"}) {  // /proc has 0 bytes
    const Error of_folder = error_of([&] { SafetensorsFile{folder}; });
    EXPECT_EQ(of_folder.exit(), Exit::io);
    EXPECT_EQ(of_folder.what(), std::string(folder) + " is not a regular file");
  }
}

// A map of it would end the process by SIGBUS.
TEST(Safetensors, AFileThatCannotBeReadAnyMoreIsAnError) {
  const ScratchDirectory scratch;
  constexpr std::size_t bytes = 1 << 20;
  const std::string header = R"({"big":{"dtype":"U8","shape":[1048576],"data_offsets":[0,1048576]}})";
  const auto path = scratch.write("model.safetensors", file_bytes(header, bytes));
  const SafetensorsFile file(path);
  EXPECT_EQ(as_text(file.bytes("big")), std::string(bytes, 'd'));
  fs::resize_file(path, bytes / 2);
  EXPECT_THROW(file.bytes("big"), StorageError);
}

// The names and sizes of the safetensors crate's Dtype.
TEST(DType, NamesAndSizesAreTheFormatsOwn) {
  struct Format {
    DType dtype;
    const char* name;
    int bits;
  };
  constexpr Format formats[] = {{DType::boolean, "BOOL", 8},
                                {DType::f4, "F4", 4},
                                {DType::f6_e2m3, "F6_E2M3", 6},
                                {DType::f6_e3m2, "F6_E3M2", 6},
                                {DType::u8, "U8", 8},
                                {DType::i8, "I8", 8},
                                {DType::f8_e5m2, "F8_E5M2", 8},
                                {DType::f8_e4m3, "F8_E4M3", 8},
                                {DType::f8_e8m0, "F8_E8M0", 8},
                                {DType::f8_e4m3fnuz, "F8_E4M3FNUZ", 8},
                                {DType::f8_e5m2fnuz, "F8_E5M2FNUZ", 8},
                                {DType::i16, "I16", 16},
                                {DType::u16, "U16", 16},
                                {DType::f16, "F16", 16},
                                {DType::bf16, "BF16", 16},
                                {DType::i32, "I32", 32},
                                {DType::u32, "U32", 32},
                                {DType::f32, "F32", 32},
                                {DType::c64, "C64", 64},
                                {DType::f64, "F64", 64},
                                {DType::i64, "I64", 64},
                                {DType::u64, "U64", 64}};
  for (const auto& format : formats) {
    EXPECT_STREQ(to_string(format.dtype), format.name);
    EXPECT_EQ(try_parse_dtype(format.name), format.dtype) << format.name;
    EXPECT_EQ(bits_of(format.dtype), format.bits) << format.name;
    if (format.bits % 8 == 0) {
      EXPECT_EQ(size_of(format.dtype), static_cast<std::size_t>(format.bits / 8)) << format.name;
    }
  }
  for (const char* unknown : {"float32", "f32", "F128", ""}) EXPECT_FALSE(try_parse_dtype(unknown)) << unknown;
}

}  // namespace
}  // namespace millrace::test
