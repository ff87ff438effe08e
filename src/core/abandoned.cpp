#include "millrace/core/abandoned.h"

#include <chrono>

#include "millrace/core/process_name.h"

namespace millrace {

namespace fs = std::filesystem;

bool is_untouched_for_a_day(const fs::directory_entry& file) {
  std::error_code error;
  const auto written = file.last_write_time(error);
  return !error && fs::file_time_type::clock::now() - written > std::chrono::hours(24);
}

bool is_abandoned_by(std::string_view process, const fs::directory_entry& file) {
  return process_is_gone(process) || is_untouched_for_a_day(file);
}

bool is_abandoned(const fs::directory_entry& file) {
  const auto writer = writer_of_temporary(file.path());
  return writer && is_abandoned_by(*writer, file);
}

}  // namespace millrace
