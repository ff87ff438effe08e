#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// Files that mean harm, or look as if they did, made byte by byte and the same every time.
namespace millrace::hostile {

struct File {
  std::string name;  // with the suffix that makes the program read it
  std::string bytes;
  // What must come of it, one word: "accepted" (harmless after all), "nothing" (no rows), a reason of the ledger, or
  // "error" (an Error that names the file). Several words, sorted, where the rows fare differently.
  std::string expected;
};

std::vector<File> tars();
std::vector<File> tars_with_metadata();  // read with the filter w > 5
std::vector<File> images();
std::vector<File> tables();  // Parquet and lists
std::vector<File> broken_json();
std::vector<File> safetensors();
// Of a latent cache, made from what a sound one has in that place.
std::vector<File> latent_records(const std::string& sound);      // rows/ARCHIVE/NAME.json
std::vector<File> latent_values(const std::string& sound);       // rows/ARCHIVE/NAME.h5
std::vector<File> cache_manifests(const std::string& sound);     // MANIFEST.json
std::vector<File> cache_descriptions(const std::string& sound);  // CACHE.json

// A small sound JPEG of noise, and a tar of one sample with it.
std::string good_jpeg();
std::string good_tar(const std::string& key);

// Stored as gzip; runs of one byte become very small.
std::string gzip(std::string_view bytes);

}  // namespace millrace::hostile
