#include "webdataset_source.h"

#include <fmt/ranges.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "key_counter.h"
#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/core/storage_error.h"
#include "millrace/core/text.h"
#include "millrace/core/visible.h"
#include "millrace/dataset/row.h"
#include "millrace/io/input_file.h"
#include "millrace/io/json.h"
#include "millrace/io/net/urls.h"
#include "millrace/io/tar.h"

namespace millrace {

namespace {

TarRules rules_of(const SourceConfig& config, const ClassPrompts* prompts) {
  constexpr std::string_view of_json = "json.";
  TarRules rules;
  rules.with_json = !config.filters.empty();
  rules.prompts = prompts;
  rules.needs_captions = config.needs_captions;
  if (config.columns.image) {
    rules.images = {lower(*config.columns.image)};  // as TarReader gives fields
  } else {
    rules.images.assign(image_fields.begin(), image_fields.end());
  }
  if (!rules.needs_captions) return rules;
  const config::OneOrMore names = prompts ? config.columns.cls.value_or("cls") : config.columns.caption.value_or("txt");
  for (const std::string& name : names.values) {
    if (name.starts_with(of_json)) {
      rules.captions.push_back({name, name.substr(of_json.size())});
      rules.with_json = true;
    } else {
      rules.captions.push_back({lower(name), {}});
    }
  }
  return rules;
}

TarOptions wanted_fields(const TarRules& rules) {
  TarOptions options;
  options.fields = rules.images;
  for (const auto& caption : rules.captions)
    if (!caption.key) options.fields.push_back(caption.name);
  if (rules.with_json) options.fields.emplace_back("json");
  return options;
}

std::string* find_field(TarSample& sample, std::string_view name) {
  for (auto& [field, bytes] : sample.fields) {
    if (field == name) return &bytes;
  }
  return nullptr;
}

std::string* find_image(TarSample& sample, const TarRules& rules) {
  for (const auto& field : rules.images) {
    if (std::string* bytes = find_field(sample, field)) return bytes;
  }
  return nullptr;
}

void add_texts_in_json(const std::string& text, const std::string& key, std::vector<std::string>& texts) {
  const auto json = nlohmann::json::parse(from_python_json(text), nullptr, /*allow_exceptions=*/false);
  const auto found = json.is_object() ? json.find(key) : json.end();
  if (found == json.end()) return;
  if (!found->is_array()) return add_text(*found, texts);
  for (const auto& value : *found) add_text(value, texts);
}

std::vector<std::string> find_captions(TarSample& sample, const TarRules& rules) {
  if (!rules.needs_captions) return {""};
  std::vector<std::string> texts;
  for (const auto& [name, key] : rules.captions) {
    const std::string* const member = find_field(sample, key ? "json" : name);
    if (member && key) add_texts_in_json(*member, *key, texts);
    if (member && !key) texts.push_back(*member);
  }
  if (!rules.prompts) return texts;
  const auto prompt = texts.size() == 1 ? rules.prompts->find(texts.front()) : std::nullopt;
  return prompt ? std::vector{*prompt} : std::vector<std::string>();
}

Rejected oversized_sample(SampleRef ref) {
  return {std::move(ref), RejectReason::too_large, "more bytes or fields than a sample may have"};
}

// "jpg, json": what a sample has in place of what it lacks.
std::string list_fields(const TarSample& sample) {
  constexpr std::size_t most = 8;
  std::vector<std::string> fields;
  for (const auto& [field, bytes] : sample.fields)
    if (fields.size() < most) fields.push_back(visible_line(field));
  if (sample.fields.size() > most) fields.emplace_back("...");
  return fmt::format("{}", fmt::join(fields, ", "));
}

std::string describe_missing_caption(const TarSample& sample, const TarRules& rules) {
  std::vector<std::string> names;
  for (const auto& caption : rules.captions) names.push_back(caption.name);
  return fmt::format("no {}{}; it has {}", fmt::join(names, ", no "), rules.prompts ? ", or no caption of it" : "",
                     list_fields(sample));
}

RawRow to_row(TarSample sample, SampleRef ref, const TarRules& rules) {
  if (sample.oversized || sample.end > sample.begin + max_sample_bytes) return oversized_sample(std::move(ref));
  std::string* const image = find_image(sample, rules);
  std::string* const json = find_field(sample, "json");
  if (rules.with_json && json && json->size() > max_metadata_bytes)
    return Rejected{std::move(ref), RejectReason::bad_json, fmt::format("metadata of {} bytes", json->size())};
  if (!image)
    return Rejected{.ref = std::move(ref),
                    .reason = RejectReason::missing_image,
                    .detail = fmt::format("none of {}; it has {}", fmt::join(rules.images, ", "), list_fields(sample)),
                    .json = json ? std::move(*json) : std::string()};
  const auto captions = find_captions(sample, rules);
  if (captions.empty()) {
    auto detail = describe_missing_caption(sample, rules);
    return Rejected{.ref = std::move(ref),
                    .reason = RejectReason::missing_caption,
                    .detail = std::move(detail),
                    .json = json ? std::move(*json) : std::string()};
  }
  RawSample raw;
  raw.ref = std::move(ref);
  if (auto refusal = set_captions(raw, captions)) return *std::move(refusal);
  raw.image = std::move(*image);
  if (json) raw.json = std::move(*json);
  return raw;
}

// A split of an archive that is read from front to back, as streams must be.
class FrontToBackReader final : public SplitReader {
 public:
  FrontToBackReader(const Archive& archive, const TarRules& rules, const Split& split, std::uint64_t first_row)
      : archive_(archive), rules_(rules), tar_(archive.path, wanted_fields(rules)), split_(split), next_(first_row) {
    pass_over_to(split_.row(next_));
  }

  // Before the first next(): NOTE [Rows that were there].
  std::optional<Rejected> lost_row() const {
    const auto& error = tar_.error();
    if (!ended_ || !lacks_row_before(split_, next_, rows_ + (error ? 1 : 0))) return std::nullopt;
    return lost_rows(archive_, rows_, error ? error->message : "");
  }

  std::optional<RawRow> next() override {
    pass_over_to(split_.row(next_));
    if (is_over()) return std::nullopt;
    std::optional<TarSample> sample = tar_.next();
    if (!sample) return row_behind_samples();  // or throws, and is asked for the same row again
    ++next_;
    ++rows_;
    SampleRef ref = name_row(archive_, sample->key, keys_.add(sample->key));
    if (sample->end > 0) ref.offset = sample->begin;
    return to_row(std::move(*sample), std::move(ref), rules_);
  }

 private:
  // Of rows that nobody wants only the keys are looked at, for the ids of those behind them.
  void pass_over_to(std::uint64_t row) {
    while (rows_ < row && !is_over()) {
      if (const auto sample = tar_.skip_one()) {
        ++rows_;
        keys_.add(sample->key);
      } else {
        row_behind_samples();
      }
    }
  }

  bool is_over() const { return ended_ || rows_ == archive_.limit; }

  // A broken archive is one.
  std::optional<RawRow> row_behind_samples() {
    if (tar_.error() && is_pipe(archive_.path) && !tar_.error()->input_failure.empty() && !std::exchange(told_, true))
      throw CommandFailed(archive_.name, tar_.error()->input_failure, tar_.error()->message);
    ended_ = true;
    if (!tar_.error()) return std::nullopt;
    return broken_archive(archive_, tar_.error()->message);
  }

  const Archive& archive_;
  const TarRules rules_;
  TarReader tar_;
  KeyCounter keys_;
  const Split split_;
  std::uint64_t next_;      // row of the split
  std::uint64_t rows_ = 0;  // of the archive, so far
  bool ended_ = false;
  bool told_ = false;  // that the command failed
};

// One split of a plain file, or what is left of it: goes to each sample by the index. `distrust` tells that the archive
// is another one than the index was made of.
class IndexedReader final : public SplitReader {
 public:
  IndexedReader(const Archive& archive, std::shared_ptr<const TarIndex> index, const Split& split,
                std::uint64_t first_row, const TarRules& rules, std::function<void()> distrust)
      : archive_(archive),
        index_(std::move(index)),
        distrust_(std::move(distrust)),
        rules_(rules),
        file_(local_path(archive.path)),
        split_(split),
        next_(first_row) {}

  std::optional<RawRow> next() override {
    const std::uint64_t position = split_.row(next_++);
    if (archive_.limit && position >= *archive_.limit) return std::nullopt;
    if (position < index_->samples.size()) return sample_at(position);
    // A broken archive is one row behind its readable samples, in the split whose turn it is.
    if (position > index_->samples.size() || !index_->broken) return std::nullopt;
    return broken_archive(archive_, *index_->broken);
  }

 private:
  RawRow sample_at(std::uint64_t position) {
    const auto [begin, end] = index_->samples[position];
    if (end - begin > max_sample_bytes) {
      SampleRef ref = name_archive(archive_);
      ref.offset = begin;
      return oversized_sample(std::move(ref));
    }
    std::optional<TarSample> sample = read_tar_sample(file_, begin, end, wanted_fields(rules_));
    if (!sample) {  // NOTE [Cut short]
      distrust_();
      throw StorageError(archive_.path, fmt::format("no sample at byte {}; was the file changed?", begin),
                         fmt::format("{}: no sample at byte {} any more", archive_.path, begin));
    }
    const auto repeated = index_->repeated.find(position);
    SampleRef ref = name_row(archive_, sample->key, repeated == index_->repeated.end() ? 1 : repeated->second);
    ref.offset = begin;
    return to_row(std::move(*sample), std::move(ref), rules_);
  }

  const Archive& archive_;
  const std::shared_ptr<const TarIndex> index_;
  const std::function<void()> distrust_;
  const TarRules rules_;
  const InputFile file_;
  const Split split_;
  std::uint64_t next_;  // row of the split
};

}  // namespace

WebDatasetSource::WebDatasetSource(const Manifest& manifest, const SourceConfig& config,
                                   std::optional<ClassPrompts> prompts, IndexStore indices)
    : manifest_(manifest),
      prompts_(std::move(prompts)),
      rules_(rules_of(config, prompts_ ? &*prompts_ : nullptr)),
      store_(std::move(indices)) {}

std::unique_ptr<SplitReader> WebDatasetSource::open(const Split& split, std::uint64_t first_row) const {
  const Archive& archive = manifest_.archives.at(split.archive);
  if (archive.seekable) {
    const auto index = split.count > 1 ? index_of(split.archive) : index_of_whole(split.archive, first_row);
    if (index && index->plain) {
      const std::uint64_t samples = index->samples.size();
      if (lacks_row_before(split, first_row, samples + (index->broken ? 1 : 0)))
        return make_one_row_reader(lost_rows(archive, samples, index->broken.value_or("")));
      return std::make_unique<IndexedReader>(archive, index, split, first_row, rules_,
                                             [=, this] { distrust_index_of(split.archive, index); });
    }
  }
  auto reader = std::make_unique<FrontToBackReader>(archive, rules_, split, first_row);
  if (auto lost = reader->lost_row()) return make_one_row_reader(std::move(lost));
  return reader;
}

std::shared_ptr<const TarIndex> WebDatasetSource::index_of_whole(std::uint32_t archive, std::uint64_t first_row) const {
  std::unique_lock lock(mutex_);
  const bool is_opened_again = !opened_.insert(archive).second;
  lock.unlock();
  if (first_row == 0) return nullptr;
  if (is_opened_again) return index_of(archive);
  auto index = store_.try_index_of(local_path(manifest_.archives[archive].path));
  return index ? std::make_shared<const TarIndex>(*std::move(index)) : nullptr;
}

void WebDatasetSource::distrust_index_of(std::uint32_t archive, const std::shared_ptr<const TarIndex>& index) const {
  std::unique_lock lock(mutex_);
  Indexed& indexed = indices_[archive];
  lock.unlock();
  const std::lock_guard making(indexed.mutex);
  if (indexed.index.lock() == index) indexed.is_distrusted = true;  // else somebody has made another already
}

// Some file systems tell another time at each look, and an index costs a pass over the archive.
static bool is_changed(const std::string& file, const TarIndex& index, bool has_restless_time) {
  const auto stamp = stamp_of(file);
  return !stamp || stamp->bytes != index.stamp.bytes || (!has_restless_time && *stamp != index.stamp);
}

std::shared_ptr<const TarIndex> WebDatasetSource::index_of(std::uint32_t archive) const {
  std::unique_lock lock(mutex_);
  Indexed& indexed = indices_[archive];
  lock.unlock();
  const std::lock_guard making(indexed.mutex);  // one that fails is made anew by the next who needs it
  const std::string &path = manifest_.archives[archive].path, file = local_path(path);
  const std::shared_ptr<const TarIndex> known = indexed.index.lock();
  std::shared_ptr<const TarIndex> index = known;
  if (!known || indexed.is_distrusted || is_changed(file, *known, indexed.has_restless_time)) {
    indexed.index = index =
        std::make_shared<const TarIndex>(indexed.is_distrusted ? store_.make_index_of(file) : store_.index_of(file));
    if (known && !indexed.is_distrusted && index->samples == known->samples) indexed.has_restless_time = true;
    indexed.is_distrusted = false;
    if (!index->plain && !std::exchange(indexed.warned, true))
      log::warning(
          "{} is compressed, whatever its name says: each of its splits unpacks it from its beginning; name it "
          ".tar.gz, or unpack it",
          path);
  }
  lock.lock();
  std::erase(kept_, known);
  keep_for_later(index);
  return index;
}

// Where no index can be kept on disk, getting one again costs a pass over the archive: those of small archives stay.
void WebDatasetSource::keep_for_later(const std::shared_ptr<const TarIndex>& index) const {
  constexpr std::size_t most_samples = 1 << 24;  // 256 MiB
  kept_.push_back(index);
  std::size_t samples = 0;
  for (const auto& kept : kept_) samples += kept->samples.size();
  for (; samples > most_samples; kept_.pop_front()) samples -= kept_.front()->samples.size();
}

}  // namespace millrace
