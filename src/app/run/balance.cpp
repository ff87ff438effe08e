#include "run/balance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace millrace {
namespace {

constexpr double is_little = 0.05, is_much = 0.5;  // of the time

std::string count(long number, std::string_view what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

// Encoders that make so many images a second; at least one.
long encoders_for(double images_per_second, const Balance& b, const Roles& roles) {
  const double of_one = b.encode_images_per_second / static_cast<double>(roles.producers.size());
  return std::max(1L, std::lround(std::ceil(images_per_second / of_one - 0.01)));
}

std::string cure_for_slow_producers(const Balance& b, const Roles& roles) {
  const double could_take = b.images_per_second / std::max(0.01, 1 - b.trainers_wait);
  const std::string_view limit = limiting_stage(b.stages);
  if (limit == "the trainers")
    return roles.all_in_one ? "and encoders for the trainers: they share the same processors"
                            : "and producers for them: do they share processors, or is the network slow?";
  if (limit == "sending") return "the network holds the producers back";
  if (limit != "encoding" || b.encode_images_per_second <= 0)
    return fmt::format("{} holds the producers back: more data.threads, {}", limit,
                       roles.all_in_one ? "or ranks" : "or producer ranks");
  if (roles.all_in_one)
    return "encoding holds them back: encode.cache keeps encodings for the next epochs, roles.producers gives encoders "
           "ranks of their own";
  const auto more = encoders_for(could_take, b, roles) - static_cast<long>(roles.producers.size());
  return fmt::format("{} would balance (trainers could take {:.0f} img/s)",
                     count(std::max(1L, more), "more encoder rank"), could_take);
}

}  // namespace

std::string describe(const Balance& b, const Roles& roles) {
  if (b.trainers_wait > is_little)
    return fmt::format("trainers wait {:.0f}% for samples: {}", 100 * b.trainers_wait,
                       cure_for_slow_producers(b, roles));
  if (!roles.all_in_one && b.stages.send_wait > is_much && b.encode_images_per_second > 0) {
    const auto enough = encoders_for(b.images_per_second, b, roles);
    if (enough < static_cast<long>(roles.producers.size()))
      return fmt::format("producers wait {:.0f}%: {} enough for {}", 100 * b.stages.send_wait,
                         count(enough, "encoder") + (enough == 1 ? " is" : " are"),
                         count(static_cast<long>(roles.trainers.size()), "trainer"));
  }
  return "producers keep up with the trainers";
}

}  // namespace millrace
