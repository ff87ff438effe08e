#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "hostile/files.h"
#include "millrace/core/files.h"
#include "millrace/io/parquet_writer.h"

namespace millrace::hostile {

using namespace std::string_literals;
using nlohmann::json;

namespace {

std::string repeat(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

std::string flipped(std::string bytes, std::size_t place) {
  bytes[place] ^= 0x5A;
  return bytes;
}

std::string parquet_of(const std::vector<ParquetField>& fields, const std::vector<std::vector<Cell>>& rows) {
  const fs::path path = fs::temp_directory_path() / fmt::format("millrace-hostile-{}.parquet", ::getpid());
  ParquetWriter writer(path, fields);
  for (const auto& row : rows) writer.write(row);
  writer.commit();
  const std::string bytes = read_file(path);
  fs::remove(path);
  return bytes;
}

void add_parquets(std::vector<File>& files) {
  using Type = ParquetField::Type;
  const std::vector<ParquetField> fields = {{"jpg", Type::bytes}, {"caption", Type::text}};
  const std::string good = parquet_of(fields, {{good_jpeg(), "a"s}, {good_jpeg(), "b"s}});
  files.push_back({"sound.parquet", good, "accepted"});
  files.push_back({"empty.parquet", "", "archive_error"});
  files.push_back({"only_magic.parquet", "PAR1", "archive_error"});
  files.push_back({"two_magics.parquet", "PAR1PAR1", "archive_error"});
  files.push_back({"html.parquet", "<html>not found</html>", "archive_error"});
  files.push_back({"zeros.parquet", std::string(4096, '\0'), "archive_error"});
  for (const int percent : {10, 50, 90, 99})
    files.push_back({fmt::format("cut_to_{}_percent.parquet", percent), good.substr(0, good.size() * percent / 100),
                     "archive_error"});
  std::string footer = good;
  footer.replace(good.size() - 8, 4, "\xFF\xFF\xFF\x7F");
  files.push_back({"footer_of_2_gib.parquet", footer, "archive_error"});
  footer.replace(good.size() - 8, 4, "\0\0\0\0"s);
  files.push_back({"footer_of_nothing.parquet", footer, "archive_error"});
  files.push_back({"footer_cut.parquet", good.substr(0, good.size() - 8) + "\x10\0\0\0PAR1"s, "archive_error"});
  files.push_back({"encrypted.parquet", good.substr(0, good.size() - 4) + "PARE", "archive_error"});
  for (const std::size_t place : {4u, 5u, 6u, 8u, 12u})
    files.push_back({fmt::format("page_flipped_at_{}.parquet", place), flipped(good, place), "archive_error"});
  files.push_back({"images_are_html.parquet", parquet_of(fields, {{"<html>"s, "a"s}}), "not_an_image"});
  files.push_back({"all_null.parquet", parquet_of(fields, {{Cell(), Cell()}, {good_jpeg(), Cell()}}),
                   "missing_caption missing_image"});
  files.push_back({"no_rows.parquet", parquet_of(fields, {}), "nothing"});
  files.push_back(
      {"caption_of_2_mib.parquet", parquet_of(fields, {{good_jpeg(), std::string(2 << 20, 'x')}}), "too_large"});
}

void add_lists(std::vector<File>& files) {
  files.push_back({"empty.csv", "", "nothing"});
  files.push_back({"never_closed.csv", "image,caption\n\"" + std::string(1 << 20, 'x'), "missing_image"});
  files.push_back({"too_few_fields.csv", "image,caption\nx.jpg\n", "missing_image"});
  files.push_back({"commands.csv", "image,caption\n|id,a\npipe:id,b\n$(id),c\n", "missing_image"});
  files.push_back({"goes_up.csv", "image,caption\n../../../../../etc/passwd,a\n", "not_an_image"});
  files.push_back({"device.csv", "image,caption\n/dev/zero,a\n/dev/stdin,b\n/proc/self/mem,c\n", "missing_image"});
  files.push_back({"nul.csv", "image,caption\nx\0y.jpg,a\n"s, "missing_image"});
  files.push_back({"not_json.jsonl", "{\"image\":\"x\",\"caption\":\"c\"}\n{{{\n", "bad_json missing_image"});
  files.push_back({"deep.jsonl", "{\"image\":" + repeat("[", 100000) + "\n", "archive_error"});
}

}  // namespace

std::vector<File> tables() {
  std::vector<File> files;
  add_parquets(files);
  add_lists(files);
  return files;
}

std::vector<File> broken_json() {
  return {{"empty", "", "error"},
          {"blank", " \n", "error"},
          {"word", "nonsense", "error"},
          {"never_closed", R"({"format":1,)", "error"},
          {"two_values", "{}{}", "error"},
          {"two_keys", R"({"format":1,"format":1})", "error"},
          {"deep_lists", repeat("[", 1000000), "error"},
          {"deep_objects", repeat(R"({"a":)", 200000) + "1" + std::string(200000, '}'), "error"},
          {"huge_number", R"({"format":1e999999999})", "error"},
          {"long_number", R"({"format":)" + std::string(1 << 20, '9') + "}", "error"},
          {"nul", "{\"format\":\0001}"s, "error"},
          {"not_utf8", "{\"format\":\"\xFF\xC0\x80\"}", "error"},
          {"lone_surrogate", R"({"format":"\ud800"})", "error"},
          {"with_bom_16", "\xFF\xFE{\0}\0"s, "error"},
          {"comment", "{/* */}", "error"},
          {"html", "<html>not found</html>", "error"},
          {"zeros", std::string(4096, '\0'), "error"}};
}

std::vector<File> safetensors() {
  const auto made = [](const std::string& header, std::size_t data_bytes = 16) {
    std::string length(8, '\0');
    for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i));
    return length + header + std::string(data_bytes, '\0');
  };
  const auto announced = [](std::uint64_t length) {
    std::string bytes;
    for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i));
    return bytes + "{}";
  };
  const auto tensor = [](const char* name, const char* dtype, const char* shape, const char* offsets) {
    return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape, offsets);
  };
  const auto one = [&](const char* dtype, const char* shape, const char* offsets, std::size_t bytes = 16) {
    return made("{" + tensor("a", dtype, shape, offsets) + "}", bytes);
  };
  std::vector<File> files = {
      {"sound", one("F32", "[4]", "[0,16]"), "accepted"},
      {"empty", "", "error"},
      {"seven_bytes", std::string(7, '\0'), "error"},
      {"header_of_nothing", announced(0), "error"},
      {"header_of_1_gib", announced(1 << 30), "error"},
      {"header_of_2_63", announced(1ull << 63), "error"},
      {"header_of_all_ones", announced(~0ull), "error"},
      {"header_beyond_file", announced(1000), "error"},
      {"overlapping", made("{" + tensor("a", "F32", "[4]", "[0,16]") + "," + tensor("b", "F32", "[2]", "[8,16]") + "}"),
       "error"},
      {"same_bytes_twice",
       made("{" + tensor("a", "F32", "[4]", "[0,16]") + "," + tensor("b", "F32", "[4]", "[0,16]") + "}"), "error"},
      {"gap", made("{" + tensor("a", "F32", "[1]", "[0,4]") + "," + tensor("b", "F32", "[2]", "[8,16]") + "}"),
       "error"},
      {"left_over", one("F32", "[4]", "[0,16]", 20), "error"},
      {"cut_short", one("F32", "[4]", "[0,16]", 15), "error"},
      {"backwards", one("F32", "[4]", "[16,0]"), "error"},
      {"beyond", one("F32", "[4]", "[1000,1016]"), "error"},
      {"offsets_2_64", one("F32", "[4]", "[0,18446744073709551616]"), "error"},
      {"negative_offset", one("F32", "[4]", "[-16,0]"), "error"},
      {"three_offsets", one("F32", "[4]", "[0,8,16]"), "error"},
      {"unknown_type", one("F128", "[1]", "[0,16]"), "error"},
      {"other_size", one("F32", "[5]", "[0,16]"), "error"},
      {"product_wraps_to_0", one("F32", "[4294967296,4294967296]", "[0,0]", 0), "error"},
      {"product_wraps_to_16", one("F32", "[4611686018427387908]", "[0,16]"), "error"},
      {"negative_side", one("F32", "[-2,-2]", "[0,16]"), "error"},
      {"fractional_side", one("F32", "[4.0]", "[0,16]"), "error"},
      {"name_twice", made("{" + tensor("a", "F32", "[2]", "[0,8]") + "," + tensor("a", "F32", "[2]", "[8,16]") + "}"),
       "error"},
      {"numbers_in_metadata", made(R"({"__metadata__":{"a":1}})", 0), "error"},
      {"ranks_100000", one("F32", ("[" + repeat("1,", 99999) + "4]").c_str(), "[0,16]"), "accepted"}};
  for (const File& broken : broken_json())
    if (!broken.bytes.empty()) files.push_back({"json_" + broken.name, made(broken.bytes, 0), "error"});
  return files;
}

// A JSON object with another value in one place, "/archives/0/name".
File with_value(const std::string& sound, const char* name, const std::string& place, const json& value) {
  json object = json::parse(sound);
  object[json::json_pointer(place)] = value;
  return {name, object.dump(), "error"};
}

std::vector<File> latent_records(const std::string& sound) {
  std::vector<File> files = broken_json();
  const auto with = [&](const char* name, const std::string& key, const json& value) {
    files.push_back(with_value(sound, name, "/" + key, value));
  };
  const auto without = [&](const char* name, const char* key) {
    json record = json::parse(sound);
    record.erase(key);
    files.push_back({name, record.dump(), "error"});
  };
  without("without_rows", "rows");
  without("without_digest", "xxh3_128");
  with("later_format", "format", 2);
  with("digest_of_letters", "xxh3_128", "not a digest");
  with("other_digest", "xxh3_128", std::string(32, '0'));
  with("other_bytes", "bytes", 1);
  with("rows_are_text", "rows", "all of them");
  with("more_rows", "rows", {{0, 1, 1000}});
  with("rows_without_end", "rows", {{0, 1, 1ull << 62}});
  with("rows_again_and_again", "rows", json(1000, {0, 1, 1 << 24}));
  with("negative_rows", "rows", {{-1, -1, -1}});
  with("runs_of_two", "rows", {{0, 1}});
  with("rejected_without_end", "rejected", {{"too_small", {{0, 1, 1ull << 62}}}});
  with("unknown_reason", "rejected", {{"because", {{0, 1, 1}}}});
  with("non_finite_is_a_number", "non_finite", 7);
  return files;
}

std::vector<File> latent_values(const std::string& sound) {
  std::vector<File> files = {{"empty", "", "error"},
                             {"html", "<html>not found</html>", "error"},
                             {"zeros", std::string(sound.size(), '\0'), "error"},
                             {"longer", sound + "x", "error"}};
  for (const int percent : {1, 50, 99})
    files.push_back(
        {fmt::format("cut_to_{}_percent", percent), sound.substr(0, sound.size() * percent / 100), "error"});
  for (const std::size_t place : {0ul, 8ul, 100ul, sound.size() / 2, sound.size() - 1})
    files.push_back({fmt::format("flipped_at_{}", place), flipped(sound, place), "error"});
  return files;
}

std::vector<File> cache_manifests(const std::string& sound) {
  std::vector<File> files = broken_json();
  const auto with = [&](const char* name, const std::string& key, const json& value) {
    files.push_back(with_value(sound, name, "/archives/0/" + key, value));
  };
  with("name_is_a_list", "name", json::array());
  with("total_is_text", "total", "4");
  with("bytes_missing", "bytes", nullptr);
  files.push_back({"archives_are_a_number", R"({"format":1,"archives":7})", "error"});
  files.push_back({"later_format", R"({"format":2,"archives":[]})", "error"});
  return files;
}

std::vector<File> cache_descriptions(const std::string& sound) {
  std::vector<File> files = broken_json();
  const auto with = [&](const char* name, const std::string& key, const json& value) {
    files.push_back(with_value(sound, name, "/" + key, value));
  };
  with("shape_beyond_memory", "moments", {1 << 30, 1 << 30, 1 << 30});
  with("shape_of_nothing", "moments", {0, 0, 0});
  with("negative_shape", "text", {-77, -768});
  with("shape_of_five", "text", {1, 1, 1, 1, 1});
  with("shape_is_text", "text", "77 x 768");
  with("another_shape", "text", {5, 4});
  with("digest_of_another_file", "null_caption", {{"file", "../../etc/passwd"}, {"xxh3_128", std::string(32, '0')}});
  return files;
}

}  // namespace millrace::hostile
