#include "millrace/core/abandoned.h"

#include <chrono>

#include "millrace/core/process_name.h"

namespace millrace {

namespace fs = std::filesystem;

// PROCESS of PROCESS-RANDOM; older versions wrote no number behind it.
static std::string_view process_of(std::string_view name) {
  return name.substr(0, name.find('-', name.find('-') + 1));
}

bool is_untouched_for_a_day(const fs::directory_entry& file) {
  std::error_code error;
  const auto written = file.last_write_time(error);
  return !error && fs::file_time_type::clock::now() - written > std::chrono::hours(24);
}

bool is_abandoned_by(std::string_view process, const fs::directory_entry& file) {
  return process_is_gone(process) || is_untouched_for_a_day(file);
}

bool is_abandoned(const fs::directory_entry& file) {
  const auto extension = file.path().extension().string();
  constexpr std::string_view temporary = ".tmp-";
  return extension.starts_with(temporary) &&
         is_abandoned_by(process_of(std::string_view(extension).substr(temporary.size())), file);
}

}  // namespace millrace
