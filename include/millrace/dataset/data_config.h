#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "millrace/config/config.h"
#include "millrace/core/units.h"
#include "millrace/image/decode.h"

namespace millrace {

// Names of columns, or of a tar's members; what is not named is looked for under the usual names.
struct SourceColumns {
  std::optional<std::string> image, key, cls;
  std::optional<config::OneOrMore> caption;  // of several each visit takes one

  void describe(config::Section& section);
};

// One data set: `data.train` or `data.validation`.
struct SourceConfig {
  enum class Type { webdataset, parquet, csv, class_labels, latents, synthetic };
  std::string section = "data.train";  // its own dotted name, for messages
  Type type = Type::webdataset;
  std::vector<std::string> path;               // files, brace patterns, directories, addresses, pipe: commands
  std::map<std::string, std::string> filters;  // metadata field -> expression, see filter.h
  std::optional<std::string> idx_to_prompt;    // file that gives a class its caption
  SourceColumns columns;
  std::optional<std::int64_t> limit;  // use only the first rows, in the order of the manifest
  bool needs_captions = true;         // no key: where images are all that is used, rows without a caption have ""

  void describe(config::Section& section);
  // Adds what single keys cannot tell, such as a missing path.
  void check(config::Report& report) const;

 private:
  std::vector<std::string> keys_without_use() const;
};

const char* to_string(SourceConfig::Type type);  // as the configuration spells it

// Section `data`.
struct DataConfig {
  SourceConfig train;
  std::optional<SourceConfig> validation;
  ImageConfig images;
  int shuffle_block = 128;       // rows of one stripe that are shuffled together
  config::Auto<int> threads;     // readers and transformers per producer; auto = the cores given to the process
  config::Auto<int> stripes;     // auto: see plan_stripes
  std::string index = "beside";  // where indices of tars are kept: beside, never, or a folder; see index_store.h
  Duration retry_for = Duration::seconds(300);  // reads that fail for reasons of storage or network are tried again
  bool allow_pipes = false;                     // pipe: addresses run shell commands
  double max_bad_share = 0.2;  // more rejected rows than this stop the run (filtered and too_small ones are not bad)

  void describe(config::Section& section);
  // What single keys cannot tell, of data.train too.
  void check(config::Report& report) const;
};

}  // namespace millrace
