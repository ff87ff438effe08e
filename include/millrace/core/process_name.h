#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace millrace {

// The name of this machine, as gethostname() tells it.
std::string host_name();

// Identifies this machine and its present boot; the same in all containers on it, whatever their names. Empty if the
// kernel does not tell.
std::string boot_id();

// "9c1e22aa01b3f7d4-12345": no other process has it at the same time, on whatever machine and in whatever container;
// for names of temporary files in folders that machines share.
std::string process_name();

// "PATH.tmp-PROCESS-RANDOM", for a file that is to be renamed to PATH. Nobody can know the number beforehand and plant
// a link there.
std::string temporary_name(const std::string& path);

// PROCESS of such a name, or of "PATH.tmp-PROCESS", which older versions gave; nothing for a name of any other form.
std::optional<std::string> writer_of_temporary(const std::filesystem::path& name);

// True when the process of that name ran on this machine (since it was started, in this container) and is gone; false
// where that cannot be told.
bool process_is_gone(std::string_view name);

}  // namespace millrace
