#pragma once
#include <cstdint>
#include <filesystem>

namespace millrace {

// The bytes of memory that this process and its neighbours on the node may use together: all of the kernel's, or less
// if a control group (version 1 or 2) of the process sets a limit. `root` stands in for / in tests. The largest
// possible number if neither is known.
std::uint64_t node_memory_bytes(const std::filesystem::path& root = "/");
// The part of it that is free at present; cached files count as free.
std::uint64_t free_node_memory_bytes(const std::filesystem::path& root = "/");

}  // namespace millrace
