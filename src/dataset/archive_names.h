#pragma once
#include <string>
#include <vector>

namespace millrace {

// ARCHIVE for each path: the file name without directories and archive suffixes, with as many directories in front as
// it takes to tell equal names apart; a pipe's last word that looks like an archive, else pipe-N. Error(usage) naming
// `section` for a path that is given twice.
std::vector<std::string> archive_names(const std::vector<std::string>& paths,
                                       const std::string& section = "data.train");

}  // namespace millrace
