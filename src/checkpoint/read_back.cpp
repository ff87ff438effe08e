#include "read_back.h"

#include <chrono>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/hash.h"
#include "millrace/core/stopwatch.h"
#include "millrace/io/input_file.h"

namespace millrace {
namespace {

constexpr int longest_pause_seconds = 16;  // before the last of six attempts, half a minute after the first

std::string digest(const InputFile& file, const std::stop_token& stop) {
  std::vector<std::byte> buffer(4 << 20);
  Hasher128 hasher;
  for (std::uint64_t offset = 0; !stop.stop_requested();) {
    const auto got = file.read_at(offset, buffer);
    if (got == 0) break;
    hasher.update(buffer.data(), got);
    offset += got;
  }
  return hasher.digest().hex();
}

}  // namespace

ReadBack::ReadBack(std::filesystem::path checkpoint, std::vector<CheckpointFile> files)
    : checkpoint_(std::move(checkpoint)), files_(std::move(files)) {
  thread_ = std::jthread([this](const std::stop_token& stop) { read(stop); });
}

void ReadBack::read(const std::stop_token& stop) {
  const Stopwatch watch;
  for (int pause_seconds = 1; !stop.stop_requested(); pause_seconds *= 2) {
    try {
      damage_ = find_damage(pause_seconds > longest_pause_seconds, stop);
      unreadable_.clear();
      break;
    } catch (const std::exception& error) {
      unreadable_ = error.what();
    }
    if (pause_seconds > longest_pause_seconds) break;
    for (const Stopwatch pause; pause.seconds() < pause_seconds && !stop.stop_requested();)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  seconds_ = watch.seconds();
  done_ = true;
}

// Goes on with the file that could not be read the last time. One that is not there may be on its way from another
// node: NFS asks for a folder anew only every half a minute.
std::string ReadBack::find_damage(bool is_last_attempt, const std::stop_token& stop) {
  for (; looked_at_ < files_.size(); ++looked_at_) {
    const auto path = checkpoint_ / files_[looked_at_].name;
    std::error_code code;
    if (!std::filesystem::exists(path, code) && !code) {
      const auto absence = fmt::format("{} is gone", path.string());
      if (is_last_attempt) return absence;
      throw Error(Exit::io, absence);
    }
    drop_cached_pages(path);
    const auto found = digest(InputFile(path.string()), stop);
    if (stop.stop_requested()) break;
    if (found != files_[looked_at_].digest) return fmt::format("{} is not what was written", path.string());
  }
  return {};
}

}  // namespace millrace
