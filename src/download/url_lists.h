#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "column_types.h"
#include "millrace/download/download_config.h"
#include "millrace/io/cell.h"
#include "millrace/io/lists.h"
#include "millrace/io/parquet.h"

namespace millrace {

// The files behind `download.urls`: braces expanded, a directory = the sorted lists in it. Error(io) for what is
// missing.
std::vector<fs::path> expand_lists(const std::vector<std::string>& patterns);

// Of lists that take long to pass over: each rank finds its rows, at each start, by reading those that are no Parquet
// from their first line on.
std::optional<std::string> complaint_about_lists(const std::vector<fs::path>& lists);

// One row of a list.
struct ListRow {
  std::string url, hash;
  std::optional<std::string> caption;  // of several the first that is not empty
  std::string captions;                // several, as a JSON list
  std::vector<Cell> others;
  std::string damage;  // why it is not asked for; empty = it is
};

// Some rows of one list, which become one archive. Texts are UTF-8.
struct ListSlice {
  std::uint64_t shard = 0;
  bool has_captions = false;
  std::vector<std::string> other_names;  // of ListRow::others
  ColumnTypes other_types;               // of the whole list's
  bool numbers_are_text = false;         // in columns of text, as in CSV
  std::vector<ListRow> rows;
};

// Cuts lists into shards of rows_per_file rows, as img2dataset does: each file by itself, the last shard of a file
// short, numbers running on over the files.
class UrlLists {
 public:
  // read() needs the `types` that find_types() gives.
  explicit UrlLists(const DownloadConfig& config, ListTypes types = {});

  // Opens each list: Error(io) for the first that cannot be read, Error(usage) for one that lacks a column, has two of
  // one name, whose captions are no texts, or whose `others` are named as columns of the metadata. With a limit the
  // first alone: which others it leaves out is not known.
  void check() const;
  // Reads each list that is no Parquet and not `known`, with a limit those it reaches, to their ends: which types their
  // columns have, only all rows can tell. Errors as in check(); Error(requeue) when a signal has come.
  ListTypes find_types(ListTypes known = {}) const;
  // Number of the shard that comes next, if there is one.
  std::uint64_t next_shard() const { return shard_; }
  const std::vector<fs::path>& files() const { return files_; }
  std::size_t lists_begun() const { return file_; }
  // Its rows; none at the end of the last list. Errors as in check().
  ListSlice read();
  // Passes over it; false at the end of the last list. Errors as in check().
  bool skip();

 private:
  struct Source {
    std::variant<ParquetReader, ListReader> reader;
    std::optional<std::size_t> caption = {}, hash = {};  // positions in a row; the URL is the first
    std::string caption_name = {};                       // of the column
    std::vector<std::string> other_names = {};           // of the cells from first_other on
    std::size_t first_other = 0;
    ColumnTypes types = {};         // of the others
    bool numbers_are_text = false;  // as in CSV
  };
  Source open(const fs::path& path) const;
  bool open_next();
  // Of up to `rows` rows; returns how many there were.
  static std::uint64_t survey(Source& source, std::uint64_t rows, ColumnTypes& types);
  std::uint64_t rows_left() const;
  void advance(std::uint64_t rows);
  [[noreturn]] void refuse_changed(const std::string& how) const;
  ListRow make_row(std::vector<Cell> cells) const;
  void set_caption(ListRow& row, const Cell& cell) const;
  Cell make_other(std::size_t other, Cell cell) const;

  const DownloadConfig& config_;
  const std::vector<fs::path> files_;
  const ListTypes types_;
  std::size_t file_ = 0;  // the next one to open
  std::optional<Source> source_;
  std::uint64_t shard_ = 0, rows_ = 0;
};

}  // namespace millrace
