#pragma once
#include <map>
#include <string>

namespace millrace::preflight {

// The shared libraries in this process: name -> what tells its build.
std::map<std::string, std::string> loaded_libraries();

}  // namespace millrace::preflight
