#include "tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "millrace/core/clock.h"
#include "millrace/core/process_name.h"
#include "tensorboard_events.h"

namespace millrace {

// Viewers read the files of a folder in the order of their names, so a new one must come last, whatever the clocks of
// the hosts say that wrote the others.
static std::int64_t second_of_new_file(const std::filesystem::path& folder) {
  auto second = static_cast<std::int64_t>(unix_seconds());
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    long long of_other = 0;
    if (std::sscanf(entry.path().filename().c_str(), "events.out.tfevents.%lld.", &of_other) == 1)
      second = std::max<std::int64_t>(second, of_other + 1);
  }
  return second;
}

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder, std::int64_t resumed_step,
                                     std::string_view ending) {
  std::filesystem::create_directories(folder);
  file_.emplace(folder / fmt::format("events.out.tfevents.{}.{}.{}.0{}", second_of_new_file(folder), host_name(),
                                     ::getpid(), ending));
  put(tensorboard_version_event(unix_seconds()));
  put(tensorboard_start_event(unix_seconds(), resumed_step + 1));
}

void TensorBoardWriter::put(std::string_view event) {
  file_->add(tensorboard_record(event));
}

void TensorBoardWriter::scalar(std::string_view tag, std::int64_t step, double value) {
  put(tensorboard_scalar_event(unix_seconds(), step, tag, static_cast<float>(value)));
}

void TensorBoardWriter::image(std::string_view tag, std::int64_t step, std::string_view file, int height, int width) {
  put(tensorboard_image_event(unix_seconds(), step, tag, file, height, width));
}

void TensorBoardWriter::text(std::string_view tag, std::int64_t step, std::string_view markdown) {
  put(tensorboard_text_event(unix_seconds(), step, tag, markdown));
}

void TensorBoardWriter::flush() {
  file_->flush();
}

}  // namespace millrace
