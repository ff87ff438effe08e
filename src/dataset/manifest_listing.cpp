#include <fmt/ranges.h>
#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "millrace/core/text.h"
#include "millrace/dataset/manifest.h"

namespace millrace {

namespace {

// Archive -> size, limit, as they stand in the listing.
using Entries = std::map<std::string_view, std::pair<std::string_view, std::string_view>>;

// Names may hold anything but a line end; size and limit stand behind the last two tabs.
Entries parse(std::string_view listing) {
  Entries entries;
  while (!listing.empty()) {
    std::string_view line = take_until(listing, '\n');
    const std::size_t limit = line.rfind('\t');
    if (limit == line.npos || limit == 0) continue;
    const std::size_t bytes = line.rfind('\t', limit - 1);
    if (bytes == line.npos) continue;
    entries[line.substr(0, bytes)] = {line.substr(bytes + 1, limit - bytes - 1), line.substr(limit + 1)};
  }
  return entries;
}

void describe(std::vector<std::string>& lines, const char* what, const std::vector<std::string>& archives) {
  constexpr std::size_t shown = 5;
  if (archives.empty()) return;
  const std::vector<std::string> first(archives.begin(), archives.begin() + std::min(shown, archives.size()));
  lines.push_back(fmt::format("{} {}: {}{}", archives.size(), what, fmt::join(first, ", "),
                              archives.size() > shown ? ", ..." : ""));
}

}  // namespace

std::string Manifest::listing() const {
  std::string text;
  for (const Archive& archive : archives) {
    text += fmt::format("{}\t{}\t{}\n", archive.name, archive.bytes,
                        archive.limit ? static_cast<std::int64_t>(*archive.limit) : -1);
  }
  return text;
}

Hash128 Manifest::digest() const {
  return hash128(listing());
}

std::vector<std::string> listing_changes(std::string_view before, std::string_view after) {
  const Entries old_entries = parse(before), new_entries = parse(after);
  std::vector<std::string> added, removed, resized, limited;
  for (const auto& [name, entry] : new_entries) {
    const auto old_entry = old_entries.find(name);
    if (old_entry == old_entries.end()) {
      added.emplace_back(name);
    } else if (old_entry->second.first != entry.first) {
      resized.push_back(fmt::format("{} ({} -> {} bytes)", name, old_entry->second.first, entry.first));
    } else if (old_entry->second.second != entry.second) {
      limited.emplace_back(name);
    }
  }
  for (const auto& [name, entry] : old_entries) {
    if (!new_entries.contains(name)) removed.emplace_back(name);
  }
  std::vector<std::string> lines;
  describe(lines, "archives added", added);
  describe(lines, "archives removed", removed);
  describe(lines, "archives of another size", resized);
  describe(lines, "archives with another limit", limited);
  return lines;
}

}  // namespace millrace
