#include <gmock/gmock.h>
#include <hdf5.h>

#include <functional>
#include <thread>

#include "core/file_size_limit.h"
#include "millrace/io/hdf5.h"
#include "support.h"

namespace millrace::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

template <class T>
std::vector<T> read_all(const Hdf5Reader& file, const std::string& name) {
  const auto shape = file.shape(name).shape;
  std::size_t count = 1;
  for (const auto side : shape) count *= static_cast<std::size_t>(side);
  std::vector<T> values(count);
  file.read(name, 0, static_cast<std::uint64_t>(shape[0]), std::as_writable_bytes(std::span(values)));
  return values;
}

// As the C library finds it.
std::string attribute_of(const fs::path& path, const char* name) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const hid_t attribute = H5Aopen(file, name, H5P_DEFAULT), type = H5Aget_type(attribute);
  char* text = nullptr;
  EXPECT_GE(H5Aread(attribute, type, &text), 0);
  const std::string value = text ? text : "";
  H5free_memory(text);
  H5Tclose(type);
  H5Aclose(attribute);
  H5Fclose(file);
  return value;
}

// f16 (n, 2, 3), i64 (n), text (n).
void write_example(const fs::path& path, int rows) {
  Hdf5Writer file(path);
  file.create("half", DType::f16, {2, 3});
  file.create("number", DType::i64);
  file.create_text("word");
  file.set_attribute("about", "größer\n{\"a\": 1}");
  for (std::int64_t row = 0; row < rows; ++row) {
    std::vector<std::uint16_t> half(6);
    for (int i = 0; i < 6; ++i) half[i] = static_cast<std::uint16_t>(100 * row + i);
    file.append("half", bytes_of(half));
    file.append("number", bytes_of(std::vector<std::int64_t>{-row}));
    file.append_text("word", std::vector<std::string>{"word " + std::to_string(row)});
  }
  file.close();
}

TEST(Hdf5, GivesBackWhatWasWrittenAnyRowsAtATime) {
  const ScratchDirectory scratch;
  write_example(scratch / "a.h5", 2500);  // several chunks
  EXPECT_EQ(attribute_of(scratch / "a.h5", "about"), "größer\n{\"a\": 1}");
  const Hdf5Reader file(scratch / "a.h5");
  EXPECT_THAT(file.shape("half").shape, ElementsAre(2500, 2, 3));
  EXPECT_EQ(file.expect("half", DType::f16, {2, 3}), 2500u);
  EXPECT_EQ(file.expect("word", std::nullopt), 2500u);
  const auto half = read_all<std::uint16_t>(file, "half");
  for (std::size_t i = 0; i < half.size(); ++i) ASSERT_EQ(half[i], static_cast<std::uint16_t>(100 * (i / 6) + i % 6));
  EXPECT_EQ(read_all<std::int64_t>(file, "number")[2499], -2499);
  EXPECT_THAT(file.read_text("word", 1023, 3), ElementsAre("word 1023", "word 1024", "word 1025"));
  EXPECT_TRUE(file.read_text("word", 2500, 0).empty());
}

// What is not there any more the library reads as zeros.
TEST(Hdf5, AFileThatIsCutWhileItIsOpenIsTold) {
  const ScratchDirectory scratch;
  write_example(scratch / "a.h5", 2500);
  const Hdf5Reader file(scratch / "a.h5");
  EXPECT_EQ(read_all<std::int64_t>(file, "number").size(), 2500u);
  fs::resize_file(scratch / "a.h5", fs::file_size(scratch / "a.h5") / 2);
  const auto told = [&](const std::function<void()>& read) {
    const Error error = error_of(read);
    EXPECT_EQ(error.exit(), Exit::io);
    EXPECT_THAT(error.what(), HasSubstr("a.h5 was made shorter while it was read"));
  };
  told([&] { read_all<std::uint16_t>(file, "half"); });
  told([&] { (void)file.read_text("word", 0, 2500); });
}

TEST(Hdf5, NoRowsAndEveryType) {
  const ScratchDirectory scratch;
  {
    Hdf5Writer file(scratch / "a.h5");
    for (const auto dtype : {DType::f16, DType::f32, DType::i32, DType::i64, DType::u8})
      file.create(to_string(dtype), dtype, {2});
    file.create_text("text");
    file.append("F32", bytes_of(std::vector<float>{1, 2, 3, 4}));
    file.append("U8", bytes_of(std::vector<std::uint8_t>{1, 2}));
    file.append_text("text", std::vector<std::string>{"", std::string("a\0b", 3)});
    file.close();
  }
  const Hdf5Reader file(scratch / "a.h5");
  EXPECT_THAT(file.shape("F16").shape, ElementsAre(0, 2));
  EXPECT_THAT(read_all<float>(file, "F32"), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(file.shape("I32").dtype, DType::i32);
  EXPECT_THAT(read_all<std::uint8_t>(file, "U8"), ElementsAre(1, 2));
  EXPECT_THAT(file.read_text("text", 0, 2), ElementsAre("",
                                                        "a\xEF\xBF\xBD"
                                                        "b"));
}

TEST(Hdf5, TheSameCallsMakeTheSameBytes) {
  const ScratchDirectory scratch;
  write_example(scratch / "a.h5", 300);
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // a clock inside would show
  write_example(scratch / "b.h5", 300);
  EXPECT_EQ(hash_file(scratch / "a.h5"), hash_file(scratch / "b.h5"));
}

TEST(Hdf5, ThreadsTakeTurns) {
  const ScratchDirectory scratch;
  write_example(scratch / "a.h5", 500);
  const Hdf5Reader shared(scratch / "a.h5");
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      write_example(scratch / ("own" + std::to_string(t)), 50);
      for (std::uint64_t row = t; row < 500; row += 4)
        EXPECT_EQ(shared.read_text("word", row, 1)[0], "word " + std::to_string(row));
    });
}

TEST(Hdf5, WhatIsNotThereOrOfAnotherKindIsNamed) {
  const ScratchDirectory scratch;
  write_example(scratch / "a.h5", 5);
  const Hdf5Reader file(scratch / "a.h5");
  std::vector<std::byte> row(12);
  EXPECT_THAT(error_of([&] { file.shape("image"); }).what(), HasSubstr("a.h5: no data set image"));
  EXPECT_THAT(error_of([&] { file.expect("half", DType::f16, {6}); }).what(), HasSubstr("half"));
  EXPECT_THAT(error_of([&] { file.expect("half", DType::f32, {2, 3}); }).what(), HasSubstr("F16"));
  EXPECT_THAT(error_of([&] { file.expect("word", DType::i64); }).what(), HasSubstr("text"));
  EXPECT_THAT(error_of([&] { file.read("half", 5, 1, row); }).what(), HasSubstr("5 rows"));
  EXPECT_THAT(error_of([&] { file.read("half", ~0ull, 1, row); }).what(), HasSubstr("5 rows"));
  EXPECT_THAT(error_of([&] { file.read_text("word", 3, 3); }).what(), HasSubstr("5 rows"));
  EXPECT_THAT(error_of([&] { file.read_text("number", 0, 1); }).what(), HasSubstr("number"));
  EXPECT_THAT(error_of([&] { file.read("word", 0, 1, row); }).what(), HasSubstr("word"));
}

TEST(Hdf5, DamagedFilesAreTypedErrors) {
  const ScratchDirectory scratch;
  EXPECT_THAT(error_of([&] { Hdf5Reader(scratch / "none.h5"); }).what(), HasSubstr("none.h5: No such file"));
  scratch.write("text.h5", "no HDF5 at all");
  EXPECT_EQ(error_of([&] { Hdf5Reader(scratch / "text.h5"); }).exit(), Exit::io);
  write_example(scratch / "a.h5", 100);
  const std::string whole = read_file(scratch / "a.h5");
  for (const std::size_t kept :
       {std::size_t{0}, std::size_t{7}, std::size_t{100}, whole.size() / 2, whole.size() - 1}) {
    scratch.write("short.h5", whole.substr(0, kept));
    EXPECT_EQ(error_of([&] { Hdf5Reader(scratch / "short.h5"); }).exit(), Exit::io) << kept;
  }
  EXPECT_EQ(error_of([&] { Hdf5Writer(scratch.path() / "no/folder.h5"); }).exit(), Exit::io);
}

// A full disk is an error of the call that needed the room, and does not keep the program from ending.
TEST(Hdf5, AFullDiskIsAnError) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const Error error = error_of([] {
    Hdf5Writer file("/dev/full");
    file.create("half", DType::f16, {1024});
    file.append("half", bytes_of(std::vector<std::uint16_t>(1024 * 1024)));
    file.close();
  });
  EXPECT_EQ(error.exit(), Exit::io);
}

// In the system's words: the library's would fill three lines.
TEST(Hdf5, WhatTheSystemRefusesIsToldWithItsCure) {
  const ScratchDirectory scratch;
  const auto path = scratch / "limited.h5";
  const Error error = error_of([&] {
    const test::FileSizeLimit limit(100'000);
    Hdf5Writer file(path);
    file.create("half", DType::f16, {1024});
    file.append("half", bytes_of(std::vector<std::uint16_t>(1024 * 1024)));
    file.close();
  });
  EXPECT_EQ(std::string(error.what()), "cannot write " + path.string() + ": File too large");
  EXPECT_THAT(error.hint(), HasSubstr("ulimit -f"));
}

// Each call of the library forgets what the one before has met.
TEST(Hdf5, WhatOneDataSetMeetsIsToldThoughOthersCanBeWritten) {
  const ScratchDirectory scratch;
  Hdf5Writer file(scratch / "limited.h5");
  file.create("a", DType::u8, {1000});
  file.create("b", DType::u8, {1000});
  file.append("a", bytes_of(std::vector<std::uint8_t>(100 * 1000)));
  const test::FileSizeLimit limit(10'000);
  EXPECT_THAT(error_of([&] { file.close(); }).what(), HasSubstr("File too large"));
}

// Files that only a stranger would write.
class StrangeFile : public testing::Test {
 protected:
  fs::path path() const { return scratch_ / "strange.h5"; }
  std::string refusal(const char* name) {
    return error_of([&] { Hdf5Reader(path()).shape(name); }).what();
  }
  // Calls of the C library on a new file.
  template <class Make>
  void make(Make make) {
    const hid_t file = H5Fcreate(path().c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    ASSERT_GE(file, 0);
    make(file);
    H5Fclose(file);
  }
  static hid_t space(std::vector<hsize_t> dims) {
    return H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr);
  }
  const ScratchDirectory scratch_;
};

TEST_F(StrangeFile, LinksToElsewhere) {
  make([&](hid_t file) {
    H5Lcreate_external("/etc/passwd", "/", file, "outside", H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_soft("/nowhere", file, "soft", H5P_DEFAULT, H5P_DEFAULT);
  });
  EXPECT_THAT(refusal("outside"), HasSubstr("link to elsewhere"));
  EXPECT_THAT(refusal("soft"), HasSubstr("link to elsewhere"));
}

TEST_F(StrangeFile, DataInOtherFiles) {
  make([&](hid_t file) {
    const hid_t layout = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_external(layout, "/etc/passwd", 0, 80);
    H5Dclose(H5Dcreate2(file, "external", H5T_STD_U8LE, space({80}), H5P_DEFAULT, layout, H5P_DEFAULT));
  });
  EXPECT_THAT(refusal("external"), HasSubstr("file itself"));
}

TEST_F(StrangeFile, OddTypesAndShapes) {
  make([&](hid_t file) {
    const hid_t pair = H5Tcreate(H5T_COMPOUND, 8);
    H5Tinsert(pair, "a", 0, H5T_STD_I32LE);
    H5Dclose(H5Dcreate2(file, "pair", pair, space({3}), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Dclose(H5Dcreate2(file, "big_endian", H5T_IEEE_F32BE, space({3}), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Dclose(H5Dcreate2(file, "scalar", H5T_STD_I32LE, H5Screate(H5S_SCALAR), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Dclose(
        H5Dcreate2(file, "wide", H5T_STD_I64LE, space({1ull << 59, 1ull << 2}), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Gclose(H5Gcreate2(file, "group", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  });
  EXPECT_THAT(refusal("pair"), HasSubstr("type that is not read"));
  EXPECT_THAT(refusal("big_endian"), HasSubstr("type that is not read"));
  EXPECT_THAT(refusal("scalar"), HasSubstr("dimensions"));
  EXPECT_THAT(refusal("wide"), HasSubstr("wide"));
  EXPECT_THAT(refusal("group"), HasSubstr("cannot open data set group"));
}

}  // namespace
}  // namespace millrace::test
