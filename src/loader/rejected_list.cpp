#include "millrace/loader/rejected_list.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <string_view>

#include "millrace/core/error.h"
#include "millrace/core/hash.h"
#include "millrace/core/json_text.h"
#include "millrace/core/log.h"
#include "millrace/core/run_files.h"

namespace millrace {

using nlohmann::ordered_json;

namespace {

constexpr std::size_t max_text = 1000;  // what an archive says may be long
constexpr const char* suffix = ".jsonl";

std::string clip(std::string_view text) {
  return std::string(text.substr(0, max_text));
}

std::string to_line(const ordered_json& object) {
  return dump_any(object) + "\n";
}

std::string describe(const Rejected& row, const Archive& archive) {
  const SampleRef& ref = row.ref;
  const auto id = std::string_view(ref.id);
  const bool has_key = id.starts_with(archive.name + "/");
  return to_line({{"archive", archive.path},
                  {"index", ref.row},
                  {"key", has_key ? ordered_json(clip(id.substr(archive.name.size() + 1))) : ordered_json()},
                  {"offset", ref.offset ? ordered_json(*ref.offset) : ordered_json()},
                  {"reason", to_string(row.reason)},
                  {"detail", clip(row.detail)}});
}

}  // namespace

RejectedList::RejectedList(const fs::path& folder, int rank, const Manifest& manifest, std::size_t max_lines)
    : folder_(folder), path_(folder / (rank_name(rank) + suffix)), manifest_(manifest), max_lines_(max_lines) {}

RejectedList::~RejectedList() {
  if (fd_ >= 0) ::close(fd_);
}

void RejectedList::add(const Rejected& row) {
  if (row.reason == RejectReason::filtered) return;
  std::lock_guard lock(mutex_);
  if (closed_) return;
  try {
    if (fd_ < 0) open();
    const Archive& archive = manifest_.archives.at(row.ref.archive);
    if (closed_ || !listed_.emplace(hash64(archive.path), row.ref.row).second) return;
    append(describe(row, archive));
    if (lines_ < max_lines_) return;
    closed_ = true;
    append(to_line({{"cut", true}, {"rows", lines_}, {"note", "no more rows are listed; ledger.json counts all"}}));
  } catch (const std::exception& error) {  // memory may run out
    closed_ = true;
    log::warning("{}; rejected rows are no longer listed, only counted", error.what());
  }
}

void RejectedList::open() {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) fail(Exit::io, "cannot make {}: {}", folder_.string(), error.message());
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) fail_errno("cannot create", path_);
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
      closed_ |= row.contains("cut");
      if (row.contains("archive"))
        listed_.emplace(hash64(row.at("archive").get<std::string>()), row.at("index").get<std::uint64_t>());
    } catch (const ordered_json::exception&) {
      // Whatever it is, it lists no row.
    }
  }
}

void RejectedList::append(const std::string& line) {
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t written = ::write(fd_, rest.data(), rest.size());
    if (written >= 0) {
      rest.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      fail_errno("cannot write", path_);
    }
  }
  ++lines_;
}

}  // namespace millrace
