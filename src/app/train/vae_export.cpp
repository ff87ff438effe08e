#include "train/vae_export.h"

#include <string>
#include <system_error>

#include "export/export.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/core/process_name.h"
#include "millrace/core/run_files.h"
#include "millrace/io/json.h"
#include "millrace/models/weights.h"

namespace millrace {
namespace {

// Beside the exported folder: tells which VAE this program put there, so that a later export may take its place.
fs::path mark_of_export(const fs::path& run_dir) {
  return run_dir / "pipeline.json";
}

// Of the VAE's weights in an exported folder; empty where they are not.
std::string digest_of_export(const fs::path& folder) {
  for (const char* place : {"vae", "."}) {
    const auto file = folder / place / fmt::format("{}.safetensors", diffusers_stem);
    if (fs::exists(file)) return hash_file(file).hex();
  }
  return {};
}

bool is_own_export(const fs::path& run_dir) {
  const auto mark = mark_of_export(run_dir);
  return fs::exists(mark) && read_json_object(mark).value("vae", "") == digest_of_export(export_of(run_dir));
}

// Somebody has put or changed something there since; also where that cannot be told.
bool holds_newer(const fs::path& folder, const fs::path& mark) {
  std::error_code error;
  const auto then = fs::last_write_time(mark, error);
  if (error) return true;
  const auto is_newer = [&](const fs::path& path) { return fs::last_write_time(path, error) > then || error; };
  if (is_newer(folder)) return true;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (is_newer(entry->path())) return true;
  return static_cast<bool>(error);
}

bool lies_in(const fs::path& path, const fs::path& folder) {
  std::error_code error;
  const auto whole = fs::weakly_canonical(path, error), other = fs::weakly_canonical(folder, error);
  const auto below = whole.lexically_relative(other);
  return !whole.empty() && !other.empty() && !below.empty() && *below.begin() != "..";
}

// Of lives that were killed while they exported; under the lease.
void remove_half_exports(const fs::path& run_dir) {
  const auto start = export_of(run_dir).filename().string() + ".new-";
  std::error_code ignored;
  for (const auto& entry : list_folder(run_dir, ignored))
    if (entry.path().filename().string().starts_with(start)) fs::remove_all(entry.path(), ignored);
}

}  // namespace

fs::path export_of(const fs::path& run_dir) {
  return run_dir / run_file::pipeline;
}

bool holds_the_end(const fs::path& run_dir, const fs::path& checkpoint) {
  if (!fs::exists(run_dir / run_file::done) || !fs::exists(export_of(run_dir))) return false;
  if (!is_checkpoint_of(run_dir, checkpoint)) return true;  // of another run: nothing of it goes here
  // By its name, since the folder may have been moved.
  const auto exported = read_json_object(mark_of_export(run_dir)).value("checkpoint", "");
  return place_of_checkpoint(exported).filename() == place_of_checkpoint(checkpoint).filename();
}

void check_export_folder(const fs::path& run_dir, const fs::path& pipeline) {
  const auto out = export_of(run_dir);
  if (lies_in(pipeline, out))
    throw Error(Exit::usage,
                fmt::format("model.pipeline: {} lies where the trained VAE goes, {}", pipeline.string(), out.string()),
                "choose another run.dir, or move the folder");
  std::error_code ignored;
  if (fs::exists(out, ignored) && !is_own_export(run_dir))
    throw Error(Exit::usage, fmt::format("{} is there, and this run did not write it", out.string()),
                "the trained VAE goes there: move the folder, or choose another run.dir");
}

void export_vae(const CheckpointReader& checkpoint, const fs::path& run_dir) {
  const auto out = export_of(run_dir);
  const fs::path fresh = fmt::format("{}.new-{}", out.string(), process_name());
  const fs::path before = fmt::format("{}.before-{}", out.string(), process_name());
  remove_half_exports(run_dir);
  export_checkpoint({.checkpoint = checkpoint, .out = fresh});
  const bool is_there = fs::exists(out), is_own = is_there && is_own_export(run_dir);
  const bool is_grown = is_own && holds_newer(out, mark_of_export(run_dir));
  if (is_there) publish_directory(out, before);
  write_file_atomically(mark_of_export(run_dir),
                        format_json({{"checkpoint", checkpoint.path().string()}, {"vae", digest_of_export(fresh)}}));
  publish_directory(fresh, out);
  if (is_there && !is_own)
    log::warning("{} was there, and this run did not write it: it is {} now", out.string(), before.string());
  if (is_grown)
    log::warning("{} held files that are newer than what this run exported there: it is {} now", out.string(),
                 before.string());
  std::error_code ignored;  // it is out of the way
  if (is_own && !is_grown) fs::remove_all(before, ignored);
}

}  // namespace millrace
