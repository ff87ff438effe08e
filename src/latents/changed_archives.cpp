#include "millrace/latents/changed_archives.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/core/parallel_for.h"
#include "millrace/core/secrets.h"
#include "millrace/core/stop.h"
#include "millrace/core/storage_error.h"
#include "millrace/core/text.h"
#include "millrace/latents/cache_manifest.h"
#include "millrace/latents/latent_cache.h"
#include "millrace/latents/latent_file.h"

namespace millrace {

namespace {

// Of the archive when it was encoded.
struct Encoded {
  std::uint64_t bytes = 0;  // 0 = unknown, or nothing is there
  std::string path;         // where `bytes` is unknown, if that is told
};

// As the first sound NAME.json says that tells what is to be compared: sizes, where the archive's is known.
Encoded find_encoded(const fs::path& cache, const Archive& archive) {
  const auto folder = latent_folder(cache, archive.name);
  std::error_code error;  // a folder that is not there yet has none
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() != ".json") continue;
    try {
      const auto info = read_latent_file_info(entry->path());
      if (info.archive == archive.name && (info.archive_bytes > 0 || archive.bytes == 0))
        return {info.archive_bytes, info.archive_path};
    } catch (const StorageError&) {
      throw;
    } catch (const Error&) {  // who reads the archive's rows warns of it
    }
  }
  check_storage(error, folder);
  return {};
}

bool is_number(const std::string& text) {
  constexpr std::size_t most_digits = 18;
  return !text.empty() && text.size() <= most_digits &&
         std::ranges::all_of(text, [](char c) { return '0' <= c && c <= '9'; });
}

bool is_next(const std::string& name, const std::string& before) {
  return name.size() == before.size() && is_number(name) && is_number(before) &&
         std::stoull(name) == std::stoull(before) + 1;
}

// {00003..00007} 00009: what a shell makes these names of.
std::vector<std::string> to_shell_words(const std::vector<std::string>& names) {
  std::vector<std::string> words;
  for (std::size_t begin = 0, end = 0; begin < names.size(); begin = end) {
    end = begin + 1;
    while (end < names.size() && is_next(names[end], names[end - 1])) ++end;
    words.push_back(end == begin + 1 ? names[begin] : fmt::format("{{{}..{}}}", names[begin], names[end - 1]));
  }
  return words;
}

// `known`: archives whose size the cache tells. Another set of data may have archives of the same names, which differ.
std::string cure_for_changed(const fs::path& cache, const std::vector<std::string>& folders, std::size_t known) {
  constexpr std::size_t most_words = 500;
  auto words = to_shell_words(folders);
  const bool are_too_many = words.size() > most_words;
  if (are_too_many) words.resize(most_words);
  const auto removal = fmt::format(
      "remove these latents, which no other run may be using, with `cd {} && rm -r -- {}`{}, and the same command "
      "makes them anew",
      shell_word((cache / "rows").string()), fmt::join(words, " "),
      are_too_many ? " (the next start names the others)" : "");
  if (2 * folders.size() > known)
    return "is it the cache of other data? then choose another encode.cache; if not, their rows are others now: " +
           removal;
  return "their rows are others now: " + removal + "; or choose another encode.cache";
}

bool has_changed(const Encoded& encoded, const Archive& archive) {
  return encoded.bytes != 0 && archive.bytes != 0 && encoded.bytes != archive.bytes;
}

[[noreturn]] void refuse_changed(const fs::path& cache, const Manifest& manifest, const std::vector<Encoded>& encoded) {
  constexpr std::size_t most_named = 3;
  std::vector<std::string> first, folders;
  for (std::size_t i = 0; i < encoded.size(); ++i) {
    const Archive& archive = manifest.archives[i];
    if (!has_changed(encoded[i], archive)) continue;
    folders.push_back(latent_folder(cache, archive.name).filename().string());
    if (first.size() < most_named)
      first.push_back(fmt::format("{} ({} bytes, now {})", archive.name, encoded[i].bytes, archive.bytes));
  }
  if (folders.size() > first.size()) first.emplace_back("...");
  const auto unknown = static_cast<std::size_t>(std::ranges::count(encoded, 0, &Encoded::bytes));
  throw Error(
      Exit::usage,
      fmt::format("encode.cache: {} of {} archives have another size than when their latents in {} were made: {}",
                  folders.size(), encoded.size(), cache.string(), fmt::join(first, ", ")),
      cure_for_changed(cache, folders, encoded.size() - unknown));
}

// Without what signs it, and when: that differs from start to start.
std::string address_of(const std::string& path) {
  return without_secrets(path.substr(0, path.find('?')));
}

void warn_of_moved(const fs::path& cache, const Manifest& manifest, const std::vector<Encoded>& encoded) {
  std::size_t moved = 0;
  std::string first;
  for (std::size_t i = 0; i < encoded.size(); ++i) {
    const auto now = address_of(manifest.archives[i].path), then = address_of(encoded[i].path);
    if (manifest.archives[i].bytes > 0 || then.empty() || then == now) continue;
    if (moved++ == 0) first = fmt::format("{}, now {}", then, now);
  }
  if (moved > 0)
    log::warning(
        "encode.cache: {} of {} archives lie elsewhere than when their latents in {} were made ({}), and nobody knows "
        "their sizes: are they the same data? Others' latents would be taken for theirs: then choose another cache",
        moved, encoded.size(), cache.string(), first);
}

}  // namespace

void check_archives(const fs::path& cache, const Manifest& manifest, StorageRetry::Seconds retry_for) {
  StorageRetry retry(retry_for);
  std::vector<Encoded> encoded(manifest.archives.size());
  retry.run([&] {
    for_each_finished(cache, manifest, [&](std::size_t i, const CacheManifest::Entry& entry) {
      const auto& then = entry.archive;
      if (then.bytes == manifest.archives[i].bytes) encoded[i] = {then.bytes, then.bytes == 0 ? then.path : ""};
    });
  });
  std::atomic<bool> is_changed = false;
  parallel_for(encoded.size(), [&](std::size_t i) {
    if (stop::requested()) fail(Exit::requeue, "told to stop while the archives in {} were looked at", cache.string());
    const Archive& archive = manifest.archives[i];
    if (encoded[i].bytes != 0 || !encoded[i].path.empty()) return;
    encoded[i] = retry.run([&] { return find_encoded(cache, archive); });
    if (has_changed(encoded[i], archive)) is_changed = true;
  });
  if (is_changed) refuse_changed(cache, manifest, encoded);
  warn_of_moved(cache, manifest, encoded);
}

}  // namespace millrace
