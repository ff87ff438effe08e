#include <fmt/format.h>
#include <zlib.h>

#include <random>

#include "hostile/files.h"
#include "millrace/core/files.h"
#include "millrace/image/encode_jpeg.h"
#include "test_data.h"

namespace millrace::hostile {

using namespace std::string_literals;

namespace {

std::string golden(const std::string& name) {
  return read_file(test::data_dir() / "transform" / name);
}

std::string big_endian(std::uint32_t value, int count = 4) {
  std::string bytes;
  for (int i = count - 1; i >= 0; --i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

std::string little_endian(std::uint32_t value, int count = 4) {
  const std::string bytes = big_endian(value, count);
  return {bytes.rbegin(), bytes.rend()};
}

// ---- JPEG --------------------------------------------------------------------------------------------------------

// Position of a marker's 0xFF.
std::size_t find_marker(const std::string& jpeg, int marker) {
  return jpeg.find(std::string{'\xFF', static_cast<char>(marker)});
}

std::string with_size(std::string jpeg, int width, int height, int frame = 0xC0) {
  const std::size_t place = find_marker(jpeg, frame) + 5;
  return jpeg.replace(place, 4, big_endian(height, 2) + big_endian(width, 2));
}

std::string with_byte(std::string bytes, std::size_t place, int value) {
  bytes[place] = static_cast<char>(value);
  return bytes;
}

std::string insert(std::string jpeg, const std::string& segments) {
  return jpeg.insert(2, segments);
}

std::string segment(int marker, const std::string& payload) {
  return std::string{'\xFF', static_cast<char>(marker)} +
         big_endian(static_cast<std::uint32_t>(payload.size() + 2), 2) + payload;
}

// A progressive file whose last scan is said again and again: each makes the decoder walk over the whole image.
std::string with_scans(const std::string& progressive, int times) {
  std::size_t last = 0, next = 0;
  while ((next = progressive.find("\xFF\xDA", last + 1)) != progressive.npos) last = next;
  std::string jpeg = progressive.substr(0, progressive.size() - 2);
  const std::string scan = jpeg.substr(last);
  for (int i = 0; i < times; ++i) jpeg += scan;
  return jpeg + "\xFF\xD9";
}

void add_jpegs(std::vector<File>& files) {
  const std::string good = good_jpeg();
  const std::size_t frame = find_marker(good, 0xC0);
  for (const int percent : {2, 10, 25, 40, 50, 60, 75, 85, 95, 99}) {
    files.push_back({fmt::format("cut_to_{:02}_percent.jpg", percent), good.substr(0, good.size() * percent / 100),
                     "truncated_image"});
  }
  files.push_back({"only_magic.jpg", "\xFF\xD8\xFF", "truncated_image"});
  files.push_back({"cut_and_ended.jpg", good.substr(0, good.size() / 2) + "\xFF\xD9", "truncated_image"});
  files.push_back({"says_65535_squared.jpg", with_size(good, 65535, 65535), "decode_error"});
  files.push_back({"says_20000_squared.jpg", with_size(good, 20000, 20000), "too_large"});
  files.push_back({"says_13000_squared.jpg", with_size(good, 13000, 13000), "truncated_image"});
  files.push_back({"says_65500_by_1.jpg", with_size(good, 65500, 1), "accepted"});
  files.push_back({"without_height.jpg", with_size(good, 64, 0), "decode_error"});
  files.push_back({"without_width.jpg", with_size(good, 0, 64), "decode_error"});
  files.push_back({"progressive_13000_squared.jpg", with_size(golden("progressive_420.jpg"), 13000, 13000, 0xC2),
                   "truncated_image"});
  files.push_back({"scans_2000.jpg", with_scans(golden("progressive_420.jpg"), 2000), "decode_error"});
  files.push_back({"scans_60_of_9000_squared.jpg",
                   with_scans(with_size(golden("progressive_420.jpg"), 9000, 9000, 0xC2), 60), "decode_error"});
  files.push_back({"components_200.jpg", with_byte(good, frame + 9, 200), "decode_error"});
  files.push_back({"components_2.jpg", with_byte(good, frame + 9, 2), "decode_error"});
  files.push_back({"bits_12.jpg", with_byte(good, frame + 4, 12), "decode_error"});
  files.push_back({"lossless.jpg", with_byte(good, frame + 1, 0xC3), "decode_error"});
  files.push_back({"arithmetic.jpg", with_byte(good, frame + 1, 0xC9), "accepted"});
  files.push_back({"sampling_4_by_4.jpg", with_byte(good, frame + 11, 0x44), "decode_error"});
  files.push_back({"sampling_0.jpg", with_byte(good, frame + 11, 0x00), "decode_error"});
  files.push_back({"without_tables.jpg", with_byte(good, find_marker(good, 0xDB) + 1, 0xFE), "decode_error"});
  files.push_back({"without_codes.jpg", with_byte(good, find_marker(good, 0xC4) + 1, 0xFE), "accepted"});
  std::string notes;
  for (int i = 0; i < 200; ++i) notes += segment(0xE1, std::string("Exif\0\0", 6) + std::string(65000, 'M'));
  files.push_back({"notes_of_13_mib.jpg", insert(good, notes), "accepted"});
  files.push_back({"profile_of_holes.jpg",
                   insert(good, segment(0xE2, "ICC_PROFILE\0\xFF\xFF"s + std::string(100, 'x'))), "accepted"});
  files.push_back({"adobe_77.jpg", insert(golden("cmyk.jpg"), segment(0xEE, "Adobe\0\x64\0\0\0\0\x4D"s)), "accepted"});
  files.push_back({"cmyk_cut.jpg", golden("cmyk.jpg").substr(0, 2000), "truncated_image"});
}

// ---- PNG ---------------------------------------------------------------------------------------------------------

std::string chunk(const std::string& name, const std::string& payload) {
  const std::string checked = name + payload;
  const auto sum = crc32(0, reinterpret_cast<const Bytef*>(checked.data()), static_cast<uInt>(checked.size()));
  return big_endian(static_cast<std::uint32_t>(payload.size())) + checked + big_endian(static_cast<std::uint32_t>(sum));
}

std::string deflated(const std::string& bytes) {
  uLongf size = compressBound(bytes.size());
  std::string packed(size, '\0');
  compress2(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size(),
            1);
  packed.resize(size);
  return packed;
}

const std::string png_magic = "\x89PNG\r\n\x1A\n";

std::string header(std::uint32_t width, std::uint32_t height, int depth, int color, int interlaced = 0) {
  return chunk("IHDR", big_endian(width) + big_endian(height) + static_cast<char>(depth) + static_cast<char>(color) +
                           "\0\0"s + static_cast<char>(interlaced));
}

// 64 x 64 gray, one filter byte a row.
std::string gray_pixels() {
  return chunk("IDAT", deflated(std::string(64 * 65, '\0')));
}

std::string png(const std::string& chunks) {
  return png_magic + chunks + chunk("IEND", "");
}

void add_pngs(std::vector<File>& files) {
  const std::string gray = header(64, 64, 8, 0), good = png(gray + gray_pixels());
  files.push_back({"sound.png", good, "accepted"});
  for (const std::size_t bytes : {9u, 20u, 40u, 50u})
    files.push_back({fmt::format("cut_to_{}.png", bytes), good.substr(0, bytes), "truncated_image"});
  files.push_back({"says_2_31.png", png(header(0x7FFFFFFF, 0x7FFFFFFF, 8, 2) + gray_pixels()), "too_large"});
  files.push_back({"says_2_32.png", png(header(0xFFFFFFFF, 0xFFFFFFFF, 8, 2) + gray_pixels()), "decode_error"});
  files.push_back({"bomb_30000_squared.png",
                   png(header(30000, 30000, 1, 0) + chunk("IDAT", deflated(std::string(30000 * 3751, '\0')))),
                   "too_large"});
  files.push_back({"says_12000_squared.png", png(header(12000, 12000, 8, 2) + gray_pixels()), "decode_error"});
  files.push_back({"says_12000_interlaced.png", png(header(12000, 12000, 16, 6, 1) + gray_pixels()), "decode_error"});
  files.push_back({"without_width.png", png(header(0, 64, 8, 0) + gray_pixels()), "decode_error"});
  files.push_back({"color_5.png", png(header(64, 64, 8, 5) + gray_pixels()), "decode_error"});
  files.push_back({"depth_3.png", png(header(64, 64, 3, 0) + gray_pixels()), "decode_error"});
  files.push_back({"interlaced_7.png", png(header(64, 64, 8, 0, 7) + gray_pixels()), "decode_error"});
  files.push_back({"bad_checksum.png", with_byte(good, 29, good[29] ^ 1), "decode_error"});
  files.push_back({"bad_pixels_checksum.png", with_byte(good, 52, good[52] ^ 1), "decode_error"});
  files.push_back({"without_pixels.png", png(gray), "decode_error"});
  files.push_back({"without_header.png", png(gray_pixels()), "decode_error"});
  files.push_back({"without_palette.png", png(header(64, 64, 8, 3) + gray_pixels()), "decode_error"});
  files.push_back(
      {"palette_of_none.png", png(header(64, 64, 8, 3) + chunk("PLTE", "") + gray_pixels()), "decode_error"});
  files.push_back(
      {"palette_too_short.png",
       png(header(64, 64, 8, 3) + chunk("PLTE", "abc") + chunk("IDAT", deflated(std::string(64 * 65, '\x04')))),
       "accepted"});
  files.push_back(
      {"transparency_too_long.png",
       png(header(64, 64, 8, 3) + chunk("PLTE", "abc") + chunk("tRNS", std::string(300, 'x')) + gray_pixels()),
       "accepted"});
  const std::string bomb = deflated(std::string(50 << 20, 'x'));
  files.push_back({"bomb_text.png", png(gray + chunk("zTXt", "note\0\0"s + bomb) + gray_pixels()), "accepted"});
  files.push_back({"bomb_profile.png", png(gray + chunk("iCCP", "name\0\0"s + bomb) + gray_pixels()), "accepted"});
  files.push_back(
      {"bomb_international.png", png(gray + chunk("iTXt", "n\0\1\0\0\0"s + bomb) + gray_pixels()), "accepted"});
  std::string texts;
  for (int i = 0; i < 12; ++i) texts += chunk("zTXt", "note\0\0"s + bomb) + chunk("iTXt", "n\0\1\0\0\0"s + bomb);
  files.push_back({"bombs_in_24_texts.png",  // and pixels for which there would be no room
                   png(header(5000, 4000, 8, 0) + texts + chunk("IDAT", deflated(std::string(4000 * 5001, '\0')))),
                   "accepted"});
  std::string many;
  for (int i = 0; i < 100000; ++i) many += chunk("tEXt", "k\0v"s);
  files.push_back({"chunks_100000.png", png(gray + many + gray_pixels()), "accepted"});
  files.push_back({"chunk_of_2_gib.png", png_magic + gray + big_endian(0x7FFFFFFF) + "tEXt", "truncated_image"});
  files.push_back(
      {"rows_with_filter_9.png", png(gray + chunk("IDAT", deflated(std::string(64 * 65, '\x09')))), "decode_error"});
  files.push_back({"broken_stream.png", png(gray + chunk("IDAT", "x\x9C not deflate at all")), "decode_error"});
}

// ---- WebP --------------------------------------------------------------------------------------------------------

std::string webp(const std::string& chunks) {
  return "RIFF" + little_endian(static_cast<std::uint32_t>(chunks.size() + 4)) + "WEBP" + chunks;
}

std::string riff_chunk(const std::string& name, const std::string& payload) {
  return name + little_endian(static_cast<std::uint32_t>(payload.size())) + payload +
         std::string(payload.size() % 2, '\0');
}

std::string canvas(int flags, int width, int height) {
  return riff_chunk("VP8X", little_endian(flags) + little_endian(width - 1, 3) + little_endian(height - 1, 3));
}

void add_webps(std::vector<File>& files) {
  const std::string good = golden("lossy.webp"), lossless = golden("lossless.webp");
  const std::string bitstream = good.substr(12), animation = "\0\0\0\0\0\0"s;
  for (const int percent : {1, 20, 50, 90}) {
    files.push_back({fmt::format("cut_to_{:02}_percent.webp", percent), good.substr(0, good.size() * percent / 100),
                     "truncated_image"});
    files.push_back({fmt::format("lossless_cut_to_{:02}_percent.webp", percent),
                     lossless.substr(0, lossless.size() * percent / 100), "truncated_image"});
  }
  files.push_back({"only_magic.webp", webp(""), "decode_error"});
  files.push_back({"says_4_gib.webp", with_byte(with_byte(good, 6, 0xFF), 7, 0xFF), "truncated_image"});
  files.push_back({"canvas_of_an_animation_16384.webp",
                   webp(canvas(2, 16384, 16384) + riff_chunk("ANIM", std::string(6, '\0')) + bitstream), "too_large"});
  files.push_back({"canvas_16384.webp", webp(canvas(0, 16384, 16384) + bitstream), "decode_error"});
  files.push_back({"canvas_2_24.webp", webp(canvas(0, 1 << 24, 1 << 24) + bitstream), "decode_error"});
  files.push_back({"canvas_of_another_size.webp", webp(canvas(0, 1000, 1000) + bitstream), "decode_error"});
  const auto frame = [&](int x, int y) {
    return riff_chunk("ANMF", little_endian(x, 3) + little_endian(y, 3) + little_endian(130, 3) + little_endian(96, 3) +
                                  std::string(4, '\0') + bitstream);
  };
  const auto animated = [&](int width, int height, const std::string& frames) {
    return webp(canvas(2, width, height) + riff_chunk("ANIM", animation) + frames);
  };
  files.push_back({"frame_outside.webp", animated(140, 100, frame(100, 100)), "decode_error"});
  files.push_back({"frame_far_outside.webp", animated(140, 100, frame(0xFFFFFF, 0xFFFFFF)), "decode_error"});
  files.push_back({"animation_without_frames.webp", animated(140, 100, ""), "decode_error"});
  files.push_back(
      {"animation_of_nothing.webp", animated(140, 100, riff_chunk("ANMF", std::string(16, '\0'))), "decode_error"});
  files.push_back({"broken_bitstream.webp", webp(riff_chunk("VP8 ", std::string(200, 'x'))), "decode_error"});
  files.push_back(
      {"broken_lossless.webp", webp(riff_chunk("VP8L", "\x2F" + std::string(200, '\xFF'))), "decode_error"});
}

// ---- what is none of these, or several at once ---------------------------------------------------------------------

void add_others(std::vector<File>& files) {
  const std::pair<const char*, std::string> none[] = {
      {"empty", ""},
      {"zeros", std::string(1000, '\0')},
      {"gif", "GIF89a\x01\0\x01\0\0\0\0;"s},
      {"bmp", "BM\x46\0\0\0\0\0\0\0"s},
      {"tiff", "II*\0\x08\0\0\0\xFF\xFF\xFF\xFF"s},
      {"bigtiff", "MM\0+\0\x08\0\0"s},
      {"ico", "\0\0\1\0\1\0"s},
      {"psd", "8BPS\0\1"s},
      {"jxl", "\xFF\x0A\xFF\xFF"s},
      {"jp2", "\0\0\0\x0CjP  \r\n\x87\n"s},
      {"avif",
       "\0\0\0\x1C"
       "ftypavif\0\0\0\0"s},
      {"heic",
       "\0\0\0\x18"
       "ftypheic\0\0\0\0"s},
      {"mp4",
       "\0\0\0\x20"
       "ftypisom\0\0\0\0"s},
      {"svg", "<svg xmlns='http://www.w3.org/2000/svg'><script>1</script></svg>"},
      {"svg_bomb", "<?xml version='1.0'?><!DOCTYPE l [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;'>]><svg>&b;</svg>"},
      {"html", "<!doctype html><html><body>Not Found</body></html>"},
      {"html_with_bom", "\xEF\xBB\xBF \n<HTML>"},
      {"json", R"({"error":"rate limited"})"},
      {"pdf", "%PDF-1.7\n"},
      {"elf",
       "\x7F"
       "ELF\2\1\1"},
      {"zip", "PK\3\4"},
      {"script", "#!/bin/sh\nrm -rf /\n"},
      {"avi", "RIFF\x24\0\0\0AVI LIST"s},
      {"wav", "RIFF\x24\0\0\0WAVEfmt "s},
      {"gif_before_jpeg", "GIF89a" + good_jpeg()},
      {"html_before_jpeg", "<html>" + good_jpeg()},
      {"jpeg_behind_a_blank", " " + good_jpeg()},
  };
  for (const auto& [name, bytes] : none) files.push_back({fmt::format("{}.jpg", name), bytes, "not_an_image"});
  const std::string good = good_jpeg();
  files.push_back({"jpeg_and_zip.jpg", good + "PK\3\4" + std::string(1000, 'x'), "accepted"});
  files.push_back({"jpeg_and_html.jpg", good + "<html><script>1</script>", "accepted"});
  files.push_back({"jpeg_twice.jpg", good + good, "accepted"});
  files.push_back({"script_in_a_comment.jpg", insert(good, segment(0xFE, "<?php system($_GET['c']); ?>")), "accepted"});
  files.push_back({"png_called_jpg.jpg", golden("rgb.png"), "accepted"});
  files.push_back({"webp_called_png.png", golden("lossy.webp"), "accepted"});
  files.push_back({"png_magic_jpeg_body.png", png_magic + good, "decode_error"});
  files.push_back({"riff_of_jpeg.webp", "RIFF\xFF\xFF\0\0WEBP"s + good, "decode_error"});
}

}  // namespace

std::string good_jpeg() {
  static const std::string jpeg = [] {
    std::mt19937 random(1);
    Image image{64, 64, Pixels(64 * 64 * 3)};
    for (auto& value : image.pixels) value = static_cast<std::uint8_t>(random());
    return encode_jpeg(image, 80);
  }();
  return jpeg;
}

std::vector<File> images() {
  std::vector<File> files;
  add_jpegs(files);
  add_pngs(files);
  add_webps(files);
  add_others(files);
  return files;
}

}  // namespace millrace::hostile
