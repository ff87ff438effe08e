#pragma once
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace millrace {

struct CaptionList {
  std::vector<std::string> captions;
  std::vector<std::string> files;    // by column `file`, the name of each one's picture; empty without that column
  std::vector<std::string> columns;  // of .jsonl, .csv and .tsv
};

// A file of captions: .txt a line each, .csv, .tsv and .jsonl in a column `caption` or `prompt`; each also gzipped.
// Empty lines hold none. Error(io) naming file and row, also for a file without any.
CaptionList read_captions(const std::filesystem::path& file);

// Columns by which `millrace generate` would paint these rows, and of which an evaluation makes nothing: `prompt`
// beside `caption`, and where it `paints` also `seed` and `negative_prompt`.
std::vector<std::string> ignored_columns(const CaptionList& list, bool paints);

// Whether column `file` has the name of any of these.
bool names_any(std::span<const std::filesystem::path> pictures, const CaptionList& list);

// One for each picture: the caption whose `file` is the picture's name; of a list that names none of them the n-th.
// Error(usage) naming a picture without a caption or with two, or how many captions there are for how many pictures.
std::vector<std::string> captions_of(std::span<const std::filesystem::path> pictures, const CaptionList& list);

}  // namespace millrace
