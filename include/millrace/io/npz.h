#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace millrace {

// An array of numpy, row-major whatever its order in the file.
struct NpzArray {
  std::vector<std::int64_t> shape;
  std::vector<double> values;
};

// The float32 and float64 arrays of a file of numpy.savez or savez_compressed, by name; others are left out. Error(io)
// naming file and array, also where more than 1 GiB of them would come out of a small file.
std::map<std::string, NpzArray> read_npz(const std::filesystem::path& file);

}  // namespace millrace
