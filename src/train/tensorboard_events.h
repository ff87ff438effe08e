#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace millrace {

// The bytes of one record, and of the events in it; the tests compare them with the published ones.
std::string tensorboard_record(std::string_view event);
std::string tensorboard_version_event(double wall_time);
// Older files hold nothing any more from `step` on.
std::string tensorboard_start_event(double wall_time, std::int64_t step);
std::string tensorboard_scalar_event(double wall_time, std::int64_t step, std::string_view tag, float value);
std::string tensorboard_image_event(double wall_time, std::int64_t step, std::string_view tag, std::string_view png,
                                    int height, int width);
std::string tensorboard_text_event(double wall_time, std::int64_t step, std::string_view tag, std::string_view text);

}  // namespace millrace
