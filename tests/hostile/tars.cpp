#include <fmt/format.h>
#include <zlib.h>

#include <random>

#include "hostile/files.h"
#include "io/tar_bytes.h"

namespace millrace::hostile {

using test::tar_end;
using test::tar_header;
using test::tar_member;

namespace {

// Writes a field of a header and mends the checksum.
std::string patched(std::string block, std::size_t place, std::string_view bytes) {
  block.replace(place, bytes.size(), bytes);
  block.replace(148, 8, "        ");
  unsigned sum = 0;
  for (std::size_t i = 0; i < 512; ++i) sum += static_cast<unsigned char>(block[i]);
  block.replace(148, 8, fmt::format("{:06o}", sum) + std::string("\0 ", 2));
  return block;
}

constexpr std::size_t size_field = 124, link_field = 157, prefix_field = 345;

std::string sample(const std::string& key) {
  return tar_member(key + ".jpg", good_jpeg()) + tar_member(key + ".txt", "a caption");
}

// A number of eight bytes behind the mark that says so.
std::string base256(std::uint64_t value) {
  std::string field(12, '\0');
  field[0] = '\x80';
  for (int i = 0; i < 8; ++i) field[11 - i] = static_cast<char>(value >> (8 * i));
  return field;
}

// One record of an extended header: its own length, a blank, KEY=VALUE, a line's end.
std::string record(const std::string& text) {
  std::size_t length = text.size() + 2;
  while (fmt::format("{} {}\n", length, text).size() != length) ++length;
  return fmt::format("{} {}\n", length, text);
}

std::string extended(const std::string& records, char type = 'x') {
  return tar_member("PaxHeaders/x", records, type);
}

std::string repeated(const std::string& text, int times) {
  std::string all;
  all.reserve(text.size() * static_cast<std::size_t>(times));
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

std::string random_bytes(std::size_t count) {
  std::mt19937 random(7);
  std::string bytes(count, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

// What must be rejected of a tar that is cut short or damaged in one place.
void add_damaged(std::vector<File>& files) {
  const std::string one = sample("0"), two = one + sample("1") + tar_end();
  files.push_back({"empty.tar", "", "archive_error"});
  files.push_back({"one_byte.tar", std::string(1, '\0'), "archive_error"});
  files.push_back({"half_an_end.tar", std::string(512, '\0'), "nothing"});
  files.push_back({"only_an_end.tar", tar_end(), "nothing"});
  files.push_back({"noise.tar", random_bytes(64 << 10), "archive_error"});
  files.push_back({"text.tar", "<html>404 not found</html>", "archive_error"});
  files.push_back({"cut_in_first_header.tar", two.substr(0, 300), "archive_error"});
  files.push_back({"cut_in_first_member.tar", two.substr(0, 700), "archive_error"});
  files.push_back({"cut_in_second_sample.tar", two.substr(0, one.size() + 700), "accepted archive_error"});
  files.push_back({"cut_in_padding.tar", two.substr(0, one.size() - 400), "archive_error"});
  files.push_back({"cut_between_members.tar", two.substr(0, one.size() + 512), "accepted archive_error"});
  files.push_back({"without_end.tar", one, "archive_error"});
  std::string damaged = two;
  damaged[150] ^= 1;
  files.push_back({"bad_checksum_first.tar", damaged, "archive_error"});
  damaged = two;
  damaged[one.size() + 150] ^= 1;
  files.push_back({"bad_checksum_second.tar", damaged, "archive_error"});
  files.push_back({"noise_behind_sample.tar", one + random_bytes(4096), "archive_error"});
}

void add_sizes(std::vector<File>& files) {
  const std::string header = tar_header("0.jpg", 100);
  const auto with_size = [&](std::string_view size) { return patched(header, size_field, size) + good_jpeg(); };
  files.push_back({"size_of_letters.tar", with_size("zzzzzzzzzzz"), "archive_error"});
  files.push_back({"size_8_gib.tar", with_size("77777777777"), "archive_error"});
  files.push_back({"size_2_62.tar", with_size(base256(1ull << 62)), "archive_error"});
  files.push_back({"size_2_63.tar", with_size(base256(1ull << 63)), "archive_error"});
  files.push_back({"size_all_ones.tar", with_size(std::string(12, '\xFF')), "archive_error"});
  files.push_back({"size_2_62_gz.tar.gz", gzip(with_size(base256(1ull << 62))), "archive_error"});
  files.push_back({"size_by_record.tar", extended(record("size=9000000000000000000")) + header, "archive_error"});
  files.push_back({"size_by_record_negative.tar", extended(record("size=-1")) + header + tar_end(), "archive_error"});
}

// Nothing is ever written under a name of an archive, so odd names are only names.
void add_names(std::vector<File>& files) {
  const auto named = [](const std::string& key) { return sample(key) + tar_end(); };
  files.push_back({"name_goes_up.tar", named("../../../../etc/x"), "accepted"});
  files.push_back({"name_is_absolute.tar", named("/etc/x"), "accepted"});
  files.push_back({"name_with_newline.tar", named("a\nb\x1B[2J"), "accepted"});
  files.push_back({"name_with_quotes.tar", named("\"},{\\"), "accepted"});
  files.push_back({"name_not_utf8.tar", named("caf\xE9\xFF"), "accepted"});
  files.push_back({"name_empty.tar", tar_member("", good_jpeg()) + tar_end(), "nothing"});
  files.push_back({"name_of_dots.tar", tar_member("....", good_jpeg()) + tar_end(), "nothing"});
  files.push_back({"name_prefix_goes_up.tar", patched(sample("x") + tar_end(), prefix_field, "../../.."),
                   "missing_caption missing_image"});
  const auto by_record = [](const std::string& name) { return extended(record("path=" + name)); };
  const std::string megabyte(1 << 20, 'k'), half(1 << 19, 'k');
  files.push_back({"name_of_half_a_megabyte.tar",
                   by_record(half + ".jpg") + tar_member("x", good_jpeg()) + by_record(half + ".txt") +
                       tar_member("x", "t") + tar_end(),
                   "too_large"});
  files.push_back(
      {"field_of_half_a_megabyte.tar", by_record("x." + half) + tar_member("x", good_jpeg()) + tar_end(), "nothing"});
  files.push_back({"name_of_a_megabyte.tar",
                   by_record(megabyte + ".jpg") + tar_member("x", good_jpeg()) + by_record(megabyte + ".txt") +
                       tar_member("x", "t") + tar_end(),
                   "archive_error"});
  files.push_back({"name_gnu_of_a_megabyte.tar",
                   tar_member("././@LongLink", megabyte + ".jpg", 'L') + tar_member("x", good_jpeg()) +
                       tar_member("././@LongLink", megabyte + ".txt", 'L') + tar_member("x", "t") + tar_end(),
                   "archive_error"});
  files.push_back({"name_gnu_announced_1_tib.tar",
                   patched(tar_header("././@LongLink", 0, 'L'), size_field, base256(1ull << 40)) + sample("x"),
                   "archive_error"});
  files.push_back({"field_of_a_megabyte.tar", by_record("x." + megabyte) + tar_member("x", good_jpeg()) + tar_end(),
                   "archive_error"});
}

void add_kinds(std::vector<File>& files) {
  const auto link = [](char type) {
    return patched(tar_header("x.jpg", 0, type), link_field, "/etc/passwd") + tar_end();
  };
  files.push_back({"symlink.tar", link('2'), "nothing"});
  files.push_back({"hardlink.tar", link('1'), "nothing"});
  files.push_back({"character_device.tar", link('3'), "nothing"});
  files.push_back({"block_device.tar", link('4'), "nothing"});
  files.push_back({"directory.tar", link('5'), "nothing"});
  files.push_back({"fifo.tar", link('6'), "nothing"});
  files.push_back({"hardlink_with_bytes.tar", tar_member("x.jpg", good_jpeg(), '1') + tar_end(), "archive_error"});
  files.push_back(
      {"unknown_kind.tar", tar_member("x.jpg", good_jpeg(), 'Q') + tar_member("x.txt", "t") + tar_end(), "accepted"});
  std::string zip = "PK\3\4";
  zip += std::string(500, '\0');
  files.push_back({"zip.tar", zip, "archive_error"});
  files.push_back({"cpio.tar", "070701" + std::string(104, '0') + "x" + std::string(401, '\0'), "archive_error"});
}

// Sound but for fields that nobody reads, of which libarchive forgives what it finds behind the first header.
std::string odd_member(const std::string& name, const std::string& data) {
  constexpr std::size_t mode_field = 100, user_field = 108, type_field = 156;
  std::string member = tar_member(name, data);
  const std::string header = member.substr(0, 512);
  return patched(patched(patched(header, mode_field, "xyz"), user_field, "nobody"), type_field, "!") +
         member.substr(512);
}

void add_odd_headers(std::vector<File>& files) {
  const std::string odd = odd_member("1.jpg", good_jpeg()) + odd_member("1.txt", "t");
  files.push_back({"odd_second_header.tar", sample("0") + odd + sample("2") + tar_end(), "accepted"});
}

void add_extended_headers(std::vector<File>& files) {
  const std::string good = sample("x") + tar_end();
  files.push_back({"record_without_length.tar", extended("path=x.jpg\n") + good, "accepted"});
  files.push_back({"record_beyond_header.tar", extended("99999999999 path=x\n") + good, "accepted"});
  files.push_back({"record_of_zero.tar", extended("0 \n") + good, "accepted"});
  files.push_back({"records_100000.tar", extended(repeated(record("comment=x"), 100000)) + good, "archive_error"});
  files.push_back({"records_of_all.tar", extended(repeated(record("x=y"), 1000), 'g') + good, "accepted"});
  files.push_back({"header_announced_1_tib.tar",
                   patched(tar_header("PaxHeaders/x", 0, 'x'), size_field, base256(1ull << 40)) + good,
                   "archive_error"});
  files.push_back(
      {"headers_100000_in_a_row.tar.gz", gzip(repeated(extended(record("a=b")), 100000) + good), "archive_error"});
  files.push_back({"long_names_100000_in_a_row.tar.gz",
                   gzip(repeated(tar_member("././@LongLink", "x.jpg", 'L'), 100000) + good), "archive_error"});
  files.push_back({"header_of_headers.tar.gz", gzip(extended(record("comment=" + std::string(20 << 20, 'x'))) + good),
                   "archive_error"});
}

void add_sparse(std::vector<File>& files) {
  // GNU's old form: pairs of offset and bytes from byte 386, the expanded size at 483.
  std::string old = tar_header("x.jpg", 512, 'S');
  old.replace(386, 12, "00000000000 ");
  old.replace(398, 12, "00000001000 ");
  old.replace(257, 8, std::string("ustar  \0", 8));
  old = patched(old, 483, "77777777777 ");
  files.push_back(
      {"sparse_8_gib.tar", old + std::string(512, 'x') + tar_member("x.txt", "t") + tar_end(), "too_large"});
  const std::string map = "1\n1099511627776\n512\n";
  const auto sparse = extended(record("GNU.sparse.major=1") + record("GNU.sparse.minor=0") +
                               record("GNU.sparse.name=x.jpg") + record("GNU.sparse.realsize=1099511628288"));
  std::string body = map;
  body.resize(512, '\0');
  files.push_back({"sparse_1_tib.tar",
                   sparse + tar_member("x", body + std::string(512, 'x')) + tar_member("x.txt", "t") + tar_end(),
                   "too_large"});
  files.push_back({"sparse_map_of_letters.tar",
                   sparse + tar_member("x", std::string(1024, 'z')) + tar_member("x.txt", "t") + tar_end(),
                   "archive_error"});
}

void add_compressed(std::vector<File>& files) {
  const std::string good = sample("x") + tar_end(), packed = gzip(good);
  const std::string large(300 << 20, '\0'), medium(100 << 20, '\0'), small(20 << 20, '\0');
  files.push_back(
      {"bomb_member.tar.gz", gzip(tar_member("x.jpg", large) + tar_member("x.txt", "t") + tar_end()), "too_large"});
  files.push_back({"bomb_of_three.tar.gz",
                   gzip(tar_member("x.jpg", medium) + tar_member("x.png", medium) + tar_member("x.webp", medium) +
                        tar_member("x.txt", "t") + tar_end()),
                   "too_large"});
  files.push_back({"bomb_caption.tar.gz",
                   gzip(tar_member("x.jpg", good_jpeg()) + tar_member("x.txt", small) + tar_end()), "too_large"});
  files.push_back(
      {"bomb_nobody_wants.tar.gz",
       gzip(tar_member("x.jpg", good_jpeg()) + tar_member("x.npy", medium) + tar_member("x.txt", "t") + tar_end()),
       "accepted"});
  files.push_back({"packed_twice.tar.gz", gzip(packed), "accepted"});
  files.push_back({"packed_twenty_times.tar.gz",
                   [&] {
                     std::string bytes = good;
                     for (int i = 0; i < 20; ++i) bytes = gzip(bytes);
                     return bytes;
                   }(),
                   "accepted"});
  files.push_back({"cut_short.tar.gz", packed.substr(0, packed.size() / 2), "archive_error"});
  files.push_back({"only_a_magic.tar.gz", "\x1F\x8B\x08", "archive_error"});
  std::string damaged = packed;
  damaged[10] |= 6;  // a kind of block that does not exist
  files.push_back({"damaged.tar.gz", damaged, "archive_error"});
  files.push_back({"noise_in_bz2.tar.bz2", "BZh9" + random_bytes(1000), "archive_error"});
  files.push_back({"noise_in_xz.tar.xz",
                   std::string("\xFD"
                               "7zXZ\0",
                               6) +
                       random_bytes(1000),
                   "archive_error"});
  files.push_back({"noise_in_zst.tar.zst", "\x28\xB5\x2F\xFD" + random_bytes(1000), "archive_error"});
}

void add_many(std::vector<File>& files) {
  files.push_back(
      {"members_of_nothing_100000.tar.gz", gzip(repeated(tar_member("__x__/y", ""), 100000) + tar_end()), "nothing"});
  files.push_back(
      {"image_without_bytes.tar", tar_member("x.jpg", "") + tar_member("x.txt", "t") + tar_end(), "not_an_image"});
  std::string fields, captions;
  for (int i = 0; i < 20000; ++i) fields += tar_member(fmt::format("x.{}", i), "");
  files.push_back({"fields_20000.tar.gz", gzip(fields + tar_end()), "too_large"});
  for (int i = 0; i < 20000; ++i) captions += tar_member("x.txt", "again");
  files.push_back({"one_key_20000_times.tar.gz", gzip(captions + tar_end()), "missing_image"});
}

}  // namespace

std::vector<File> tars_with_metadata() {
  std::vector<File> files;
  const auto with_json = [](const std::string& json) {
    return tar_member("x.jpg", good_jpeg()) + tar_member("x.json", json) + tar_member("x.txt", "t") + tar_end();
  };
  const auto deep = [](const std::string& open, int levels) { return R"({"w":)" + repeated(open, levels); };
  files.push_back({"json_deep_lists.tar", with_json(deep("[", 200000) + std::string(200000, ']') + "}"), "filtered"});
  files.push_back(
      {"json_deep_objects.tar", with_json(deep(R"({"w":)", 100000) + "1" + std::string(100001, '}')), "filtered"});
  files.push_back({"json_never_closed.tar", with_json(deep("[", 500000)), "bad_json"});
  files.push_back({"json_huge_number.tar", with_json(R"({"w":1e999999999})"), "bad_json"});
  files.push_back({"json_long_number.tar", with_json(R"({"w":)" + std::string(500000, '9') + "}"), "bad_json"});
  files.push_back({"json_infinity.tar", with_json(R"({"w":-Infinity})"), "filtered"});
  files.push_back({"json_nul.tar", with_json(std::string("{\"w\":\0 1}", 9)), "bad_json"});
  files.push_back({"json_not_utf8.tar", with_json("{\"w\":\"\xFF\xC0\x80\"}"), "filtered"});
  files.push_back({"json_lone_surrogate.tar", with_json(R"({"w":"\ud800"})"), "filtered"});
  files.push_back({"json_two_keys.tar", with_json(R"({"w":9,"w":1})"), "filtered"});
  files.push_back({"json_list.tar", with_json("[1,2]"), "bad_json"});
  files.push_back({"json_empty.tar", with_json(""), "bad_json"});
  files.push_back({"json_of_20_mib.tar.gz", gzip(with_json(std::string(20 << 20, '['))), "bad_json"});
  return files;
}

std::string gzip(std::string_view bytes) {
  z_stream stream{};
  deflateInit2(&stream, 1, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY);
  std::string packed(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::string good_tar(const std::string& key) {
  return sample(key) + tar_end();
}

std::vector<File> tars() {
  std::vector<File> files;
  add_damaged(files);
  add_sizes(files);
  add_names(files);
  add_kinds(files);
  add_odd_headers(files);
  add_extended_headers(files);
  add_sparse(files);
  add_compressed(files);
  add_many(files);
  return files;
}

}  // namespace millrace::hostile
