#include "millrace/train/balance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "millrace/train/metrics.h"

namespace millrace {
namespace {

constexpr double is_little = 0.05, is_much = 0.5;  // of the time

std::string count(int number, std::string_view what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

// How many would do as much with equal shares.
double worth_of(const RoleCounts& roles) {
  if (roles.all_in_one || roles.stripes == 0 || roles.producers == 0) return roles.producers;
  const int most = (roles.stripes + roles.producers - 1) / roles.producers;
  return static_cast<double>(roles.stripes) / most;
}

// What one producer makes in a second when trainers take all of it: its encoder also waits for samples. 0 = unknown.
double images_per_second_of_one(const Balance& b, const RoleCounts& roles) {
  const double own_time = b.stages.encode + b.stages.encode_wait;
  return own_time > 0 ? b.encode_images_per_second / roles.producers * b.stages.encode / own_time : 0;
}

// Where the time of the producers that set the pace goes while trainers wait: those with fewer stripes wait for them.
Bottleneck slow_stage(const Balance& b, const RoleCounts& roles) {
  auto s = b.stages;
  s.send_wait -= 1 - worth_of(roles) / std::max(1, roles.producers);
  const double most = std::max({s.encode, s.encode_wait, s.send, s.send_wait});
  if (s.send_wait == most) return Bottleneck::shared_hardware;
  if (s.send == most) return Bottleneck::sending;
  return s.encode == most && b.encode_images_per_second > 0 ? Bottleneck::encoding : Bottleneck::reading;
}

std::string cure_of_slow_reading(const StageShares& stages, const RoleCounts& roles) {
  const auto what = slowest_reading(stages);
  const auto more = roles.all_in_one ? "ranks" : "producer ranks";
  return what == "reading"
             ? fmt::format("reading holds the producers back: faster storage, more data.threads, or more {}", more)
             : fmt::format("{} holds the producers back: more data.threads where processors are idle, or more {}", what,
                           more);
}

std::string cure_of(const Judgement& j, const Balance& b, const RoleCounts& roles) {
  switch (j.bottleneck) {
    case Bottleneck::encoding:
      if (roles.all_in_one)
        return "encoding holds them back: encode.cache keeps encodings for the next epochs, roles.producers gives "
               "encoders ranks of their own";
      if (j.producers == roles.producers)
        return fmt::format(
            "encoding holds them back, and each encoder has one of the {} stripes: more encoders take a larger "
            "data.stripes, in a new run (trainers could take {:.0f} img/s)",
            roles.stripes, j.could_take);
      if (j.wants_stripes)
        return fmt::format(
            "{} would help, but not balance: each then has one of the {} stripes, and more encoders take a larger "
            "data.stripes, in a new run (trainers could take {:.0f} img/s)",
            count(j.producers - roles.producers, "more encoder rank"), roles.stripes, j.could_take);
      return fmt::format("{} would balance (trainers could take {:.0f} img/s)",
                         count(j.producers - roles.producers, "more encoder rank"), j.could_take);
    case Bottleneck::reading:
      return cure_of_slow_reading(b.stages, roles);
    case Bottleneck::sending:
      return "the network holds the producers back";
    default:
      return roles.all_in_one ? "and encoders for the trainers: they share the same processors"
                              : "and producers for them: do they share processors, or is the network slow?";
  }
}

}  // namespace

int producers_worth(double ranks, int stripes) {
  const double least = std::max(ranks - rank_tolerance, rank_tolerance);
  if (stripes == 0 || least > stripes) return static_cast<int>(std::ceil(least));
  const int most = static_cast<int>(stripes / least);  // stripes of a producer that keeps up
  return (stripes + most - 1) / most;
}

void Balance::add(const Balance& other, double factor) {
  images_per_second += factor * other.images_per_second;
  trainers_wait += factor * other.trainers_wait;
  encode_images_per_second += factor * other.encode_images_per_second;
  stages.add(other.stages, factor);
}

Balance balance_of(const Metrics& m) {
  return {m.images_per_second, m.wait_share(), m.encode_images_per_second, m.stages};
}

Judgement judge(const Balance& b, const RoleCounts& roles) {
  const double of_one = images_per_second_of_one(b, roles);
  if (b.trainers_wait > is_little) {
    Judgement slow{.bottleneck = slow_stage(b, roles),
                   .could_take = b.images_per_second / std::max(0.01, 1 - b.trainers_wait)};
    if (slow.bottleneck == Bottleneck::encoding && !roles.all_in_one) {
      const double needed = std::max(roles.producers + 1.0, slow.could_take / of_one);
      slow.producers = producers_worth(needed, roles.stripes);
      slow.wants_stripes = roles.stripes > 0 && slow.producers > roles.stripes;
      if (slow.wants_stripes) slow.producers = roles.stripes;
    }
    return slow;
  }
  if (roles.all_in_one || b.stages.send_wait <= is_much) return {};
  // Of producers that encode nothing the share of their time that is not spent waiting is all that is known.
  const double busy = of_one > 0 ? b.images_per_second / of_one : roles.producers * (1 - b.stages.send_wait);
  const int enough = std::min(roles.producers, producers_worth(busy, roles.stripes));
  if (enough < roles.producers) return {.bottleneck = Bottleneck::more_producers, .producers = enough};
  if (of_one <= 0 || b.images_per_second <= 0) return {};
  const double of_one_trainer = b.images_per_second / roles.trainers;
  const auto served = static_cast<int>(of_one * worth_of(roles) / of_one_trainer + rank_tolerance);
  return {.producers = enough, .trainers = served > roles.trainers ? served : 0};
}

std::string describe(const Balance& b, const RoleCounts& roles) {
  const auto j = judge(b, roles);
  const auto what = b.encode_images_per_second > 0 ? "encoder" : "producer";
  if (b.trainers_wait > is_little)
    return fmt::format("trainers wait {:.0f}% for samples: {}", 100 * b.trainers_wait, cure_of(j, b, roles));
  const auto waiting = fmt::format("producers wait {:.0f}%", 100 * b.stages.send_wait);
  if (j.bottleneck == Bottleneck::more_producers)
    return fmt::format("{}: {} {} enough for {}", waiting, count(j.producers, what), j.producers == 1 ? "is" : "are",
                       count(roles.trainers, "trainer"));
  if (j.trainers > 0)
    return fmt::format("{}: {} would be enough for {}", waiting, count(roles.producers, what),
                       count(j.trainers, "trainer"));
  return "producers keep up with the trainers";
}

}  // namespace millrace
