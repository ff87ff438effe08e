#include "millrace/data/rejected_list.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "millrace/core/error.h"
#include "millrace/core/log.h"

namespace millrace {

using nlohmann::ordered_json;

namespace {

constexpr std::size_t longest_text = 1000;  // what an archive says may be long
constexpr const char* suffix = ".jsonl";

std::string clip(std::string_view text) {
  return std::string(text.substr(0, longest_text));
}

std::string to_line(const ordered_json& object) {
  return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
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

// What stands behind the last whole line goes: a killed process left it.
void cut_half_line(int fd, const fs::path& path) {
  const std::string content = read_file(path);
  const auto whole = static_cast<off_t>(content.rfind('\n') + 1);
  if (::ftruncate(fd, whole) != 0) fail_errno("cannot write", path);
}

}  // namespace

RejectedList::RejectedList(const fs::path& folder, int rank, const Manifest& manifest, std::size_t most_lines)
    : folder_(folder),
      path_(folder / fmt::format("rank-{:05d}{}", rank, suffix)),
      manifest_(manifest),
      most_lines_(most_lines) {}

RejectedList::~RejectedList() {
  if (fd_ >= 0) ::close(fd_);
}

void RejectedList::add(const Rejected& row) {
  if (row.reason == Reason::filtered) return;
  std::lock_guard lock(mutex_);
  if (closed_) return;
  try {
    if (fd_ < 0) open();
    if (closed_ || !listed_.emplace(row.ref.archive, row.ref.row).second) return;
    append(describe(row, manifest_.archives.at(row.ref.archive)));
    if (lines_ < most_lines_) return;
    closed_ = true;
    append(to_line({{"cut", true}, {"rows", lines_}, {"note", "no more rows are listed; ledger.json counts all"}}));
  } catch (const Error& error) {
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
  cut_half_line(fd_, path_);
  std::map<std::string, std::uint32_t> archive_of;
  for (std::uint32_t i = 0; i < manifest_.archives.size(); ++i) archive_of[manifest_.archives[i].path] = i;
  for (const auto& entry : fs::directory_iterator(folder_, error))
    if (entry.path().extension() == suffix) read_listed(entry.path(), archive_of);
}

void RejectedList::read_listed(const fs::path& path, const std::map<std::string, std::uint32_t>& archive_of) {
  const bool own = path == path_;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    lines_ += own;
    try {
      const auto row = ordered_json::parse(line);
      closed_ |= own && row.contains("cut");
      const auto archive = archive_of.find(row.value("archive", ""));
      if (archive != archive_of.end()) listed_.emplace(archive->second, row.at("index").get<std::uint64_t>());
    } catch (const ordered_json::exception&) {
      // The line that another process is writing.
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
