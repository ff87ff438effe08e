#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace millrace::storm {

namespace fs = std::filesystem;

// What is wrong with a case or a trial; empty when nothing is.
using Troubles = std::vector<std::string>;

// What all cases of a storm, or all trials of a sweep, share.
struct Workshop {
  fs::path millrace;          // the program
  fs::path folder, pipeline;  // a temporary folder, and in it a pipeline of next to no size
  double limit = 60;          // seconds of one life
  bool shuffle_block = true;  // false: a program from before data.shuffle_block
};

// The folder is $TMPDIR/NAME-*.
Workshop open_workshop(const fs::path& millrace, const std::string& name);

}  // namespace millrace::storm
