#pragma once
#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "case.h"

namespace millrace::storm {

namespace fs = std::filesystem;

// What is in the archives, so what every row must become.
struct Truth {
  std::set<std::string> good;                               // ids
  std::map<std::string, std::vector<std::string>> rows_of;  // archive -> id of each row, empty where it is rejected
  std::map<std::string, int> rejected;  // reason -> rows; every trouble with an image's bytes is "image"

  int rows() const;
};

// Reasons of the ledger as Truth has them.
std::string reason_of_truth(const std::string& reason);

// Writes the archives of a case into `folder`. Rows that pass the filter `score: "<0.7"` are good, but for spoilt ones.
Truth write_archives(const Case& drawn, const fs::path& folder);

}  // namespace millrace::storm
