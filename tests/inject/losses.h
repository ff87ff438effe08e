#pragma once
#include <string>

// A power failure in the small: what a process has written without an fsync that was really made is gone with it.
namespace millrace::inject {

// From now on. Costs a hard link per renamed file, beside it, until its folder is synced.
void remember_losses();

void note_writing(int fd, const std::string& path);
void note_synced(const std::string& path);  // a file, or a folder with the names in it
// Around a rename: before it, and after it has gone well.
void note_renaming(const std::string& from, const std::string& to);
void note_renamed(const std::string& from, const std::string& to);
void note_removing(const std::string& path);

// Cuts off what files have got since they were synced, takes back renames whose folder was not. File systems keep the
// order of names: what was renamed and has lost files since stays renamed.
void lose_what_was_not_synced();

}  // namespace millrace::inject
