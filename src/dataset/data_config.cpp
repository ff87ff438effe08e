#include "millrace/dataset/data_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "millrace/core/error.h"
#include "millrace/dataset/filter.h"

namespace millrace {

void SourceColumns::describe(config::Section& s) {
  s.key(
      "image", image,
      "column of image bytes (Parquet), of paths and addresses (lists), or of latents; of tars a member, such as png; "
      "null = the usual names");
  s.key(
      "caption", caption,
      "column of captions, or of their text embeddings (latents); of tars a member, such as txt, or json.KEY, a text "
      "or list of texts in the member json; of several, such as [txt, json.synthetic], each visit takes one by chance; "
      "null = the usual names");
  s.key("key", key, "column that names a row in ids; null = the row number (of tars always the member's name)");
  s.key("cls", cls, "column, or member of tars, of class numbers (type class)");
}

void SourceConfig::describe(config::Section& s) {
  section = "data." + s.name();
  s.key("type", type,
        {{"webdataset", Type::webdataset},
         {"parquet", Type::parquet},
         {"csv", Type::csv},
         {"class", Type::class_labels},
         {"latents", Type::latents},
         {"synthetic", Type::synthetic}},
        "webdataset = tars; parquet = files with image bytes; csv = lists (csv, tsv, jsonl) of paths or addresses; "
        "class = tars or lists with class numbers; latents = a latent cache; synthetic = no files");
  s.key("path", path,
        "files, brace patterns, directories, http(s):// or s3:// addresses, pipe: commands; one or a list");
  s.key("filters", filters,
        "metadata field -> condition: \"<=0.5\", \">=512 and <2048\", \"in [en, de]\", \"0.5..1\"; text of other "
        "characters than letters, digits and _ . : / + - in quotes");
  s.key("idx_to_prompt", idx_to_prompt, "JSON file, class number -> caption (type class)");
  s.section("columns", columns, "names of columns, of Parquet and lists, and of members of tars");
  s.key("limit", limit,
        "use only this many rows, the first ones; null = all. Of tars every start counts them, from the headers of all "
        "archives up to there")
      .at_least(1);
}

const char* to_string(SourceConfig::Type type) {
  using Type = SourceConfig::Type;
  switch (type) {
    case Type::webdataset:
      return "webdataset";
    case Type::parquet:
      return "parquet";
    case Type::csv:
      return "csv";
    case Type::class_labels:
      return "class";
    case Type::latents:
      return "latents";
    case Type::synthetic:
      return "synthetic";
  }
  return "unknown";
}

namespace {

void check_filter(const std::string& section, const std::pair<const std::string, std::string>& filter,
                  config::Report& report) {
  try {
    (void)Filter({filter}, section);
  } catch (const Error& error) {
    const std::string key = fmt::format("{}.filters.{}", section, filter.first);
    report.problem_at(report.origin(key), fmt::format("{}; {}", error.what(), error.hint()));
  }
}

}  // namespace

// Those that are set, and that a run would pass over in silence.
std::vector<std::string> SourceConfig::keys_without_use() const {
  std::vector<std::string> keys;
  const auto unless = [&](bool has_use, bool is_set, const char* key) {
    if (is_set && !has_use) keys.emplace_back(key);
  };
  if (type == Type::latents) return keys;  // a cache's were those of its images, and a table's are checked with it
  const bool has_files = type != Type::synthetic, has_classes = type == Type::class_labels;
  unless(has_files, !filters.empty(), "filters");
  unless(has_files, columns.image.has_value(), "columns.image");
  unless(has_files && !has_classes, columns.caption.has_value(), "columns.caption");
  unless(has_files && type != Type::webdataset, columns.key.has_value(), "columns.key");
  unless(has_classes, columns.cls.has_value(), "columns.cls");
  unless(has_classes, idx_to_prompt.has_value(), "idx_to_prompt");
  return keys;
}

void SourceConfig::check(config::Report& report) const {
  const std::string type_key = section + ".type";
  const bool has_path = std::any_of(path.begin(), path.end(), [](const std::string& one) { return !one.empty(); });
  if (!has_path && type != Type::synthetic)
    report.problem(section + ".path",
                   type == Type::latents ? "must be set (the folder of a complete latent cache)"
                                         : "must be set (archives, brace patterns or folders)",
                   {type_key});
  if (type == Type::class_labels && needs_captions && !idx_to_prompt)
    report.problem(section + ".idx_to_prompt", "must be set for type class", {type_key});
  if (type == Type::latents && columns.caption && columns.caption->values.size() > 1)
    report.problem(section + ".columns.caption", "must be one column with type latents", {type_key});
  for (const auto& key : keys_without_use())
    report.problem(section + "." + key, fmt::format("has no use with type {}", to_string(type)), {type_key});
  for (const auto& filter : filters) check_filter(section, filter, report);
}

void DataConfig::describe(config::Section& s) {
  s.section("train", train, "what is trained on");
  s.section("validation", validation, "what the validation loss is measured on; null = none");
  s.section("images", images, "which images are taken, and how their files are read");
  s.key("shuffle_block", shuffle_block, "rows of one stripe that are shuffled together; 1 = none").at_least(1);
  s.renamed("shuffle_buffer", "shuffle_block", "rows of one stripe that are shuffled together");
  s.key("threads", threads, "readers and transformers per producer; auto = threads").at_least(1);
  s.key("stripes", stripes,
        "sequences of samples that a run is made of, constant over restarts; a divisor of batch.global")
      .at_least(1);
  s.key("index", index,
        "where the index of a tar that is read in splits is kept, so that its headers are passed over once: beside = "
        ".NAME.millrace-index in the archive's folder where that can be written, never, or a folder");
  s.key("retry_for", retry_for,
        "how long a read is tried again that fails because storage or network do, before the run ends; 0 s = not");
  s.key("allow_pipes", allow_pipes, "pipe: addresses may run their shell command");
  s.key("max_bad_share", max_bad_share,
        "stop when more than this share of the rows is bad: rejected, but neither filtered nor too_small; or more than "
        "twice this share (at most half way to 1) of the last half to one million")
      .at_least(0)
      .at_most(1);
}

void DataConfig::check(config::Report& report) const {
  train.check(report);
  if (retry_for.unit != Duration::Unit::seconds || retry_for.count < 0)
    report.problem("data.retry_for", "must be a time, as in \"5 min\"");
}

}  // namespace millrace
