#include "millrace/loader/rejected_list.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/hash.h"
#include "millrace/core/json_text.h"
#include "millrace/core/log.h"
#include "millrace/core/run_files.h"
#include "millrace/core/secrets.h"
#include "millrace/core/storage_error.h"

namespace millrace {

using nlohmann::ordered_json;

namespace {

constexpr std::size_t max_text = 1000;  // what an archive says may be long
constexpr std::size_t min_lines_of_archive = 20;
constexpr const char* cut_note =
    "from here on of each archive only the 1st, 10th, 100th... rejected row; ledger.json counts all";
constexpr const char* suffix = ".jsonl";

std::string clip(std::string_view text) {
  return std::string(text.substr(0, max_text));
}

std::string to_line(const ordered_json& object) {
  return dump_any(object) + "\n";
}

ordered_json describe(const Rejected& row, const Archive& archive, const std::string& path) {
  const SampleRef& ref = row.ref;
  const auto id = std::string_view(ref.id);
  const bool has_key = id.starts_with(archive.name + "/");
  return {{"archive", path},
          {"index", ref.row},
          {"key", has_key ? ordered_json(clip(id.substr(archive.name.size() + 1))) : ordered_json()},
          {"offset", ref.offset ? ordered_json(*ref.offset) : ordered_json()},
          {"reason", to_string(row.reason)},
          {"detail", clip(without_secrets(row.detail))}};
}

}  // namespace

bool is_power_of_ten(std::uint64_t number) {
  while (number >= 10 && number % 10 == 0) number /= 10;
  return number == 1;
}

RejectedList::RejectedList(const fs::path& folder, int rank, const Manifest& manifest, std::size_t max_lines)
    : folder_(folder),
      path_(folder / (rank_name(rank) + suffix)),
      manifest_(manifest),
      max_lines_(max_lines),
      max_lines_of_archive_(
          std::max(min_lines_of_archive, max_lines / std::max<std::size_t>(1, manifest.archives.size()))) {}

RejectedList::~RejectedList() {
  if (fd_ >= 0) ::close(fd_);
}

void RejectedList::add(const Rejected& row) {
  if (row.reason == RejectReason::filtered) return;
  std::lock_guard lock(mutex_);
  if (given_up_) return;
  try {
    if (fd_ < 0) open();
    const Archive& archive = manifest_.archives.at(row.ref.archive);
    const std::string path = without_secrets(archive.path);
    const std::uint64_t name = hash64(path);
    if (listed_.contains({name, row.ref.row})) return;
    if (lines_ == max_lines_) append(to_line({{"cut", true}, {"rows", lines_}, {"note", cut_note}}));
    const std::uint64_t number = ++rejected_[name];
    const bool has_room = lines_ < max_lines_ && number <= max_lines_of_archive_;
    if (!has_room && !is_power_of_ten(number)) return;  // see NOTE [What a list leaves out]
    ordered_json line = describe(row, archive, path);
    if (!has_room) line["rejected"] = number;
    listed_.emplace(name, row.ref.row);
    append(to_line(line));
  } catch (const std::exception& error) {  // memory may run out
    given_up_ = true;
    log::warning("{}; rejected rows are no longer listed, only counted", error.what());
  }
}

void RejectedList::open() {
  make_directories(folder_);
  std::error_code error;
  fd_ = open_to_append(path_);
  if (!fs::is_regular_file(path_, error)) fail(Exit::io, "{} is no file", path_.string());
  const std::string content = read_file(path_);
  const std::size_t whole = content.rfind('\n') + 1;  // what stands behind it was left by a killed process
  if (whole < content.size() && ::ftruncate(fd_, static_cast<off_t>(whole)) != 0) fail_errno("cannot write", path_);
  read_listed(std::string_view(content).substr(0, whole));
}

void RejectedList::read_listed(std::string_view content) {
  for (std::size_t end = 0; !content.empty(); content.remove_prefix(end + 1)) {
    end = content.find('\n');
    ++lines_;
    try {
      const auto row = ordered_json::parse(content.substr(0, end));
      if (!row.contains("archive")) continue;
      const std::uint64_t name = hash64(without_secrets(row.at("archive").get<std::string>()));
      listed_.emplace(name, row.at("index").get<std::uint64_t>());
      std::uint64_t& rejected = rejected_[name];
      rejected = row.value("rejected", rejected + 1);
    } catch (const ordered_json::exception&) {
      // Whatever it is, it lists no row.
    }
  }
}

void RejectedList::append(const std::string& line) {
  std::string_view rest = line;
  if (!write_all(fd_, rest)) fail_errno("cannot write", path_);
  ++lines_;
}

}  // namespace millrace
