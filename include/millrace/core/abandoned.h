#pragma once
#include <filesystem>
#include <string_view>

// Half-written files whose writers are gone.
namespace millrace {

// True when nobody has written to it for a day.
bool is_untouched_for_a_day(const std::filesystem::directory_entry& file);

// True when the process of that name (process_name.h) is gone, or when nobody has written to its file for a day: a
// process of another machine may still be at work, and writes more often.
bool is_abandoned_by(std::string_view process, const std::filesystem::directory_entry& file);

// The same of a file that has a temporary_name, by the process in it; false for any other name, such as NAME.tmp-old,
// and for a file of another job that is at work.
bool is_abandoned(const std::filesystem::directory_entry& file);

}  // namespace millrace
