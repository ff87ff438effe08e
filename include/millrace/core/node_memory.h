#pragma once
#include <cstdint>
#include <filesystem>

namespace millrace {

// The bytes of memory that this process and its neighbours on the node may use together: what the kernel has, or less
// where a control group (version 1 or 2) of the process sets a limit. `root` stands in for / in tests. The largest
// number where neither is known.
std::uint64_t node_memory_bytes(const std::filesystem::path& root = "/");
// What of it can be had at present; files that the system caches count as free.
std::uint64_t free_node_memory_bytes(const std::filesystem::path& root = "/");

}  // namespace millrace
