#include "millrace/checkpoint/line_files.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "abandon.h"
#include "millrace/checkpoint/line_scan.h"
#include "millrace/checkpoint/reader.h"
#include "millrace/core/append_file.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/core/run_files.h"
#include "millrace/io/input_file.h"

namespace millrace {
namespace {

// `use` gets the bytes from `begin` on, in pieces.
template <class Use>
void for_each_block(const InputFile& file, std::uint64_t begin, Use use) {
  while (begin < file.size()) {
    const auto block = read_block(file, begin, line_block);
    if (block.empty()) return;
    use(block);
    begin += block.size();
  }
}

fs::path lines_beyond(const fs::path& file, std::int64_t step) {
  return fmt::format("{}.beyond-{}", file.string(), step_name(step));
}

// The steps that lines of the file were put aside beyond: one, or none.
std::vector<std::int64_t> steps_put_aside(const fs::path& path) {
  std::vector<std::int64_t> steps;
  for (const auto& entry : fs::directory_iterator(path.parent_path())) {
    const auto step = step_of_lines_beyond(entry.path());
    if (step && entry.path().stem() == path.filename()) steps.push_back(*step);
  }
  return steps;
}

// Nor is a link followed to be written to (core/files.h), so none may be shortened.
void shorten(const fs::path& path, std::uint64_t end) {
  if (fs::is_symlink(path)) return;
  std::error_code error;
  if (end < fs::file_size(path)) fs::resize_file(path, end, error);
  if (error) fail(Exit::io, "cannot shorten {}: {}", path.string(), error.message());
}

bool holds_lines_up_to(const fs::path& path, std::int64_t step) {
  return fs::exists(path) && end_of_lines(InputFile(path.string()), step) > 0;
}

// Drops the lines beyond `last_step`, and one that a crash has cut short. Nothing where there is no file.
void drop_lines_beyond(const fs::path& path, std::int64_t last_step) {
  if (fs::exists(path)) shorten(path, end_of_lines(InputFile(path.string()), last_step));
}

// The same, but what goes lies beside the file then.
void put_lines_aside(const fs::path& path, std::int64_t last_step) {
  if (!fs::exists(path)) return;
  const InputFile file(path.string());
  const std::uint64_t end = end_of_lines(file, last_step);
  if (end == file.size()) return;
  AtomicFile rest(lines_beyond(path, last_step));
  for_each_block(file, end, [&](const std::string& block) { rest.write(block); });
  rest.commit();
  shorten(path, end);
}

// Makes the file what it was then, where no save has come since: what it has got meanwhile goes.
void put_lines_back(const fs::path& path) {
  for (const auto step : steps_put_aside(path)) {
    drop_lines_beyond(path, step);
    const auto rest = lines_beyond(path, step);
    AppendFile file(path);
    const auto expect = [&](bool is_written) {
      if (is_written) return;
      file.forget();  // they are still in `rest`
      fail(Exit::io, "cannot put the lines of {} back into {}", rest.string(), path.string());
    };
    for_each_block(InputFile(rest.string()), 0, [&](const std::string& block) {
      file.add(block);
      expect(file.flush());
    });
    expect(file.sync());
    std::error_code error;
    fs::remove(rest, error);
    if (error) fail(Exit::io, "cannot remove {}: {}", rest.string(), error.message());
  }
}

// Event files of lives that went back: gone with what they told, or as all others once the older lines were abandoned.
void settle_event_files(const fs::path& run_dir) {
  const auto folder = run_dir / run_file::tensorboard;
  std::error_code error;
  const auto entries = list_folder(folder, error);
  // What tells which of them were given up goes when this is done: of half of them nobody would know any more.
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
    fail(Exit::io, "cannot read {}: {}", folder.string(), error.message());
  for (const auto& entry : entries) {
    const auto& file = entry.path();
    const auto step = step_of_lines_beyond(file);
    if (!step) continue;
    const bool was_given_up = fs::exists(lines_beyond(run_dir / run_file::metrics, *step));
    if (was_given_up) {
      fs::remove(file, error);
    } else {
      fs::rename(file, file.parent_path() / file.stem(), error);
    }
    if (error && was_given_up) fail(Exit::io, "cannot remove {}: {}", file.string(), error.message());
    if (error) log::warning("TensorBoard will not show all steps: {}: {}", file.string(), error.message());
  }
}

std::int64_t newest_step_in(const fs::path& run_dir) {
  const auto checkpoints = list_checkpoints(run_dir);
  return checkpoints.empty() ? 0 : checkpoints.front().step;
}

}  // namespace

void cut_line_files(const fs::path& run_dir, std::int64_t step, bool elsewhere) {
  abandon_lines(run_dir);
  settle_event_files(run_dir);
  const auto newest = newest_step_in(run_dir);
  for (const char* name : {run_file::metrics, run_file::ids}) {
    const auto file = run_dir / name;
    put_lines_back(file);
    // Of a branch that was killed before its first save all are beyond `step`, and nobody goes on from them.
    const bool is_of_branch = elsewhere && newest == 0 && !holds_lines_up_to(file, step);
    const bool goes_back = newest > step || (elsewhere && !is_of_branch);  // and the next start may go on from there
    const auto last = elsewhere ? 0 : step;
    if (goes_back) {
      put_lines_aside(file, last);
    } else {
      drop_lines_beyond(file, last);
    }
  }
}

std::string ending_of_try(const fs::path& run_dir, std::int64_t step) {
  const auto lines = lines_beyond(run_dir / run_file::metrics, step);
  return fs::exists(lines) ? lines.extension().string() : "";
}

void abandon_lines(const fs::path& run_dir) {
  const auto newest = newest_step_in(run_dir);
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(run_dir))
    if (const auto step = step_of_lines_beyond(entry.path()); step && *step >= newest) files.push_back(entry.path());
  for (const auto& lines : files) abandon(lines);
}

std::optional<std::int64_t> step_of_lines_beyond(const fs::path& file) {
  constexpr std::string_view start = ".beyond-";
  const auto extension = file.extension().string();
  if (!extension.starts_with(start)) return std::nullopt;
  const auto step = step_of_name(std::string_view(extension).substr(start.size()));
  return step && lines_beyond(file.stem(), *step) == file.filename() ? step : std::nullopt;
}

}  // namespace millrace
