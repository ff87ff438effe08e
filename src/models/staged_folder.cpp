#include "staged_folder.h"

#include <fmt/format.h>

#include <fstream>
#include <system_error>

#include "millrace/core/abandoned.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/storage_error.h"
#include "millrace/io/json.h"
#include "millrace/models/weights.h"

namespace millrace {

namespace {

// Where a link leads; of one that leads nowhere, itself.
fs::path behind_links(const fs::path& path) {
  return fs::is_symlink(path) ? fs::weakly_canonical(path) : path;
}

void refuse_used(const fs::path& path) {
  if (fs::is_symlink(path))
    throw Error(Exit::usage, fmt::format("{} is a link to a folder that is not there", path.string()),
                "make that folder, or choose another one");
  if (!fs::exists(path)) return;
  if (fs::is_directory(path) && fs::is_empty(path)) return;
  throw Error(Exit::usage, fmt::format("{} exists already", path.string()),
              "choose another folder, or remove this one");
}

// What killed processes have left of the same folder, which may be gigabytes. Where that cannot be told or removed, it
// stays.
void remove_leftovers(const fs::path& final_path) {
  const fs::path parent = final_path.has_parent_path() ? final_path.parent_path() : fs::path(".");
  std::error_code ignored;
  for (const auto& entry : list_folder(parent, ignored))
    if (entry.path().stem() == final_path.filename() && is_abandoned(entry)) fs::remove_all(entry.path(), ignored);
}

void copy_file_durably(const fs::path& source, const fs::path& target) {
  std::ifstream in(source, std::ios::binary);
  if (!in) fail_errno("cannot open", source);
  AtomicFile out(target);
  std::string piece(1 << 20, '\0');
  while (in.read(piece.data(), static_cast<std::streamsize>(piece.size())) || in.gcount() > 0) {
    out.write(piece.data(), static_cast<std::size_t>(in.gcount()));
  }
  if (in.bad()) fail_errno("cannot read", source);
  out.commit();
}

// diffusers cannot load variants from a folder that holds a file without a dot in its name (LICENSE, DONE); hidden
// files are the download tools' own.
bool is_wanted(const std::string& name) {
  return name.find('.') != std::string::npos && name.front() != '.';
}

// Whether loaders that choose nothing find safetensors here.
bool has_plain_weights(const fs::path& folder) {
  for (const auto stem : {diffusers_stem, transformers_stem})
    for (const char* ending : {".safetensors", ".safetensors.index.json"})
      if (fs::exists(folder / fmt::format("{}{}", stem, ending))) return true;
  return false;
}

// The weights again, of which repositories hold gigabytes: pickled or of other frameworks, and rounded to half
// precision.
bool is_second_copy(const std::string& name) {
  for (const char* ending : {".bin", ".bin.index.json", ".ckpt", ".msgpack", ".h5", ".onnx"})
    if (name.ends_with(ending)) return true;
  return name.find(".fp16") != std::string::npos;
}

}  // namespace

StagedFolder::StagedFolder(fs::path final_path) : final_(behind_links(without_last_slash(std::move(final_path)))) {
  refuse_used(final_);
  remove_leftovers(final_);
  temporary_ = make_temporary_directory(final_);
}

StagedFolder::~StagedFolder() {
  std::error_code ignored;  // the next one removes what is left, and destructors do not throw
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

fs::path StagedFolder::subfolder(const fs::path& name) const {
  const fs::path path = temporary_ / name;
  make_directories(path);
  return path;
}

void StagedFolder::publish() {
  for (const auto& entry : fs::recursive_directory_iterator(temporary_)) {
    if (entry.is_directory()) fsync_directory(entry.path());
  }
  publish_directory(temporary_, final_);
  temporary_.clear();
}

void write_json(const fs::path& path, const nlohmann::json& json) {
  write_file_atomically(path, format_json(json));
}

bool is_copied(const fs::path& file) {
  const std::string name = file.filename().string();
  return is_wanted(name) && !(is_second_copy(name) && has_plain_weights(file.parent_path()));
}

void copy_folder(const fs::path& source, const fs::path& target) {
  make_directories(target);
  for (const auto& entry : fs::directory_iterator(source)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory()) {
      if (name.front() != '.') copy_folder(entry.path(), target / name);
    } else if (is_copied(entry.path())) {
      copy_file_durably(entry.path(), target / name);
    }
  }
}

}  // namespace millrace
