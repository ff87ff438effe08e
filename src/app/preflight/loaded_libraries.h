#pragma once
#include <map>
#include <string>

namespace millrace::preflight {

// The shared libraries in this process: name -> what identifies its build (the linker's build id, else its size).
std::map<std::string, std::string> loaded_libraries();

}  // namespace millrace::preflight
